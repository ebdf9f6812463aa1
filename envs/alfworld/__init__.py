"""ALFWorld: household tasks in text rooms, from the official game files or the embedded games. See `env` for the form
of an action, `world` for the rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs.alfworld.embedded import SIZES, load_embedded, open_embedded
from envs.alfworld.env import INSTRUCTIONS, AlfworldEnv
from envs.alfworld.games import FOLDERS, load_tasks, open_game
from envs.alfworld.world import World
from envs.base import Suite, Task
from prover_mini.errors import UserError

KEPT_WORLDS = 256  # a step's games stay parsed


class Alfworld(Suite):
    """`load_split` gives the tasks of a split, read when first asked for; `open_world` the world of a task's data."""

    name = "alfworld"
    instructions = INSTRUCTIONS
    max_turns = 50

    def __init__(
        self,
        load_split: Callable[[str], list[Task]],
        open_world: Callable[[Any], World],
        admissible: bool = True,
    ):
        self.load_split = load_split
        self.open_world = lru_cache(KEPT_WORLDS)(open_world)
        self.admissible = admissible
        self.splits: dict[str, list[Task]] = {}

    def tasks(self, split: str) -> list[Task]:
        """The tasks of "train", "seen" (rooms known from training) or "test" (unseen rooms). Raises UserError."""
        if split not in FOLDERS:
            raise UserError(f"alfworld has no split {split!r}: choose one of {', '.join(FOLDERS)}")
        if split not in self.splits:
            self.splits[split] = self.load_split(split)
        return self.splits[split]

    def make_env(self) -> AlfworldEnv:
        return AlfworldEnv(self.open_world, self.admissible)


def load(config: Any) -> Alfworld:
    """The suite of the official files below the directory in the field data; without one, of the embedded games, in
    small rooms for the embedded policy. Raises UserError."""
    if not config.data:
        return embedded("small" if config.embedded else "full", config.admissible)
    root = Path(config.data)
    if not any((root / folder).is_dir() for folder in FOLDERS.values()):
        raise UserError(f"--data {root}: has none of the folders {', '.join(FOLDERS.values())}")
    return Alfworld(lambda split: load_tasks(root, split), open_game, config.admissible)


def embedded(rooms: str = "small", admissible: bool = True) -> Alfworld:
    """The suite of the embedded games in "small" or "full" rooms. Raises UserError for another word."""
    if rooms not in SIZES:
        raise UserError(f"alfworld has no rooms {rooms!r}: choose one of {', '.join(SIZES)}")
    return Alfworld(lambda split: load_embedded(rooms, split), open_embedded, admissible)
