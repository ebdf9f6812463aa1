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

Bytes moved: logprob, old_logprob, advantage (12) and mask (1) in, gradient (4) out per token, 4 more for each of
ref_logprob and weight: .6 MB for 32k tokens, well under a microsecond of memory time. Two launches are the cost: one
program per span of tokens writes the gradient and its partial sums, one program adds them up in a fixed order.
Sources: PPO 1707.06347, dual clip 1912.09729, GRPO 2402.03300, DAPO 2503.14476, Dr. GRPO 2503.20783,
GSPO 2507.18071, k1 to k3: J. Schulman, "Approximating KL divergence", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.launch import fused, parameters, tl, triton
from kernels.packed import check_packed, require
from kernels.torch_loss import torch_loss

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


PARTIALS = 16  # columns of the partial sums, a power of 2: the loss, then the fields of LossStats


@triton.jit
def _surrogate(
    log_ratio, advantage, policy,
    LOG_LOW: tl.constexpr, LOG_HIGH: tl.constexpr,
    CLIP_LOW: tl.constexpr, CLIP_HIGH: tl.constexpr, DUAL_CLIP: tl.constexpr,
):  # fmt: skip
    """(-s, its derivative to the log ratio, ratio, clamped log ratio, clipped low, high, dual). NaN passes through."""
    unclamped = (log_ratio >= LOG_LOW) & (log_ratio <= LOG_HIGH)
    log_ratio = tl.where(log_ratio < LOG_LOW, LOG_LOW, tl.where(log_ratio > LOG_HIGH, LOG_HIGH, log_ratio))
    ratio = tl.exp(log_ratio)
    high = policy & (advantage > 0) & (ratio > 1 + CLIP_HIGH)
    low = policy & (advantage < 0) & (ratio < 1 - CLIP_LOW)
    dual = policy & (advantage < 0) & (ratio > DUAL_CLIP)
    flat = high | low | dual | (advantage == 0)
    bound = tl.where(high, 1 + CLIP_HIGH, tl.where(low, 1 - CLIP_LOW, tl.where(dual, DUAL_CLIP, 0.0)))
    loss = -advantage * tl.where(flat, bound, ratio)
    slope = tl.where(flat | (log_ratio == log_ratio) & ~unclamped, 0.0, loss)
    return loss, slope, ratio, log_ratio, low, high, dual


@triton.jit
def _kl_to_reference(logprob, ref, KL: tl.constexpr, KL_MAX: tl.constexpr):
    """(kl, its derivative to logprob)"""
    k1 = logprob - ref
    if KL == "k1":
        return k1, tl.full(k1.shape, 1.0, tl.float32)
    elif KL == "k2":
        return k1 * k1 * 0.5, k1
    else:
        growth = tl.exp(-k1)
        k3 = growth + k1 - 1
        over = (k3 > KL_MAX) | (k1 == float("-inf"))  # where growth + k1 is inf - inf
        return tl.where(over, KL_MAX, k3), tl.where(over, 0.0, 1 - growth)


@triton.jit
def _grpo_loss_kernel(
    logprob_T, old_T, advantage_T, mask_T, ref_T, weight_T, cu_seqlens_B1,
    gradient_T, partial_PS, T, inverse_denominator,
    LEVEL: tl.constexpr, ROW_MEAN: tl.constexpr, HAS_REF: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    LOG_LOW: tl.constexpr, LOG_HIGH: tl.constexpr,
    CLIP_LOW: tl.constexpr, CLIP_HIGH: tl.constexpr, DUAL_CLIP: tl.constexpr,
    KL: tl.constexpr, KL_COEF: tl.constexpr, KL_MAX: tl.constexpr,
    PARTIALS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per span: a trajectory where something is averaged over it, else BLOCK tokens of any."""
    p = tl.program_id(0).to(tl.int64)
    BY_ROW: tl.constexpr = (LEVEL != "token") | ROW_MEAN
    if BY_ROW:
        start = tl.load(cu_seqlens_B1 + p).to(tl.int64)
        end = tl.load(cu_seqlens_B1 + p + 1).to(tl.int64)
    else:
        start = p * BLOCK
        end = tl.minimum(start + BLOCK, T)

    share = inverse_denominator
    mean = 0.0
    count = 1.0
    if BY_ROW:
        counts = tl.zeros([BLOCK], tl.float32)
        log_ratios = tl.zeros([BLOCK], tl.float32)
        for first in range(start, end, BLOCK):
            t = first + tl.arange(0, BLOCK)
            policy = tl.load(mask_T + t, mask=t < end, other=0) != 0
            logprob = tl.load(logprob_T + t, mask=policy, other=0.0).to(tl.float32)
            old = tl.load(old_T + t, mask=policy, other=0.0).to(tl.float32)
            counts += policy.to(tl.float32)
            log_ratios += logprob - old
        count = tl.maximum(tl.sum(counts), 1.0)
        mean = tl.sum(log_ratios) / count
        if ROW_MEAN:
            share = inverse_denominator / count

    column = tl.arange(0, PARTIALS)
    sums = tl.zeros([PARTIALS], tl.float32)
    slope_sum = 0.0
    for first in range(start, end, BLOCK):
        t = first + tl.arange(0, BLOCK)
        policy = tl.load(mask_T + t, mask=t < end, other=0) != 0
        # masked loads never touch what other tokens hold, be it inf or NaN
        logprob = tl.load(logprob_T + t, mask=policy, other=0.0).to(tl.float32)
        old = tl.load(old_T + t, mask=policy, other=0.0).to(tl.float32)
        advantage = tl.load(advantage_T + t, mask=policy, other=0.0).to(tl.float32)
        log_ratio = logprob - old
        if LEVEL != "token":
            log_ratio = tl.where(policy, mean, 0.0)
        loss, slope, ratio, log_ratio, low, high, dual = _surrogate(
            log_ratio, advantage, policy, LOG_LOW, LOG_HIGH, CLIP_LOW, CLIP_HIGH, DUAL_CLIP
        )
        if HAS_WEIGHT:
            weight = tl.load(weight_T + t, mask=policy, other=0.0).to(tl.float32)
            loss *= weight
            slope *= weight
        kl = tl.zeros([BLOCK], tl.float32)
        direct = tl.zeros([BLOCK], tl.float32)
        if HAS_REF:
            ref = tl.load(ref_T + t, mask=policy, other=0.0).to(tl.float32)
            kl, kl_slope = _kl_to_reference(logprob, ref, KL, KL_MAX)
            if KL_COEF != 0:
                loss += KL_COEF * kl
                direct += KL_COEF * kl_slope
        if LEVEL == "sequence":
            slope_sum += tl.sum(slope)
        else:
            direct += slope
        tl.store(gradient_T + t, tl.where(policy, direct * share, 0.0), mask=t < end)

        sums += tl.where(column == 0, tl.sum(tl.where(policy, loss, 0.0)) * share, 0.0)
        sums += tl.where(column == 1, tl.sum(policy.to(tl.float32)), 0.0)
        sums += tl.where(column == 2, tl.sum(low.to(tl.float32)), 0.0)
        sums += tl.where(column == 3, tl.sum(high.to(tl.float32)), 0.0)
        sums += tl.where(column == 4, tl.sum(dual.to(tl.float32)), 0.0)
        sums += tl.where(column == 5, tl.sum(tl.where(policy, ratio, 0.0)), 0.0)
        # only this column: a maximum drops NaN on a GPU
        sums = tl.where(column == 6, tl.maximum(sums, tl.max(tl.where(policy, ratio, 0.0))), sums)
        sums -= tl.where(column == 7, tl.sum(tl.where(policy, log_ratio, 0.0)), 0.0)
        sums += tl.where(column == 8, tl.sum(tl.where(policy, kl, 0.0)), 0.0)
    tl.store(partial_PS + p * PARTIALS + column, sums)

    if LEVEL == "sequence":
        tl.debug_barrier()
        through_mean = slope_sum * share / count
        for first in range(start, end, BLOCK):
            t = first + tl.arange(0, BLOCK)
            policy = tl.load(mask_T + t, mask=t < end, other=0) != 0
            direct = tl.load(gradient_T + t, mask=policy, other=0.0)
            tl.store(gradient_T + t, direct + through_mean, mask=policy)


@triton.jit
def _sum_partials_kernel(partial_PS, loss, out_S, P, PARTIALS: tl.constexpr, BLOCK: tl.constexpr):
    """Column sums, and the maximum of column 6, in an order that does not depend on scheduling."""
    column = tl.arange(0, PARTIALS)
    sums = tl.zeros([PARTIALS], tl.float32)
    most = tl.zeros([PARTIALS], tl.float32)
    for first in range(0, P, BLOCK):
        p = first + tl.arange(0, BLOCK)
        tile = tl.load(partial_PS + p[:, None] * PARTIALS + column[None, :], mask=(p < P)[:, None], other=0.0)
        sums += tl.sum(tile, 0)
        most = tl.maximum(most, tl.max(tile, 0))
    tl.store(loss, tl.sum(tl.where(column == 0, sums, 0.0)))
    tl.store(out_S + column, tl.where(column == 6, most, sums))


@dataclass(frozen=True)
class LossOptions:
    denominator: float
    clip_low: float
    clip_high: float
    dual_clip: float | None
    level: str
    aggregation: str
    log_ratio_range: tuple[float, float]
    kl_coef: float
    kl: str
    kl_max: float

    def __post_init__(self) -> None:
        require(self.denominator > 0, f"denominator must be positive, not {self.denominator}")
        for name, known in (("level", LEVELS), ("aggregation", AGGREGATIONS), ("kl", KL_KINDS)):
            value = getattr(self, name)
            require(value in known, f"{name} must be one of {', '.join(known)}, not {value}")
        require(self.dual_clip is None or self.dual_clip > 1, f"dual_clip must be above 1, not {self.dual_clip}")

    def constexprs(self) -> dict:
        return {
            "LEVEL": self.level,
            "ROW_MEAN": self.aggregation == "seq_mean_token_mean",
            "LOG_LOW": float(self.log_ratio_range[0]),
            "LOG_HIGH": float(self.log_ratio_range[1]),
            "CLIP_LOW": float(self.clip_low),
            "CLIP_HIGH": float(self.clip_high),
            "DUAL_CLIP": float("inf") if self.dual_clip is None else float(self.dual_clip),
            "KL": self.kl,
            "KL_COEF": float(self.kl_coef),
            "KL_MAX": float(self.kl_max),
        }


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
    options = LossOptions(
        denominator, clip_low, clip_high, dual_clip, level, aggregation, log_ratio_range, kl_coef, kl, kl_max
    )
    require(kl_coef == 0 or ref_logprob_T is not None, "kl_coef needs ref_logprob")
    tensors = (logprob_T, old_logprob_T, advantage_T, mask_T, ref_logprob_T, weight_T, cu_seqlens_B1)
    if not fused(logprob_T) or not len(logprob_T):
        loss, sums = torch_loss(*tensors, options)
        return loss, LossStats(*sums)
    loss, sums_S = _FusedLoss.apply(*tensors, options)
    return loss, LossStats(*sums_S[1 : 1 + len(LossStats._fields)].unbind())


class _FusedLoss(torch.autograd.Function):
    """(loss, statistics [PARTIALS]); the gradient is made in the forward pass and scaled in the backward pass."""

    @staticmethod
    def forward(ctx, logprob_T, old_T, advantage_T, mask_T, ref_T, weight_T, cu_seqlens_B1, options):
        T, device = len(logprob_T), logprob_T.device
        chosen = parameters("grpo_loss", T, device)
        by_row = options.level != "token" or options.aggregation == "seq_mean_token_mean"
        programs = len(cu_seqlens_B1) - 1 if by_row else triton.cdiv(T, chosen["BLOCK"])
        loss, sums_S, gradient_T, partial_PS = (
            torch.empty(shape, dtype=torch.float32, device=device) for shape in ((), PARTIALS, T, (programs, PARTIALS))
        )
        inputs = (logprob_T, old_T, advantage_T, mask_T.view(torch.uint8), ref_T, weight_T, cu_seqlens_B1)
        _grpo_loss_kernel[(programs,)](
            *(None if x is None else x.contiguous() for x in inputs),
            gradient_T,
            partial_PS,
            T,
            1.0 / options.denominator,
            **options.constexprs(),
            HAS_REF=ref_T is not None,
            HAS_WEIGHT=weight_T is not None,
            PARTIALS=PARTIALS,
            **chosen,
        )
        _sum_partials_kernel[(1,)](partial_PS, loss, sums_S, programs, PARTIALS=PARTIALS, BLOCK=64, num_warps=4)
        ctx.save_for_backward(gradient_T)
        ctx.dtype = logprob_T.dtype
        ctx.mark_non_differentiable(sums_S)
        return loss, sums_S

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream, _):
        (gradient_T,) = ctx.saved_tensors
        return (gradient_T * upstream).to(ctx.dtype), *[None] * 7


def _check(logprob_T: Tensor, others: dict[str, Tensor], cu_seqlens_B1: Tensor, mask_T: Tensor) -> None:
    require(logprob_T.dim() == 1 and logprob_T.is_floating_point(), "logprob must be floating point on one axis")
    check_packed(cu_seqlens_B1, len(logprob_T))
    require(mask_T.dtype == torch.bool, f"mask must be bool, not {mask_T.dtype}")
    for name, x in {**others, "mask": mask_T}.items():
        require(x.shape == logprob_T.shape, f"{name} must have shape {list(logprob_T.shape)}, not {list(x.shape)}")
        require(x.is_floating_point() or name == "mask", f"{name} must be floating point, not {x.dtype}")
    for name, x in {**others, "mask": mask_T, "cu_seqlens": cu_seqlens_B1}.items():
        require(x.device == logprob_T.device, f"{name} must be on {logprob_T.device}, not on {x.device}")
