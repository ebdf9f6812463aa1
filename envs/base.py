"""What an environment is to the trainer: a text game with exact, cheap save points.

An `Env` plays one task at a time. A `Suite` is a named collection of tasks, with the words that explain the game to
the policy and a factory of environments. Verification restores states at turn boundaries thousands of times, so
`snapshot` must be exact and cost microseconds: return immutable data, never a deep copy of a world.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Task:
    """One episode's problem.

    `id` is unique inside the suite and stable over processes and runs. `kind` is the name under which success is
    reported apart ("2-hop", "pick_clean_then_place"). `data` belongs to the environment.
    """

    id: str
    split: str
    kind: str
    data: Any = field(repr=False)


@dataclass(frozen=True)
class Step:
    """What an action did.

    `observation` is the text the policy sees next (unused once `done`). `reward` is the episode's success, 0 or 1,
    and is non-zero only on the last step. `valid` is False where the action was malformed or had no effect because it
    was wrong: such a turn never enters a segment. `score` is the finer task score in [0, 1] (F1, partial reward).
    """

    observation: str
    reward: float = 0.0
    done: bool = False
    valid: bool = True
    score: float = 0.0


class Env(ABC):
    """One running episode. Any text is a legal argument of `step`: a bad action is answered, never raised."""

    @abstractmethod
    def reset(self, task: Task) -> str:
        """Starts `task`; returns the first observation."""

    @abstractmethod
    def step(self, action: str) -> Step:
        """Plays the policy's whole turn text (the environment parses it)."""

    @abstractmethod
    def snapshot(self) -> Any:
        """The exact state of the episode, task included, as data that later steps do not change."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Puts any environment of the same suite into the state that `snapshot` returned."""


class Suite(ABC):
    """Tasks in splits, and environments to play them.

    Attributes:
        name: the value of `--env`.
        instructions: the system prompt, which states the rules and the form of an action.
        max_turns: the turn limit that the literature uses for this suite.
        workers: how many environments may step at once in threads; 1 where a step takes microseconds, more where it
            waits for a server.
    """

    name: str
    instructions: str
    max_turns: int
    workers: int = 1

    @abstractmethod
    def tasks(self, split: str) -> list[Task]:
        """All tasks of "train" or "test" (a suite may have more splits), sorted by id."""

    @abstractmethod
    def make_env(self) -> Env:
        """A new environment; cheap, shares the suite's read-only data."""
