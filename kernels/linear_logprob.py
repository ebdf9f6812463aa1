"""Log-probabilities of given ids under a linear head, without its [N, V] logits.

    z_NV = hidden_ND weight_VD^T / temperature        m = max_v z, s = sum_v exp(z - m)
    logprob_N = (z[n, ids[n]] - m) - log s            <= 0 also after rounding
    logsumexp_N = m + log s
    entropy_N = log s - sum_v exp(z - m) (z - m) / s

    With upstream gradients g (logprob), h (entropy), l (logsumexp):
    dz = g onehot(ids) + (l - g) p - h p (z - m - log s + entropy),  p = exp(z - m) / s
    dhidden = dz weight / temperature,  dweight = dz^T hidden / temperature

The vocabulary is walked in chunks: a matrix product by the BLAS library, then one pass over its result. m, s and the
entropy's sum are carried along and rescaled when m rises (online softmax, 1805.02867); the target's logit is picked in
the same pass. The backward pass computes each chunk's logits again, so that one chunk is all the memory, and writes
each slice of dweight once; logits that fit into one chunk are kept instead. Logits and sums are float32 whatever the
inputs: with 248,320 terms a bfloat16 sum is off by whole units.

Four products of 2 N V D operations, forward and backward together. Bytes beyond them, per logit: forward 4 written and
4 read, backward 4 written, 4 read, 2 written (bfloat16). At N = 32k, V = 248,320 that is 18 bytes * 8.1e9 = 34 ms at
4.3 TB/s, a fifth of the products' 169 ms at D = 2048 and 790 TFLOP/s. Memory: `chunk_columns` logits per row.

Making the gradient in the forward pass, over chunks of rows with all their logits, would save one product (42 ms) but
add to the whole float32 dweight (2 GiB) once per chunk: with 1 GiB of logits a chunk is 1,024 rows, and 32 additions
move 130 to 200 GB, 30 to 45 ms. So it gains nothing within that memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.launch import fused, parameters, tl, triton
from kernels.packed import require
from kernels.torch_softmax import OnlineSoftmax, SoftmaxGradient

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
CHUNK = 8192  # vocabulary columns at a time, at most
CHUNK_LOGITS = {"cuda": 2**27, "cpu": 2**21}  # logits of a chunk, at most: 512 MiB, and 8 MiB to stay in cache


@triton.jit
def _online_softmax_kernel(
    logits_NC, ids_N, max_N, sum_N, weighted_N, target_N, stride, C, start,
    INVERSE_TEMPERATURE: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row takes C columns into the row's state."""
    n = tl.program_id(0).to(tl.int64)
    column = tl.load(ids_N + n) - start
    most = tl.load(max_N + n)
    total = tl.load(sum_N + n)
    weighted = tl.load(weighted_N + n)
    for first in range(0, C, BLOCK):
        c = first + tl.arange(0, BLOCK)
        z = tl.load(logits_NC + n * stride + c, mask=c < C, other=float("-inf")).to(tl.float32) * INVERSE_TEMPERATURE
        if (column >= first) & (column < tl.minimum(first + BLOCK, C)):
            tl.store(target_N + n, tl.sum(tl.where(c == column, z, 0.0)))
        raised = tl.maximum(most, tl.max(z, 0))
        drop = tl.where(total > 0, most - raised, 0.0)
        shifted = z - tl.where(raised == float("-inf"), 0.0, raised)
        e = tl.exp(shifted)
        if ENTROPY:
            weighted = (weighted + total * drop) * tl.exp(drop) + tl.sum(tl.where(e > 0, e * shifted, 0.0), 0)
        # a NaN logit is in no maximum, but in this sum
        total = total * tl.exp(drop) + tl.sum(e, 0)
        most = raised
    tl.store(max_N + n, most)
    tl.store(sum_N + n, total)
    tl.store(weighted_N + n, weighted)


@triton.jit
def _softmax_gradient_kernel(
    logits_NC, out_NC, ids_N, max_N, base_N, slope_N, g_N, stride, out_stride, C, start,
    INVERSE_TEMPERATURE: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row; `out_NC` may be `logits_NC`."""
    n = tl.program_id(0).to(tl.int64)
    column = tl.load(ids_N + n) - start
    most = tl.load(max_N + n)
    base = tl.load(base_N + n)
    slope = tl.load(slope_N + n)
    g = tl.load(g_N + n)
    for first in range(0, C, BLOCK):
        c = first + tl.arange(0, BLOCK)
        z = tl.load(logits_NC + n * stride + c, mask=c < C, other=float("-inf")).to(tl.float32) * INVERSE_TEMPERATURE
        shifted = z - most
        e = tl.exp(shifted)
        gradient = e * base
        if ENTROPY:
            gradient = e * (base - slope * tl.where(e > 0, shifted, 0.0))
        gradient += tl.where(c == column, g, 0.0)
        tl.store(out_NC + n * out_stride + c, gradient.to(out_NC.dtype.element_ty), mask=c < C)


class _FusedSoftmax(OnlineSoftmax):
    """The same sums, one launch per chunk; the logits may have any float dtype and stay as they are."""

    def add(self, logits_NC: Tensor, start: int) -> None:
        N, C = logits_NC.shape
        assert logits_NC.stride(1) == 1 and self.ids_N.is_contiguous()
        _online_softmax_kernel[(N,)](
            logits_NC, self.ids_N, self.max_N, self.sum_N, self.weighted_N, self.target_N,
            logits_NC.stride(0), C, start,
            INVERSE_TEMPERATURE=1.0 / self.temperature, ENTROPY=self.entropy,
            **parameters("softmax", C, logits_NC.device),
        )  # fmt: skip


class _FusedGradient(SoftmaxGradient):
    """The same gradient, one launch per chunk; written over the logits when it has their dtype."""

    def of(self, logits_NC: Tensor, start: int, dtype: torch.dtype) -> Tensor:
        N, C = logits_NC.shape
        assert logits_NC.stride(1) == 1 and self.ids_N.is_contiguous()
        out_NC = logits_NC if logits_NC.dtype == dtype else torch.empty_like(logits_NC, dtype=dtype)
        _softmax_gradient_kernel[(N,)](
            logits_NC, out_NC, self.ids_N, self.max_N, self.base_N, self.slope_N, self.g_N,
            logits_NC.stride(0), out_NC.stride(0), C, start,
            INVERSE_TEMPERATURE=1.0 / self.temperature, ENTROPY=self.entropy,
            **parameters("softmax", C, logits_NC.device),
        )  # fmt: skip
        return out_NC


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


def chunk_columns(N: int, device: torch.device) -> int:
    """Vocabulary columns per chunk for N rows, a power of 2."""
    fitting = CHUNK_LOGITS["cuda" if device.type == "cuda" else "cpu"] // max(N, 1)
    return max(256, min(CHUNK, 1 << max(fitting.bit_length() - 1, 0)))


def _chunks(V: int, columns: int) -> list[tuple[int, int]]:
    return [(start, min(start + columns, V)) for start in range(0, V, columns)]


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _matmul(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a @ b, summed and returned in float32 (float64 for float64); written to `out` where the dtypes allow it."""
    if a.dtype == b.dtype and a.dtype in (torch.float32, torch.float64):
        return torch.mm(a, b, out=out if out is not None and out.dtype == a.dtype else None)
    if a.is_cuda and a.dtype == b.dtype:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


class _ChunkLogits:
    """The logits of one chunk after another, in one buffer on the CPU, where fresh memory costs a page fault a page."""

    def __init__(self, hidden_ND: Tensor, V: int):
        columns = chunk_columns(len(hidden_ND), hidden_ND.device)
        self.hidden_ND, self.spans = hidden_ND, _chunks(V, columns)
        self.buffer = None
        if hidden_ND.device.type == "cpu":
            self.buffer = hidden_ND.new_empty(len(hidden_ND) * min(columns, V), dtype=_sum_dtype(hidden_ND))

    def of(self, weight_CD: Tensor) -> Tensor:
        N, C = len(self.hidden_ND), len(weight_CD)
        out = None if self.buffer is None else self.buffer[: N * C].view(N, C)
        return _matmul(self.hidden_ND, weight_CD.T, out)


class _LinearLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, ids_N, temperature, entropy):
        Softmax = _FusedSoftmax if fused(hidden_ND) and len(ids_N) else OnlineSoftmax
        softmax = Softmax(ids_N.contiguous(), _sum_dtype(hidden_ND), temperature, entropy)
        logits = _ChunkLogits(hidden_ND, len(weight_VD))
        kept_NV = None
        for start, end in logits.spans:
            logits_NC = logits.of(weight_VD[start:end])
            if len(logits.spans) == 1 and any(ctx.needs_input_grad):
                kept_NV = logits_NC.clone()
            softmax.add(logits_NC, start)
        ctx.temperature, ctx.entropy = temperature, entropy
        ctx.save_for_backward(hidden_ND, weight_VD, kept_NV, *softmax.state)
        return softmax.result()

    @staticmethod
    @once_differentiable
    def backward(ctx, g_N, h_N, l_N):
        hidden_ND, weight_VD, kept_NV, *state = ctx.saved_tensors
        on_triton = fused(hidden_ND) and len(hidden_ND)
        Gradient = _FusedGradient if on_triton else SoftmaxGradient
        gradient = Gradient(state, ctx.temperature, ctx.entropy, g_N, h_N, l_N)
        # bfloat16 has the range of float32, so probabilities survive in it; in float16 they would underflow
        dtype = torch.bfloat16 if on_triton and weight_VD.dtype == torch.bfloat16 else g_N.dtype
        dhidden_ND = torch.zeros_like(hidden_ND, dtype=g_N.dtype) if ctx.needs_input_grad[0] else None
        dweight_VD = torch.empty_like(weight_VD) if ctx.needs_input_grad[1] else None
        logits = _ChunkLogits(hidden_ND, len(weight_VD))
        for start, end in logits.spans:
            weight_CD = weight_VD[start:end]
            logits_NC = logits.of(weight_CD) if kept_NV is None else kept_NV.clone()
            dlogits_NC = gradient.of(logits_NC, start, dtype)
            if dhidden_ND is not None and dlogits_NC.dtype == weight_CD.dtype == dhidden_ND.dtype:
                dhidden_ND.addmm_(dlogits_NC, weight_CD)
            elif dhidden_ND is not None:
                dhidden_ND += _matmul(dlogits_NC, weight_CD)
            if dweight_VD is not None:
                slice_CD = dweight_VD[start:end]
                product_CD = _matmul(dlogits_NC.T, hidden_ND, slice_CD)
                if product_CD.data_ptr() != slice_CD.data_ptr():
                    slice_CD.copy_(product_CD)
            del logits_NC, dlogits_NC  # before the next chunk is made: one chunk is all the memory
        return None if dhidden_ND is None else dhidden_ND.to(hidden_ND.dtype), dweight_VD, None, None, None


class _LogitsLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_NV, ids_N, temperature, entropy):
        logits_NV = logits_NV if logits_NV.stride(1) == 1 else logits_NV.contiguous()
        dtype, V = _sum_dtype(logits_NV), logits_NV.shape[1]
        if fused(logits_NV) and len(ids_N):
            softmax = _FusedSoftmax(ids_N.contiguous(), dtype, temperature, entropy)
            softmax.add(logits_NV, 0)
        else:
            softmax = OnlineSoftmax(ids_N, dtype, temperature, entropy)
            for start, end in _chunks(V, chunk_columns(len(ids_N), logits_NV.device)):
                softmax.add(logits_NV[:, start:end].to(dtype, copy=True), start)
        ctx.temperature, ctx.entropy = temperature, entropy
        ctx.save_for_backward(logits_NV, *softmax.state)
        return softmax.result()

    @staticmethod
    @once_differentiable
    def backward(ctx, g_N, h_N, l_N):
        logits_NV, *state = ctx.saved_tensors
        arguments = (state, ctx.temperature, ctx.entropy, g_N, h_N, l_N)
        if fused(logits_NV) and len(logits_NV):
            # the logits are the caller's: a copy is overwritten
            return _FusedGradient(*arguments).of(logits_NV.clone(), 0, logits_NV.dtype), None, None, None
        gradient, dlogits_NV = SoftmaxGradient(*arguments), torch.empty_like(logits_NV)
        for start, end in _chunks(logits_NV.shape[1], chunk_columns(len(logits_NV), logits_NV.device)):
            chunk_NC = logits_NV[:, start:end].to(g_N.dtype, copy=True)
            dlogits_NV[:, start:end] = gradient.of(chunk_NC, start, g_N.dtype)
        return dlogits_NV, None, None, None
