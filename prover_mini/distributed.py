"""The few collectives the trainer needs; with one process all of them are the identity."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from prover_mini.errors import UserError

TIMEOUT = timedelta(minutes=30)  # a rank that waits longer than this has lost its peer: fail, never hang


def start(device: str) -> torch.device:
    """Joins the process group that torchrun describes in the environment; returns this rank's device.

    Raises UserError for a device that this machine does not have.
    """
    if device in ("", "cuda") and (device or torch.cuda.is_available()):
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    try:
        chosen = torch.device(device or "cpu")
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"--device {device}: {str(error).splitlines()[0]}; use cpu or cuda") from None
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized():
        # gradients are reduced on the device, counts and records on the CPU
        dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo", timeout=TIMEOUT)
    return chosen


def stop() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def main() -> bool:
    return rank() == 0


def sum_(tensor: torch.Tensor) -> torch.Tensor:
    """Sum over ranks, in place."""
    if world() > 1:
        dist.all_reduce(tensor)
    return tensor


def gather(value: Any) -> list[Any]:
    """Every rank's value, in rank order, on every rank."""
    if world() == 1:
        return [value]
    values = [None] * world()
    dist.all_gather_object(values, value)
    return values


def broadcast(value: Any) -> Any:
    """Rank 0's value on every rank."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def first(work: Callable[[], Any]) -> Any:
    """Runs `work` on rank 0, then on the others, which find what it left on disk. An error of rank 0 is theirs too."""
    error = value = None
    if main():
        try:
            value = work()
        except Exception as failure:
            error = failure
    error = broadcast(error)
    if error:
        raise error
    return value if main() else work()
