"""Episodes of a player who knows how to search, fetch and put, and often decides wrongly, in training games.

The mistakes are decisions, each made once for a thing in hand: not to prepare it (or, under a lamp, to put it down), to
bring it somewhere else; before that, to take something else. The player goes on as if all were well, and looks for the
next thing. So the policy that imitates it fails where a different decision would have succeeded, which is what
reinforcement learning can find out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from envs.alfworld import embedded
from envs.alfworld.expert import Expert, kind
from envs.alfworld.text import NOTHING_HAPPENS
from prover_mini.chat import Chat
from scripts.tiny.alfworld.games import SIZE, training_games
from scripts.tiny.demonstration import Demonstration, record

MAX_TURNS = 16
MAX_OBSERVATION = 64


@dataclass(frozen=True)
class Noise:
    """Chances: to skip what a thing in hand needs (cleaning, heating, cooling, a lamp switched on); to bring it to a
    receptacle of another kind; to take another thing from where a wanted one lies; to look anywhere next, instead of
    where it is easiest."""

    skip: float = 0.7
    astray: float = 0.45
    slip: float = 0.12
    wander: float = 0.1


class FallibleExpert(Expert):
    """Attributes:
    skips: whether it will skip what the thing in hand needs.
    destination: where it will bring that thing by mistake, or "".
    """

    def __init__(self, observation: str, noise: Noise, rng: random.Random):
        super().__init__(observation)
        self.noise, self.rng = noise, rng
        self.skips, self.destination = False, ""

    def observe(self, command: str, answer: str) -> None:
        super().observe(command, answer)
        if command.startswith("take") and self.held:
            self.skips = self.rng.random() < self.noise.skip
            self.destination = self.elsewhere() if self.rng.random() < self.noise.astray else ""
        elif answer.startswith(NOTHING_HAPPENS):  # it doesn't fit there
            self.destination = ""

    def elsewhere(self) -> str:
        return self.rng.choice([name for name in self.receptacles if kind(name) != self.goal.place])

    def fetch(self) -> str:
        command = super().fetch()
        if command.startswith("take") and not self.goal.light and self.rng.random() < self.noise.slip:
            others = [thing for thing in self.contents[self.at] if kind(thing) not in (self.goal.thing, "desklamp")]
            if others:
                return f"take {self.rng.choice(others)} from {self.at}"
        return command

    def prepare(self) -> str:
        return self.bring() if self.skips else super().prepare()

    def bring(self) -> str:
        if not self.destination:
            return super().bring()
        return self.approach(self.destination) or f"move {self.held} to {self.destination}"

    def light(self) -> str:
        command = super().light()
        return f"move {self.held} to {self.at}" if self.skips and command.startswith("use") else command

    def choose(self, unseen: list[str]) -> str:
        return self.rng.choice(unseen) if self.rng.random() < self.noise.wander else super().choose(unseen)

    def actions(self) -> Iterator[str]:
        """Yields turns, is sent observations."""
        while True:
            command = self.command()
            self.observe(command, (yield f"<action>{command}</action>"))


def demonstrate(tokenizer, noise: Noise, episodes: int, seed: int) -> Iterator[Demonstration]:
    """Plays one episode of each training game."""
    suite, rng = embedded(SIZE, admissible=False), random.Random(seed)
    chat, env = Chat(tokenizer, suite.instructions, MAX_OBSERVATION), suite.make_env()
    for task in islice(training_games(seed), episodes):
        yield record(chat, env, task, lambda observation: FallibleExpert(observation, noise, rng).actions(), MAX_TURNS)
