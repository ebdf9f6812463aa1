"""Figures to TensorBoard, trackio or Weights & Biases, besides metrics.jsonl and under the same names.

    --tracker tensorboard          runs/NAME/tensorboard, for `tensorboard --logdir runs`
    --tracker trackio,wandb        project prover-mini, the run named after its directory

None of the packages is needed without the flag. A tracker that cannot start stops the run before it begins; one that
fails or stops answering later is dropped with one line, and the run goes on: it is fed by a thread of its own.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prover_mini.errors import UserError, first_line

if TYPE_CHECKING:
    from prover_mini.config import Config

PROJECT = "prover-mini"
PATIENCE = 60.0  # seconds that the end of a run waits for a tracker
WAITING = 1000  # steps that may wait for a tracker before it counts as stuck

Log = Callable[[dict[str, float], int], None]
Close = Callable[[], None]


def wandb(path: Path, config: Config, done: int) -> tuple[Log, Close]:
    """Settings come from wandb's own variables (WANDB_MODE, WANDB_DIR, ...) and `wandb login`. The id under which a
    resumed run goes on is kept in the run directory."""
    import wandb as library

    kept = path / "wandb_id"
    known = kept.read_text().strip() if done and kept.exists() else None
    run = library.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=path.name,
        id=known,
        resume="allow" if known else None,
        config=asdict(config),
        settings=library.Settings(finish_timeout=PATIENCE, silent=True),
    )

    def log(row: dict[str, float], step: int) -> None:
        if not kept.exists():
            kept.write_text(run.id + "\n")
        run.log(row, step=step)

    return log, run.finish


def trackio(path: Path, config: Config, done: int) -> tuple[Log, Close]:
    import trackio as library

    run = library.init(
        project=PROJECT, name=path.name, config=asdict(config), resume="allow" if done else "never", embed=False
    )
    return lambda row, step: run.log(row, step=step), lambda: None  # it finishes its runs itself when Python ends


def tensorboard(path: Path, config: Config, done: int) -> tuple[Log, Close]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(path / "tensorboard"), purge_step=done + 1 if done else None)

    def log(row: dict[str, float], step: int) -> None:
        for name, value in row.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log, writer.close


# Each is named as its package is. What writes into the run directory comes last: where another one cannot start,
# nothing is left there.
TRACKERS = {"wandb": wandb, "trackio": trackio, "tensorboard": tensorboard}


def names_of(field: str) -> list[str]:
    """The trackers that the field `tracker` names. Raises UserError for an unknown one and for a missing package."""
    names = [name.strip() for name in field.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"--tracker {name!r}: choose of {', '.join(sorted(TRACKERS))}")
        if getattr(find_spec(name), "origin", None) is None:  # a plain directory of that name is no package either
            raise UserError(f"--tracker {name}: the package is not installed; pip install {name}, or drop the flag")
    return [name for name in TRACKERS if name in names]


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """A metrics line as trackers take it: numbers alone; an interval becomes two, NAME_low and NAME_high."""
    out = {}
    for name, value in row.items():
        parts = zip((f"{name}_low", f"{name}_high"), value) if isinstance(value, list) else [(name, value)]
        out |= {key: float(x) for key, x in parts if isinstance(x, (int, float)) and name != "step"}
    return out


class Tracker:
    """One tracker and the thread that feeds it.

    Args:
        name: of `TRACKERS`.
        path, config, done: the run's directory, its configuration, the step it resumes from (0: none).
        say: shows one line to the user.
    """

    def __init__(self, name: str, path: Path, config: Config, done: int, say: Callable[[str], None]):
        self.name, self.say = name, say
        try:
            self._log, self._close = TRACKERS[name](path, config, done)
        except Exception as error:  # these are foreign programs: whatever they raise means the same
            raise UserError(f"--tracker {name}: cannot start ({first_line(error)})") from None
        self.waiting: queue.Queue = queue.Queue(WAITING)
        self.failed = False
        self.thread = threading.Thread(target=self._feed, name=name, daemon=True)
        self.thread.start()
        atexit.register(self.close)  # a run that is stopped by an error has figures to hand over too

    def log(self, row: dict[str, Any], step: int) -> None:
        """Hands a metrics line over; returns at once."""
        self._put((scalars(row), step))

    def close(self) -> None:
        """Waits until everything is handed over, at most `PATIENCE` seconds."""
        if self.thread.is_alive() and not self.failed:
            self._put(None)
            self.thread.join(PATIENCE)
            if self.thread.is_alive():
                self._fail("it does not answer")
        atexit.unregister(self.close)

    def _put(self, item: Any) -> None:
        if not self.failed:
            try:
                self.waiting.put_nowait(item)
            except queue.Full:
                self._fail("it does not answer")

    def _feed(self) -> None:
        try:
            while (item := self.waiting.get()) is not None:
                self._log(*item)
            self._close()
        except BaseException as error:  # also a SystemExit, which a thread would swallow
            self._fail(first_line(error))

    def _fail(self, reason: str) -> None:
        if not self.failed:
            self.failed = True
            self.say(f"--tracker {self.name}: no more figures go there ({reason}); the run is not affected")
