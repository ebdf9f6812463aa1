"""Environments by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from envs.base import Suite
from prover_mini.errors import UserError

# each a package here with `load(config) -> Suite`, imported only when it is played
SUITES = ("searchqa", "alfworld", "webshop")


def load_suite(name: str, config: Any) -> Suite:
    """The suite behind `--env name`, set up from the fields of the configuration that concern it. Raises UserError."""
    if name not in SUITES:
        raise UserError(f"env {name!r} is unknown: choose one of {', '.join(SUITES)}")
    return import_module(f"envs.{name}").load(config)
