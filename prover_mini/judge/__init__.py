"""Judges: who looks at a group with mixed outcomes and says which turns of its reference decided it."""

from prover_mini.judge.base import Answer, Failure, Judge, Usage
from prover_mini.judge.scripted import DivergenceJudge, RandomJudge, valid_segments

JUDGES = {"divergence": DivergenceJudge, "random": RandomJudge}

__all__ = ["JUDGES", "Answer", "DivergenceJudge", "Failure", "Judge", "RandomJudge", "Usage", "valid_segments"]
