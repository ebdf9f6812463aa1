"""Judges: who looks at a group with mixed outcomes and says which turns of its reference decided it.

A judge only says where to look; verification decides. The interface is made for judges that are slow and can fail:
`propose` gets all eligible groups of a step at once, and answers for each of them with a segment, with None (nothing
worth verifying) or with a `Failure`, which is counted apart and never taken for "no segment".
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from prover_mini.config import Config
from prover_mini.credit import segment_error
from prover_mini.seeds import derive
from prover_mini.trajectory import Group, Segment, Trajectory


@dataclass(frozen=True)
class Failure:
    """A judge that gave no usable answer; `reason` is the name it is counted under."""

    reason: str


Answer = Segment | Failure | None


@dataclass
class Usage:
    """What a judge consumed since the last `take_usage`."""

    calls: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    failures: dict[str, int] = field(default_factory=dict)


class Judge(ABC):
    """Base class; a judge for one group at a time implements `propose_one`, a concurrent one overrides `propose`."""

    def __init__(self, config: Config):
        self.config = config
        self.usage = Usage()

    def propose(self, groups: list[Group], step: int) -> list[Answer]:
        """One answer per group; segments are valid by `segment_error`, whatever the judge said."""
        return [self.checked(group, self.propose_one(group, step)) for group in groups]

    @abstractmethod
    def propose_one(self, group: Group, step: int) -> Answer:
        """Looks at one eligible group; its reference is `group.reference`."""

    def checked(self, group: Group, answer: Answer) -> Answer:
        self.usage.calls += 1
        if isinstance(answer, Segment):
            error = segment_error(answer.trajectory, answer.first_turn, answer.last_turn, self.config.max_segment_turns)
            answer = Failure(error) if error else answer
        if isinstance(answer, Failure):
            self.usage.failures[answer.reason] = self.usage.failures.get(answer.reason, 0) + 1
        return answer

    def take_usage(self) -> Usage:
        usage, self.usage = self.usage, Usage()
        return usage


def valid_segments(trajectory: Trajectory, max_turns: int) -> list[tuple[int, int]]:
    """All (first, last) that may be credited."""
    horizon = len(trajectory.turns)
    return [
        (first, last)
        for first in range(horizon)
        for last in range(first, min(first + max_turns, horizon))
        if not segment_error(trajectory, first, last, max_turns)
    ]


class RandomJudge(Judge):
    """Control: a uniformly random valid segment of the reference."""

    def propose_one(self, group: Group, step: int) -> Answer:
        reference = group.reference
        segments = valid_segments(reference, self.config.max_segment_turns)
        if not segments:
            return None
        generator = random.Random(derive(self.config.seed, step, group.index, group.task.id, "random judge"))
        return Segment(reference, *generator.choice(segments), reason="random")


class DivergenceJudge(Judge):
    """Contrast without a language model: where the reference first left the ways of the failures.

    For every creditable single turn t of the reference, let o_t be the observation that its action brought.
        novelty(t) = share of the failed trajectories that never saw o_t
    The first turn with the largest novelty is proposed: what comes after a decision that the failures did not take is
    as new to them as its own result, so of equals the earliest decided. Cost: one pass over the group's observations,
    no model call.
    """

    def propose_one(self, group: Group, step: int) -> Answer:
        reference = group.reference
        seen = [{turn.observation for turn in failure.turns} for failure in group.failures]
        best, where = 0.0, None
        for first, last in valid_segments(reference, 1):
            result = reference.turns[last + 1].observation
            novelty = sum(result not in observations for observations in seen) / len(seen)
            if novelty > best:
                best, where = novelty, (first, last)
        if where is None:
            return None  # every failure saw everything that the reference saw: nothing to contrast
        reason = f"the first turn whose result {best:.0%} of the failures never saw"
        return Segment(reference, *where, reason=reason)


JUDGES = {"divergence": DivergenceJudge, "random": RandomJudge}
