"""A Gated DeltaNet layer between its projections, for tokens that continue from cached states.

    y_t = silu(sum_w conv_w x_{t-W+1+w})                          x = [q, k, v] of all heads, per channel
    q_t = unit(y_q) K^-0.5, k_t = unit(y_k), v_t = y_v            unit(u) = u / sqrt(|u|^2 + 1e-6)
    a_t = exp(-exp(A_log) softplus(a + dt_bias)), beta_t = sigmoid(b)
    S_t = a_t S_{t-1} + k_t d_t^T,  d_t = beta_t (v_t - a_t S_{t-1}^T k_t),  o_t = S_t^T q_t
    out_t = o_t / sqrt(mean o_t^2 + eps) * norm * silu(z_t)

Each key head serves H / J value heads in a row. The states live in slots: the last W - 1 inputs x of the convolution,
and S [K, V] of every value head in float32 whatever the dtype of the weights. Both are advanced in place.

One token per row goes to the kernel below: one program per row and key head holds S of a value head in registers,
reads it once, and takes both products with it from that one reading, o = a S^T q + (q.k) d. What a row needs besides is
computed beside it, so the layer is one launch. Chunks of tokens go to torch (kernels/torch_delta_rule.py).

Bytes moved per row and layer: 2 * 4 H K V for S, which is 2 MiB for Qwen3.5-2B (H 16, K = V = 128) and 4 MiB for 4B
(H 32); the convolution's window adds 2 * 2 (W - 1) C, 4 %. With 128 rows and 18 layers that is 4.8 GB, 1.1 ms at
4.3 TB/s, as much as reading all weights of 2B; torch operations with gathered rows move S about nine times, not two.
Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks", ICLR 2025, equations 10 and 12.

Shapes: B rows, T tokens, S slots, H value heads, J key heads (a divisor of H), K key size, V value size,
C = 2 J K + H V channels, W taps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.launch import fused, parameters, tl, triton
from kernels.packed import require
from kernels.rms_norm import rms_norm
from kernels.torch_delta_rule import causal_conv, delta_rule, unit_heads, window_end

LARGEST_STATE = 2**14  # entries of one head's state that one program can hold in registers


class GatedDeltaWeights(NamedTuple):
    """What a layer has between its projections; floating point, `conv_C1W` and the norm in the dtype of the inputs."""

    conv_C1W: Tensor
    a_log_H: Tensor
    dt_bias_H: Tensor
    norm_V: Tensor
    eps: float


@triton.jit
def _log1p(x):
    """log(1 + x) for x in [0, 1], also where 1 + x rounds to 1 (Kahan): a decay of a thousand tokens needs it."""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit
def _convolve(x_C, window_WC, conv_CW, c, inside, C: tl.constexpr, W: tl.constexpr, BLOCK_W: tl.constexpr):
    """silu of the convolution at channels c, whose window moves on by one token."""
    w = tl.arange(0, BLOCK_W)[:, None]
    c, inside = c[None, :], inside[None, :]
    old_WC = tl.load(window_WC + w * C + c, mask=inside & (w < W - 1), other=0.0).to(tl.float32)
    new_WC = tl.load(x_C + w * 0 + c, mask=inside & (w == W - 1), other=0.0).to(tl.float32)
    taps_WC = tl.load(conv_CW + c * W + w, mask=inside & (w < W), other=0.0).to(tl.float32)
    x_WC = old_WC + new_WC
    tl.debug_barrier()  # several threads may hold the same input: none may store before all have loaded
    moved = inside & (w > 0) & (w < W)
    tl.store(window_WC + (w - 1) * C + c, x_WC.to(window_WC.dtype.element_ty), mask=moved)
    y_C = tl.sum(x_WC * taps_WC, 0)
    return y_C * tl.sigmoid(y_C)


@triton.jit
def _gated_delta_kernel(
    qkv_BC, z_BHV, b_BH, a_BH, conv_C1W, a_log_H, dt_bias_H, norm_V,
    conv_SWC, recurrent_SHKV, rows_B, counts_B, out_BHV,
    EPS: tl.constexpr, J: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, W: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """One token: a program per row and key head, which walks the value heads of that key head."""
    n = tl.program_id(0) // J
    j = tl.program_id(0) % J
    H: tl.constexpr = J * GROUP
    C: tl.constexpr = 2 * J * K + H * V
    k, v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    inside_KV = (k < K)[:, None] & (v < V)[None, :]
    slot = tl.load(rows_B + n).to(tl.int64)
    busy = tl.load(counts_B + n) > 0
    first = j * GROUP
    out_V = out_BHV + (n.to(tl.int64) * H + first) * V + v
    if busy:
        at_KV = k[:, None] * V + v[None, :]
        state_KV = recurrent_SHKV + (slot * H + first) * (K * V)
        window_WC = conv_SWC + slot * ((W - 1) * C)
        x_C = qkv_BC + n.to(tl.int64) * C
        state = tl.load(state_KV + at_KV, mask=inside_KV, other=0.0)  # before all else: it is what takes the time
        q = _convolve(x_C, window_WC, conv_C1W, j * K + k, k < K, C, W, BLOCK_W)
        key = _convolve(x_C, window_WC, conv_C1W, (J + j) * K + k, k < K, C, W, BLOCK_W)
        q *= tl.rsqrt(tl.sum(q * q, 0) + 1e-6) * K**-0.5
        key *= tl.rsqrt(tl.sum(key * key, 0) + 1e-6)
        qk = tl.sum(q * key, 0)
        norm = tl.load(norm_V + v, mask=v < V, other=0.0).to(tl.float32)
        for i in range(GROUP):
            h = first + i
            x_V = _convolve(x_C, window_WC, conv_C1W, 2 * J * K + h * V + v, v < V, C, W, BLOCK_W)
            a = tl.load(a_BH + n * H + h).to(tl.float32) + tl.load(dt_bias_H + h).to(tl.float32)
            softplus = tl.maximum(a, 0.0) + _log1p(tl.exp(-tl.abs(a)))
            decay = tl.exp(-tl.exp(tl.load(a_log_H + h).to(tl.float32)) * softplus)
            beta = tl.sigmoid(tl.load(b_BH + n * H + h).to(tl.float32))
            d = beta * (x_V - decay * tl.sum(state * key[:, None], 0))
            o = decay * tl.sum(state * q[:, None], 0) + qk * d
            tl.store(state_KV + at_KV, decay * state + key[:, None] * d[None, :], mask=inside_KV)
            z = tl.load(z_BHV + (n.to(tl.int64) * H + h) * V + v, mask=v < V, other=0.0).to(tl.float32)
            o = o * tl.rsqrt(tl.sum(o * o, 0) / V + EPS) * norm * z * tl.sigmoid(z)
            tl.store(out_V + i * V, o.to(out_BHV.dtype.element_ty), mask=v < V)
            state_KV += K * V
            state = tl.load(state_KV + at_KV, mask=inside_KV & (i + 1 < GROUP), other=0.0)
    else:
        for i in range(GROUP):
            tl.store(out_V + i * V, tl.zeros([BLOCK_V], tl.float32).to(out_BHV.dtype.element_ty), mask=v < V)


def gated_delta_rule(
    qkv_BTC: Tensor,
    z_BTHV: Tensor,
    b_BTH: Tensor,
    a_BTH: Tensor,
    weights: GatedDeltaWeights,
    conv_SWC: Tensor,
    recurrent_SHKV: Tensor,
    rows: slice | Tensor,
    counts_B: Tensor | None = None,
) -> Tensor:
    """Outputs [B, T, H, V] of T tokens per row, in the dtype of `qkv_BTC`; advances both states of the rows in place.

    Args:
        qkv_BTC, z_BTHV, b_BTH, a_BTH: the layer's projections.
        conv_SWC: the last W - 1 inputs of each slot, oldest first.
        recurrent_SHKV: float32.
        rows: the slot of each row, distinct: a slice, or int64 indices.
        counts_B: int64, real tokens per row, the others being pads behind them; None means T. A row with 0 idles: its
            slot stays bit for bit as it is, and its outputs mean nothing.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    _check(qkv_BTC, z_BTHV, weights, conv_SWC, recurrent_SHKV)
    K, V = recurrent_SHKV.shape[2:]
    state = weights, conv_SWC, recurrent_SHKV
    if qkv_BTC.shape[1] == 1 and fused(qkv_BTC) and K * V <= LARGEST_STATE:
        if isinstance(rows, slice):
            rows = torch.arange(len(conv_SWC), device=conv_SWC.device)[rows]
        counts_B = torch.ones_like(rows) if counts_B is None else counts_B
        return _launch(qkv_BTC, z_BTHV, b_BTH, a_BTH, *state, rows, counts_B)
    return by_torch(qkv_BTC, z_BTHV, b_BTH, a_BTH, *state, rows, counts_B)


def by_torch(
    qkv_BTC, z_BTHV, b_BTH, a_BTH, weights: GatedDeltaWeights, conv_SWC, recurrent_SHKV, rows, counts_B
) -> Tensor:  # fmt: skip
    """The same in torch operations."""
    (B, T, C), (H, K, V) = qkv_BTC.shape, recurrent_SHKV.shape[1:]
    window_BTC = torch.cat((conv_SWC[rows], qkv_BTC), 1)
    conv_SWC[rows] = window_end(window_BTC, counts_B, conv_SWC.shape[1])
    mixed_BTC = F.silu(causal_conv(window_BTC, weights.conv_C1W, T))
    qk_BTC, v_BTC = mixed_BTC.split((C - H * V, H * V), -1)
    q_BTHK, k_BTHK = unit_heads(qk_BTC.view(B, T, 2, -1, K), H).unbind(2)
    beta_BTH = b_BTH.sigmoid()
    g_BTH = -weights.a_log_H.float().exp() * F.softplus(a_BTH.float() + weights.dt_bias_H)
    if counts_B is not None:
        real_BT1 = (torch.arange(T, device=counts_B.device) < counts_B[:, None])[..., None]
        beta_BTH, g_BTH = beta_BTH * real_BT1, g_BTH * real_BT1
    state_BHKV = recurrent_SHKV[rows]  # a view for a slice, else a copy to be written back
    out_BTHV = delta_rule(q_BTHK, k_BTHK, v_BTC.view(B, T, -1, V), g_BTH, beta_BTH, state_BHKV)
    if not isinstance(rows, slice):
        recurrent_SHKV[rows] = state_BHKV
    out_BTHV = rms_norm(out_BTHV.type_as(qkv_BTC), weights.norm_V, weights.eps)
    return (out_BTHV * F.silu(z_BTHV.float())).type_as(qkv_BTC)


def _launch(qkv_BTC, z_BTHV, b_BTH, a_BTH, weights, conv_SWC, recurrent_SHKV, rows_B, counts_B) -> Tensor:
    H, K, V = recurrent_SHKV.shape[1:]
    width, C = conv_SWC.shape[1:]
    J = (C - H * V) // (2 * K)
    conv_C1W, a_log_H, dt_bias_H, norm_V, eps = weights
    tensors = qkv_BTC, z_BTHV, b_BTH, a_BTH, conv_C1W, a_log_H, dt_bias_H, norm_V, conv_SWC, recurrent_SHKV
    assert all(x.is_contiguous() for x in tensors) and rows_B.is_contiguous() and counts_B.is_contiguous()
    assert len(rows_B) == len(counts_B) == len(qkv_BTC)
    out_BTHV = torch.empty_like(z_BTHV)
    block_k, block_v = triton.next_power_of_2(K), triton.next_power_of_2(V)
    _gated_delta_kernel[(len(rows_B) * J,)](
        *tensors, rows_B, counts_B, out_BTHV, EPS=eps, J=J, GROUP=H // J, K=K, V=V, W=width + 1,
        BLOCK_K=block_k, BLOCK_V=block_v, BLOCK_W=triton.next_power_of_2(width + 1),
        **parameters("gated_delta_rule", block_k * block_v, qkv_BTC.device),
    )  # fmt: skip
    return out_BTHV


def _check(qkv_BTC: Tensor, z_BTHV: Tensor, weights: GatedDeltaWeights, conv_SWC: Tensor, recurrent_SHKV: Tensor):
    S, H, K, V = recurrent_SHKV.shape
    C = qkv_BTC.shape[2]
    J, rest = divmod(C - H * V, 2 * K)
    require(rest == 0 and J > 0 and H % J == 0, f"{C} channels are not q and k of {K} and {H} v of {V}")
    require(z_BTHV.shape == (*qkv_BTC.shape[:2], H, V), f"z must have shape [B, T, {H}, {V}], not {list(z_BTHV.shape)}")
    width = weights.conv_C1W.shape[2] - 1
    require(conv_SWC.shape == (S, width, C), f"conv must have shape {[S, width, C]}, not {list(conv_SWC.shape)}")
    require(recurrent_SHKV.dtype == torch.float32, f"the recurrent state must be float32, not {recurrent_SHKV.dtype}")
