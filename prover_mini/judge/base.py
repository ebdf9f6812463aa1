"""What every judge answers and counts.

A judge only says where to look; verification decides. The interface is made for judges that are slow and can fail:
`propose` gets all eligible groups of a step at once, and answers for each of them with a segment, with None (nothing
worth verifying) or with a `Failure`, which is counted apart and never taken for "no segment".
"""

from __future__ import annotations

from abc import ABC
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from prover_mini.config import Config
from prover_mini.credit import segment_error
from prover_mini.errors import SharedError
from prover_mini.trajectory import Group, Segment

FAILURES = "judge/failures/"  # and the reason, spaces as underscores: the counter of failures with it
WINDOW = 32  # calls over which the share of failures is judged: fewer are too few to tell bad luck from a bad judge


@dataclass(frozen=True)
class Failure:
    """A judge that gave no usable answer; `reason` is the name it is counted under."""

    reason: str


Answer = Segment | Failure | None


@dataclass
class Usage:
    """What a judge consumed since the last `take_usage`. A call is one group, however often a model was asked."""

    calls: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter)


class Judge(ABC):
    """Base class; a judge for one group at a time implements `propose_one`, a concurrent one `propose_all`.

    Args:
        player: what plays the episodes (`rollout.Player`); scripted judges do without.
    """

    def __init__(self, config: Config, player: Any = None):
        self.config, self.player = config, player
        self.usage = Usage()

    def prepare(self) -> None:
        """Called once before a run writes anything, if it will ask. Raises UserError for a judge that is not there."""

    def propose(self, groups: list[Group], step: int) -> list[Answer]:
        """One answer per group; segments are valid by `segment_error`, whatever the judge said."""
        return [self.checked(group, answer) for group, answer in zip(groups, self.propose_all(groups, step))]

    def propose_all(self, groups: list[Group], step: int) -> list[Answer]:
        return [self.propose_one(group, step) for group in groups]

    def propose_one(self, group: Group, step: int) -> Answer:
        """Looks at one eligible group; its reference is `group.reference`."""
        raise NotImplementedError

    def checked(self, group: Group, answer: Answer) -> Answer:
        self.usage.calls += 1
        if isinstance(answer, Segment):
            error = segment_error(answer.trajectory, answer.first_turn, answer.last_turn, self.config.max_segment_turns)
            answer = Failure(error) if error else answer
        if isinstance(answer, Failure):
            self.usage.failures[answer.reason] += 1
        return answer

    def take_usage(self) -> Usage:
        usage, self.usage = self.usage, Usage()
        return usage

    def take_records(self) -> list[dict] | None:
        """What was asked and answered since then, one object per proposal; None for a judge that asks nobody."""
        return None


class FailureWatch:
    """Ends a run whose judge keeps failing: more than `judge_max_failures` of the last `WINDOW` calls or so.

    The window holds whole steps. One that is not full yet counts as if the missing calls succeeded, so a limit of 0
    ends the run at the first failure and a limit of 1 never does.
    """

    def __init__(self, config: Config, run_dir: Any):
        self.config, self.run_dir = config, run_dir
        self.steps: deque[tuple[int, Counter[str]]] = deque()

    def check(self, row: dict[str, Any]) -> None:
        """Takes the metrics of a step, which count over all ranks, so that every rank stops alike.

        Raises SharedError.
        """
        reasons = {
            name.removeprefix(FAILURES).replace("_", " "): n for name, n in row.items() if name.startswith(FAILURES)
        }
        self.steps.append((row["judge/calls"], Counter(reasons)))
        while sum(n for n, _ in self.steps) - self.steps[0][0] >= WINDOW:
            self.steps.popleft()
        calls, total = sum(n for n, _ in self.steps), Counter()
        for _, reasons in self.steps:
            total.update(reasons)
        if total.total() > self.config.judge_max_failures * max(calls, WINDOW):
            reasons = ", ".join(f"{n} {reason}" for reason, n in total.most_common())
            raise SharedError(
                f"the judge ({self.config.judge}) failed {total.total()} times in the last {calls} calls ({reasons}): "
                f"see {self.run_dir}/judge, repair it or raise --judge-max-failures {self.config.judge_max_failures}"
            )
