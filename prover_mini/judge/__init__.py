"""Judges: who looks at a group with mixed outcomes and says which turns of its reference decided it."""

from prover_mini.credit import valid_segments
from prover_mini.judge.base import Answer, Failure, FailureWatch, Judge, Usage
from prover_mini.judge.endpoint import EndpointJudge
from prover_mini.judge.policy import PolicyJudge
from prover_mini.judge.scripted import DivergenceJudge, RandomJudge

JUDGES = {"divergence": DivergenceJudge, "random": RandomJudge, "policy": PolicyJudge, "endpoint": EndpointJudge}

__all__ = [
    "JUDGES",
    "Answer",
    "DivergenceJudge",
    "Failure",
    "FailureWatch",
    "Judge",
    "RandomJudge",
    "Usage",
    "valid_segments",
]
