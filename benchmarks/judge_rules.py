"""What a contrast without a language model reaches: the divergence judge, variants and a bound, by gradient alignment.

    python -m benchmarks.judge_rules --env alfworld --model tiny-rare --batches 24

Every flag is one of `python -m prover_mini.compare --alignment`. Judges:

    divergence   the default
    alone        without the turn that led to the step
    novelty      the first turn of the reference whose result the fewest failures saw: also rewards luck in a search
    milestone    ALFWorld only, and privileged: knows that a kind of task turns on heating, cooling, cleaning or light
    random       the control
"""

from __future__ import annotations

import sys

from prover_mini import compare
from prover_mini.credit import first_creditable, valid_segments
from prover_mini.judge import JUDGES, Answer, DivergenceJudge, Judge
from prover_mini.judge.scripted import said, words
from prover_mini.trajectory import Group, Segment, Trajectory

PROCESSES = {"heat", "cool", "clean", "use"}


class Alone(DivergenceJudge):
    def _span(self, reference: Trajectory, n: int) -> tuple[int, int] | None:
        return first_creditable(reference, [(n, n)], self.config.max_segment_turns)


class Novelty(Judge):
    def propose_one(self, group: Group, step: int) -> Answer:
        seen = [{turn.observation for turn in failure.turns} for failure in group.failures]
        reference, news = group.reference, {}
        for n, _ in valid_segments(reference, 1):
            news[n] = sum(reference.turns[n + 1].observation not in observations for observations in seen)
        best = max(news, key=news.get, default=None)
        return Segment(reference, best, best, "new to failures") if best is not None and news[best] else None


class Milestone(Judge):
    def propose_one(self, group: Group, step: int) -> Answer:
        reference = group.reference
        for n in range(len(reference.turns) - 1, -1, -1):
            if PROCESSES & set(words(said(reference.turns[n].action))):
                span = first_creditable(reference, [(n - 1, n), (n, n)], self.config.max_segment_turns)
                return span and Segment(reference, *span, "the step that this kind of task turns on")
        return None


VARIANTS = {"alone": Alone, "novelty": Novelty, "milestone": Milestone}


def main() -> int:
    JUDGES.update(VARIANTS)
    methods = [f"{name}:--judge {name}" for name in ("divergence", *VARIANTS, "random")]
    sys.argv[1:] = ["--alignment", "--methods", *methods, *sys.argv[1:]]
    return compare.main()


if __name__ == "__main__":
    raise SystemExit(main())
