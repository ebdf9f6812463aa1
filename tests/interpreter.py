"""Triton's interpreter for tests: bfloat16 as a GPU computes it, and tensors whose end is guarded.

The interpreter keeps bfloat16 as uint16 and computes on the raw bits, and it truncates where a GPU rounds. Importing
this module with TRITON_INTERPRET=1 corrects both. A guarded tensor ends at an inaccessible page, so that one element
too far is a segmentation fault instead of an unnoticed read.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Bits of float32 rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = ((bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(bits, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


def correct_bfloat16() -> None:
    """Casts from and to bfloat16 and its products go through float32; the kernels compute on nothing else narrower."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast, convert, dot = (getattr(InterpreterBuilder, name) for name in ("cast_impl", "create_fp_to_fp", "create_dot"))

    def widened(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle(from_bfloat16(x.data).reshape(x.data.shape), tl.float32)

    def exact_cast(self, source, kind):
        if kind.scalar == tl.bfloat16 and source.dtype.scalar != tl.bfloat16:
            bits = to_bfloat16(source.data.astype(np.float32)).reshape(source.data.shape)
            return TensorHandle(bits, tl.bfloat16)
        if kind.scalar != tl.bfloat16:
            source = widened(source)
        return source if source.dtype.scalar == kind.scalar else cast(self, source, kind)

    def exact_convert(self, source, kind, rounding):
        narrow = tl.bfloat16 in (source.dtype.scalar, kind.scalar)
        return exact_cast(self, source, kind) if narrow else convert(self, source, kind, rounding)

    def exact_dot(self, a, b, *rest):
        return dot(self, widened(a), widened(b), *rest)

    InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp = exact_cast, exact_convert
    InterpreterBuilder.create_dot = exact_dot


def guarded(x: torch.Tensor) -> torch.Tensor:
    """A copy of x in memory of its own, with inaccessible pages before and right after its bytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    size, page = x.numel() * x.element_size(), mmap.PAGESIZE
    pages = -(-size // page)
    prot_none, prot_read_write, private_anonymous = 0, 3, 0x22
    begin = libc.mmap(None, (pages + 2) * page, prot_read_write, private_anonymous, -1, 0)
    libc.mprotect(begin, page, prot_none)
    libc.mprotect(begin + (pages + 1) * page, page, prot_none)
    buffer = (ctypes.c_char * size).from_address(begin + (pages + 1) * page - size)
    return torch.frombuffer(buffer, dtype=x.dtype).view(x.shape).copy_(x)


if INTERPRETED:
    correct_bfloat16()
