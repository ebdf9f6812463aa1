"""The closing table of a run: success before and after, acceptance beside chance, what verification cost."""

from __future__ import annotations

import json
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from prover_mini.config import Config

PHASES = ("rollout", "judge", "verify", "train", "eval", "save")  # of a step; time/NAME in its metrics


def closing_table(path: Path, rows: list[dict], config: Config) -> Table:
    """Made from the run's own files, so that a resumed run is summed up whole.

    Args:
        path: the run directory, with at least the first and the last evaluation.
        rows: its metrics, one object per step.
    """

    evaluations = [json.loads(f.read_text()) for f in sorted(path.glob("eval/step_*.json"))]
    table = Table(title=escape(str(path)), show_header=False, title_justify="left")
    for label, e in (("before", evaluations[0]), ("after", evaluations[-1])):
        low, high = e["ci95"]
        success = f"{e['success_rate']:.3f}  95 % [{low:.3f}, {high:.3f}]  n {e['n']}"
        table.add_row(f"success {label} (step {e['step']})", success)
        for kind, r in e["by_kind"].items():
            table.add_row(escape(f"  {kind}"), f"{r['success_rate']:.3f}  n {r['n']}")

    f = figures(rows)
    method = f"{config.credit}, judge {config.judge}" if f["judge_calls"] else config.credit
    table.add_row("credit", method + (", budget matched" if config.budget_matched else ""))
    counts = f"{f['eligible']} / {f['proposed']} / {f['verified']} of {len(rows) * config.groups_per_step}"
    table.add_row("groups: eligible / proposed / verified", counts)
    if f["judge_tokens"] or f["judge_failures"]:
        asked = f"{f['judge_calls']} / {f['judge_failures']} / {f['judge_tokens']}"
        table.add_row("judge: calls / failures / tokens", asked)
    if f["verified"]:
        table.add_row("acceptance / chance alone", f"{f['acceptance']:.3f} / {f['chance']:.3f}")
    tokens = f"{f['rollout_tokens']} / {f['continuation_tokens']} (+{f['token_overhead']:.1%})"
    table.add_row("tokens: rollout / continuations", tokens)
    if config.budget_matched:
        table.add_row("tokens: extra rollouts", f"{f['extra_tokens']}")
    seconds = f"{f['training_seconds']:.0f} / {f['checking_seconds']:.0f} (+{f['time_overhead']:.1%})"
    table.add_row("seconds: rollout and update / judge and verification", seconds)
    if f["idle_share"]:
        table.add_row("idle share of the ranks", f"{f['idle_share']:.1%}")
    table.add_row("largest |trainer - sampler| log-prob", f"{f['largest_gap']:.1e}")
    return table


def figures(rows: list[dict]) -> dict:
    """What some steps amount to; ratios of counts that are 0 are None, a field that an older run lacks counts 0.

    `token_overhead`: tokens of continuations over those of rollouts. `time_overhead`: seconds of judge and verification
    over those of everything else but evaluations. `chance`: the acceptance that segments without effect would have.
    `idle_share`: what the mean rank spends waiting for others or exchanging data, of all the time of the steps.
    """

    def total(name: str) -> float:
        return sum(row.get(name) or 0 for row in rows)

    verified, generated, continued = total("prover/verified"), total("tokens/rollout"), total("tokens/continuation")
    checking = total("time/judge") + total("time/verify")
    training = total("time/total") - total("time/eval") - checking
    chance = sum((row.get("prover/null_rate") or 0) * (row.get("prover/verified") or 0) for row in rows)
    return {
        "judge_calls": total("judge/calls"),
        "judge_failures": total("judge/failures"),
        "judge_tokens": total("judge/prompt_tokens") + total("judge/reply_tokens"),
        "eligible": total("prover/eligible"),
        "proposed": total("prover/proposed"),
        "verified": verified,
        "accepted": total("prover/accepted"),
        "acceptance": total("prover/accepted") / verified if verified else None,
        "chance": chance / verified if verified else None,
        "rollout_tokens": generated,
        "continuation_tokens": continued,
        "extra_tokens": total("tokens/extra_rollout"),
        "token_overhead": continued / max(generated, 1),
        "training_seconds": training,
        "checking_seconds": checking,
        "cpu_seconds": total("time/cpu"),
        "time_overhead": checking / max(training, 1e-9),
        "idle_share": total("time/idle") / max(total("time/total"), 1e-9),
        "largest_gap": max((row["mismatch_max"] for row in rows if row.get("mismatch_max") is not None), default=0.0),
    }
