"""Which tasks a step trains on: a function of the run's seed and the step alone, so that a resumed run, and another
method of a comparison, trains on the same ones."""

from __future__ import annotations

import random
from functools import lru_cache

from envs.base import Task
from prover_mini.config import Config
from prover_mini.seeds import derive


def tasks_of_step(tasks: list[Task], step: int, config: Config) -> list[tuple[int, Task]]:
    """(place in the step, task): the training tasks in a new order each epoch, as a function of the step alone."""
    chosen = []
    for place in range(config.groups_per_step):
        epoch, at = divmod((step - 1) * config.groups_per_step + place, len(tasks))
        chosen.append((place, tasks[epoch_order(len(tasks), config.seed, epoch)[at]]))
    return chosen


@lru_cache(maxsize=2)
def epoch_order(n: int, seed: int, epoch: int) -> list[int]:
    order = list(range(n))
    random.Random(derive(seed, "epoch", epoch)).shuffle(order)
    return order
