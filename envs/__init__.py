"""Environments by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from envs.base import Suite
from prover_mini.errors import UserError

# the package or module that has `load(config) -> Suite`, imported only when it is played; or that function itself
SUITES: dict[str, str | Callable[[Any], Suite]] = {
    "searchqa": "envs.searchqa",
    "alfworld": "envs.alfworld",
    "webshop": "envs.webshop",
}


def load_suite(name: str, config: Any) -> Suite:
    """The suite behind `--env name`, set up from the fields of the configuration that concern it. Raises UserError."""
    if name not in SUITES:
        raise UserError(f"env {name!r} is unknown: choose one of {', '.join(SUITES)}")
    load = SUITES[name]
    return import_module(load).load(config) if isinstance(load, str) else load(config)
