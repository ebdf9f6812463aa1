"""The few collectives the trainer needs; with one process all of them are the identity.

A collective ends when the slowest rank has come to it: the time that a rank spends here is what it idles. It also ends,
with `RankLost`, when another rank is gone or does not come within `rank_timeout`: nothing here waits for ever.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from prover_mini.errors import RankLost, UserError, first_line

BACKENDS = re.compile(r"gloo|nccl|connection (closed|reset)|process group", re.IGNORECASE)

_idle_seconds = 0.0
_lost = False


def start(device: str, rank_timeout: int) -> torch.device:
    """Joins the process group that torchrun describes in the environment; returns this rank's device.

    Raises UserError for a device that this machine does not have, RankLost when not all ranks come together.
    """
    if device in ("", "cuda") and (device or torch.cuda.is_available()):
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    try:
        chosen = torch.device(device or "cpu")
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"--device {device}: {first_line(error)}; use cpu or cuda") from None
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized():
        # gradients are reduced on the device, counts and records on the CPU
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        with _meeting():
            _join(backend, timedelta(seconds=rank_timeout))
    return chosen


def _join(backend: str, timeout: timedelta) -> None:
    """After a restart torchrun hands out the store of the attempt before, with the addresses of ranks that are gone
    (pytorch#135712): all keys get a prefix that is new."""
    store, rank, world = next(dist.rendezvous("env://", timeout=timeout))
    store = dist.PrefixStore(_new_name(store, rank, world, timeout), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)


def _new_name(store: dist.Store, rank: int, world: int, timeout: timedelta) -> str:
    """Rank 0's, on every rank, through a store in which earlier attempts may have left anything.

    Keys hold the random names of the two that talk, except where a rank calls: rank 0 answers whoever has called, and
    again until the rank that lives has heard it.
    """
    mine = uuid.uuid4().hex
    if rank:
        store.set(f"call/{rank}", mine)
        store.wait([f"answer/{mine}"], timeout)
        name = store.get(f"answer/{mine}").decode()
        store.set(f"heard/{name}/{rank}", "")
        return name
    deadline = time.monotonic() + timeout.total_seconds()
    waiting = set(range(1, world))
    while waiting:
        for other in [other for other in waiting if store.check([f"call/{other}"])]:
            store.set(f"answer/{store.get(f'call/{other}').decode()}", mine)
        waiting = {other for other in waiting if not store.check([f"heard/{mine}/{other}"])}
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(waiting)} of {world} ranks have not come")
        time.sleep(0.02)
    return mine


def stop() -> None:
    if dist.is_initialized() and not _lost:  # leaving a group whose ranks are gone may wait for them
        dist.destroy_process_group()


def lost(error: RuntimeError) -> RankLost | None:
    """The same error in our words, if it means that another rank is gone: collectives inside a model's own forward and
    backward say it in those of the backends."""
    if isinstance(error, RankLost):
        return error
    return _rank_lost(error) if world() > 1 and BACKENDS.search(str(error)) else None


def _rank_lost(error: RuntimeError) -> RankLost:
    reason = re.sub(r"^\[\S*\]\s*", "", first_line(error))  # begins with a place in the library's source
    reason = reason.partition(". ")[0]
    return RankLost(
        f"rank {os.environ.get('RANK', 0)}: another rank is gone or did not answer in time ({reason[:200]}); "
        "--run-dir with --resume goes on from the newest checkpoint"
    )


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def main() -> bool:
    return rank() == 0


def idle_seconds() -> float:
    """What this rank has spent in collectives so far, waiting for others or exchanging data."""
    return _idle_seconds


@contextmanager
def _meeting() -> Iterator[None]:
    global _idle_seconds, _lost
    begin = time.perf_counter()
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # all that the backends raise
        _lost = True
        raise _rank_lost(error) from None
    finally:
        _idle_seconds += time.perf_counter() - begin


def sum_(tensor: torch.Tensor) -> torch.Tensor:
    """Sum over ranks, in place."""
    if world() > 1:
        with _meeting():
            dist.all_reduce(tensor)
    return tensor


def gather(value: Any) -> list[Any]:
    """Every rank's value, in rank order, on every rank."""
    if world() == 1:
        return [value]
    values = [None] * world()
    with _meeting():
        dist.all_gather_object(values, value)
    return values


def broadcast(value: Any) -> Any:
    """Rank 0's value on every rank."""
    if world() == 1:
        return value
    box = [value]
    with _meeting():
        dist.broadcast_object_list(box, src=0)
    return box[0]


def share(tensor: torch.Tensor) -> None:
    """Rank 0's values on every rank, in place."""
    if world() > 1:
        with _meeting():
            dist.broadcast(tensor, src=0)


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


def together(work: Callable[[], None]) -> None:
    """Runs `work` on every rank at the same time. An error of one is raised by all, so that none waits for it."""
    error = None
    try:
        work()
    except Exception as failure:
        error = failure
    if errors := [e for e in gather(error) if e]:
        raise errors[0]
