"""What every judge answers and counts.

A judge only says where to look; verification decides. The interface is made for judges that are slow and can fail:
`propose` gets all eligible groups of a step at once, and answers for each of them with a segment, with None (nothing
worth verifying) or with a `Failure`, which is counted apart and never taken for "no segment".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from prover_mini.config import Config
from prover_mini.credit import segment_error
from prover_mini.trajectory import Group, Segment


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
