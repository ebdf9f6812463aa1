"""Packed batches: the tokens of all trajectories on one axis T, trajectory i at cu_seqlens[i] : cu_seqlens[i + 1].

cu_seqlens_B1 is int32 or int64 of B + 1 entries, starts at 0, never falls and ends at T; empty trajectories are
allowed. Shape suffixes in all kernels: B trajectories, T tokens of all of them, N rows or turns, V vocabulary,
D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def check_packed(cu_seqlens_B1: Tensor, tokens: int) -> None:
    """Raises ValueError unless cu_seqlens can describe `tokens` tokens. Its values are read only on the CPU."""
    require(cu_seqlens_B1.dim() == 1 and len(cu_seqlens_B1) > 0, "cu_seqlens must have B + 1 entries on one axis")
    dtype = cu_seqlens_B1.dtype
    require(dtype in (torch.int32, torch.int64), f"cu_seqlens must be int32 or int64, not {dtype}")
    if cu_seqlens_B1.device.type == "cpu":
        ends = cu_seqlens_B1.tolist()
        spans = ends[0] == 0 and ends[-1] == tokens
        require(spans, f"cu_seqlens must run from 0 to T = {tokens}, not {ends[0]} to {ends[-1]}")
        require(all(a <= b for a, b in zip(ends, ends[1:])), "cu_seqlens must not fall")


def trajectory_of_token(cu_seqlens_B1: Tensor, tokens: int) -> Tensor:
    """int64 [T]: the trajectory that holds each token."""
    lengths_B = cu_seqlens_B1.diff().to(torch.int64)
    return torch.repeat_interleave(torch.arange(len(lengths_B), device=lengths_B.device), lengths_B, output_size=tokens)
