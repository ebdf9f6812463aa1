"""The embedded games: data/{small,full}-{train,seen,test}.jsonl.gz, one game a line.

    {"id": "train/<type>-<object>-None-<receptacle or lamp>-<scene>/trial_<n>", "task": sentence, "problem": PDDL}

Small rooms have 7 to 9 receptacles, and every game is won within 16 turns by the expert; full-size ones have up to 28.
The rooms of "test" occur in neither of the other splits. scripts/build_alfworld.py makes the files.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import NamedTuple

from envs.alfworld.pddl import parse_problem
from envs.alfworld.world import World
from envs.base import Task

DATA = Path(__file__).parent / "data"
SIZES = ("small", "full")


class Embedded(NamedTuple):
    """A game's task sentence, and its PDDL problem."""

    task: str
    problem: str


def load_embedded(size: str, split: str) -> list[Task]:
    """The games of a split in rooms of one of SIZES, sorted by id."""
    lines = gzip.decompress((DATA / f"{size}-{split}.jsonl.gz").read_bytes()).decode().splitlines()
    tasks = []
    for row in map(json.loads, lines):
        kind = row["id"].split("/")[1].partition("-")[0]
        tasks.append(Task(row["id"], split, kind, Embedded(row["task"], row["problem"])))
    return sorted(tasks, key=lambda task: task.id)


def open_embedded(game: Embedded) -> World:
    return World(parse_problem(game.problem), game.task)
