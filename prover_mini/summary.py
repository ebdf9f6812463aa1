"""The closing table of a run: success before and after, acceptance beside chance, what verification cost."""

from __future__ import annotations

import json
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from prover_mini.config import Config


def closing_table(path: Path, rows: list[dict], config: Config) -> Table:
    """Made from the run's own files, so that a resumed run is summed up whole.

    Args:
        path: the run directory, with at least the first and the last evaluation.
        rows: its metrics, one object per step.
    """

    def total(name: str) -> float:
        return sum(row[name] for row in rows)

    evaluations = [json.loads(f.read_text()) for f in sorted(path.glob("eval/step_*.json"))]
    table = Table(title=escape(str(path)), show_header=False, title_justify="left")
    for label, e in (("before", evaluations[0]), ("after", evaluations[-1])):
        low, high = e["ci95"]
        success = f"{e['success_rate']:.3f}  95 % [{low:.3f}, {high:.3f}]  n {e['n']}"
        table.add_row(f"success {label} (step {e['step']})", success)
        for kind, r in e["by_kind"].items():
            table.add_row(escape(f"  {kind}"), f"{r['success_rate']:.3f}  n {r['n']}")

    method = f"{config.credit}, judge {config.judge}" if total("judge/calls") else config.credit
    table.add_row("credit", method + (", budget matched" if config.budget_matched else ""))
    groups, proposed, verified = len(rows) * config.groups_per_step, total("prover/proposed"), total("prover/verified")
    counts = f"{total('prover/eligible'):.0f} / {proposed:.0f} / {verified:.0f} of {groups}"
    table.add_row("groups: eligible / proposed / verified", counts)
    if verified:
        null = sum(row["prover/null_rate"] * row["prover/verified"] for row in rows) / verified
        table.add_row("acceptance / chance alone", f"{total('prover/accepted') / verified:.3f} / {null:.3f}")

    generated, continued = total("tokens/rollout"), total("tokens/continuation")
    share = f"+{continued / max(generated, 1):.1%}"
    table.add_row("tokens: rollout / continuations", f"{generated:.0f} / {continued:.0f} ({share})")
    if config.budget_matched:
        table.add_row("tokens: extra rollouts", f"{total('tokens/extra_rollout'):.0f}")
    checking = total("time/judge") + total("time/verify")
    training = total("time/total") - total("time/eval") - checking
    share = f"+{checking / max(training, 1e-9):.1%}"
    table.add_row("seconds: rollout and update / judge and verification", f"{training:.0f} / {checking:.0f} ({share})")
    gaps = [row["mismatch_max"] for row in rows if row["mismatch_max"] is not None]
    table.add_row("largest |trainer - sampler| log-prob", f"{max(gaps, default=0.0):.1e}")
    return table
