"""Games to learn from: any number, in small rooms, none of which has the furniture of a room of the test split."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from envs.base import Task
from scripts.alfworld.games import TEMPLATES, draw_game, embedded
from scripts.alfworld.household import ROOMS
from scripts.alfworld.rooms import draw_furniture, make_room, rooms

SIZE = "small"


def training_games(seed: int) -> Iterator[Task]:
    """Games of the six types in turn, each in a room of its own; the same seed makes the same games."""
    rng = random.Random(seed)
    kept = [Counter(kind for _, kind, _ in room.furniture) for room in rooms(SIZE)["test"]]
    number = 0
    while True:
        for type in TEMPLATES:
            game = None
            while game is None:
                kind = rng.choice(ROOMS)
                furniture = draw_furniture(rng, SIZE, kind)
                if furniture not in kept:
                    game = draw_game(rng, SIZE, type, make_room(rng, SIZE, kind, 0, furniture))
            yield Task(f"{type} {number}", "train", type, embedded(game))
            number += 1
