"""The data that flows through a step: trajectories, groups of them, segments and verdicts.

A trajectory is an append-only list of token ids. Every id arrives through `observe` (written by the prompt, the
environment or the chat template: no loss) or `act` (sampled by the policy, with its log-prob), so the loss mask, the
turn of each token and the sampler's log-probs are recorded where they are known and never inferred from ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from envs.base import Task

OFF_POLICY = -1  # turn id of a token that the policy did not sample


@dataclass
class Turn:
    """One decision of the policy.

    `start`, `end`: span of its sampled tokens in `Trajectory.ids`, end exclusive. `observation`: what it saw last.
    `action`: its text. `valid`: as the environment judged it. `env_state`, `engine_state`: the exact states before
    its first token, for restoring; `engine_state` is None where it was not kept.
    """

    start: int
    observation: str
    env_state: Any = field(repr=False, default=None)
    engine_state: Any = field(repr=False, default=None)
    end: int = -1
    action: str = ""
    valid: bool = False


@dataclass
class Trajectory:
    """One episode, complete or growing. `sample` counts inside the group; `branch` names a continuation.

    `trainer_logprobs`: log-probs of the policy tokens as the trainer computed them with the weights that sampled, set
    by the update; None where the loss left the trajectory out.
    """

    task: Task
    sample: int
    seed: int
    branch: str = ""
    ids: list[int] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    score: float = 0.0
    truncated: bool = False  # ended by the turn or context limit, not by the environment
    trainer_logprobs: torch.Tensor | None = None
    error: str = ""  # an environment failed: the trajectory is counted, and used for nothing else

    def observe(self, ids: list[int]) -> None:
        """Appends tokens that the policy did not sample."""
        self.ids += ids
        self.turn_ids += [OFF_POLICY] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def act(self, token: int, logprob: float) -> None:
        """Appends one sampled token of the open turn."""
        self.ids.append(token)
        self.turn_ids.append(len(self.turns) - 1)
        self.logprobs.append(logprob)

    def open_turn(self, observation: str, env_state: Any, engine_state: Any = None) -> None:
        self.turns.append(Turn(len(self.ids), observation, env_state, engine_state))

    def close_turn(self, action: str, valid: bool) -> None:
        turn = self.turns[-1]
        turn.end, turn.action, turn.valid = len(self.ids), action, valid

    @property
    def success(self) -> bool:
        return self.reward > 0

    @property
    def policy_tokens(self) -> int:
        return sum(turn.end - turn.start for turn in self.turns)

    def before(self, turn: int, seed: int, branch: str) -> Trajectory:
        """A new trajectory that is exactly where this one was before `turn`, to be continued on its own."""
        cut = self.turns[turn].start
        return Trajectory(
            self.task, self.sample, seed, branch,
            self.ids[:cut], self.turn_ids[:cut], self.logprobs[:cut], list(self.turns[:turn]),
        )


@dataclass
class Group:
    """The trajectories of one task in one step. `index` is the group's place in the whole step, over all ranks."""

    index: int
    task: Task
    trajectories: list[Trajectory]

    @property
    def healthy(self) -> list[Trajectory]:
        """Trajectories without an environment error: only these enter baseline, loss and success rate."""
        return [t for t in self.trajectories if not t.error]

    @property
    def successes(self) -> list[Trajectory]:
        return [t for t in self.healthy if t.success]

    @property
    def failures(self) -> list[Trajectory]:
        return [t for t in self.healthy if not t.success]

    @property
    def mixed(self) -> bool:
        return 0 < len(self.successes) < len(self.healthy)

    @property
    def reference(self) -> Trajectory | None:
        """The success with the fewest turns; of equals the first."""
        return min(self.successes, key=lambda t: len(t.turns), default=None)


@dataclass(frozen=True)
class Segment:
    """Turns first_turn..last_turn, both inclusive, of one trajectory, and why a judge chose them."""

    trajectory: Trajectory
    first_turn: int
    last_turn: int
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """A verified segment: rewards of the continuations from before it (`pre`) and from after it (`post`).

    delta = mean(post) - mean(pre) estimates V(after) - V(before) under the current policy.
    """

    segment: Segment
    pre: list[float]
    post: list[float]

    @property
    def delta(self) -> float:
        return sum(self.post) / len(self.post) - sum(self.pre) / len(self.pre)

    @property
    def accepted(self) -> bool:
        return self.delta > 0
