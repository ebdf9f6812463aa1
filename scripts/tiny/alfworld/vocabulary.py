"""The words of the embedded ALFWorld policies. Each instance ("mug 2") is one token, so is each kind, of which tasks
speak, and each fragment of a sentence or a command between two of them."""

from __future__ import annotations

import random
import re
from itertools import islice

from envs.alfworld import text
from envs.alfworld.embedded import open_embedded
from envs.alfworld.env import AlfworldEnv
from scripts.alfworld.games import MOST_OF_A_KIND
from scripts.alfworld.household import FURNITURE, LAMP, THINGS
from scripts.tiny.alfworld.games import SIZE, training_games
from scripts.tiny.tokenizer import ROLES

SAMPLE, TURNS = 120, 60  # games that are listened to, and turns of each
# Turns that the environment calls invalid, each in its own way: its whole replies are tokens.
INVALID_TURNS = ["", "<action></action>", "<action>a", "a</action>", "<action>a</action>" * 2]


def counts() -> dict[str, int]:
    """The most instances of each kind of furniture and things that a small room holds."""
    found = {kind.lower(): MOST_OF_A_KIND for room in THINGS.values() for kind in room.split()} | {LAMP.lower(): 1}
    for furniture in FURNITURE[SIZE][2].values():
        words = furniture.split()
        for kind, number in zip(words[::2], words[1::2]):
            most = int(number.rpartition("-")[2])
            found[kind.lower()] = max(found.get(kind.lower(), 0), most)
    return dict(sorted(found.items()))


def kinds() -> dict[str, str]:
    """The kind of each instance."""
    return {f"{kind} {n}": kind for kind, most in counts().items() for n in range(1, most + 1)}


def fragments() -> list[str]:
    """What stands around the names in everything that is said in some games, by the room and to it."""
    name = re.compile(rf"\b(?:{'|'.join(counts())})\b(?: \d+)?")
    return sorted({part for said in conversations() for part in name.split(said)} - {""})


def conversations() -> set[str]:
    """Observations and actions of a player who tries everything that is possible, and some things that are not."""
    rng, env, said = random.Random(0), AlfworldEnv(open_embedded, admissible=False), {text.NOTHING_HAPPENS}
    for task in islice(training_games(seed=0), SAMPLE):
        said |= {env.reset(task), *(env.step(turn).observation for turn in INVALID_TURNS)}
        for _ in range(TURNS):
            commands = env.game.admissible()
            doing = [command for command in commands if not command.startswith(("go", "examine", "help"))]
            action = f"<action>{rng.choice(rng.choice([commands, doing or commands]))}</action>"
            step = env.step(action)
            said |= {action, step.observation}
            if step.done:
                break
    return said


def words() -> list[str]:
    return [*counts(), *kinds(), *fragments(), *ROLES]
