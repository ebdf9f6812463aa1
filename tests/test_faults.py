"""Faults in whole runs of two ranks: what is said, how all of them end, and that the newest good checkpoint survives."""

import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest

from benchmarks.kill_test import JOB, Job, differences, finish

TWO = [*JOB, "--steps", "3", "--save-every", "3", "--eval-every", "3"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An undisturbed run."""
    path = tmp_path_factory.mktemp("whole") / "run"
    job = Job.start([*TWO, "--run-dir", str(path)], 2, path.with_suffix(".log"))
    assert job.end() == [0, 0], job.output()
    return path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> tuple[Path, Job, list[int]]:
    """A run of which one rank, not the first, got SIGTERM in the middle of its second step."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    job = Job.start([*TWO, "--run-dir", str(path)], 2, path.with_suffix(".log"))
    assert job.reach(2, "rollout"), job.output()
    job.processes[1].terminate()
    return path, job, job.end()


def lines(job: Job, word: str) -> list[str]:
    return [line for line in job.output().splitlines() if word in line]


def latest(path: Path) -> str:
    return (path / "latest").read_text().strip()


def differing(path: Path, whole: Path) -> set[str]:
    """What differs, but for the checkpoint that a stop has left, and the success since then that tells the best one."""
    shutil.rmtree(path / "checkpoints" / "step_000002", ignore_errors=True)
    return set(differences(path, whole)) - {"best", "checkpoints/step_000003/state.json"}


def test_sigterm_finishes_the_step_saves_and_exits_with_0_on_all_ranks(stopped):
    path, job, codes = stopped
    assert codes == [0, 0], job.output()
    assert len(lines(job, "stopped by SIGTERM after step 2 of 3, saved")) == 1
    assert latest(path) == "step_000002" and len((path / "metrics.jsonl").read_text().splitlines()) == 2


def full_disk(rank: int) -> None:
    """From the third step's checkpoint on, no file can grow beyond 1 MiB, less than the model takes."""
    from prover_mini import checkpoint

    save = checkpoint.save

    def limited(run_dir, step, *rest):
        if step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        save(run_dir, step, *rest)

    checkpoint.save = limited


def test_a_full_disk_ends_all_ranks_with_one_line_and_leaves_the_checkpoint_before(stopped, whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(stopped[0], path)
    job = Job.start(["--run-dir", str(path), "--resume"], 2, tmp_path / "log", setup=full_disk)
    assert job.end() == [2, 2], job.output()
    (line,) = lines(job, "train.py:")
    assert "step_000003: the checkpoint cannot be written" in line and "--resume" in line
    assert latest(path) == "step_000002"
    assert [f.name for f in (path / "checkpoints").iterdir()] == ["step_000002"]
    finish(path, 2, tmp_path / "log")
    assert differing(path, whole) == set()


def test_when_a_rank_is_lost_the_other_ends_with_one_line(tmp_path):
    job = Job.start([*TWO, "--run-dir", str(tmp_path / "run")], 2, tmp_path / "log")
    assert job.reach(1, "train"), job.output()
    job.processes[0].kill()
    assert job.end(60) == [-signal.SIGKILL, 3], job.output()
    (line,) = lines(job, "train.py:")
    assert line.startswith("train.py: rank 1: another rank is gone") and "--resume" in line


def test_a_rank_that_hangs_is_given_up_after_the_time_limit(tmp_path):
    job = Job.start([*TWO, "--run-dir", str(tmp_path / "run"), "--rank-timeout", "10"], 2, tmp_path / "log")
    assert job.reach(1, "rollout"), job.output()
    os.kill(job.processes[1].pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        job.processes[0].join(90)
        assert job.processes[0].exitcode == 3 and time.monotonic() - begin > 5, job.output()
        (line,) = lines(job, "train.py:")
        assert "did not answer in time" in line
    finally:
        job.processes[1].kill()
        job.end()
