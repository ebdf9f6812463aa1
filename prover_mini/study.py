"""What a study says: methods over seeds at equal updates and at equal generated tokens, and alignments, as files.

    table.md, results.json   success with 95 % t intervals over seeds; paired differences to `grpo`, of the last
                             evaluation and of the mean along the learning curve, which is less noisy; what it cost
    curves.svg               success on the test panel against generated tokens and against updates

"Generated tokens" are all that the policy sampled in training: rollouts, extra rollouts and continuations. At equal
tokens, every cell's evaluations are interpolated linearly at the smallest total of all cells, so that the comparison
needs evaluations close to each other (`--eval-every`).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prover_mini.config import Config
from prover_mini.errors import UserError
from prover_mini.files import lost_lines, read_metrics, write_text
from prover_mini.run import git_state
from prover_mini.summary import figures

BASELINE = "grpo"
COSTS = (
    "tokens", "continuation_tokens", "judge_calls", "judge_failures", "judge_tokens", "training_seconds",
    "checking_seconds", "cpu_seconds",
)  # fmt: skip
# 97.5 % points of Student's t for 1..30 degrees of freedom
T_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


@dataclass
class Curve:
    """One cell: evaluations after `steps` updates and `tokens` generated tokens, and what its run amounts to."""

    method: str
    seed: int
    steps: list[int]
    tokens: list[int]
    success: list[float]
    totals: dict[str, float]

    def at(self, tokens: float) -> float:
        return float(np.interp(tokens, self.tokens, self.success))

    def mean(self) -> float:
        """Success averaged over the updates, between evaluations on straight lines."""
        return average(self.steps, self.success)

    def mean_until(self, tokens: float) -> float:
        """The same over generated tokens, from none to `tokens`."""
        inside = [n for n, spent in enumerate(self.tokens) if spent < tokens]
        x, y = [self.tokens[n] for n in inside], [self.success[n] for n in inside]
        return average([*x, tokens], [*y, self.at(tokens)])


def read(method: str, seed: int, path: Path) -> Curve:
    """From the run's own files. Raises UserError where these lack what is needed."""
    try:
        rows = read_metrics(path / "metrics.jsonl")
        spent = [0, *itertools.accumulate(generated(row) for row in rows)]
        evaluations = [json.loads(file.read_text()) for file in sorted(path.glob("eval/step_*.json"))]
        steps = [e["step"] for e in evaluations]
        if lost := lost_lines(path / "metrics.jsonl", rows, max(steps)):
            raise UserError(f"{lost}; move the run away to repeat it")
        tokens, success = [spent[step] for step in steps], [float(e["success_rate"]) for e in evaluations]
        return Curve(method, seed, steps, tokens, success, {"tokens": spent[-1], **figures(rows)})
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise UserError(f"{path}: not a finished run of this version ({type(error).__name__}: {error})") from None


def generated(row: dict) -> int:
    return row["tokens/rollout"] + row["tokens/extra_rollout"] + row["tokens/continuation"]


def average(x: list[float], y: list[float]) -> float:
    """Mean height of the line through the points, by trapezoids; the only point's where there is one."""
    return float(np.trapezoid(y, x) / (x[-1] - x[0])) if x[-1] > x[0] else y[-1]


def interval(values: list[float]) -> tuple[float, float | None]:
    """(mean, half width of its 95 % interval by Student's t); no width for a single value."""
    if len(values) < 2:
        return statistics.fmean(values), None
    t = T_975[len(values) - 2] if len(values) - 2 < len(T_975) else 1.96
    return statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values))


def summarise(curves: list[Curve]) -> list[dict]:
    """One row per method, in the order of the curves."""
    common = min(curve.totals["tokens"] for curve in curves)
    baseline = {curve.seed: curve for curve in curves if curve.method == BASELINE}
    rows = []
    for method in dict.fromkeys(curve.method for curve in curves):
        mine = [curve for curve in curves if curve.method == method]
        pairs = [(curve, baseline[curve.seed]) for curve in mine if curve.seed in baseline]
        verified = sum(curve.totals["verified"] for curve in mine)
        by_chance = sum((curve.totals["chance"] or 0) * curve.totals["verified"] for curve in mine)
        row = {
            "method": method,
            "seeds": [curve.seed for curve in mine],
            "common_tokens": common,
            "start": interval([curve.success[0] for curve in mine]),
            "success": interval([curve.success[-1] for curve in mine]),
            "success_at_tokens": interval([curve.at(common) for curve in mine]),
            "difference": None,
            "difference_along": None,
            "difference_at_tokens": None,
            "difference_along_tokens": None,
            "acceptance": sum(curve.totals["accepted"] for curve in mine) / verified if verified else None,
            "chance": by_chance / verified if verified else None,
        }
        if pairs and method != BASELINE:
            row["difference"] = interval([a.success[-1] - b.success[-1] for a, b in pairs])
            row["difference_along"] = interval([a.mean() - b.mean() for a, b in pairs])
            row["difference_at_tokens"] = interval([a.at(common) - b.at(common) for a, b in pairs])
            row["difference_along_tokens"] = interval([a.mean_until(common) - b.mean_until(common) for a, b in pairs])
        rows.append(row | {name: statistics.fmean(curve.totals[name] for curve in mine) for name in COSTS})
    return rows


def lines_of(rows: list[dict]) -> list[list[str]]:
    """The rows as text, header first."""

    def spread(value: tuple[float, float | None] | None, sign: str = "") -> str:
        if value is None:
            return "-"
        mean, half = value
        return f"{mean:{sign}.3f}" + ("" if half is None else f" ± {half:.3f}")

    head = [
        "method", "seeds", "success at equal updates", "to grpo, paired", "along the curve", "success at equal tokens",
        "to grpo, paired", "along the curve", "tokens", "judge calls", "judge tokens", "wall s", "CPU s",
        "acceptance / chance",
    ]  # fmt: skip
    lines = [head]
    for row in rows:
        accepted = "-" if row["acceptance"] is None else f"{row['acceptance']:.2f} / {row['chance']:.2f}"
        lines.append(
            [
                row["method"], str(len(row["seeds"])), spread(row["success"]), spread(row["difference"], "+"),
                spread(row["difference_along"], "+"), spread(row["success_at_tokens"]),
                spread(row["difference_at_tokens"], "+"), spread(row["difference_along_tokens"], "+"),
                f"{row['tokens']:,.0f}", f"{row['judge_calls']:.0f}", f"{row['judge_tokens']:.0f}",
                f"{row['training_seconds'] + row['checking_seconds']:.0f}", f"{row['cpu_seconds']:.0f}", accepted,
            ]
        )  # fmt: skip
    return lines


def report(out: Path, cells: dict[tuple[str, int], Path], command: str) -> None:
    """Writes and prints what the finished cells say."""
    curves = [read(method, seed, path) for (method, seed), path in cells.items()]
    rows = summarise(curves)
    start, half = interval([curve.success[0] for curve in curves])
    notes = [
        f"Success on the test panel, mean ± half a 95 % t interval over seeds, from {start:.3f}. Costs are means per "
        f"run, without evaluations. Equal tokens: interpolated at {rows[0]['common_tokens']:,} generated tokens. Along "
        "the curve: the paired difference of success averaged over all of it, from the start to there."
    ]
    result = {"command": command, "git": git_state(), "rows": rows, "cells": [dataclasses.asdict(c) for c in curves]}
    write_text(out / "results.json", json.dumps(result, indent=1) + "\n")
    page = document("Methods on equal terms", command, lines_of(rows), [*notes, "![curves](curves.svg)"])
    write_text(out / "table.md", page)
    plot(curves, out / "curves.svg")
    show(str(out), lines_of(rows), notes)


def report_alignment(
    out: Path, rows: list[dict], base: Config, methods: dict[str, Config], how: dict, products: dict
) -> None:
    """Writes and prints an alignment; `how` it was made: command, policy, batches, seconds; `products` of gradients."""
    from prover_mini.alignment import table

    notes = [
        f"{how['batches']} batches of {base.groups_per_step} x {base.group_size} by {how['policy']}; "
        f"{how['wall_seconds']:.0f} s, {how['cpu_seconds']:.0f} CPU-s. Change of the cosine with the other batches' "
        "GRPO gradient, ± a standard error, and as a share of what twice the groups change; the same less the change "
        "by random segments; credit's share of the gradient's norm; generated tokens per batch."
    ]
    if rows[1]["change"] < 2 * rows[1]["error"]:
        notes.append("Twice the rollouts do not raise the cosine clearly: too few batches to resolve a method.")
    different = {name: changes(config, base) for name, config in methods.items()}
    result = {**how, "git": git_state(), "config": dataclasses.asdict(base), "methods": different, "rows": rows}
    result["products"] = products
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "alignment.json", json.dumps(result) + "\n")
    write_text(out / "alignment.md", document("Gradient alignment", how["command"], table(rows), notes))
    show(str(out), table(rows), notes)


def changes(config: Config, base: Config) -> dict:
    return {name: value for name, value in dataclasses.asdict(config).items() if value != getattr(base, name)}


def document(title: str, command: str, lines: list[list[str]], notes: list[str]) -> str:
    """Markdown with a table; the first line is its header."""
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    body.insert(1, "|" + "---|" * len(lines[0]))
    return "\n\n".join([f"# {title}", f"    {command}", "\n".join(body), *notes]) + "\n"


def show(title: str, lines: list[list[str]], notes: list[str]) -> None:
    """On the terminal, one line per row whatever its width."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    print(title)
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    print(*notes, sep="\n", flush=True)


def plot(curves: list[Curve], path: Path) -> None:
    """Mean over seeds with the 95 % interval as a band, against generated tokens and against updates."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "prover-mini"  # one study, one file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for method in dict.fromkeys(curve.method for curve in curves):
        mine = [curve for curve in curves if curve.method == method]
        steps = sorted(set.intersection(*(set(curve.steps) for curve in mine)))
        places = [[(curve, curve.steps.index(step)) for curve in mine] for step in steps]
        at = [[(curve.tokens[i], curve.success[i]) for curve, i in place] for place in places]
        means, halves = zip(*(interval([success for _, success in values]) for values in at))
        low = [mean - (half or 0) for mean, half in zip(means, halves)]
        high = [mean + (half or 0) for mean, half in zip(means, halves)]
        for axis, x in zip(axes, ([statistics.fmean(tokens for tokens, _ in values) for values in at], steps)):
            (line,) = axis.plot(x, means, marker="o", markersize=3, label=method)
            axis.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    for axis, label in zip(axes, ("generated tokens", "updates")):
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("success on the test panel")
    axes[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
