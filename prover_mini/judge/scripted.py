"""Judges without a language model: a random segment, and the turn where the reference left the ways of the failures."""

from __future__ import annotations

import random

from prover_mini.credit import valid_segments
from prover_mini.judge.base import Answer, Judge
from prover_mini.seeds import derive
from prover_mini.trajectory import Group, Segment


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
