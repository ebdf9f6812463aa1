"""Rooms of the embedded ALFWorld games: which furniture they have, and which of it is reached from one place."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import cache

from prover_mini.seeds import derive
from scripts.alfworld.household import FURNITURE, ROOMS, SCENES

SEED = 20260130
LAYOUTS = {"train": 12, "test": 6}  # of each kind of room
FIRST_SCENE = {"small": 1001, "full": 2001}  # no scene of ALFRED has such a number
SHARING = "StoveBurner"  # in full-size rooms, two of these are reached from one place


@dataclass(frozen=True)
class Room:
    """`furniture` are (name, kind, place) of the receptacles; the names are PDDL's, the places numbers."""

    kind: str
    scene: int
    furniture: tuple[tuple[str, str, int], ...]

    def kinds(self) -> set[str]:
        return {kind for _, kind, _ in self.furniture}


@cache
def rooms(size: str) -> dict[str, list[Room]]:
    """The rooms of the splits "train" and "test"; all differ in the furniture that they have."""
    found = {"train": [], "test": []}
    for kind in ROOMS:
        rng, layouts = random.Random(derive(SEED, size, kind)), []
        while len(layouts) < sum(LAYOUTS.values()):
            layout = draw_furniture(rng, size, kind)
            if layout not in layouts:
                layouts.append(layout)
        first = FIRST_SCENE[size] + SCENES[kind]
        made = [make_room(rng, size, kind, first + n, layout) for n, layout in enumerate(layouts)]
        found["train"] += made[: LAYOUTS["train"]]
        found["test"] += made[LAYOUTS["train"] :]
    return found


def draw_furniture(rng: random.Random, size: str, kind: str) -> Counter[str]:
    fewest, most, furniture = FURNITURE[size]
    words = furniture[kind].split()
    while True:
        counts = Counter()
        for name, number in zip(words[::2], words[1::2]):
            low, _, high = number.partition("-")
            counts[name] = rng.randint(int(low), int(high or low))
        if fewest <= counts.total() <= most:
            return +counts


def make_room(rng: random.Random, size: str, kind: str, scene: int, layout: Counter[str]) -> Room:
    furniture, places = [], rng.sample(range(1, 100), layout.total())
    for name in layout:
        for n in range(1, layout[name] + 1):
            shares = size == "full" and name == SHARING and n % 2 == 0
            place = furniture[-1][2] if shares else places.pop()
            furniture.append((receptacle_name(name, n), name, place))
    return Room(kind, scene, tuple(furniture))


def receptacle_name(kind: str, n: int) -> str:
    """The PDDL name; a basin is a part of what its name begins with."""
    owner = kind.removesuffix("Basin")
    return f"{owner}_bar_{n}" if owner == kind else f"{owner}_bar_{n}_bar_{kind}"
