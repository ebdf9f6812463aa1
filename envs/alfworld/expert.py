"""A scripted expert: it plays ALFWorld from the texts alone, as a policy has to.

It searches open surfaces before things with doors, takes the first wanted thing it sees, cleans, heats or cools it
where the task says so, and brings it to the nearest place of the wanted kind, or under the lamp. It reads tasks in the
wording of ALFWorld's templates, two for each of the six types (see data/ATTRIBUTION.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envs.alfworld.text import NOTHING_HAPPENS
from envs.base import Env, Step, Task

APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
PREPARATIONS = {"clean": "clean", "hot": "heat", "heat": "heat", "cool": "cool"}
EFFORT = {"fridge": 1, "microwave": 1, "safe": 2, "drawer": 2, "cabinet": 2}  # of looking into one; 0 for the others
TEMPLATES = [
    re.compile(pattern)
    for pattern in (
        r"(?P<verb>put) two (?P<thing>\w+) in (?P<place>\w+)\.",
        r"(?P<verb>find) two (?P<thing>\w+) and put them in (?P<place>\w+)\.",
        r"put a (?P<verb>clean|hot|cool) (?P<thing>\w+) in (?P<place>\w+)\.",
        r"(?P<verb>clean|heat|cool) some (?P<thing>\w+) and put it in (?P<place>\w+)\.",
        r"(?P<verb>put) (?:a|some) (?P<thing>\w+) (?:in|on) (?P<place>\w+)\.",
        r"(?P<verb>look at) (?P<thing>\w+) under the (?P<place>\w+)\.",
        r"(?P<verb>examine) the (?P<thing>\w+) with the (?P<place>\w+)\.",
    )
]
NAME = re.compile(r"[a-z]+ \d+")


@dataclass(frozen=True)
class Goal:
    """Bring `count` of the kind `thing` to one place of the kind `place`, each after `preparation` ("clean", "heat",
    "cool" or ""). With `light`, hold it where a lamp of the kind `place` stands, and switch that on."""

    thing: str
    place: str
    preparation: str
    count: int
    light: bool


def read_goal(observation: str) -> Goal:
    """The goal told by a first observation. Raises ValueError for a wording of no template."""
    sentence = observation.partition("Your task is to: ")[2].partition("\n")[0]
    for template in TEMPLATES:
        if found := template.fullmatch(sentence):
            verb, thing, place = found["verb"], found["thing"], found["place"]
            count, light = 2 if " two " in sentence else 1, verb in ("look at", "examine")
            return Goal(thing, place, PREPARATIONS.get(verb, ""), count, light)
    raise ValueError(f"the task {sentence!r} has the wording of no template")


def kind(name: str) -> str:
    """ "sinkbasin 1" -> "sinkbasin"."""
    return name.partition(" ")[0]


class Expert:
    """Give it the first observation; then, until the episode ends, ask for a `command` and let it `observe` the
    answer. Each decision is a method of its own, so that a subclass can take one wrongly.

    Attributes:
        receptacles: the names of all, as the first observation lists them.
        contents: what was last seen in each receptacle that was looked into.
        closed: receptacles that were last seen with a closed door.
        at: the receptacle that it stands at, or "".
        held: what it carries, or ""; `prepared` tells whether that is as clean, hot or cool as wanted.
        brought: what it has put in place, all in one receptacle, `target` ("" before the first).
    """

    def __init__(self, observation: str):
        """Raises ValueError for a task with the wording of no template."""
        self.goal = read_goal(observation)
        self.receptacles = NAME.findall(observation.partition("you see ")[2].partition("\n")[0])
        self.contents: dict[str, list[str]] = {}
        self.closed: set[str] = set()
        self.at = self.held = self.target = ""
        self.prepared = False
        self.brought: list[str] = []

    def command(self) -> str:
        """What to do next."""
        if not self.held:
            return self.fetch()
        if self.goal.light:
            return self.light()
        if self.goal.preparation and not self.prepared:
            return self.prepare()
        return self.bring()

    def fetch(self) -> str:
        """Towards having a wanted thing in hand."""
        place, thing = self.find(self.goal.thing)
        return self.approach(place) or f"take {thing} from {place}" if thing else self.search()

    def prepare(self) -> str:
        """Towards cleaning, heating or cooling what is held; that works through a door."""
        verb = self.goal.preparation
        appliance = self.nearest(APPLIANCES[verb])
        return f"{verb} {self.held} with {appliance}" if appliance == self.at else f"go to {appliance}"

    def bring(self) -> str:
        """Towards putting what is held in place."""
        target = self.target or self.nearest(self.goal.place)
        return self.approach(target) or f"move {self.held} to {target}"

    def light(self) -> str:
        """Towards switching a lamp on."""
        place, lamp = self.find(self.goal.place)
        return self.approach(place) or f"use {lamp}" if lamp else self.search()

    def search(self) -> str:
        """Towards seeing into a receptacle that was not looked into; where all were, it starts over."""
        unseen = [name for name in self.receptacles if name not in self.contents]
        if not unseen:
            self.contents.clear()
            return "look"
        place = self.choose(unseen)
        return self.approach(place) or f"examine {place}"

    def choose(self, unseen: list[str]) -> str:
        """Where to look next: here, then where it is easiest, then in the listed order."""
        return min(unseen, key=lambda name: (name != self.at, EFFORT.get(kind(name), 0)))

    def find(self, wanted: str) -> tuple[str, str]:
        """Where a thing of a kind was seen, and its name; here first. Two empty strings where none was."""
        for place in sorted(self.contents, key=lambda place: place != self.at):
            for thing in self.contents[place]:
                if kind(thing) == wanted and thing not in self.brought:
                    return place, thing
        return "", ""

    def nearest(self, wanted: str) -> str:
        """A receptacle of a kind: the present one, else the first listed."""
        return min((name for name in self.receptacles if kind(name) == wanted), key=lambda name: name != self.at)

    def approach(self, place: str) -> str:
        """The next command on the way into a receptacle; "" where nothing is in the way."""
        if place != self.at:
            return f"go to {place}"
        return f"open {place}" if place in self.closed else ""

    def observe(self, command: str, answer: str) -> None:
        """Takes in what the environment answered to a command."""
        verb, rest = command.partition(" ")[::2]
        thing, place = NAME.findall(rest) if verb in ("take", "move") else ("", rest.removeprefix("to "))
        if verb == "go":  # that nothing happens means a shared place: one is there already
            self.at = place
        if answer.startswith(NOTHING_HAPPENS):
            return
        if verb in ("go", "open", "examine"):
            self.look_into(place, answer.partition("\n")[0])
        elif verb == "take":
            self.held, self.prepared = thing, False
            self.contents[place].remove(thing)
        elif verb == "move":
            self.held, self.target = "", place
            self.brought.append(thing)
        elif verb in APPLIANCES:
            self.prepared = True

    def look_into(self, place: str, answer: str) -> None:
        if answer.endswith(f"{place} is closed."):
            self.closed.add(place)
        else:
            self.closed.discard(place)
            self.contents[place] = NAME.findall(answer.partition("you see ")[2])


def play(env: Env, task: Task, max_turns: int) -> list[tuple[str, Step]]:
    """The expert's episode: its commands and what they did."""
    expert, turns = Expert(env.reset(task)), []
    while len(turns) < max_turns and not (turns and turns[-1][1].done):
        command = expert.command()
        turns.append((command, env.step(f"<action>{command}</action>")))
        expert.observe(command, turns[-1][1].observation)
    return turns
