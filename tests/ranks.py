"""Several ranks in one test: forked processes with a process group."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp


def on_ranks(world: int, path: Path, work: Callable, *arguments) -> None:
    """Runs work(rank, world, *arguments) in forked processes of one group, which meet at `path`; raises what they
    raise."""
    path.unlink(missing_ok=True)
    context = mp.start_processes(enter, (world, path, work, arguments), nprocs=world, join=False, start_method="fork")
    deadline = time.monotonic() + 500
    while not context.join(timeout=5):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"{work.__name__} hangs on {world} ranks")


def enter(rank: int, world: int, path: Path, work: Callable, arguments: tuple) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    work(rank, world, *arguments)
    dist.barrier()
    dist.destroy_process_group()
