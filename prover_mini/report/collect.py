"""The files of a run as what the page shows: figures, curves, evaluations, groups.

Fields that a run lacks, because an older version wrote it, are left out of what is shown. A run that still goes on is
read as far as it is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prover_mini.errors import UserError
from prover_mini.files import read_metrics
from prover_mini.summary import PHASES, figures

PLAIN = (
    "success_rate", "reward/mean", "loss/policy", "grad_norm", "entropy", "kl", "clip_frac", "mismatch_max",
    "mismatch_kl", "turns/mean", "frac_zero_std", "env/error_rate", "env/invalid_action_rate", "env/truncated_rate",
    "judge/failures",
)  # fmt: skip
SMOOTHED = ("acceptance", "chance", "token_overhead", "time_overhead")


@dataclass
class Group:
    """The records of one group, in order of their samples, and the line that stands for it in the page's list.

    `proposal`: the judge's dialogue about it, where it was recorded (judge/*.jsonl).
    """

    step: int
    index: int
    records: list[dict]
    proposal: dict | None = None

    @property
    def segments(self) -> list[dict]:
        return [r["segment"] for r in self.records if r.get("segment")]

    def line(self) -> dict:
        """`outcomes` is a letter per trajectory: Success, Failure, Error. `failed`: the judge gave no usable answer."""
        first = self.records[0]
        return {
            "step": self.step,
            "index": self.index,
            "task": first["task_id"],
            "kind": first.get("kind", ""),
            "outcomes": "".join("E" if r.get("error") else "S" if r["success"] else "F" for r in self.records),
            "segments": [brief(s) for s in self.segments],
            "failed": bool(self.proposal and self.proposal["outcome"] == "failure"),
        }


def brief(segment: dict) -> dict:
    """`before`, `after`: [successes, continuations], null where the segment was not verified."""
    sides = [None if s is None else [sum(r > 0 for r in s), len(s)] for s in (segment["pre"], segment["post"])]
    return {"delta": segment["delta"], "accepted": segment["accepted"], "before": sides[0], "after": sides[1]}


def nothing(constant: str) -> None:
    """Stands for NaN and infinities, which JSON does not have and browsers refuse."""


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=nothing)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


def collect(path: Path) -> tuple[dict, list[dict], list[Group]]:
    """What the page shows of one run, its metrics and its groups, both in order of steps.

    Raises UserError for what is no run directory.
    """
    if not (path / "config.json").is_file():
        raise UserError(
            f"{path}: is no run directory (it has no config.json); name one such as runs/searchqa-prover-001"
        )
    config, rows = read_json(path / "config.json"), read_metrics(path / "metrics.jsonl")
    if not isinstance(config, dict):
        raise UserError(f"{path}: config.json is not what a run writes")
    evaluations = [read_json(file) for file in sorted(path.glob("eval/step_*.json"))]
    groups = [group for file in sorted(path.glob("rollouts/step_*.jsonl")) for group in read_groups(file)]
    proposals = [
        (step_of(file), proposal)
        for file in sorted(path.glob("judge/step_*.jsonl"))
        for proposal in read_lines(file, ("group", "outcome", "exchanges"))
    ]
    group_at = {(g.step, g.index): g for g in groups}
    for step, proposal in proposals:
        if (step, proposal["group"]) in group_at:  # a step that goes on has no trajectories yet
            group_at[step, proposal["group"]].proposal = proposal
    try:
        run = {
            "name": path.resolve().name,
            "config": config,
            "command": text_of(path / "command.txt"),
            "commit": text_of(path / "git.txt").partition("\n")[0],
            "figures": figures(rows),
            "evaluations": [evaluation(e) for e in evaluations],
            "groups": [g.line() for g in groups],
            "deltas": [s["delta"] for g in groups for s in g.segments if s["delta"] is not None],
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: its files are not what a run writes ({error!r})") from None
    return run, rows, groups


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def step_of(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def read_lines(path: Path, names: tuple[str, ...]) -> list[dict]:
    """The objects of a JSONL file. Raises UserError for a line that is none or lacks one of the names."""
    found = []
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            try:
                found.append(json.loads(line, parse_constant=nothing))
                [found[-1][name] for name in names]
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path}, line {number}: is not what a run writes there") from None
    return found


def read_groups(path: Path) -> list[Group]:
    """The groups of one step."""
    groups: dict[int, list[dict]] = defaultdict(list)
    for record in read_lines(path, ("group", "task_id", "success", "turns")):
        groups[record["group"]].append(record)
    return [Group(step_of(path), index, records) for index, records in sorted(groups.items())]


def curves(rows: list[dict], window: int) -> dict:
    """Columns over steps. Rates of few segments are noisy: `SMOOTHED` ones, and the success of the training tasks, are
    those of the last `window` steps together."""
    recent = [rows[max(0, i + 1 - window) : i + 1] for i in range(len(rows))]
    amounts = [figures(part) for part in recent]
    phases = [name for name in PHASES if any(f"time/{name}" in row for row in rows)]
    success = [[row.get("success_rate") or 0 for row in part] for part in recent]
    return {
        "window": window,
        "step": [row["step"] for row in rows],
        "success_smooth": [sum(part) / len(part) for part in success],
        **{name: [row.get(name) for row in rows] for name in PLAIN},
        **{name: [amount[name] for amount in amounts] for name in SMOOTHED},
        "verified": [row.get("prover/verified") for row in rows],
        "phases": {name: [row.get(f"time/{name}") or 0 for row in rows] for name in phases},
    }


def evaluation(e: dict) -> dict:
    kinds = {kind: [r["success_rate"], r["n"]] for kind, r in e.get("by_kind", {}).items()}
    return {
        "step": e["step"],
        "success": e["success_rate"],
        "n": e["n"],
        "ci95": e["ci95"],
        "kinds": kinds,
        "panel": e.get("panel"),
    }
