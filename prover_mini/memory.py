"""Memory that training a model takes on one rank, and what there is."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from prover_mini.errors import UserError

GIB = 2**30


def training_bytes(parameters: int, dtype: str, ranks: int) -> dict[str, float]:
    """Bytes per rank that weights and optimizer hold during the whole run, by what holds them.

    `ranks`: over how many the training state is sharded, 1 when every rank has all of it. Activations, K/V and states
    of the rollouts come on top.
    """
    state = {"float32 weights": 4, "gradients": 4, "AdamW": 8}
    held = {name: size * parameters / ranks for name, size in state.items()}
    if dtype == "bfloat16":
        held["bfloat16 weights in rollouts"] = 2 * parameters
    elif ranks > 1:
        held["float32 weights in rollouts"] = 4 * parameters
    return held


def total(device: torch.device) -> int:
    """Bytes of memory that this rank can count on: of its GPU, or its share of the machine's. 0 where not known."""
    return _device_memory(device)[1]


def check(name: str, parameters: int, dtype: str, ranks: int, device: torch.device) -> None:
    """Raises UserError, with the numbers, for a model whose training state is larger than what is free."""
    free, held = _device_memory(device)[0], training_bytes(parameters, dtype, ranks)
    needed = sum(held.values())
    if not free or needed <= free:
        return
    parts = ", ".join(f"{what} {size / GIB:.1f}" for what, size in held.items())
    sharded = f" with its state in shards over {ranks} ranks" if ranks > 1 else ""
    remedy = "more GPUs" if ranks > 1 else "more GPUs with --parallel shard"
    raise UserError(
        f"--model {name}: training its {parameters / 1e9:.2f} billion parameters{sharded} takes {needed / GIB:.1f} GiB "
        f"on each rank ({parts}), of which {free / GIB:.1f} GiB are free; use {remedy}, or a smaller model"
    )


def _device_memory(device: torch.device) -> tuple[int, int]:
    """(free, total) bytes for this rank; (0, 0) where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0, 0
    kib = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return tuple(kib.get(name, 0) * 1024 // ranks_here for name in ("MemAvailable", "MemTotal"))
