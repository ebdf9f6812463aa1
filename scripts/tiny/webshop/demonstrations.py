"""Episodes of a shopper that knows what the expert knows and is careless, played in the environment itself.

Its mistakes are decisions: it leaves a word out of the query, does not look at a price, buys without a look at the
features or in spite of them, forgets an option. How often depends on the kind of thing: a habit. It never says a word
or an asin that is not in its context. So the policy that imitates it fails where a different decision would have
succeeded, which is what reinforcement learning can find out.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache

from envs.webshop import EMBEDDED, INSTRUCTIONS, WebShop
from envs.webshop.expert import Expert
from prover_mini.chat import Chat
from prover_mini.seeds import derive
from scripts.tiny.demonstration import Demonstration, record
from scripts.tiny.webshop.shops import asins
from scripts.tiny.webshop.vocabulary import ATTRIBUTES, BUTTONS, VALUES

MAX_TURNS = 10
MAX_OBSERVATION = 128

Range = tuple[float, float]


@dataclass(frozen=True)
class Noise:
    """Chances, each between two bounds by the kind of thing that is wanted: to leave an attribute or an option out of
    the query; to open the next product whatever its price; to buy without the features where they would tell; to buy
    though something is missing; to forget an option."""

    drop: Range = (0.0, 0.25)
    dear: Range = (0.1, 0.7)
    blind: Range = (0.2, 0.9)
    settle: Range = (0.1, 0.5)
    forget: Range = (0.0, 0.2)

    def habit(self, mistake: str, kind: str) -> float:
        low, high = getattr(self, mistake)
        return low + (high - low) * derive("habit", mistake, kind) / 2**63


NONE = Noise(*[(0.0, 0.0)] * 5)


class Shopper(Expert):
    """The expert with mistakes. Args: kind: of the thing that is wanted."""

    def __init__(self, kind: str, noise: Noise, rng: random.Random):
        super().__init__()
        self.kind, self.noise, self.rng = kind, noise, rng
        self.typed: list[str] = []
        self.forgotten: set[str] = set()
        self.looked = self.content = False  # saw why to look at the features; buys whatever is missing

    def _slips(self, mistake: str) -> bool:
        return self.rng.random() < self.noise.habit(mistake, self.kind)

    def _read(self, instruction: str) -> None:
        super()._read(instruction)
        self.typed = [word for word in self.query if word not in ATTRIBUTES | VALUES or not self._slips("drop")]
        self.forgotten = {word for word in self.query if word in VALUES and self._slips("forget")}

    def _search(self) -> str:
        return f"search[{' '.join(self.typed)}]"

    def _open(self, strings: list[str]) -> str:
        limit = self.limit
        if self._slips("dear"):
            self.limit = float("inf")
        action = super()._open(strings)
        self.limit, self.chosen = limit, set(self.forgotten)
        self.looked = self.content = False
        return action

    def _complete(self) -> bool:
        if not self.content and not super()._complete():
            self.content = self._slips("settle" if self.looked else "blind")
            self.looked = True
        return self.content or super()._complete()


def actor(shopper: Shopper, observation: str) -> Generator[str, str, None]:
    """The shopper's actions in the spelling of the vocabulary."""
    while True:
        name, _, argument = shopper.act(observation).removesuffix("]").partition("[")
        if argument not in BUTTONS:
            argument = f" {argument.upper() if name == 'click' and argument.upper() in asins() else argument}"
        observation = yield f"{name}[{argument}]"


def demonstrate(suite: WebShop, tokenizer, noise: Noise, count: int, seed: int) -> Iterator[Demonstration]:
    """Plays `count` goals of another shop, none of which asks for the same as one of the embedded shop's test."""
    rng = random.Random(seed)
    chat = Chat(tokenizer, INSTRUCTIONS, MAX_OBSERVATION)
    tasks = [task for task in suite.all_tasks if task.data.instruction not in test_instructions()]
    for task in rng.sample(tasks, count):
        shopper = Shopper(task.data.query, noise, rng)
        yield record(chat, suite.make_env(), task, lambda observation: actor(shopper, observation), MAX_TURNS)


@lru_cache(maxsize=1)
def test_instructions() -> frozenset[str]:
    return frozenset(task.data.instruction for task in WebShop(EMBEDDED).tasks("test"))
