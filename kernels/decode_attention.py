"""Attention of one token per row to the K/V that its slot holds, which may be of any length.

    out_h = sum_n p_n value_n,   p = softmax_n(scale q_h . key_n),   n < length of the row, key and value of head h // G

Flash decoding: each part of SPLIT keys has a program of its own, which computes its share with an online softmax for
all G = H / J query heads of a K/V head at once; then one program per row and head weighs the parts by their sums,

    out = sum_s exp2(lse_s - m) out_s / sum_s exp2(lse_s - m),   m = max_s lse_s.

The number of programs depends on the size of the slots alone and a part behind the end of its row ends at once, so that
one launch (and one CUDA graph) serves all lengths. Parts have a fixed size, so a row's result does not depend on its
neighbours.

Bytes moved per row and layer: 2 * 2 J E per key in bfloat16, 2 KiB for Qwen3.5-2B (J 2, E 256), 4 KiB for 4B; each is
read once, straight from its slot. The parts' results add 2 * 4 H E per SPLIT keys, 1.6 %. 128 rows of 1,024 tokens and
6 layers are 1.6 GB, .37 ms at 4.3 TB/s; gathering the rows for a library's attention would move them three times.
Source: Dao, Haziza, Massa, Sizov, "Flash-Decoding for long-context inference", 2023; online softmax, 1805.02867.

Shapes: B rows, S slots, T positions of a slot, H query heads, J K/V heads (a divisor of H), E head size, P parts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.launch import fused, parameters, tl, triton
from kernels.packed import require

SPLIT = 512  # keys of a part
LOG2E = 1.4426950408889634


@triton.jit
def _attention_part_kernel(
    q_BHE, key_SJTE, value_SJTE, rows_B, lengths_B, part_BHPE, lse_BHP, T, P,
    SCALE: tl.constexpr, J: tl.constexpr, GROUP: tl.constexpr, E: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """One program per row, K/V head and part; SCALE makes scores of base 2."""
    pid = tl.program_id(0)
    p = pid % P
    j = pid // P % J
    b = pid // P // J
    count = tl.minimum(tl.load(lengths_B + b).to(tl.int32) - p * SPLIT, SPLIT)
    if count > 0:
        g, e, n = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_E), tl.arange(0, BLOCK)
        start = ((tl.load(rows_B + b).to(tl.int64) * J + j) * T + p * SPLIT) * E
        key_TE, value_TE = key_SJTE + start, value_SJTE + start
        head = (b * J + j) * GROUP + g
        inside = (g < GROUP)[:, None] & (e < E)[None, :]
        q = tl.load(q_BHE + head[:, None] * E + e[None, :], mask=inside, other=0.0)
        most = tl.full([BLOCK_G], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_G], tl.float32)
        out = tl.zeros([BLOCK_G, BLOCK_E], tl.float32)
        for first in range(0, count, BLOCK):
            t = first + n
            there = (t < count)[:, None] & (e < E)[None, :]
            key = tl.load(key_TE + t[:, None] * E + e[None, :], mask=there, other=0.0)
            score = tl.dot(q, tl.trans(key), input_precision="ieee") * SCALE
            score = tl.where((t < count)[None, :], score, float("-inf"))
            raised = tl.maximum(most, tl.max(score, 1))
            weight = tl.exp2(score - raised[:, None])
            drop = tl.exp2(most - raised)
            value = tl.load(value_TE + t[:, None] * E + e[None, :], mask=there, other=0.0)
            total = total * drop + tl.sum(weight, 1)
            out = tl.dot(weight.to(value.dtype), value, out * drop[:, None], input_precision="ieee")
            most = raised
        at = (head * P + p).to(tl.int64)
        tl.store(part_BHPE + at[:, None] * E + e[None, :], out / total[:, None], mask=inside)
        tl.store(lse_BHP + at, most + tl.log2(total), mask=g < GROUP)


@triton.jit
def _merge_parts_kernel(
    part_BHPE, lse_BHP, lengths_B, out_BHE, P,
    H: tl.constexpr, E: tl.constexpr, SPLIT: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """One program per row and head; zeros where there is no key."""
    pid = tl.program_id(0)
    e = tl.arange(0, BLOCK_E)
    parts = tl.cdiv(tl.load(lengths_B + pid // H).to(tl.int32), SPLIT)
    at = pid.to(tl.int64) * P
    most = float("-inf")
    total = 0.0
    out = tl.zeros([BLOCK_E], tl.float32)
    for p in range(0, parts):
        lse = tl.load(lse_BHP + at + p)
        raised = tl.maximum(most, lse)
        drop, weight = tl.exp2(most - raised), tl.exp2(lse - raised)
        part = tl.load(part_BHPE + (at + p) * E + e, mask=e < E, other=0.0)
        out = out * drop + part * weight
        total = total * drop + weight
        most = raised
    out = out / tl.where(parts > 0, total, 1.0)
    tl.store(out_BHE + pid.to(tl.int64) * E + e, out.to(out_BHE.dtype.element_ty), mask=e < E)


def decode_attention(
    q_BHE: Tensor, key_SJTE: Tensor, value_SJTE: Tensor, rows_B: Tensor, lengths_B: Tensor, scale: float
) -> Tensor:
    """Attention outputs [B, H, E] in the dtype of the queries.

    Args:
        q_BHE, key_SJTE, value_SJTE: of one dtype.
        rows_B: int64, the slot of each row.
        lengths_B: int64, how many of its keys are attended to, from the first on. A row with 0 idles: its slot is not
            read and its outputs mean nothing.
        scale: of the scores before the softmax.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    B, H, E = q_BHE.shape
    S, J, T, _ = key_SJTE.shape
    require(H % J == 0, f"{H} query heads cannot share {J} K/V heads evenly")
    for name, x in (("key", key_SJTE), ("value", value_SJTE)):
        require(x.shape == (S, J, T, E), f"{name} must have shape {[S, J, T, E]}, not {list(x.shape)}")
        require(x.dtype == q_BHE.dtype, f"{name} is {x.dtype}, the queries are {q_BHE.dtype}: use one dtype")
    require(rows_B.shape == lengths_B.shape == (B,), f"rows and lengths must have shape [{B}]")
    if fused(q_BHE):
        return _launch(q_BHE, key_SJTE, value_SJTE, rows_B, lengths_B, scale)
    return by_torch(q_BHE, key_SJTE, value_SJTE, rows_B, lengths_B, scale)


def by_torch(q_BHE: Tensor, key_SJTE: Tensor, value_SJTE: Tensor, rows_B: Tensor, lengths_B: Tensor, scale: float):
    """The same in torch operations, which gather the rows' K/V up to the longest."""
    B, H, E = q_BHE.shape
    longest = max(int(lengths_B.max()), 1)
    keep_BN = torch.arange(longest, device=q_BHE.device) < lengths_B[:, None].clamp(min=1)
    # the heads that share a K/V head are like G tokens of it, which reads K and V once for all
    out_BJGE = F.scaled_dot_product_attention(
        q_BHE.view(B, key_SJTE.shape[1], -1, E), key_SJTE[rows_B, :, :longest], value_SJTE[rows_B, :, :longest],
        attn_mask=keep_BN[:, None, None], scale=scale,
    )  # fmt: skip
    return out_BJGE.reshape(B, H, E)


def _launch(q_BHE, key_SJTE, value_SJTE, rows_B, lengths_B, scale: float) -> Tensor:
    B, H, E = q_BHE.shape
    J, T = key_SJTE.shape[1:3]
    assert all(x.is_contiguous() for x in (q_BHE, key_SJTE, value_SJTE, rows_B, lengths_B))
    P = triton.cdiv(T, SPLIT)
    part_BHPE = torch.empty(B, H, P, E, dtype=torch.float32, device=q_BHE.device)
    lse_BHP = torch.empty(B, H, P, dtype=torch.float32, device=q_BHE.device)
    out_BHE = torch.empty_like(q_BHE)
    block_e = max(16, triton.next_power_of_2(E))
    table = "decode_attention_fp32" if q_BHE.dtype == torch.float32 else "decode_attention"
    _attention_part_kernel[(B * J * P,)](
        q_BHE, key_SJTE, value_SJTE, rows_B, lengths_B, part_BHPE, lse_BHP, T, P,
        SCALE=scale * LOG2E, J=J, GROUP=H // J, E=E, SPLIT=SPLIT, BLOCK_G=max(16, triton.next_power_of_2(H // J)),
        BLOCK_E=block_e, **parameters(table, block_e, q_BHE.device),
    )  # fmt: skip
    _merge_parts_kernel[(B * H,)](
        part_BHPE, lse_BHP, lengths_B, out_BHE, P, H=H, E=E, SPLIT=SPLIT, BLOCK_E=block_e, num_warps=1
    )
    return out_BHE
