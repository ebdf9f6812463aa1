"""WebShop: buy what an instruction asks for in a shop of text pages. See `shop` for the rules of the game.

The embedded shop, in `data`, is made by scripts/build_webshop.py, and read like any other directory of official files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envs.base import Suite, Task
from envs.webshop.catalogue import open_catalogue
from envs.webshop.env import INSTRUCTIONS, WebShopEnv
from envs.webshop.goals import SEED, draw_goals, split_of
from envs.webshop.nouns import NounTagger, content_words
from envs.webshop.shop import Shop
from prover_mini.errors import UserError

EMBEDDED = Path(__file__).parent / "data"


class WebShop(Suite):
    """A directory with the official files as tasks; the kind of a task is its product's category.

    Args:
        human: goals from people's instructions, else generated ones; None takes people's where the files have them.
        seed: draws prices and price limits.
        nouns: the words of a product name that the reward compares.
        mode, admissible: as in `WebShopEnv`.
    """

    name = "webshop"
    instructions = INSTRUCTIONS
    max_turns = 15

    def __init__(
        self,
        directory: Path,
        human: bool | None = None,
        seed: int = SEED,
        nouns: NounTagger = content_words,
        mode: str = "text",
        admissible: bool = True,
    ):
        catalogue = open_catalogue(directory)
        human = catalogue.files.human is not None if human is None else human
        prices, goals = draw_goals(catalogue, human, seed)
        self.shop = Shop(catalogue, prices, nouns)
        self.mode, self.admissible = mode, admissible
        self.all_tasks = [
            Task(f"{index:07d}-{goal.asin}", split_of(index, len(goals)), goal.category, goal)
            for index, goal in enumerate(goals)
        ]

    def tasks(self, split: str) -> list[Task]:
        """The tasks of "train", "dev" or "test". Raises UserError where the data has none of them."""
        tasks = [task for task in self.all_tasks if task.split == split]
        if not tasks:
            raise UserError(f"data: holds no goal of the split {split!r}")
        return tasks

    def make_env(self) -> WebShopEnv:
        return WebShopEnv(self.shop, self.mode, self.admissible)


def load(config: Any) -> WebShop:
    """The suite of the directory in the field data of a configuration, or of the embedded shop."""
    return WebShop(Path(config.data) if config.data else EMBEDDED, mode=config.page_mode, admissible=config.admissible)
