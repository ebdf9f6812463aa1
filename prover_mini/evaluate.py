"""Evaluation on a fixed panel: every task once, n and a 95 % interval, success per kind of task."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from envs.base import Suite, Task
from prover_mini import distributed
from prover_mini.errors import UserError
from prover_mini.rollout import Player


@dataclass(frozen=True)
class Panel:
    """Tasks in a fixed order; `digest` names exactly this list."""

    tasks: list[Task]
    digest: str


def make_panel(suite: Suite, split: str, size: int) -> Panel:
    """`size` tasks of a split (0: all), chosen and ordered by a hash of their ids, so that kinds stay mixed."""

    def order(task: Task) -> bytes:
        return hashlib.sha256(task.id.encode()).digest()

    tasks = sorted(suite.tasks(split), key=order)
    tasks = tasks[:size] if size else tasks
    if not tasks:
        raise UserError(f"the {split} split of {suite.name} has no task to evaluate on")
    return Panel(tasks, hashlib.sha256("\n".join(t.id for t in tasks).encode()).hexdigest()[:12])


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95 % interval of a proportion. Source: E. B. Wilson, JASA 1927."""
    if n == 0:
        return 0.0, 1.0
    z, p = 1.959964, successes / n
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


def evaluate(player: Player, panel: Panel, temperature: float) -> dict:
    """Plays the panel, split over ranks; the same result on every rank. Errored episodes count in `errors` alone."""
    rank, world = distributed.rank(), distributed.world()
    mine = player.evaluate(panel.tasks[rank::world], temperature)
    # Figures alone cross ranks: the states of environments, which trajectories hold, need not be fit to be sent.
    figures = [(t.task.id, t.task.kind, t.reward, t.score, t.error) for t in mine]
    rows = sorted(row for part in distributed.gather(figures) for row in part)
    scored = [row for row in rows if not row[4]]
    kinds = sorted({kind for _, kind, *_ in scored})
    return {
        **summary([r[2] for r in scored]),
        "errors": len(rows) - len(scored),
        "score": sum(r[3] for r in scored) / max(len(scored), 1),
        "by_kind": {kind: summary([r[2] for r in scored if r[1] == kind]) for kind in kinds},
        "panel": panel.digest,
        "temperature": temperature,
        "tasks": {task_id: reward for task_id, _, reward, _, error in rows if not error},
    }


def summary(rewards: list[float]) -> dict:
    n = len(rewards)
    successes = sum(reward > 0 for reward in rewards)
    return {"success_rate": successes / max(n, 1), "n": n, "ci95": [round(x, 4) for x in wilson(successes, n)]}
