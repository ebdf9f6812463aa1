"""What a run shows while it goes: the verdict of a step, and the trackers, which may fail and must not matter.

The trackers are fakes with the signatures of the real packages (wandb 0.31, trackio 0.43); TensorBoard's own reader
reads what was written for it where it is installed.
"""

import json
import sys
import threading
import types
from importlib.machinery import ModuleSpec

import pytest

from prover_mini import tracker
from prover_mini.config import parse
from prover_mini.errors import UserError
from prover_mini.run import Run, verdict_line
from tests.toys import toy_config

ROW = {
    "step": 1, "success_rate": 0.25, "prover/proposed": 1, "prover/verified": 1, "prover/accepted": 1,
    "env/error_rate": 0.0, "judge/calls": 1, "judge/failures": 0, "update/out_of_memory": 0, "loss/policy": -0.1,
    "grad_norm": 0.5, "time/total": 2.0, "eval/success_rate": None, "eval/n": None, "eval/ci95": None,
}  # fmt: skip
EVALUATION = {"success_rate": 0.5, "n": 8, "ci95": [0.2, 0.8], "by_kind": {}, "errors": 0, "panel": "ab"}


class FakeRun:
    def __init__(self, behaviour=lambda: None):
        self.id, self.logged, self.finished, self.behaviour = "abc123", [], threading.Event(), behaviour

    def log(self, data, step=None):
        self.behaviour()
        self.logged.append((step, dict(data)))

    def finish(self):
        self.finished.set()


@pytest.fixture
def library(monkeypatch):
    """Installs a fake package: `library(name, run)`; returns the keyword arguments of its `init` as they come."""

    def install(name: str, run) -> list[dict]:
        calls = []

        def wandb_init(*, project, name, id, resume, config, settings):
            calls.append(locals())
            return run() if callable(run) else run

        def trackio_init(project, name=None, config=None, resume="never", embed=True):
            calls.append(locals())
            return run

        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, origin="fake")
        module.init = {"wandb": wandb_init, "trackio": trackio_init}[name]
        module.Settings = lambda *, finish_timeout, silent: (finish_timeout, silent)
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    return install


def record(task: str, first: int, last: int, pre: list, post: list) -> dict:
    delta = sum(post) / len(post) - sum(pre) / len(pre) if pre else None
    return {
        "task_id": task,
        "segment": {"first_turn": first, "last_turn": last, "pre": pre, "post": post, "delta": delta},
    }


def test_the_verdict_of_a_step_is_its_largest_rise():
    low, high = record("a", 0, 0, [0, 1], [1, 1]), record("b", 2, 3, [0, 0, 0, 0.5], [1, 1, 1, 0])
    assert verdict_line([low, {"segment": None}, high]) == "turns 2-3 of b: 1/4 -> 3/4"
    assert verdict_line([low]) == "turn 0 of a: 1/2 -> 2/2"
    unverified = {
        "task_id": "c",
        "segment": {"first_turn": 0, "last_turn": 0, "pre": None, "post": None, "delta": None},
    }
    assert verdict_line([unverified]) == verdict_line([]) == ""


def test_the_step_line_names_the_verdict(tmp_path, capsys):
    run = Run(tmp_path, toy_config(steps=3), 0)
    run.log(dict(ROW), [record("task-7", 2, 2, [0, 0, 1, 0], [1, 1, 1, 0])], None)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(
        "step    1/3  success 0.250  1/1 segments accepted  turn 2 of task-7: 1/4 -> 3/4  loss -0.1000"
    )


def test_on_a_terminal_a_bar_shows_the_phase(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes the console take its output for a terminal
    run = Run(tmp_path, toy_config(steps=3), 0)

    def shown() -> tuple:
        steps, phase = run.bar.tasks
        return steps.completed, steps.total, phase.description, phase.completed, phase.total

    with run.phase("rollout", 1):
        assert shown() == (0, 3, "step 1: rollout", 0, None)
        run.episodes("rollout", 5, 32)
        assert shown() == (0, 3, "step 1: rollout", 5, 32)
    with run.phase("train"):
        assert shown() == (0, 3, "step 1: train", 0, None)
    run.log(dict(ROW), [], None)
    assert shown()[0] == 1
    run.close()
    assert not run.bar.live.is_started


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_gets_every_figure_under_its_own_name(name, library, tmp_path):
    fake = FakeRun()
    calls = library(name, fake)
    run = Run(tmp_path / "run", toy_config(tracker=name), 0)
    run.evaluation(0, {**EVALUATION})
    run.log(dict(ROW), [], {**EVALUATION, "success_rate": 0.75})
    run.log({**ROW, "step": 2}, [], None)
    run.close()
    assert calls[0]["project"] == "prover-mini" and calls[0]["name"] == "run" and calls[0]["config"]["tracker"] == name
    steps, rows = zip(*fake.logged)
    assert steps == (0, 1, 2)
    assert rows[0] == {"eval/success_rate": 0.5, "eval/n": 8, "eval/ci95_low": 0.2, "eval/ci95_high": 0.8}
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for row, line in zip(rows[1:], written):
        assert {k: v for k, v in row.items() if "ci95" not in k} == {
            k: v for k, v in line.items() if v is not None and k not in ("step", "eval/ci95")
        }
    assert rows[1]["eval/ci95_high"] == 0.8
    assert fake.finished.is_set() == (name == "wandb")  # trackio finishes by itself
    assert run.trackers[0].thread.is_alive() is False


def test_a_resumed_run_goes_on_under_its_own_name(library, tmp_path):
    calls, also = library("wandb", FakeRun()), library("trackio", FakeRun())
    first = Run(tmp_path / "run", toy_config(tracker="wandb,trackio"), 0)
    first.log(dict(ROW), [], None)
    first.close()
    Run(tmp_path / "run", toy_config(tracker="trackio, wandb", resume=True), 1).close()
    assert [(c["id"], c["resume"]) for c in calls] == [(None, None), ("abc123", "allow")]
    assert [c["resume"] for c in also] == ["never", "allow"]


def broken():
    raise OSError("disk full\nand more")


def test_a_tracker_that_fails_is_dropped_with_one_line(library, tmp_path, capsys):
    fake = FakeRun(broken)
    library("trackio", fake)
    run = Run(tmp_path, toy_config(tracker="trackio"), 0)
    for step in (1, 2, 3):
        run.log({**ROW, "step": step}, [], None)
        run.trackers[0].thread.join(10)
    run.close()
    shown = [line for line in capsys.readouterr().out.splitlines() if "trackio" in line]
    assert shown == ["--tracker trackio: no more figures go there (disk full); the run is not affected"]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_tracker_that_hangs_does_not_hold_the_run(library, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tracker, "PATIENCE", 0.05)
    monkeypatch.setattr(tracker, "WAITING", 3)
    free = threading.Event()
    library("trackio", FakeRun(lambda: free.wait(60)))
    run = Run(tmp_path, toy_config(tracker="trackio"), 0)
    run.log(dict(ROW), [], None)
    run.close()
    assert run.trackers[0].thread.is_alive()
    stuck = Run(tmp_path / "full", toy_config(tracker="trackio"), 0)
    for step in range(1, 10):
        stuck.log({**ROW, "step": step}, [], None)
    stuck.close()
    free.set()
    shown = capsys.readouterr().out
    assert shown.count("no more figures go there (it does not answer)") == 2
    assert len((tmp_path / "full" / "metrics.jsonl").read_text().splitlines()) == 9


def test_a_tracker_that_cannot_start_stops_the_run_before_it_begins(library, tmp_path):
    def refuse():
        raise RuntimeError("No API key configured.")

    library("wandb", refuse)
    with pytest.raises(UserError, match=r"--tracker wandb: cannot start \(No API key configured"):
        Run(tmp_path / "run", toy_config(tracker="wandb"), 0)
    assert not (tmp_path / "run").exists()


def test_only_known_and_installed_trackers_are_taken(monkeypatch):
    monkeypatch.setattr(tracker, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="choose of tensorboard, trackio, wandb"):
        parse(["--tracker", "notepad"])
    with pytest.raises(UserError, match="--tracker trackio: the package is not installed; pip install trackio"):
        parse(["--tracker", "trackio"])
    directory = ModuleSpec("wandb", None)  # what `import wandb` would find in a directory ./wandb
    monkeypatch.setattr(tracker, "find_spec", lambda name: directory)
    with pytest.raises(UserError, match="not installed"):
        parse(["--tracker", "wandb"])
    directory.origin = "a real package"
    assert parse(["--tracker", "tensorboard, wandb"])[0].tracker == "tensorboard, wandb"
    assert tracker.names_of("tensorboard, wandb") == ["wandb", "tensorboard"]
    assert parse([])[0].tracker == "" and tracker.names_of("") == []


def test_tensorboard_reads_what_was_written_for_it(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = Run(tmp_path / "run", toy_config(tracker="tensorboard"), 0)
    run.evaluation(0, {**EVALUATION})
    for step in (1, 2):
        run.log({**ROW, "step": step, "success_rate": step / 4}, [], None)
    run.close()
    resumed = Run(tmp_path / "run", toy_config(tracker="tensorboard", resume=True), 1)  # step 2 is played again
    resumed.log({**ROW, "step": 2, "success_rate": 0.875}, [], None)
    resumed.close()
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("success_rate")] == [(1, 0.25), (2, 0.875)]
    assert [(e.step, e.value) for e in events.Scalars("eval/success_rate")] == [(0, 0.5)]
