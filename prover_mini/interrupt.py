"""SIGTERM ends a run after the step that it is in: a scheduler's way to say that the machine is wanted elsewhere."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from prover_mini import distributed

_asked = False


@contextmanager
def deferred() -> Iterator[None]:
    """Inside, SIGTERM is only remembered. To be entered by the main thread."""
    global _asked
    _asked = False
    before = signal.signal(signal.SIGTERM, _remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _remember(signum: int, frame: object) -> None:
    global _asked
    _asked = True


def asked() -> bool:
    """Whether any rank was asked to stop; all ranks get the same answer."""
    return any(distributed.gather(_asked))
