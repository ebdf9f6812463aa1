"""Truncated importance sampling: how far the weights that sampled are from the weights that train.

    d = old_logprob - sampler_logprob      old: recomputed by the trainer before the first update of the step

"token_*": w_t = exp(d_t) for every policy token. "sequence_*": w_t = exp(sum of d over the trajectory), one number for
all its tokens. "*_truncate" clamps w to [low, high]; "*_mask" sets it to 0 outside. Off-policy tokens count as d = 0.
Source: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025; IcePop for masking.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.packed import check_packed, require, trajectory_of_token

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def importance_weight(
    old_logprob_T: Tensor,
    sampler_logprob_T: Tensor,
    mask_T: Tensor,
    cu_seqlens_B1: Tensor,
    mode: str = "token_truncate",
    low: float | None = None,
    high: float | None = 2.0,
) -> Tensor:
    """Weights [T] for `grpo_loss(weight_T=...)`, without gradient, in the dtype of old_logprob.

    Args:
        mask_T: bool [T], True on policy tokens; the others may hold inf or NaN.
        low, high: None leaves that side open.

    Raises:
        ValueError: an unknown mode, shapes that do not fit, low above high.
    """
    require(mode in MODES, f"mode must be one of {', '.join(MODES)}, not {mode}")
    require(old_logprob_T.shape == sampler_logprob_T.shape == mask_T.shape, "log-probs and mask must have one shape")
    require(low is None or high is None or low <= high, f"low {low} is above high {high}")
    check_packed(cu_seqlens_B1, len(mask_T))
    difference_T = torch.where(mask_T, old_logprob_T.detach() - sampler_logprob_T, 0.0)
    if mode.startswith("sequence"):
        row_T = trajectory_of_token(cu_seqlens_B1, len(mask_T))
        sum_B = difference_T.new_zeros(len(cu_seqlens_B1) - 1).index_add(0, row_T, difference_T)
        difference_T = sum_B[row_T]
    weight_T = difference_T.exp()
    low = 0.0 if low is None else low
    high = torch.inf if high is None else high
    if mode.endswith("truncate"):
        return weight_T.clamp(low, high)
    return torch.where((weight_T >= low) & (weight_T <= high), weight_T, 0.0)
