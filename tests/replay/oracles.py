"""Golden values of published trainers, replayed: `python -m tests.replay oracles DIR [--kernels {torch,triton}]`.

DIR holds JSON and NPZ files of inputs and outputs: policy losses with gradients, importance weights, advantages,
ProVer token streams, exact-match scores, log-probs. Compared in float64 (rtol 1e-6, atol 1e-9). `--kernels triton`
sends losses and log-probs through the Triton kernels under their interpreter, in float32 (rtol 1e-4; 1e-3 where the
log-probs are wild).
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from prover_mini.errors import UserError
from tests.replay.report import Report

# what these files hold beyond the present scope
LATER = {
    "advantages_gigpo.json": ("cases",),
    "advantages_spader.json": ("cases",),
    "advantages_tree.json": ("cases",),
    "credit_other.json": ("dars", "graphgpo", "t2spo", "sharpo", "spader_reward"),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay oracles", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kernels", choices=("torch", "triton"), default="torch")
    options = parser.parse_args(arguments)
    fused = options.kernels == "triton"
    if fused:
        os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels' modules are imported
    from tests.replay import oracle_credit, oracle_logprobs, oracle_losses, oracle_parsing, oracle_scoring

    replays = {
        "policy_losses.json": lambda data, arrays, report: oracle_losses.replay(data, arrays, report, fused),
        "logprob_reference.json": lambda data, arrays, report: oracle_logprobs.replay(data, arrays, report, fused),
        "tis_weights.json": oracle_losses.replay_weights,
        "advantages_outcome.json": oracle_credit.replay_outcome,
        "prover_credit.json": oracle_credit.replay_prover,
        "qa_scoring.json": oracle_scoring.replay,
        "action_parsing.json": oracle_parsing.replay,
    }
    reports = []
    for name, replay in replays.items():
        report = Report(name)
        replay(*load(options.directory, name), report)
        report.show()
        reports.append(report)
    for name, parts in LATER.items():
        report = Report(name)
        data, _ = load(options.directory, name)
        report.not_built.update({part: len(data[part]) for part in parts})
        report.show()
    failures = sum(len(report.failed) for report in reports)
    print(f"{sum(report.cases for report in reports)} cases, {failures} failures, kernels: {options.kernels}")
    return 1 if failures else 0


def load(directory: Path, name: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The JSON file and the arrays of the NPZ file with the same stem (empty where there is none)."""
    path = directory / name
    if not path.is_file():
        raise UserError(f"{path} is missing: give a directory in the layout of the oracle files")
    try:
        data = json.loads(path.read_text())
        npz = path.with_suffix(".npz")
        arrays = dict(np.load(npz, allow_pickle=False)) if npz.exists() else {}
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return data, arrays
