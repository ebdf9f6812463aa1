"""Clipped policy loss of a packed batch, with its statistics.

For a policy token t of trajectory i, with log ratio d = logprob - old_logprob:

    ratio       r = exp(clamp(d))                        level "token"
                r = exp(clamp(mean over i of d))         levels "sequence" and "sequence_token" (GSPO)
    surrogate   s = min(r A, clip(r, 1 - low, 1 + high) A), and not below dual_clip * A where A < 0
    token loss  l = -weight s + kl_coef kl(logprob, ref_logprob)
    kl          k1 = logprob - ref,  k2 = k1^2 / 2,  k3 = exp(-k1) + k1 - 1

    loss = sum of l / denominator                                    "token_mean" and "constant"
    loss = sum over i of (mean of l over i's policy tokens) / denominator    "seq_mean_token_mean"

The denominator comes from outside, because a step is made of micro-batches and ranks. "token_mean": policy tokens of
the whole step. "constant": trajectories of the whole step times a fixed length. "seq_mean_token_mean": trajectories
of the whole step. So micro-batch losses add up to the loss of the step. A trajectory is never split over calls.

Where published implementations differ, this one
- clamps the log ratio to log_ratio_range, with gradient 0 beyond (verl: +-20; TRL and verl-agent: no clamp);
- clamps the value of k3 at kl_max, with gradient 0 beyond (verl: 10; TRL: no clamp);
- counts a trajectory without policy tokens nowhere by itself: the denominator decides (verl skips it, TRL counts it);
- differentiates GSPO through the mean at level "sequence" (TRL). At "sequence_token" each token keeps its own
  advantage: r is the same number and its gradient goes to the token itself (GSPO-token, verl). The two are equal when
  all tokens of a trajectory have one advantage; with segment credit only the second keeps it where it was earned;
- multiplies the surrogate, not the KL, by the importance weight (verl, TRL);
- gives loss 0 and gradient 0 when no token is a policy token.
Sources: PPO 1707.06347, dual clip 1912.09729, GRPO 2402.03300, DAPO 2503.14476, Dr. GRPO 2503.20783,
GSPO 2507.18071, k1 to k3: J. Schulman, "Approximating KL divergence", 2020.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.packed import check_packed, require, trajectory_of_token

LEVELS = ("token", "sequence", "sequence_token")
AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "constant")
KL_KINDS = ("k1", "k2", "k3")


class LossStats(NamedTuple):
    """Sums over policy tokens (0-d tensors without gradient), so that micro-batches and ranks add.

    tokens; clipped_low, clipped_high: the lower (A < 0) or upper (A > 0) clip holds; clipped_dual: the dual clip
    holds; ratio_sum; ratio_max; old_kl_sum: old_logprob - logprob, clamped like the ratio; kl_sum: KL to the
    reference, 0 without one.
    """

    tokens: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_dual: Tensor
    ratio_sum: Tensor
    ratio_max: Tensor
    old_kl_sum: Tensor
    kl_sum: Tensor

    def merged(self, other: LossStats) -> LossStats:
        """Statistics of both batches together: sums, and the larger maximum."""
        both = {name: a + b for name, a, b in zip(self._fields, self, other)}
        return LossStats(**(both | {"ratio_max": torch.maximum(self.ratio_max, other.ratio_max)}))


def grpo_loss(
    logprob_T: Tensor,
    old_logprob_T: Tensor,
    advantage_T: Tensor,
    cu_seqlens_B1: Tensor,
    mask_T: Tensor,
    *,
    denominator: float,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    level: str = "token",
    aggregation: str = "token_mean",
    log_ratio_range: tuple[float, float] = (-20.0, 20.0),
    ref_logprob_T: Tensor | None = None,
    kl_coef: float = 0.0,
    kl: str = "k3",
    kl_max: float = 10.0,
    weight_T: Tensor | None = None,
) -> tuple[Tensor, LossStats]:
    """Loss (0-d, float32, or float64 when logprob is float64) and statistics; see the module for the formulas.

    Args:
        logprob_T: of the sampled tokens under the trained weights; the only input that gets a gradient.
        old_logprob_T, advantage_T: what the ratio and the surrogate refer to.
        cu_seqlens_B1: int [B + 1], starts of the trajectories in T.
        mask_T: bool [T], True on policy tokens. Other tokens may hold inf or NaN: they take no part.
        denominator: of the whole optimizer step, positive.
        dual_clip: > 1, or None.
        ref_logprob_T: needed when kl_coef is not 0; given with kl_coef 0 it only enters the statistics.
        weight_T: importance weights of the surrogate, from `prover_mini.importance`.

    Raises:
        ValueError: shapes, dtypes, devices or options that do not fit.
    """
    given = {"old_logprob": old_logprob_T, "advantage": advantage_T, "ref_logprob": ref_logprob_T, "weight": weight_T}
    _check(logprob_T, {name: x for name, x in given.items() if x is not None}, cu_seqlens_B1, mask_T)
    require(denominator > 0, f"denominator must be positive, not {denominator}")
    require(level in LEVELS, f"level must be one of {', '.join(LEVELS)}, not {level}")
    require(aggregation in AGGREGATIONS, f"aggregation must be one of {', '.join(AGGREGATIONS)}, not {aggregation}")
    require(kl in KL_KINDS, f"kl must be one of {', '.join(KL_KINDS)}, not {kl}")
    require(dual_clip is None or dual_clip > 1, f"dual_clip must be above 1, not {dual_clip}")
    require(kl_coef == 0 or ref_logprob_T is not None, "kl_coef needs ref_logprob")

    dtype = torch.float64 if logprob_T.dtype == torch.float64 else torch.float32
    logprob_T, old_T, advantage_T = (
        torch.where(mask_T, x, 0).to(dtype) for x in (logprob_T, old_logprob_T, advantage_T)
    )
    row_T = trajectory_of_token(cu_seqlens_B1, len(mask_T))
    count_B = _sum_per_row(mask_T.to(dtype), row_T, len(cu_seqlens_B1) - 1)
    share_T = mask_T.to(dtype) / denominator
    if aggregation == "seq_mean_token_mean":
        share_T = share_T / count_B.clamp(min=1)[row_T]

    log_ratio_T = logprob_T - old_T
    if level != "token":
        mean_T = (_sum_per_row(log_ratio_T, row_T, len(count_B)) / count_B.clamp(min=1))[row_T]
        own_T = logprob_T - logprob_T.detach()
        log_ratio_T = mean_T if level == "sequence" else mean_T.detach() + own_T
    log_ratio_T = log_ratio_T.clamp(*log_ratio_range)

    with torch.no_grad():
        ratio_T = log_ratio_T.exp()
        high_T = mask_T & (advantage_T > 0) & (ratio_T > 1 + clip_high)
        low_T = mask_T & (advantage_T < 0) & (ratio_T < 1 - clip_low)
        dual_T = mask_T & (advantage_T < 0) & (ratio_T > (dual_clip or torch.inf))
        flat_T = high_T | low_T | dual_T
        bound_T = torch.where(high_T, 1 + clip_high, torch.where(low_T, 1 - clip_low, dual_clip or 0.0)).to(dtype)
    # exp only where its gradient is used: an overflow elsewhere would turn 0 * inf into NaN
    active_T = torch.where(flat_T, 0.0, log_ratio_T).exp()
    token_loss_T = -advantage_T * torch.where(flat_T, bound_T, active_T)
    if weight_T is not None:
        token_loss_T = token_loss_T * torch.where(mask_T, weight_T, 0).to(dtype)
    kl_T = torch.zeros_like(share_T)
    if ref_logprob_T is not None:
        kl_T = _kl(logprob_T, torch.where(mask_T, ref_logprob_T, 0).to(dtype), kl, kl_max)
        token_loss_T = token_loss_T + kl_coef * kl_T if kl_coef else token_loss_T
    loss = (token_loss_T * share_T).sum()

    ratio_max = torch.where(mask_T, ratio_T, 0.0).max() if len(mask_T) else ratio_T.new_zeros(())
    counts = (x_T.sum().to(dtype) for x_T in (mask_T, low_T, high_T, dual_T))
    old_kl_sum = -torch.where(mask_T, log_ratio_T.detach(), 0.0).sum()
    ratio_sum = torch.where(mask_T, ratio_T, 0.0).sum()
    return loss, LossStats(*counts, ratio_sum, ratio_max, old_kl_sum, kl_T.detach().sum())


def _kl(logprob_T: Tensor, ref_T: Tensor, kl: str, kl_max: float) -> Tensor:
    k1_T = logprob_T - ref_T
    if kl == "k1":
        return k1_T
    if kl == "k2":
        return k1_T.square() / 2
    return (torch.exp(-k1_T) + k1_T - 1).clamp(max=kl_max)


def _sum_per_row(x_T: Tensor, row_T: Tensor, B: int) -> Tensor:
    return x_T.new_zeros(B).index_add(0, row_T, x_T)


def _check(logprob_T: Tensor, others: dict[str, Tensor], cu_seqlens_B1: Tensor, mask_T: Tensor) -> None:
    require(logprob_T.dim() == 1 and logprob_T.is_floating_point(), "logprob must be floating point on one axis")
    check_packed(cu_seqlens_B1, len(logprob_T))
    require(mask_T.dtype == torch.bool, f"mask must be bool, not {mask_T.dtype}")
    for name, x in {**others, "mask": mask_T}.items():
        require(x.shape == logprob_T.shape, f"{name} must have shape {list(logprob_T.shape)}, not {list(x.shape)}")
        require(x.is_floating_point() or name == "mask", f"{name} must be floating point, not {x.dtype}")
    for name, x in {**others, "mask": mask_T, "cu_seqlens": cu_seqlens_B1}.items():
        require(x.device == logprob_T.device, f"{name} must be on {logprob_T.device}, not on {x.device}")
