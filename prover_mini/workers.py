"""Calls into environments, which are foreign code: they may raise, and those that wait for servers may hang.

What a call raises becomes its answer, as a `Failure` for the trajectory to carry; one broken episode must not end a
run. A call that takes longer than the limit is given up. Its thread cannot be ended from outside: it is left to itself,
as a daemon, so that neither the step nor the end of the process waits for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prover_mini.errors import UserError


@dataclass(frozen=True)
class Failure:
    """What a call into an environment raised, in words."""

    reason: str


def attempt(call: Callable[[], Any]) -> Any:
    """The call's answer, or a `Failure`. A UserError, which is meant for the user, is raised."""
    try:
        return call()
    except UserError:
        raise
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}"[:500])


class Workers:
    """Runs calls one after the other, or at most `count` of them at a time in threads when `count` is above 1.

    Args:
        seconds: limit for one call, from its own start; kept for calls in threads only.
    """

    def __init__(self, count: int, seconds: float):
        self.count, self.seconds = count, seconds

    def run(self, calls: list[Callable[[], Any]]) -> list[Any]:
        """One answer per call, in order: what it returned, or a `Failure`."""
        if self.count == 1:
            return [attempt(call) for call in calls]
        answers: list[Any] = [None] * len(calls)
        ended: queue.SimpleQueue = queue.SimpleQueue()
        waiting, deadlines = deque(range(len(calls))), {}
        while waiting or deadlines:
            while waiting and len(deadlines) < self.count:
                i = waiting.popleft()
                deadlines[i] = time.monotonic() + self.seconds
                threading.Thread(target=_serve, args=(i, calls[i], ended), daemon=True).start()
            try:
                i, answer = ended.get(timeout=max(min(deadlines.values()) - time.monotonic(), 0.0))
            except queue.Empty:
                for late in [i for i, deadline in deadlines.items() if deadline <= time.monotonic()]:
                    answers[late] = Failure(f"no answer in {self.seconds:g} seconds")
                    del deadlines[late]
                continue
            if i in deadlines:  # else it was given up already
                answers[i] = answer
                del deadlines[i]
            if isinstance(answer, UserError):
                raise answer
        return answers


def _serve(i: int, call: Callable[[], Any], ended: queue.SimpleQueue) -> None:
    try:
        ended.put((i, attempt(call)))
    except UserError as error:
        ended.put((i, error))
