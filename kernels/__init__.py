"""The fused operations; each file holds one, from its mathematics to its autograd.

Of the trainer: `segment_advantage` (with `credit_table`), `grpo_loss`, `linear_logprob` (with `logits_logprob`), on
the packed layout of `kernels.packed`. Of the rollout engine, without autograd: `gated_delta_rule`, `decode_attention`,
`rms_norm`. All choose their implementation by the device of their tensors.
"""

from kernels.decode_attention import decode_attention
from kernels.gated_delta_rule import GatedDeltaWeights, gated_delta_rule
from kernels.grpo_loss import LossStats, grpo_loss
from kernels.linear_logprob import LogProb, linear_logprob, logits_logprob
from kernels.rms_norm import rms_norm
from kernels.segment_advantage import credit_table, segment_advantage

__all__ = [
    "GatedDeltaWeights",
    "LogProb",
    "LossStats",
    "credit_table",
    "decode_attention",
    "gated_delta_rule",
    "grpo_loss",
    "linear_logprob",
    "logits_logprob",
    "rms_norm",
    "segment_advantage",
]
