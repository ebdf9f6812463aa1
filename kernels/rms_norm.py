"""Root mean square norm of rows, without autograd: the engine's forward only.

    y_ND = x_ND / sqrt(mean_D x^2 + eps) * (offset + weight_D)         in float32, rounded once to the dtype of x

`offset` is 1 for models that store their scale as a difference from one, else 0.

Bytes moved: x read and y written once. A decode step of Qwen3.5-2B has 61 such norms of a few rows each, far below the
launch cost; what counts is that each is one launch instead of the five that torch needs for it in bfloat16.
Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019, equation 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.launch import fused, parameters, tl, triton
from kernels.packed import require

WIDEST = 16_384  # columns that one program holds


@triton.jit
def _rms_norm_kernel(
    x_ND, weight_D, y_ND, stride, D, EPS: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One program per row, which it holds whole."""
    n = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    x = tl.load(x_ND + n * stride + d, mask=d < D, other=0.0).to(tl.float32)
    scale = OFFSET + tl.load(weight_D + d, mask=d < D, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / D + EPS) * scale
    tl.store(y_ND + n * D + d, y.to(y_ND.dtype.element_ty), mask=d < D)


def rms_norm(x: Tensor, weight_D: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """The norm over the last axis of x, in a new tensor of its shape and dtype.

    Raises ValueError for a weight that is not one value per column.
    """
    D = x.shape[-1]
    require(weight_D.shape == (D,), f"weight must have shape [{D}], not {list(weight_D.shape)}")
    if fused(x) and x.numel() and D <= WIDEST:
        return _launch(x.reshape(-1, D), weight_D, eps, offset).view(x.shape)
    scale_D = weight_D.float()
    if offset:
        scale_D = offset + scale_D
    x_fp32 = x.float()  # on a CPU, `F.rms_norm` is a composite that takes twice as long
    squares = torch.linalg.vector_norm(x_fp32, dim=-1, keepdim=True).square_()
    return (x_fp32 * squares.div_(D).add_(eps).rsqrt_()).mul_(scale_D).type_as(x)


def _launch(x_ND: Tensor, weight_D: Tensor, eps: float, offset: float) -> Tensor:
    N, D = x_ND.shape
    x_ND = x_ND if x_ND.stride(1) == 1 else x_ND.contiguous()
    chosen = parameters("rms_norm", D, x_ND.device)
    assert weight_D.is_contiguous()
    y_ND = torch.empty(N, D, dtype=x_ND.dtype, device=x_ND.device)
    _rms_norm_kernel[(N,)](x_ND, weight_D, y_ND, x_ND.stride(0), D, EPS=eps, OFFSET=offset, **chosen)
    return y_ND
