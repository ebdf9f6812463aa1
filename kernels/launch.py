"""Which path a call takes, and the launch parameters of the Triton kernels.

A tensor on a GPU goes to Triton, one on the CPU to torch; float64 always goes to torch. With TRITON_INTERPRET=1, set
before this module is imported, CPU tensors go to Triton as well, through its interpreter.

There is no autotuning at run time: parameters come from `TABLE`, keyed by architecture and size, and every entry is
compiled ahead of time by the tests.
"""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # platforms without Triton wheels have no GPU that it could use

    class triton:  # type: ignore[no-redef]
        jit = staticmethod(lambda function: function)

    tl = None

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")

# (architectures, largest size the entry is for, parameters); the first entry that fits is taken
ANY = ARCHITECTURES
TABLE: dict[str, list[tuple[tuple[str, ...], float, dict[str, int]]]] = {
    # size: tokens. Launch-bound: few tokens per program fill the GPU, more keep the partial sums few
    "segment_advantage": [
        (ANY, 2**18, {"BLOCK": 256, "num_warps": 2}),
        (ANY, float("inf"), {"BLOCK": 1024, "num_warps": 4}),
    ],
    "grpo_loss": [
        (ANY, 2**16, {"BLOCK": 256, "num_warps": 2}),
        (ANY, float("inf"), {"BLOCK": 1024, "num_warps": 4}),
    ],
    # size: columns of a row. A whole vocabulary chunk is one tile: one maximum and one sum per row
    "softmax": [
        (ANY, 128, {"BLOCK": 128, "num_warps": 1}),
        (ANY, 1024, {"BLOCK": 1024, "num_warps": 4}),
        (ANY, 2048, {"BLOCK": 2048, "num_warps": 4}),
        (ANY, 4096, {"BLOCK": 4096, "num_warps": 8}),
        (("gfx942",), float("inf"), {"BLOCK": 4096, "num_warps": 8}),
        (ANY, float("inf"), {"BLOCK": 8192, "num_warps": 16}),
    ],
    # size: columns of a row, all in one tile
    "rms_norm": [
        (ANY, 256, {"BLOCK": 256, "num_warps": 1}),
        (ANY, 1024, {"BLOCK": 1024, "num_warps": 4}),
        (ANY, 4096, {"BLOCK": 4096, "num_warps": 8}),
        (ANY, float("inf"), {"BLOCK": 16_384, "num_warps": 16}),
    ],
    # size: entries of one head's state, all in registers: 64 a thread leave room for what they are multiplied with
    "gated_delta_rule": [
        (ANY, 1024, {"num_warps": 1}),
        (ANY, 4096, {"num_warps": 4}),
        (("sm_90", "sm_100"), 2**14, {"num_warps": 8, "maxnreg": 128}),  # two programs on each multiprocessor
        (ANY, 2**14, {"num_warps": 8}),
    ],
    # size: head size. Two tiles of BLOCK keys and of BLOCK values are on their way while a third is used
    "decode_attention": [
        (("gfx942",), 128, {"BLOCK": 64, "num_warps": 4, "num_stages": 2}),
        (("gfx942",), float("inf"), {"BLOCK": 32, "num_warps": 4, "num_stages": 2}),
        (ANY, 128, {"BLOCK": 64, "num_warps": 4, "num_stages": 3}),
        (ANY, float("inf"), {"BLOCK": 32, "num_warps": 4, "num_stages": 3}),
    ],
    "decode_attention_fp32": [
        (("gfx942",), float("inf"), {"BLOCK": 16, "num_warps": 4, "num_stages": 2}),
        (ANY, float("inf"), {"BLOCK": 16, "num_warps": 4, "num_stages": 3}),
    ],
}


def fused(x: Tensor) -> bool:
    """Whether x goes to Triton."""
    return (x.is_cuda or INTERPRETED) and x.dtype != torch.float64


@cache
def architecture(device: torch.device) -> str:
    """The table's name of a device; newer NVIDIA generations take the entries of the newest known one."""
    if device.type != "cuda":
        return "sm_90"
    if torch.version.hip:
        return "gfx942"
    major = torch.cuda.get_device_capability(device)[0]
    return "sm_80" if major < 9 else "sm_90" if major == 9 else "sm_100"


def parameters(kernel: str, size: int, device: torch.device) -> dict[str, int]:
    """Launch parameters for a size as the table counts it."""
    return entry(kernel, size, architecture(device))


def entry(kernel: str, size: int, name: str) -> dict[str, int]:
    return next(found for names, limit, found in TABLE[kernel] if name in names and size <= limit)
