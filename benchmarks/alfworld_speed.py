"""ALFWorld's speed against the original engine: `python -m benchmarks.alfworld_speed [DIR]`.

DIR holds game.tw-pddl files (the games of the tests by default). Plays random admissible commands through the
environment, observation and admissible commands included, and saves and restores its state.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from envs.alfworld.env import AlfworldEnv
from envs.alfworld.games import open_game
from envs.base import Task

GAMES = Path(__file__).parent.parent / "tests" / "data" / "alfworld"
REFERENCE_STEP = 77e-3  # s, TextWorld 1.7.0 with ALFWorld 0.4.2 on the games that the tests' recordings come from
REFERENCE_RESET = 1.0
REPEATS, STEPS = 20, 50


def main() -> None:
    paths = sorted(Path(sys.argv[1] if len(sys.argv) > 1 else GAMES).rglob("game.tw-pddl"))
    tasks = [Task(str(path), "", "", open_game(path)) for path in paths]
    env, rng = AlfworldEnv(lambda world: world), random.Random(0)
    steps, forks = [], []
    for task in tasks * REPEATS:
        env.reset(task)
        for _ in range(STEPS):
            command = rng.choice(env.game.admissible())
            steps.append(seconds(lambda: env.step(f"<action>{command}</action>")))
            forks.append(seconds(lambda: env.restore(env.snapshot())))
            if env.over:
                env.reset(task)
    parse = median([seconds(lambda: open_game(path)) for path in paths])
    step, fork = sum(steps) / len(steps), sum(forks) / len(forks)
    print(f"{len(paths)} games, {len(steps)} steps, CPU time")
    print(f"{'step':20}{step * 1e6:8.1f} us  {REFERENCE_STEP / step:8.0f} times the original's steps per second")
    print(f"{'  its median':20}{median(steps) * 1e6:8.1f} us  {REFERENCE_STEP / median(steps):8.0f} times")
    print(f"{'snapshot + restore':20}{fork * 1e6:8.1f} us  the original has none")
    print(f"{'  its median':20}{median(forks) * 1e6:8.1f} us")
    print(f"{'reading a game file':20}{parse * 1e3:8.1f} ms  {REFERENCE_RESET / parse:8.0f} times as fast as its reset")


def seconds(work: Callable[[], object]) -> float:
    """CPU time, so that other work on the machine counts little."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
