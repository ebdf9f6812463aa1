"""Log-probabilities of given ids under a linear head, without its [N, V] logits.

    z_NV = hidden_ND weight_VD^T / temperature        m = max_v z, s = sum_v exp(z - m)
    logprob_N = (z[n, ids[n]] - m) - log s            <= 0 also after rounding
    logsumexp_N = m + log s
    entropy_N = log s - sum_v exp(z - m) (z - m) / s

    With upstream gradients g (logprob), h (entropy), l (logsumexp):
    dz = g onehot(ids) + (l - g) p - h p (z - m - log s + entropy),  p = exp(z - m) / s
    dhidden = dz weight / temperature,  dweight = dz^T hidden / temperature

The vocabulary is walked in chunks: m, s and the entropy's sum are carried along and rescaled when m rises (online
softmax, 1805.02867). The backward pass computes each chunk's logits again, so that one chunk is all the memory.
Sums are in float32 whatever the inputs: with 248,320 terms a bfloat16 sum is off by whole units.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.packed import require

CHUNK = 8192  # vocabulary columns at a time
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class LogProb(NamedTuple):
    """All [N], float32 (float64 for float64 inputs), differentiable; what was not asked for is None."""

    logprob_N: Tensor
    entropy_N: Tensor | None
    logsumexp_N: Tensor | None


def linear_logprob(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    ids_N: Tensor,
    temperature: float = 1.0,
    *,
    entropy: bool = False,
    logsumexp: bool = False,
    check_ids: bool = False,
) -> LogProb:
    """log softmax(hidden weight^T / temperature) at ids, in memory of one vocabulary chunk.

    Args:
        hidden_ND, weight_VD: float64, float32, bfloat16 or float16, of one dtype.
        ids_N: int64 in 0..V-1.
        temperature: positive; entropy and logsumexp are of the scaled logits, in nats.
        check_ids: read ids back to check their range; always done on the CPU. Unchecked, a wrong id gives NaN.

    Returns:
        LogProb; empty tensors when N is 0.

    Raises:
        ValueError: shapes, dtypes, devices or values that do not fit.
    """
    require(hidden_ND.dim() == 2 and weight_VD.dim() == 2, "hidden and weight must have two axes: [N, D] and [V, D]")
    require(
        hidden_ND.shape[1] == weight_VD.shape[1],
        f"hidden has {hidden_ND.shape[1]} columns and weight {weight_VD.shape[1]}: both must be D",
    )
    require(hidden_ND.dtype == weight_VD.dtype, f"hidden is {hidden_ND.dtype}, weight {weight_VD.dtype}: use one dtype")
    require(hidden_ND.device == weight_VD.device, f"hidden is on {hidden_ND.device}, weight on {weight_VD.device}")
    _check(hidden_ND, ids_N, weight_VD.shape[0], temperature, check_ids)
    outputs = _LinearLogProb.apply(hidden_ND, weight_VD, ids_N, temperature, entropy)
    return _select(outputs, entropy, logsumexp)


def logits_logprob(
    logits_NV: Tensor,
    ids_N: Tensor,
    temperature: float = 1.0,
    *,
    entropy: bool = False,
    logsumexp: bool = False,
    check_ids: bool = False,
) -> LogProb:
    """The same of given logits [N, V], which may hold -inf; their gradient has their dtype. See `linear_logprob`."""
    require(logits_NV.dim() == 2, "logits must have two axes: [N, V]")
    _check(logits_NV, ids_N, logits_NV.shape[1], temperature, check_ids)
    outputs = _LogitsLogProb.apply(logits_NV, ids_N, temperature, entropy)
    return _select(outputs, entropy, logsumexp)


def _select(outputs: tuple[Tensor, Tensor, Tensor], entropy: bool, logsumexp: bool) -> LogProb:
    logprob_N, entropy_N, logsumexp_N = outputs
    return LogProb(logprob_N, entropy_N if entropy else None, logsumexp_N if logsumexp else None)


def _check(rows: Tensor, ids_N: Tensor, V: int, temperature: float, check_ids: bool) -> None:
    require(rows.dtype in FLOATS, f"dtype {rows.dtype} is not supported: use float32, bfloat16, float16 or float64")
    require(ids_N.shape == rows.shape[:1], f"ids must have shape [{len(rows)}], not {list(ids_N.shape)}")
    require(ids_N.dtype == torch.int64, f"ids must be int64, not {ids_N.dtype}")
    require(ids_N.device == rows.device, f"ids must be on {rows.device}, not on {ids_N.device}")
    require(temperature > 0, f"temperature must be positive, not {temperature}")
    require(V > 0, "the vocabulary is empty")
    if len(ids_N) and (check_ids or ids_N.device.type == "cpu"):
        low, high = int(ids_N.min()), int(ids_N.max())
        require(0 <= low and high < V, f"ids {low}..{high} are outside 0..{V - 1}")


class _OnlineSoftmax:
    """m, s, the target's logit and the entropy's sum of N rows, fed one chunk of scaled logits after another."""

    def __init__(self, ids_N: Tensor, dtype: torch.dtype, entropy: bool):
        def full(value: float) -> Tensor:
            return torch.full(ids_N.shape, value, dtype=dtype, device=ids_N.device)

        self.ids_N, self.entropy = ids_N, entropy
        self.max_N, self.sum_N, self.weighted_N = full(-torch.inf), full(0.0), full(0.0)
        self.target_N = full(torch.nan)

    def add(self, z_NC: Tensor, start: int) -> None:
        """`z_NC`: columns start.. of the scaled logits; overwritten."""
        column_N = self.ids_N - start
        here_N = (column_N >= 0) & (column_N < z_NC.shape[1])
        picked_N = z_NC.gather(1, column_N.clamp(0, z_NC.shape[1] - 1)[:, None])[:, 0]
        self.target_N = torch.where(here_N, picked_N, self.target_N)

        max_N = torch.maximum(self.max_N, z_NC.amax(1))
        # rows without a finite logit so far keep s = 0; -inf - -inf would be NaN
        drop_N = torch.where(self.sum_N > 0, self.max_N - max_N, 0.0)
        z_NC.sub_(torch.where(max_N == -torch.inf, 0.0, max_N)[:, None])
        if self.entropy:
            e_NC = z_NC.exp()
            self.weighted_N = (self.weighted_N + self.sum_N * drop_N) * drop_N.exp()
            self.weighted_N += z_NC.masked_fill_(e_NC == 0, 0.0).mul_(e_NC).sum(1)
        else:
            e_NC = z_NC.exp_()
        self.sum_N = self.sum_N * drop_N.exp() + e_NC.sum(1)
        self.max_N = max_N

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """(logprob_N, entropy_N, logsumexp_N)"""
        log_N = self.sum_N.log()
        return (self.target_N - self.max_N) - log_N, log_N - self.weighted_N / self.sum_N, self.max_N + log_N


class _SoftmaxGradient:
    """dz of one chunk after another: dz = e (base - slope (z - m)) + g onehot with e = exp(z - m).

    m and s are kept apart: at logits of 1e4 the float32 logsumexp is off by 1e-3, and so would be every probability.
    """

    def __init__(self, saved: tuple[Tensor, ...], g_N: Tensor, h_N: Tensor, l_N: Tensor, entropy: bool):
        self.ids_N, self.max_N, sum_N, weighted_N = saved
        self.g_N, self.entropy = g_N, entropy
        self.slope_N = h_N / sum_N
        self.base_N = (l_N - g_N) / sum_N
        if entropy:
            self.base_N = self.base_N + self.slope_N * weighted_N / sum_N

    def of(self, z_NC: Tensor, start: int) -> Tensor:
        """Overwrites the scaled logits of columns start.. with their gradient."""
        z_NC.sub_(self.max_N[:, None])
        if self.entropy:
            e_NC = z_NC.exp()
            z_NC.masked_fill_(e_NC == 0, 0.0).mul_(-self.slope_N[:, None]).add_(self.base_N[:, None]).mul_(e_NC)
        else:
            z_NC.exp_().mul_(self.base_N[:, None])
        here_N = ((self.ids_N >= start) & (self.ids_N < start + z_NC.shape[1])).nonzero()[:, 0]
        z_NC[here_N, self.ids_N[here_N] - start] += self.g_N[here_N]
        return z_NC


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _chunks(V: int) -> list[tuple[int, int]]:
    return [(start, min(start + CHUNK, V)) for start in range(0, V, CHUNK)]


def _save(ctx, softmax: _OnlineSoftmax, temperature: float, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ctx.temperature, ctx.entropy = temperature, softmax.entropy
    ctx.save_for_backward(*inputs, softmax.ids_N, softmax.max_N, softmax.sum_N, softmax.weighted_N)
    return softmax.result()


class _LinearLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, ids_N, temperature, entropy):
        rows_ND = hidden_ND.to(_compute_dtype(hidden_ND))
        softmax = _OnlineSoftmax(ids_N, rows_ND.dtype, entropy)
        for start, end in _chunks(len(weight_VD)):
            softmax.add(_scaled_logits(rows_ND, weight_VD[start:end], temperature), start)
        return _save(ctx, softmax, temperature, hidden_ND, weight_VD)

    @staticmethod
    @once_differentiable
    def backward(ctx, g_N, h_N, l_N):
        hidden_ND, weight_VD, *saved = ctx.saved_tensors
        gradient = _SoftmaxGradient(saved, g_N, h_N, l_N, ctx.entropy)
        rows_ND = hidden_ND.to(g_N.dtype)
        dhidden_ND = torch.zeros_like(rows_ND) if ctx.needs_input_grad[0] else None
        dweight_VD = torch.empty_like(weight_VD) if ctx.needs_input_grad[1] else None
        for start, end in _chunks(len(weight_VD)):
            dz_NC = gradient.of(_scaled_logits(rows_ND, weight_VD[start:end], ctx.temperature), start)
            if dhidden_ND is not None:
                dhidden_ND.addmm_(dz_NC, weight_VD[start:end].to(dz_NC.dtype), alpha=1 / ctx.temperature)
            if dweight_VD is not None:
                dweight_VD[start:end] = (dz_NC.T @ rows_ND).div_(ctx.temperature)
        return None if dhidden_ND is None else dhidden_ND.to(hidden_ND.dtype), dweight_VD, None, None, None


class _LogitsLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_NV, ids_N, temperature, entropy):
        softmax = _OnlineSoftmax(ids_N, _compute_dtype(logits_NV), entropy)
        for start, end in _chunks(logits_NV.shape[1]):
            softmax.add(logits_NV[:, start:end].to(softmax.max_N.dtype) / temperature, start)
        return _save(ctx, softmax, temperature, logits_NV)

    @staticmethod
    @once_differentiable
    def backward(ctx, g_N, h_N, l_N):
        logits_NV, *saved = ctx.saved_tensors
        gradient = _SoftmaxGradient(saved, g_N, h_N, l_N, ctx.entropy)
        dlogits_NV = torch.empty_like(logits_NV)
        for start, end in _chunks(logits_NV.shape[1]):
            dz_NC = gradient.of(logits_NV[:, start:end].to(g_N.dtype) / ctx.temperature, start)
            dlogits_NV[:, start:end] = dz_NC / ctx.temperature
        return dlogits_NV, None, None, None


def _scaled_logits(rows_ND: Tensor, weight_CD: Tensor, temperature: float) -> Tensor:
    z_NC = rows_ND @ weight_CD.to(rows_ND.dtype).T
    return z_NC if temperature == 1 else z_NC.div_(temperature)
