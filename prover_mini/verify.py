"""Verification: outcomes decide whether a proposed segment was pivotal.

    delta = mean_k R_k(from after the segment) - mean_k R_k(from before it),   K continuations each

sampled with the weights that produced the group, from the exact token and environment states at the two boundaries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prover_mini.rollout import Player
from prover_mini.trajectory import Segment, Trajectory, Verdict


@dataclass
class Verification:
    """Verdicts of one step, and what they cost in tokens.

    `sampled`: policy tokens of the continuations. `computed`: prefix tokens that had to be forwarded for them.
    `reused`: prefix tokens that sampling without forks would have forwarded besides.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    sampled: int = 0
    computed: int = 0
    reused: int = 0


def verify(player: Player, segments: list[Segment]) -> Verification:
    """Samples the continuations of all segments at once. A segment whose continuations failed on one side, by errors
    of the environment, gets no verdict."""
    places = []
    for segment in segments:
        places.append((segment.trajectory, segment.first_turn, "before"))
        places.append((segment.trajectory, segment.last_turn + 1, "after"))
    sampled, computed = player.sampled, player.prefix_computed
    results = player.continuations(places)
    out = Verification(sampled=player.sampled - sampled, computed=player.prefix_computed - computed)
    for (trajectory, turn, _), branches in zip(places, results):
        out.reused += len(branches) * trajectory.turns[turn].start
    out.reused -= out.computed
    for segment, before, after in zip(segments, results[::2], results[1::2]):
        pre, post = rewards(before), rewards(after)
        if pre and post:
            out.verdicts.append(Verdict(segment, pre, post))
    return out


def rewards(branches: list[Trajectory]) -> list[float]:
    return [t.reward for t in branches if not t.error]
