"""The three fused operations of the trainer; each file holds one, from its mathematics to its autograd.

`segment_advantage` (with `credit_table`), `grpo_loss`, `linear_logprob` (with `logits_logprob`). All take the packed
layout of `kernels.packed` and choose their implementation by the device of their tensors.
"""

from kernels.grpo_loss import LossStats, grpo_loss
from kernels.linear_logprob import LogProb, linear_logprob, logits_logprob
from kernels.segment_advantage import credit_table, segment_advantage

__all__ = [
    "LogProb",
    "LossStats",
    "credit_table",
    "grpo_loss",
    "linear_logprob",
    "logits_logprob",
    "segment_advantage",
]
