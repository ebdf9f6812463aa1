"""SIGKILL at random moments: does every run resume to exactly what it would have been?

    python -m benchmarks.kill_test [--runs 20] [--seed 0] [fields of train.py, such as --parallel shard]

A tiny job of the embedded SearchQA policy, saved after every step, is played once undisturbed on one rank and once on
two. Then it is started `runs` times on one and on two ranks in turn, killed at a random moment, and resumed. The
moments aim at every phase in turn: rollout, verification, update, checkpoint, evaluation, loading. Of two ranks one is
killed, and the other has to end by itself, or both are. A run passes when it resumes, finishes, and everything that it
leaves but clock times equals the undisturbed run bit for bit: metrics, trajectories, evaluations, weights, optimizer.

Ranks are forked from a server process that has imported everything, so that starting one costs a fraction of a second.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

ROOT = Path(__file__).parent.parent
JOB = (
    "--steps 4 --groups-per-step 4 --group-size 4 --continuations 2 --slots 16 --eval-tasks 8 --eval-every 2 "
    "--save-every 1"
).split()
LAST = "step_000004"
PHASES = ("rollout", "verify", "train", "save", "eval", "load")
PATIENCE = 120.0  # seconds after which a process that should have ended counts as hanging


def rank_main(
    rank: int, ranks: int, port: int, arguments: list[str], log: Path, phases: Connection | None, setup: Callable | None
) -> None:
    """One rank of `train.py`, in a process of its own; tells `phases` what it is doing."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if ranks > 1:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
    import train
    from prover_mini.run import Run

    phase = Run.phase

    def told(run, name: str, step: int | None = None):
        if phases:
            phases.send((run.step if step is None else step, name))
        return phase(run, name, step)

    Run.phase = told
    if setup:
        setup(rank)
    sys.argv = ["train.py", *arguments]
    sys.exit(train.main())


@dataclass
class Job:
    """A started `train.py` on some ranks without a launcher between."""

    processes: list[multiprocessing.Process]
    phases: Connection
    log: Path

    @staticmethod
    def start(arguments: list[str], ranks: int, log: Path, setup: Callable[[int], None] | None = None) -> Job:
        """`setup`, a function of a module, is called with its rank in every rank's process."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["train"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        here, there = context.Pipe(duplex=False)
        job = Job([], here, log)
        for rank in range(ranks):
            told = there if rank == 0 else None
            inputs = (rank, ranks, port, arguments, log, told, setup)
            process = context.Process(target=rank_main, args=inputs, daemon=True)
            process.start()
            job.processes.append(process)
        return job

    def reach(self, step: int, phase: str) -> bool:
        """Waits until rank 0 begins a phase of a step; False if it ended before."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.phases.poll(0.05):
                try:
                    if self.phases.recv() == (step, phase):
                        return True
                except EOFError:
                    return False
            elif not self.processes[0].is_alive():
                return False
        raise TimeoutError(f"{phase} of step {step} was not reached in {PATIENCE:g} seconds; see {self.log}")

    def end(self, patience: float = PATIENCE) -> list[int]:
        """The exit codes of all ranks. Raises TimeoutError for one that hangs, and kills it."""
        deadline = time.monotonic() + patience
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0.0))
        hanging = [process for process in self.processes if process.is_alive()]
        for process in hanging:
            process.kill()
        if hanging:
            raise TimeoutError(f"{len(hanging)} of {len(self.processes)} ranks hang; see {self.log}")
        return [process.exitcode for process in self.processes]

    def output(self) -> str:
        return self.log.read_text(errors="replace")


def saved(path: Path) -> str:
    """The newest checkpoint."""
    return (path / "latest").read_text().strip() if (path / "latest").exists() else "the start"


def finish(path: Path, ranks: int, log: Path, job: list[str] = JOB) -> None:
    """Resumes a run until it is finished, or starts it where it had not begun."""
    if saved(path) == LAST:
        return
    begun = (path / "config.json").is_file() and (path / "config.json").stat().st_size > 0
    if not begun:
        shutil.rmtree(path, ignore_errors=True)
    started = Job.start(["--run-dir", str(path), "--resume"] if begun else [*job, "--run-dir", str(path)], ranks, log)
    if codes := [code for code in started.end() if code]:
        raise RuntimeError(f"the run cannot be resumed (exit code {codes[0]}): {started.output().splitlines()[-1]}")


def content(path: Path) -> dict[str, object]:
    """What a finished run left, without what differs by nature: clock times, and how it was called."""
    files = {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in ("metrics.jsonl", "command.txt", "config.json", "git.txt", "launch.txt")
    }
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return {**files, "metrics.jsonl": [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]}


def differences(path: Path, whole: Path) -> list[str]:
    ours, theirs = content(path), content(whole)
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def left_behind(name: str) -> bool:
    """Whether only tidying up, after the last checkpoint, makes a difference to a file."""
    return name in ("best", "best.tmp") or (name.startswith("checkpoints/") and LAST not in name)


def kill_once(
    path: Path, ranks: int, seconds: dict[str, float], number: int, rng: random.Random, log: Path, arguments: list[str]
) -> str:
    """Starts the job and kills it at a random moment; returns where, in words."""
    step, phase = rng.randint(1, 4), PHASES[(number + number // len(PHASES)) % len(PHASES)]
    step = step + step % 2 if phase == "eval" else step
    delay = rng.random() * seconds[phase]
    victims = rng.choice([[0], [1], [0, 1]]) if ranks > 1 and phase != "load" else list(range(ranks))
    job = Job.start([*arguments, "--run-dir", str(path)], ranks, log)
    if phase != "load" and not job.reach(step, phase):
        raise RuntimeError(f"ended before {phase} of step {step}: {job.output()[-300:]}")
    time.sleep(delay)
    for victim in victims:
        job.processes[victim].kill()
    begin = time.monotonic()
    codes = job.end()
    survivors = [code for rank, code in enumerate(codes) if rank not in victims]
    done = {0} if saved(path) == LAST else set()  # too late to be killed, or to miss who was
    if set(survivors) - {3} - done or {codes[victim] for victim in victims} - {-signal.SIGKILL} - done:
        raise RuntimeError(f"exit codes {codes} after ranks {victims} were killed: {job.output()[-300:]}")
    ended = f", the other ended {time.monotonic() - begin:.1f} s later" if survivors else ""
    moment = f"{1000 * delay:.0f} ms into {phase}" + (f" of step {step}" if phase != "load" else "ing")
    return f"{len(victims)} of {ranks} ranks, {moment}{ended}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills runs at random moments and compares what they become.")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments, fields = parser.parse_known_args()
    job = [*JOB, *fields]
    os.chdir(ROOT)
    rng, equal = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        whole, seconds = {}, {}
        for ranks in (1, 2):
            whole[ranks] = Path(folder) / f"whole-{ranks}"
            finish(whole[ranks], ranks, Path(folder) / f"whole-{ranks}.log", job)
            rows = [json.loads(line) for line in (whole[ranks] / "metrics.jsonl").read_text().splitlines()]
            assert sum(row["prover/verified"] for row in rows), "the job verifies nothing: kills cannot hit it"
            seconds[ranks] = {phase: max(row[f"time/{phase}"] for row in rows) for phase in PHASES[:-1]} | {"load": 2.0}
        for number in range(arguments.runs):
            ranks, path = number % 2 + 1, Path(folder) / f"run-{number}"
            try:
                where = kill_once(path, ranks, seconds[ranks], number, rng, path.with_suffix(".log"), job)
                begin = saved(path)
                finish(path, ranks, path.with_suffix(".log"), job)
                different = [n for n in differences(path, whole[ranks]) if begin != LAST or not left_behind(n)]
                result = "had saved the last step" if begin == LAST else f"resumed from {begin}"
                result += f": DIFFERS in {', '.join(different)}" if different else ": equal"
                equal += not different
            except (RuntimeError, TimeoutError, OSError) as error:
                where, result = f"run {number}", f"FAILED: {error}"
            print(f"{number + 1:3d}  {where}; {result}", flush=True)
            shutil.rmtree(path, ignore_errors=True)
    print(f"{equal} of {arguments.runs} killed runs resumed to the undisturbed run, bit for bit")
    return 0 if equal == arguments.runs else 1


if __name__ == "__main__":
    sys.exit(main())
