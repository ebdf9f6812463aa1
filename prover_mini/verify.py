"""Verification: outcomes decide whether a proposed segment was pivotal.

    delta = mean_k R_k(from after the segment) - mean_k R_k(from before it),   K continuations each

sampled with the weights that produced the group, from the exact token and environment states at the two boundaries.
A continuation's draws are a function of its place and number. So rounds (`sequential`, see stopping.py) sample the
first ones of the K that would have been sampled at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prover_mini.balance import continuations
from prover_mini.config import Config
from prover_mini.rollout import Player
from prover_mini.stopping import rounds, settled
from prover_mini.trajectory import Segment, Trajectory, Verdict


@dataclass
class Verification:
    """Verdicts of one step, and what they cost in tokens.

    `sampled`: policy tokens of the continuations. `computed`: prefix tokens that had to be forwarded for them.
    `reused`: prefix tokens that sampling without forks would have forwarded besides. `moved`: boundaries whose
    continuations another rank played.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    sampled: int = 0
    computed: int = 0
    reused: int = 0
    moved: int = 0


@dataclass(eq=False)
class Boundary:
    """A state to continue from: before `turn` of a trajectory. `rewards` of the continuations that met no error."""

    trajectory: Trajectory
    turn: int
    branch: str
    rewards: list[float] = field(default_factory=list)


def verify(player: Player, segments: list[Segment], config: Config) -> Verification:
    """Samples the continuations of all segments at once, on all ranks, which call it together. A segment whose
    continuations failed on one side, by errors of the environment, gets no verdict."""
    out = Verification()
    pairs = boundaries(segments, config.share_boundaries)
    undecided, asked = pairs, 0
    for total in rounds(config):
        sample(player, undecided, range(asked, total), out)
        remaining = config.continuations - total
        undecided = [
            (before, after)
            for before, after in undecided
            if not settled(before.rewards, after.rewards, remaining, config.sequential)
        ]
        asked = total
    for segment, (before, after) in zip(segments, pairs):
        if before.rewards and after.rewards:
            out.verdicts.append(Verdict(segment, before.rewards, after.rewards))
    return out


def sample(player: Player, pairs: list[tuple[Boundary, Boundary]], numbers: range, out: Verification) -> None:
    """Continuations of these numbers from both sides of each pair; their rewards go to the boundaries, their costs to
    `out`."""
    computed = player.prefix_computed
    sides = list(dict.fromkeys(side for pair in pairs for side in pair))
    places = [(side.trajectory, side.turn, side.branch) for side in sides]
    results, moved = continuations(player, places, numbers)
    for side, outcomes in zip(sides, results):
        side.rewards += [o.reward for o in outcomes if not o.error]
        out.sampled += sum(o.sampled for o in outcomes)
        out.reused += len(outcomes) * side.trajectory.turns[side.turn].start
    computed = player.prefix_computed - computed
    out.computed += computed
    out.reused -= computed
    out.moved += moved


def boundaries(segments: list[Segment], share: bool) -> list[tuple[Boundary, Boundary]]:
    """Each segment's two boundaries. The same side of two segments is one boundary; with `share`, so is a state that
    one segment ends with and another begins with (their deltas then have its noise in common, with opposite signs)."""
    known: dict[tuple, Boundary] = {}

    def boundary(trajectory: Trajectory, turn: int, branch: str) -> Boundary:
        branch = "boundary" if share else branch
        return known.setdefault((id(trajectory), turn, branch), Boundary(trajectory, turn, branch))

    return [
        (boundary(s.trajectory, s.first_turn, "before"), boundary(s.trajectory, s.last_turn + 1, "after"))
        for s in segments
    ]
