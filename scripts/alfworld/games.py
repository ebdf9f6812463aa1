"""Draws the embedded ALFWorld games: a task that makes sense in a room, and where the things of the room lie.

A game is kept if the expert wins it within the turn limit, which also proves it solvable. No wanted thing lies in a
receptacle of the wanted kind at the start.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from envs.alfworld.embedded import Embedded, open_embedded
from envs.alfworld.env import AlfworldEnv
from envs.alfworld.expert import play
from envs.alfworld.games import FOLDERS
from envs.base import Task
from prover_mini.seeds import derive
from scripts.alfworld.household import (
    ABILITIES, FIXTURES, LAMP, LAMP_ROOMS, THINGS, UNDER_LAMP, fits, listed, weight,
)  # fmt: skip
from scripts.alfworld.problem import PREPARED, Game, problem_text
from scripts.alfworld.rooms import SEED, Room, rooms

GAMES = {  # of each task type
    "small": {"train": 100, "seen": 20, "test": 40},
    "full": {"train": 60, "seen": 12, "test": 24},
}
MAX_TURNS = {"small": 16, "full": 50}
OTHERS = {"small": (5, 8), "full": (14, 24)}  # things that the task doesn't want
MOST_OF_A_KIND = 3
HOLD_ONE = {"CoffeeMachine", "StoveBurner", "HandTowelHolder", "TowelHolder", "ToiletPaperHanger"}

TEMPLATES = {
    "pick_and_place_simple": ("put a {} in {}", "put some {} on {}"),
    "look_at_obj_in_light": ("look at {} under the {}", "examine the {} with the {}"),
    "pick_clean_then_place_in_recep": ("put a clean {} in {}", "clean some {} and put it in {}"),
    "pick_heat_then_place_in_recep": ("put a hot {} in {}", "heat some {} and put it in {}"),
    "pick_cool_then_place_in_recep": ("put a cool {} in {}", "cool some {} and put it in {}"),
    "pick_two_obj_and_place": ("put two {} in {}", "find two {} and put them in {}"),
}


def games(size: str, split: str) -> Iterator[tuple[str, Game]]:
    """(id, game) for each game of a split; no two are the same."""
    known = set()
    for type in TEMPLATES:
        for n in range(GAMES[size][split]):
            game = next(game for game in candidates(size, split, type, n) if game not in known)
            known.add(game)
            folder = f"{type}-{game.thing}-None-{game.target}-{game.room.scene}"
            yield f"{FOLDERS[split]}/{folder}/trial_{n:04}", game


def candidates(size: str, split: str, type: str, n: int) -> Iterator[Game]:
    """Games of a type that the expert wins in time."""
    choice = rooms(size)["test" if split == "test" else "train"]
    for attempt in range(1000):
        rng = random.Random(derive(SEED, size, split, type, n, attempt))
        game = draw_game(rng, size, type, rng.choice(choice))
        if game and is_won(game, MAX_TURNS[size]):
            yield game


def draw_game(rng: random.Random, size: str, type: str, room: Room) -> Game | None:
    """A game in a room; None where the room offers nothing to do for the type."""
    target = LAMP if type == "look_at_obj_in_light" else rng.choice(sorted(room.kinds()))
    wanted = [thing for thing in listed(THINGS[room.kind]) if makes_sense(type, thing, target, room)]
    if not wanted:
        return None
    thing = rng.choice(wanted)
    others = [kind for kind in listed(THINGS[room.kind]) if kind != thing and has_home(kind, room)] * MOST_OF_A_KIND
    kinds = [thing] * rng.randint(*((2, 3) if type == "pick_two_obj_and_place" else (1, 2)))
    kinds += rng.sample(others, rng.randint(*OTHERS[size]))
    placed = [(kind, draw_place(rng, room, kind, target if kind == thing else "")) for kind in kinds]
    placed += draw_fixtures(rng, room, lamp=type == "look_at_obj_in_light", more=size == "full")
    rng.shuffle(placed)  # so that the wanted ones have any number
    count, things = Counter(), []
    for kind, place in placed:
        count[kind] += 1
        things.append((f"{kind}_bar_{count[kind]}", kind, place))
    sentence = rng.choice(TEMPLATES[type]).format(thing.lower(), target.lower())
    return Game(type, thing, target, sentence, room, tuple(things))


def makes_sense(type: str, thing: str, target: str, room: Room) -> bool:
    """Whether the task can be done in the room, and is not done by where the thing may lie at the start."""
    if not has_home(thing, room, target):
        return False
    if type == "look_at_obj_in_light":
        return room.kind in LAMP_ROOMS and bool(room.kinds() & set(UNDER_LAMP.split()))
    ability, appliance, _ = PREPARED.get(type, ("", "", ""))
    if ability and (thing not in listed(ABILITIES[ability]) or appliance not in room.kinds() or appliance == target):
        return False
    if type == "pick_two_obj_and_place" and target in HOLD_ONE:
        return False
    return fits(thing, target)


def has_home(thing: str, room: Room, avoided: str = "") -> bool:
    """Whether the room has a receptacle for a thing, of another kind than `avoided`."""
    return any(fits(thing, kind) for kind in room.kinds() - {avoided})


def draw_place(rng: random.Random, room: Room, thing: str, avoided: str) -> str:
    """The name of a receptacle for a thing, of another kind than `avoided`."""
    names = [name for name, kind, _ in room.furniture if kind != avoided]
    weights = [weight(thing, kind) for _, kind, _ in room.furniture if kind != avoided]
    return rng.choices(names, weights)[0]


def draw_fixtures(rng: random.Random, room: Room, lamp: bool, more: bool) -> Iterator[tuple[str, str]]:
    wanted = (FIXTURES if more else {}) | ({LAMP: UNDER_LAMP} if lamp else {})
    for thing, places in wanted.items():
        names = [name for name, kind, _ in room.furniture if kind in places.split()]
        if names:
            yield thing, rng.choice(names)


def is_won(game: Game, max_turns: int) -> bool:
    env = AlfworldEnv(lambda data: open_embedded(embedded(game)), admissible=False)
    turns = play(env, Task("", "", game.type, None), max_turns)
    return bool(turns[-1][1].reward)


def embedded(game: Game) -> Embedded:
    return Embedded(f"Your task is to: {game.sentence}.", problem_text(game))
