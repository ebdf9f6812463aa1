"""The loss of `kernels.grpo_loss` in torch operations, for the CPU; its gradient comes from autograd.

Inputs of masked tokens are replaced before anything is computed, and exp is taken only where its result is used:
otherwise a gradient of 0 times inf would be NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.packed import trajectory_of_token

if TYPE_CHECKING:
    from kernels.grpo_loss import LossOptions


def torch_loss(
    logprob_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    mask_T: Tensor,
    ref_T: Tensor | None,
    weight_T: Tensor | None,
    cu_seqlens_B1: Tensor,
    options: LossOptions,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(loss, the fields of LossStats); arguments as `grpo_loss`, already checked."""
    dtype = torch.float64 if logprob_T.dtype == torch.float64 else torch.float32
    logprob_T, old_T, advantage_T = (torch.where(mask_T, x, 0).to(dtype) for x in (logprob_T, old_T, advantage_T))
    row_T = trajectory_of_token(cu_seqlens_B1, len(mask_T))
    count_B = _sum_per_row(mask_T.to(dtype), row_T, len(cu_seqlens_B1) - 1)
    share_T = mask_T.to(dtype) / options.denominator
    if options.aggregation == "seq_mean_token_mean":
        share_T = share_T / count_B.clamp(min=1)[row_T]

    log_ratio_T = logprob_T - old_T
    if options.level != "token":
        mean_T = (_sum_per_row(log_ratio_T, row_T, len(count_B)) / count_B.clamp(min=1))[row_T]
        own_T = logprob_T - logprob_T.detach()
        log_ratio_T = mean_T if options.level == "sequence" else mean_T.detach() + own_T
    log_ratio_T = log_ratio_T.clamp(*options.log_ratio_range)

    with torch.no_grad():
        ratio_T = log_ratio_T.exp()
        high_T = mask_T & (advantage_T > 0) & (ratio_T > 1 + options.clip_high)
        low_T = mask_T & (advantage_T < 0) & (ratio_T < 1 - options.clip_low)
        dual_T = mask_T & (advantage_T < 0) & (ratio_T > (options.dual_clip or torch.inf))
        flat_T = high_T | low_T | dual_T | (advantage_T == 0)
        bound_T = high_T * (1 + options.clip_high) + low_T * (1 - options.clip_low) + dual_T * (options.dual_clip or 0)
    # exp only where its gradient is used: an overflow elsewhere would turn 0 * inf into NaN
    active_T = torch.where(flat_T, 0.0, log_ratio_T).exp()
    token_loss_T = -advantage_T * torch.where(flat_T, bound_T, active_T)
    if weight_T is not None:
        token_loss_T = token_loss_T * torch.where(mask_T, weight_T, 0).to(dtype)
    kl_T = torch.zeros_like(share_T)
    if ref_T is not None:
        kl_T = _kl(logprob_T, torch.where(mask_T, ref_T, 0).to(dtype), options)
        token_loss_T = token_loss_T + options.kl_coef * kl_T if options.kl_coef else token_loss_T
    loss = (token_loss_T * share_T).sum()

    ratio_max = torch.where(mask_T, ratio_T, 0.0).max() if len(mask_T) else ratio_T.new_zeros(())
    counts = (x_T.sum().to(dtype) for x_T in (mask_T, low_T, high_T, dual_T))
    old_kl_sum = -torch.where(mask_T, log_ratio_T.detach(), 0.0).sum()
    ratio_sum = torch.where(mask_T, ratio_T, 0.0).sum()
    return loss, (*counts, ratio_sum, ratio_max, old_kl_sum, kl_T.detach().sum())


def _kl(logprob_T: Tensor, ref_T: Tensor, options: LossOptions) -> Tensor:
    k1_T = logprob_T - ref_T
    if options.kl == "k1":
        return k1_T
    if options.kl == "k2":
        return k1_T.square() / 2
    with torch.no_grad():
        # exp(-k1) + k1 is inf - inf where k1 is -inf
        over_T = (torch.exp(-k1_T) + k1_T - 1 > options.kl_max) | (k1_T == -torch.inf)
    k1_T = torch.where(over_T, 0.0, k1_T)
    return torch.where(over_T, options.kl_max, torch.exp(-k1_T) + k1_T - 1)


def _sum_per_row(x_T: Tensor, row_T: Tensor, B: int) -> Tensor:
    return x_T.new_zeros(B).index_add(0, row_T, x_T)
