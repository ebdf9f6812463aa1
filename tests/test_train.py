"""Whole runs of the command on the embedded policy: files, determinism, resume after SIGKILL, ranks, bad input."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import train
from prover_mini import distributed
from prover_mini.errors import UserError
from prover_mini.model import ASSETS
from prover_mini.run import Run
from tests.toys import ToySuite, toy_config, toy_model, toy_tokenizer

ROOT = Path(__file__).parent.parent
POLICY = ASSETS / "searchqa"
SMALL = (
    "--steps 4 --groups-per-step 4 --group-size 4 --continuations 4 --eval-tasks 24 --eval-every 4 --save-every 2 "
    "--slots 32"
).split()
METRICS = """step reward/mean success_rate frac_zero_std loss/policy grad_norm clip_frac kl entropy mismatch_kl
turns/mean tokens/rollout tokens/continuation tokens/train env/error_rate env/invalid_action_rate judge/calls
judge/failures judge/prompt_tokens judge/reply_tokens prover/eligible prover/proposed prover/verified prover/accepted
prover/delta_mean prover/bonus_tokens prover/prefix_tokens_reused prover/prefix_tokens_computed time/rollout time/judge
time/verify time/train time/eval time/total time/cpu eval/success_rate eval/n eval/ci95""".split()


def run(*arguments: str) -> int:
    sys.argv = ["train.py", *map(str, arguments)]
    return train.main()


def start(*arguments: str, ranks: int = 0) -> subprocess.Popen:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    command = [sys.executable, *launcher, "train.py", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def refuse(constant: str):
    raise AssertionError(f"{constant} is no JSON")


def metrics(path: Path, times: bool = False) -> list[dict]:
    rows = [json.loads(line, parse_constant=refuse) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if times or not k.startswith("time/")} for row in rows]


def rollouts(path: Path, step: int) -> list[dict]:
    lines = (path / "rollouts" / f"step_{step:06d}.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def weights(path: Path) -> dict[str, torch.Tensor]:
    step = (path / "latest").read_text().strip()
    return load_file(path / "checkpoints" / step / "model" / "model.safetensors")


def tree(path: Path) -> dict[str, str]:
    return {
        str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in path.rglob("*") if f.is_file()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An uninterrupted run of four steps."""
    path = tmp_path_factory.mktemp("whole") / "run"
    assert run(*SMALL, "--run-dir", path) == 0
    return path


def test_the_run_directory_is_complete(whole):
    assert {"config.json", "command.txt", "git.txt", "metrics.jsonl", "latest"} <= {f.name for f in whole.iterdir()}
    rows = metrics(whole, times=True)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(set(METRICS) <= set(row) for row in rows)
    assert [row["eval/n"] for row in rows] == [None, None, None, 24]
    assert all(0 < row["time/cpu"] for row in rows)
    assert sorted(f.name for f in (whole / "eval").iterdir()) == ["step_000000.json", "step_000004.json"]
    assert sorted(f.name for f in (whole / "checkpoints").iterdir()) == ["step_000002", "step_000004"]
    assert all(row["mismatch_max"] < 1e-3 and row["clip_frac"] == 0 for row in rows)


def test_trajectory_records_say_where_credit_went(whole):
    total = 0
    for row in metrics(whole):
        records = rollouts(whole, row["step"])
        assert [(r["group"], r["sample"]) for r in records] == [(g, s) for g in range(4) for s in range(4)]
        assert row["success_rate"] == sum(r["success"] for r in records) / 16
        assert row["tokens/rollout"] == sum(
            t["token_span"][1] - t["token_span"][0] for r in records for t in r["turns"]
        )
        segments = [r["segment"] for r in records if r["segment"]]
        assert len(segments) == row["prover/proposed"]
        assert sum(s["accepted"] for s in segments) == row["prover/accepted"]
        for r in records:
            group = [o["reward"] for o in records if o["group"] == r["group"]]
            assert r["advantage"] == pytest.approx(r["reward"] - sum(group) / 4)
            first, last, bonus = 0, -1, 0.0
            if r["segment"] and r["segment"]["accepted"]:
                first, last, bonus = (r["segment"][name] for name in ("first_turn", "last_turn", "delta"))
            assert [t["credit"] for t in r["turns"]] == [bonus * (first <= n <= last) for n in range(len(r["turns"]))]
            if s := r["segment"]:
                total += 1
                assert r["success"] and 0 <= s["first_turn"] <= s["last_turn"] < len(r["turns"]) - 1
                assert len(s["pre"]) == len(s["post"]) == 4
                assert s["delta"] == sum(s["post"]) / 4 - sum(s["pre"]) / 4 and s["accepted"] == (s["delta"] > 0)
    assert total > 0


def test_evaluations_play_the_same_panel_once(whole):
    before, after = (json.loads((whole / "eval" / f"step_{s:06d}.json").read_text()) for s in (0, 4))
    assert before["panel"] == after["panel"] and len(before["tasks"]) == before["n"] == 24
    assert list(before["tasks"]) == list(after["tasks"])
    assert before["success_rate"] == sum(before["tasks"].values()) / 24
    low, high = before["ci95"]
    assert low < before["success_rate"] < high


def test_one_seed_one_run(whole, tmp_path):
    assert run(*SMALL, "--run-dir", tmp_path / "again") == 0
    assert metrics(tmp_path / "again") == metrics(whole)
    other = tmp_path / "other"
    assert run(*SMALL, "--seed", "1", "--steps", "1", "--run-dir", other) == 0
    assert metrics(other)[0]["tokens/rollout"] != metrics(whole)[0]["tokens/rollout"]


def test_two_steps_kill_resume_two_steps_equal_four(whole, tmp_path):
    path = tmp_path / "run"
    process = start(*SMALL, "--run-dir", path)
    deadline = time.monotonic() + 300
    while not (path / "latest").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL and (path / "latest").read_text().strip() == "step_000002"
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "reward/me')  # what a crash in the middle of a line leaves
    assert run("--run-dir", path, "--resume") == 0
    assert metrics(path) == metrics(whole)
    ours, theirs = weights(path), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for name in ("rollouts/step_000003.jsonl", "rollouts/step_000004.jsonl", "eval/step_000004.json"):
        assert (path / name).read_bytes() == (whole / name).read_bytes()


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    """The same run on two ranks."""
    path = tmp_path_factory.mktemp("pair") / "run"
    process = start(*SMALL, "--run-dir", path, ranks=2)
    output = process.communicate(timeout=400)[0]
    assert process.returncode == 0, output
    return path


def assert_same_step(together: dict, alone: dict) -> None:
    for name in ("success_rate", "tokens/rollout", "tokens/continuation", "prover/accepted", "tokens/train"):
        assert together[name] == alone[name]
    for name in ("loss/policy", "grad_norm", "entropy"):
        assert together[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-6)


def test_two_ranks_agree_with_one(whole, pair):
    assert_same_step(metrics(pair)[0], metrics(whole)[0])
    ours, theirs = (rollouts(path, 1) for path in (pair, whole))
    rounded = ("logprobs", "gaps")  # sums of another order
    for turn in (turn for record in ours + theirs for turn in record["turns"]):
        assert ("tokens" in turn) == all(name in turn for name in rounded)
        for name in rounded:
            turn.pop(name, None)
    assert ours == theirs


def test_any_number_of_ranks_goes_on_from_a_checkpoint_in_shards_or_not(pair, tmp_path):
    for name in ("one", "shards"):
        shutil.copytree(pair, tmp_path / name)
    assert run("--run-dir", tmp_path / "one", "--resume", "--steps", "5") == 0
    process = start("--run-dir", tmp_path / "shards", "--resume", "--steps", "5", "--parallel", "shard", ranks=2)
    output = process.communicate(timeout=400)[0]
    assert process.returncode == 0 and "in shards over 2 ranks" in output, output
    assert_same_step(metrics(tmp_path / "shards")[4], metrics(tmp_path / "one")[4])
    ours, theirs = weights(tmp_path / "shards"), weights(tmp_path / "one")
    assert all((ours[name] - theirs[name]).norm() <= 1e-5 * theirs[name].norm() for name in theirs)
    assert sorted(f.name for f in (tmp_path / "shards" / "checkpoints" / "step_000005").glob("optimizer*")) == [
        "optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors",
    ]  # fmt: skip


CRASHING = """
import os, signal, sys
import train
from prover_mini.update import Learner

update = Learner.update

def crash(learner, groups, credit, step):
    if step == 3 and (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    return update(learner, groups, credit, step)

Learner.update = crash
sys.exit(train.main())
"""


def test_a_rank_that_dies_is_restarted_by_torchrun_and_the_run_goes_on(pair, tmp_path):
    """Without a run directory on the command line, beside a run of another launch."""
    (tmp_path / "runs" / "searchqa-prover-001").mkdir(parents=True)
    (tmp_path / "runs" / "searchqa-prover-001" / "launch.txt").write_text("torchrun another\n")
    (tmp_path / "crashing.py").write_text(CRASHING)
    command = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1 crashing.py".split()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command, *SMALL], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    path = tmp_path / "runs" / "searchqa-prover-002"
    assert len((path / "command.txt").read_text().splitlines()) == 2
    assert metrics(path) == metrics(pair)
    ours, theirs = weights(path), weights(pair)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_restart_goes_on_with_the_run_of_its_own_launch(whole, tmp_path, capsys, monkeypatch):
    """The processes of `whole` and of this test have one parent, as those of one torchrun have."""
    shutil.copytree(whole, tmp_path / "run")
    assert run(*SMALL, "--run-dir", tmp_path / "run") == 2
    assert "already holds a run" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run(*SMALL, "--run-dir", tmp_path / "run") == 2
    assert "this run is finished" in capsys.readouterr().err  # it was resumed
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert run(*SMALL, "--run-dir", tmp_path / "run") == 2
    assert "already holds a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "fields",
    [
        ["--credit", "grpo"],
        ["--credit", "grpo", "--budget-matched"],
        ["--judge", "random"],
        ["--credit", "judge_reward"],
        ["--kl-coef", "0.01", "--importance-cap", "2", "--minibatches", "2", "--loss-level", "sequence"],
    ],
    ids=["grpo", "budget matched", "random", "judge reward", "all switches"],
)
def test_controls_and_switches_run(fields, tmp_path):
    path = tmp_path / "run"
    assert run(*SMALL, "--steps", "1", "--groups-per-step", "8", *fields, "--run-dir", path) == 0
    (row,) = metrics(path)
    if "--budget-matched" in fields:
        assert row["tokens/extra_rollout"] > 0 == row["prover/verified"] == row["tokens/continuation"]
        records = [json.loads(line) for line in (path / "rollouts" / "step_000001.jsonl").read_text().splitlines()]
        first = [r for r in records if r["sample"] < 4]
        successes = [sum(r["success"] for r in first if r["group"] == g) for g in range(8)]
        assert len(records) > len(first) == 32
        assert row["success_rate"] == sum(successes) / 32
        assert row["prover/eligible"] == sum(1 <= n <= 3 for n in successes)
        tokens = sum(t["token_span"][1] - t["token_span"][0] for r in records for t in r["turns"])
        assert row["tokens/rollout"] + row["tokens/extra_rollout"] == tokens
    elif "grpo" in fields:
        assert row["judge/calls"] == row["tokens/continuation"] == 0
    elif "judge_reward" in fields:
        assert row["prover/proposed"] > 0 == row["prover/verified"]
    else:
        assert row["prover/verified"] > 0


def test_a_budget_can_be_taken_from_another_run(whole, tmp_path):
    path = tmp_path / "run"
    arguments = [*SMALL, "--steps", "1", "--credit", "grpo", "--budget-matched", "--budget-run", whole]
    assert run(*arguments, "--run-dir", path) == 0
    (row,) = metrics(path)
    budget = metrics(whole)[0]["tokens/continuation"]
    assert abs(row["tokens/extra_rollout"] - budget) < 40  # whole trajectories of about 20 tokens
    assert run(*arguments, "--steps", "9", "--run-dir", tmp_path / "longer") == 2
    assert not (tmp_path / "longer").exists()


def damaged_checkpoint(tmp_path, whole) -> list:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    file = path / "checkpoints" / "step_000004" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return ["--run-dir", path, "--resume", "--steps", "8"]


def model_without_weights(tmp_path, whole) -> list:
    toy_model().config.save_pretrained(tmp_path / "model")
    toy_tokenizer().save_pretrained(tmp_path / "model")
    return ["--model", tmp_path / "model"]


def model_with_missing_weights(tmp_path, whole) -> list:
    shutil.copytree(POLICY, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    save_file({n: w for n, w in load_file(file).items() if "layers.1." not in n}, file, metadata={"format": "pt"})
    return ["--model", tmp_path / "model"]


def tokenizer_without_vocabulary(tmp_path, whole) -> list:
    shutil.copytree(POLICY, tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer*"))
    return ["--model", tmp_path / "model"]


def latest_names_nothing(tmp_path, whole) -> list:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "latest").write_bytes(b"\xff\x00")
    return ["--run-dir", tmp_path / "run", "--resume", "--steps", "8"]


def damaged_evaluation(tmp_path, whole) -> list:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "eval" / "step_000000.json").write_text('{"step": 0, "succ')
    return ["--run-dir", tmp_path / "run", "--resume", "--steps", "8"]


def budget_without_tokens(tmp_path, whole) -> list:
    text_file(tmp_path, "metrics.jsonl", '{"step": 1}\n')
    return ["--steps", "1", "--credit", "grpo", "--budget-matched", "--budget-run", tmp_path]


def text_file(tmp_path, name: str, text: str) -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


GOOD = '{"question": "who?", "answer": ["me"]}\n'
PASSAGE = '{"id": "1", "contents": "\\"Me\\"\\nIt is me."}\n'
BAD = {
    "unknown environment": lambda tmp, whole: ["--env", "chess"],
    "missing data": lambda tmp, whole: ["--data", tmp / "none.jsonl", "--corpus", text_file(tmp, "c.jsonl", PASSAGE)],
    "malformed line": lambda tmp, whole: [
        "--data", text_file(tmp, "q.jsonl", GOOD + '{"question": \n'), "--corpus", text_file(tmp, "c.jsonl", PASSAGE)
    ],
    "empty corpus": lambda tmp, whole: [
        "--data", text_file(tmp, "q.jsonl", GOOD), "--corpus", text_file(tmp, "c.jsonl", "")
    ],
    "unreachable retriever": lambda tmp, whole: ["--retriever-url", "http://127.0.0.1:9/retrieve"],
    "model without weights": model_without_weights,
    "missing model": lambda tmp, whole: ["--model", "./nowhere"],
    "directory of another run": lambda tmp, whole: ["--run-dir", whole],
    "damaged checkpoint": damaged_checkpoint,
    "group of one": lambda tmp, whole: ["--group-size", "1"],
    "no continuation": lambda tmp, whole: ["--continuations", "0"],
    "finished run": lambda tmp, whole: ["--run-dir", whole, "--resume"],
    "changed field": lambda tmp, whole: ["--run-dir", whole, "--resume", "--steps", "8", "--lr", "0.5"],
    "nothing to resume": lambda tmp, whole: ["--run-dir", tmp / "none", "--resume"],
    "missing weights": model_with_missing_weights,
    "no vocabulary": tokenizer_without_vocabulary,
    "latest names nothing": latest_names_nothing,
    "damaged evaluation": damaged_evaluation,
    "budget without tokens": budget_without_tokens,
    "unknown device": lambda tmp, whole: ["--device", "abacus"],
    "small context": lambda tmp, whole: ["--max-context-tokens", "40"],
    "name too long": lambda tmp, whole: ["--run-dir", tmp / ("x" * 300)],
    "a file as directory": lambda tmp, whole: ["--run-dir", text_file(tmp, "notes", "")],
}  # fmt: skip
NAMED = {
    "unknown environment": "chess", "missing data": "none.jsonl", "malformed line": "q.jsonl",
    "empty corpus": "c.jsonl", "unreachable retriever": "127.0.0.1:9", "model without weights": "weights",
    "missing model": "nowhere", "directory of another run": "already holds",
    "damaged checkpoint": "optimizer.safetensors", "group of one": "--group-size", "no continuation": "--continuations",
    "finished run": "finished", "changed field": "--lr", "nothing to resume": "none", "missing weights": "layers.1",
    "no vocabulary": "vocabulary", "latest names nothing": "step_000004", "unknown device": "abacus",
    "small context": "--max-context-tokens", "name too long": "too long", "a file as directory": "notes",
    "damaged evaluation": "step_000000.json", "budget without tokens": "continuation tokens of step 1",
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_code_2(case, whole, tmp_path, capsys, monkeypatch):
    arguments = BAD[case](tmp_path, whole)
    before = tree(whole)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert run(*arguments) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("train.py: ") and "\n" not in error and NAMED[case] in error
    assert tree(whole) == before
    assert not (tmp_path / "runs").exists()


def test_steps_without_a_finite_loss_end_the_run(tmp_path, capsys, monkeypatch):
    from prover_mini.update import Learner

    original = Learner._loss
    monkeypatch.setattr(Learner, "_loss", lambda *a: (original(*a)[0] * float("nan"), original(*a)[1]))
    assert run(*SMALL, "--max-bad-steps", "2", "--run-dir", tmp_path / "run") == 2
    assert "2 steps in a row" in capsys.readouterr().err
    assert [row["loss/policy"] for row in metrics(tmp_path / "run")] == [None, None]
    kept = json.loads((tmp_path / "run" / "skipped" / "step_000001.json").read_text())
    assert len(kept) == 16 and {"ids", "turn_ids", "logprobs", "advantage", "credit"} <= set(kept[0])
    saved = (
        weights(tmp_path / "run") if (tmp_path / "run" / "latest").exists() else load_file(POLICY / "model.safetensors")
    )
    start = load_file(POLICY / "model.safetensors")
    assert all(torch.equal(saved[name].float(), start[name].float()) for name in start)


def test_a_step_without_a_sound_episode_ends_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train, "load_suite", lambda *a: ToySuite(kind="broken"))
    assert run(*SMALL, "--run-dir", tmp_path / "run") == 2
    assert "this task is broken" in capsys.readouterr().err


def test_text_from_outside_is_shown_as_it_is(tmp_path, capsys):
    """A kind that looks like markup, half a surrogate pair in a passage."""
    questions = "".join(f'{{"question": "who is {i}?", "answer": "me", "type": "[/bold]"}}\n' for i in range(20))
    passage = '{"contents": "\\ud83d who"}\n'
    files = ["--data", text_file(tmp_path, "q.jsonl", questions), "--corpus", text_file(tmp_path, "c.jsonl", passage)]
    assert run(*SMALL, *files, "--steps", "1", "--run-dir", tmp_path / "[run]") == 0
    shown = capsys.readouterr().out
    assert "[/bold]" in shown and "[run]" in shown


def test_what_a_resumed_run_will_write_again_is_dropped(tmp_path):
    for name in ("step_000002", "step_000004", "step_000006.tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    for name in ("rollouts", "judge"):
        (tmp_path / name).mkdir()
    for step in (2, 3):
        (tmp_path / "rollouts" / f"step_{step:06d}.jsonl").touch()
        (tmp_path / "judge" / f"step_{step:06d}.jsonl").touch()
    (tmp_path / "metrics.jsonl").write_text('{"step": 2}\n{"step": 3}\n{"st')
    (tmp_path / "best").write_bytes(b"\xff")
    Run(tmp_path, toy_config(resume=True), 2)
    folders = ("checkpoints", "rollouts", "judge")
    left = {str(f.relative_to(tmp_path)) for folder in folders for f in (tmp_path / folder).iterdir()}
    assert left == {"checkpoints/step_000002", "rollouts/step_000002.jsonl", "judge/step_000002.jsonl"}
    assert metrics(tmp_path) == [{"step": 2}] and not (tmp_path / "best").exists()


@pytest.mark.parametrize(
    "left, lost",
    [
        (None, "1-5"), ("", "1-5"), ("123", "4-5"), ("1245", "3"), ("13", "2, 4-5"), ("12?45", "3"), ("12345", None),
        ("123456", None),
    ],
)  # fmt: skip
def test_a_resume_says_which_steps_metrics_have_lost(tmp_path, capsys, left, lost):
    if left is not None:
        lines = ['{"st\n' if step == "?" else f'{{"step": {step}}}\n' for step in left]  # ?: a damaged line
        (tmp_path / "metrics.jsonl").write_text("".join(lines))
    Run(tmp_path, toy_config(resume=True), 5)
    said = f"warning: {tmp_path}/metrics.jsonl lacks the lines of step {lost}; the run goes on without them\n"
    assert capsys.readouterr().out == (said if lost else "")
    assert [row["step"] for row in metrics(tmp_path)] == [int(step) for step in left or "" if step in "12345"]


def test_a_run_without_its_metrics_goes_on_to_its_end(whole, tmp_path, capsys):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "metrics.jsonl").unlink()
    assert run("--run-dir", path, "--resume", "--steps", "5") == 0
    assert "lacks the lines of step 1-4" in capsys.readouterr().out
    assert [row["step"] for row in metrics(path)] == [5]


def test_two_runs_cannot_take_one_directory(tmp_path):
    Run(tmp_path, toy_config(), 0)
    with pytest.raises(UserError, match="another run"):
        Run(tmp_path, toy_config(), 0)


def test_an_error_of_another_rank_alone_is_shown_too(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(train.time, "sleep", lambda seconds: None)
    assert run("--steps", "0") == 2
    assert "--steps 0" in capsys.readouterr().err


def test_ranks_of_one_process():
    assert (distributed.rank(), distributed.world(), distributed.gather(3), distributed.broadcast(4)) == (0, 1, [3], 4)
    assert os.environ.get("WORLD_SIZE") is None
