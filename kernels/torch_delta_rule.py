"""The arithmetic of `kernels.gated_delta_rule` in torch operations: for one token, or for a chunk of them.

    S_t = a_t S_{t-1} + k_t d_t^T,    d_t = beta_t (v_t - a_t S_{t-1}^T k_t),    o_t = S_t^T q_t,    a_t = exp(g_t)

A chunk of C tokens solves for all its d at once (c = running sum of g inside the chunk):

    (I + tril(beta_i exp(c_i - c_j) k_i.k_j, -1)) d = beta (v - exp(c) K S_0)
    o = exp(c) Q S_0 + tril(exp(c_i - c_j) q_i.k_j) d,    S_C = exp(c_C) S_0 + sum_i exp(c_C - c_i) k_i d_i^T

A token with g = 0 and beta = 0 leaves the state exactly as it is, which makes ragged chunks possible.
Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks", ICLR 2025, equations 10 and 12.

Shapes: B rows, T tokens, H value heads, J key heads (a divisor of H), K key size, V value size.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_CHUNK = 64  # the triangular system grows with the square of this


def unit_heads(x_JK: Tensor, heads: int) -> Tensor:
    """fp32 unit vectors [..., H, K] from [..., J, K]; each key head serves H / J value heads in a row."""
    x_JK = x_JK.float()
    squares_J1 = torch.linalg.vector_norm(x_JK, dim=-1, keepdim=True).square_()
    x_JK = x_JK * squares_J1.add_(1e-6).rsqrt_()
    groups = heads // x_JK.shape[-2]
    return x_JK if groups == 1 else x_JK.repeat_interleave(groups, -2)


def delta_rule(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, g_BTH: Tensor, beta_BTH: Tensor, state_BHKV: Tensor
) -> Tensor:
    """Advances `state_BHKV` (fp32) in place over T tokens; returns the outputs [B, T, H, V] in fp32.

    Queries and keys are unit vectors (`unit_heads`); the queries' usual scale K^-0.5 is applied here.
    """
    tokens, size = q_BTHK.shape[1], q_BTHK.shape[-1]
    inputs = [x.float().transpose(1, 2) for x in (q_BTHK * size**-0.5, k_BTHK, v_BTHV, g_BTH, beta_BTH)]
    if tokens == 1:
        return _step(*inputs, state_BHKV).transpose(1, 2)
    chunks = -(-tokens // MAX_CHUNK)
    parts = zip(*(x.split(-(-tokens // chunks), 2) for x in inputs))
    return torch.cat([_chunk(*part, state_BHKV) for part in parts], 2).transpose(1, 2)


def _step(q, k, v, g, beta, state) -> Tensor:
    decay, beta = g.exp()[..., None], beta[..., None]
    k_read, q_read = (torch.cat((k, q), 2) @ state * decay).chunk(2, 2)  # the state is read once for both
    d = beta * (v - k_read)
    state.mul_(decay).addcmul_(k.transpose(2, 3), d)
    return q_read + (q * k).sum(-1, keepdim=True) * d


def _chunk(q, k, v, g, beta, state) -> Tensor:
    c = g.cumsum(2)
    future = torch.ones(c.shape[2], c.shape[2], dtype=torch.bool, device=c.device).triu(1)
    decay = (c[..., None] - c[..., None, :]).masked_fill(future, -torch.inf).exp()
    from_start, beta = c.exp()[..., None], beta[..., None]
    system = k @ k.transpose(2, 3) * decay * beta
    d = torch.linalg.solve_triangular(
        system, beta * (v - from_start * (k @ state)), upper=False, unitriangular=True
    )
    out = from_start * (q @ state) + (q @ k.transpose(2, 3) * decay) @ d
    to_end = (c[..., -1:] - c).exp()[..., None]
    state.mul_(from_start[:, :, -1:]).add_((k * to_end).transpose(2, 3) @ d)
    return out


def causal_conv(window_BTC: Tensor, weight_C1W: Tensor, tokens: int) -> Tensor:
    """Depthwise convolution over time: y_t = sum_w weight_w x_{t-W+1+w}; the window begins W - 1 tokens early."""
    taps_WC = weight_C1W[:, 0].t().contiguous()
    out_BTC = window_BTC[:, :tokens] * taps_WC[0]
    for w in range(1, len(taps_WC)):
        out_BTC.addcmul_(window_BTC[:, w : w + tokens], taps_WC[w])
    return out_BTC


def window_end(window_BTC: Tensor, counts_B: Tensor | None, width: int) -> Tensor:
    """The last `width` inputs [B, width, C] before each row's own end."""
    if counts_B is None:
        return window_BTC[:, -width:]
    index_BW = counts_B[:, None] + torch.arange(width, device=counts_B.device)
    return window_BTC.gather(1, index_BW[..., None].expand(-1, -1, window_BTC.shape[2]))
