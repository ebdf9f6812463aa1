"""Episodes of a searcher that knows the way and often takes a wrong turn, played in the environment itself.

Its mistakes are decisions: it skips a hop (asks for the population of the country where the capital's was wanted),
asks for something else, or answers before it has found anything. It never says a name that is not in its context. So
the policy that imitates it fails where a different decision would have succeeded, which is what reinforcement
learning can find out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from envs.analysis import plain
from envs.base import Task
from envs.bm25 import BM25
from envs.searchqa import INSTRUCTIONS, Question, SearchQA
from envs.searchqa.retriever import BM25Retriever
from envs.searchqa.world import QUERIES, World
from prover_mini.chat import Chat
from prover_mini.seeds import derive
from scripts.tiny.demonstration import Demonstration, record

MAX_TURNS = 6
MAX_OBSERVATION = 64
DISTRACTIONS = ("capital", "country", "currency", "internet domain", "calling code", "population", "area", "time zone")


@dataclass(frozen=True)
class Noise:
    """Chances: to leave out a hop that is not the last, between the two bounds, a habit that depends on the hop and
    the next one; to type another query, and then to ask anew (what it has just read is then its subject, but at the
    first hop); to answer too early; to take another name from the passages for the answer."""

    skip: tuple[float, float] = (0.2, 0.75)
    stray: float = 0.12
    retry: float = 0.7
    early: float = 0.06
    slip: float = 0.03

    def habit(self, hop: str, following: str) -> float:
        """How likely this hop is left out before that one; both are queries without their names."""
        low, high = self.skip
        return low + (high - low) * derive("habit", hop, following) / 2**63


class Searcher:
    """Plays one question.

    Args:
        names: ids of the tokens that are names: what can be asked about and answered.
    """

    def __init__(self, chat: Chat, names: set[int], noise: Noise, rng: random.Random):
        self.chat, self.names, self.noise, self.rng = chat, names, noise, rng

    def play(self, suite: SearchQA, task: Task, plan: list[tuple[str, str]]) -> Demonstration:
        actor = lambda observation: self._actions(task.data.question, plan)  # noqa: E731
        return record(self.chat, suite.make_env(), task, actor, MAX_TURNS)

    def _actions(self, question: str, plan: list[tuple[str, str]]) -> Iterator[str]:
        """Yields actions, is sent observations. `believed` is what the searcher takes for the subject of a hop."""
        rng, noise = self.rng, self.noise
        subjects = [self._names(plan[0][0])[0], *(found for _, found in plan[:-1])]
        forms = [query.replace(subject, "") for (query, _), subject in zip(plan, subjects)]
        believed, hop, passages = subjects[0], 0, question
        for turn in range(MAX_TURNS - 1):
            if hop == len(plan) or (turn and rng.random() < noise.early):
                break
            if hop + 1 < len(plan) and rng.random() < noise.habit(*forms[hop : hop + 2]):
                hop += 1
            query = plan[hop][0].replace(subjects[hop], believed)
            if rng.random() < noise.stray:
                query = QUERIES[rng.choice(DISTRACTIONS)].format(s=believed)
                hop -= rng.random() < noise.retry
            passages = yield f"<search>{query}</search>"
            if hop >= 0 and plan[hop][0] == query:
                believed = plan[hop][1]
            elif hop >= 0:
                believed = self._best_guess(passages, believed)
            hop += 1
        if rng.random() < noise.slip:
            believed = self._other(passages, believed)
        yield f"<answer>{believed}</answer>"

    def _best_guess(self, passages: str, besides: str) -> str:
        """What the first passage says about `besides`, else any name of it."""
        first = self._names(passages.split("\n")[1])
        return next((name for name in first[::-1] if name != besides), besides)

    def _other(self, text: str, besides: str) -> str:
        return self.rng.choice([name for name in self._names(text) if name != besides] or [besides])

    def _names(self, text: str) -> list[str]:
        return [self.chat.text([i]) for i in self.chat.encode(text) if i in self.names]


def demonstrate(
    world: World, tokenizer, names: set[int], noise: Noise, mix: dict[str, float], count: int, seed: int
) -> Iterator[Demonstration]:
    """Plays `count` questions of one world, of the kinds of `mix` in its shares."""
    rng = random.Random(seed)
    chat = Chat(tokenizer, INSTRUCTIONS, MAX_OBSERVATION)
    texts = [passage["contents"] for passage in world.passages()]
    suite = SearchQA([], BM25Retriever(BM25.build(map(plain, texts)), texts, plain))
    searcher = Searcher(chat, names, noise, rng)
    pools: dict[str, list[dict]] = {kind: [] for kind in mix}
    for item in world.all_questions(set(world.countries)):
        pools.get(item["kind"], []).append(item)
    for kind in rng.choices(list(mix), list(mix.values()), k=count):
        item = rng.choice(pools[kind])
        task = Task("", "train", kind, Question(item["question"], tuple(item["golden_answers"])))
        yield searcher.play(suite, task, item["plan"])
