"""Faults in whole runs: what is said and counted, how every rank ends, and that the newest good checkpoint survives."""

import os
import resource
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest

import train
from benchmarks.kill_test import JOB, Job, differences, finish
from envs import searchqa
from envs.searchqa.retriever import HTTPRetriever
from prover_mini.judge import endpoint
from tests import judge_server, test_retriever
from tests.judge_server import KEY, always, proposal, status
from tests.test_train import metrics, run

serve = test_retriever.serve  # a fixture
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


def test_what_ranks_idle_is_measured(whole):
    for row in metrics(whole, times=True):
        assert 0 < row["time/idle"] < row["time/total"]
    assert "idle share of the ranks" in whole.with_suffix(".log").read_text()


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


class Outage:
    """`down` is true while a step of `steps` runs."""

    def __init__(self, monkeypatch, *steps: int):
        self.down = False
        tasks_of_step = train.tasks_of_step

        def begin(tasks, step, config):
            self.down = step in steps
            return tasks_of_step(tasks, step, config)

        monkeypatch.setattr(train, "tasks_of_step", begin)


@pytest.fixture
def retriever(serve, monkeypatch):
    """retriever(outage) is the address of a server that finds what the embedded retriever finds, but in an outage."""
    monkeypatch.setattr(searchqa, "HTTPRetriever", partial(HTTPRetriever, attempts=2, first_pause_seconds=0.001))
    found = searchqa.embedded_retriever()

    def begin(outage: Outage) -> str:
        def answer(request):
            if outage.down:
                return 503, {"detail": "restarting"}
            return 200, {"result": [found.search(query, request["topk"]) for query in request["queries"]]}

        return serve(answer)[0]

    return begin


def test_a_retriever_that_is_down_for_a_step_costs_that_step(retriever, tmp_path, monkeypatch, capsys):
    url = retriever(Outage(monkeypatch, 2))
    assert run(*TWO, "--retriever-url", url, "--run-dir", tmp_path / "run") == 0
    rates = [row["env/error_rate"] for row in metrics(tmp_path / "run")]
    assert rates[1] > 0.5 and rates[0] == rates[2] == 0
    assert f"{rates[1]:.1%} of episodes failed by errors" in capsys.readouterr().out


def test_a_retriever_that_is_gone_ends_the_run_and_it_goes_on_when_it_is_back(retriever, tmp_path, monkeypatch, capsys):
    outage = Outage(monkeypatch, 3, 4, 5)
    url = retriever(outage)
    many = [*JOB, "--steps", "5", "--max-bad-steps", "2", "--temperature", "0.2"]
    assert run(*many, "--retriever-url", url, "--run-dir", tmp_path / "run") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "2 steps in a row taught nothing, step 4 had errors in every episode" in line and "503" in line
    assert latest(tmp_path / "run") == "step_000003"  # of a step that changed nothing: as good as the one before
    assert [row["env/error_rate"] for row in metrics(tmp_path / "run")] == [0, 0, 1, 1]
    assert run("--run-dir", tmp_path / "run", "--resume") == 2
    assert "start the server or correct the address" in capsys.readouterr().err
    outage.down = False
    monkeypatch.undo()
    assert run("--run-dir", tmp_path / "run", "--resume") == 0
    assert [row["env/error_rate"] for row in metrics(tmp_path / "run")] == [0, 0, 1, 0, 0]


def test_a_judge_that_is_down_for_a_step_leaves_grpo_there_and_is_asked_again(tmp_path, monkeypatch):
    outage = Outage(monkeypatch, 2)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(endpoint, "FIRST_PAUSE_SECONDS", 0.001)
    good, bad = always(proposal(0, 0)), status(503)
    server = judge_server.Server(lambda handler, request: (bad if outage.down else good)(handler, request))
    try:
        where = ["--judge", "endpoint", "--judge-url", server.url, "--judge-model", "m", "--judge-max-failures", "1"]
        assert run(*TWO, "--groups-per-step", "8", *where, "--run-dir", tmp_path / "run") == 0
    finally:
        server.close()
    first, second, third = metrics(tmp_path / "run")
    assert second["judge/failures"] == second["judge/calls"] > 0 == second["prover/proposed"]
    assert first["judge/failures"] == third["judge/failures"] == 0 < first["prover/verified"] * third["prover/verified"]
