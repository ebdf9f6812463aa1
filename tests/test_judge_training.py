"""Judges that talk, in whole runs: failures leave GRPO, limits end the run on every rank, the policy judges itself."""

from __future__ import annotations

import json
from itertools import cycle

import pytest
import torch

from prover_mini.judge import endpoint
from prover_mini.model import ASSETS
from tests import judge_server
from tests.judge_server import KEY, always, call, cut, endless, late, proposal, raw, status, text
from tests.test_train import SMALL, metrics, run, start, weights

FEW = [*SMALL, "--steps", "2", "--groups-per-step", "8"]
BAD = [
    late(30, proposal(0, 0)), status(429, Retry_After="3600"), status(500), status(401), cut, raw(b""), raw(b"<html>"),
    endless(0.02), always(text("")), always(text("turn 1")), always(proposal("0", [1])), always(proposal(0, 99)),
    always(proposal(0, 0, None)), always(call("search_trajectory", query="a", k=1)),
]  # fmt: skip


@pytest.fixture
def serve(monkeypatch):
    servers = []

    def begin(script) -> list[str]:
        servers.append(judge_server.Server(script))
        return ["--judge", "endpoint", "--judge-url", servers[-1].url, "--judge-model", "m"]

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(endpoint, "FIRST_PAUSE_SECONDS", 0.01)
    yield begin
    for server in servers:
        server.close()


def proposals(path, step: int) -> list[dict]:
    return [json.loads(line) for line in (path / "judge" / f"step_{step:06d}.jsonl").read_text().splitlines()]


def test_a_judge_that_always_fails_leaves_grpo_bit_for_bit(serve, tmp_path, capsys):
    kinds, given = cycle(BAD), {}

    def script(handler, request):  # each proposal meets its own kind of failure, whatever it does about it
        return given.setdefault(request["seed"], next(kinds))(handler, request)

    judged, plain = tmp_path / "judged", tmp_path / "plain"
    limits = ["--judge-timeout", "1", "--judge-max-failures", "1"]
    many = [*FEW, "--groups-per-step", "20"]
    assert run(*many, *serve(script), *limits, "--run-dir", judged) == 0
    shown = capsys.readouterr().out
    assert "judge failed" in shown and "judge: calls / failures / tokens" in shown
    assert run(*many, "--credit", "grpo", "--run-dir", plain) == 0
    rows, expected = metrics(judged), metrics(plain)
    for row, other in zip(rows, expected, strict=True):
        assert {k: v for k, v in row.items() if "judge/" not in k} == {
            k: v for k, v in other.items() if "judge/" not in k
        }
        assert row["judge/failures"] == row["judge/calls"] == row["prover/eligible"] > 0 == row["prover/proposed"]
        reasons = {k.removeprefix("judge/failures/"): v for k, v in row.items() if k.startswith("judge/failures/")}
        records = proposals(judged, row["step"])
        assert reasons == {r: sum(p["reason"] == r.replace("_", " ") for p in records) for r in reasons}
        assert sum(reasons.values()) == len(records) == row["judge/calls"]
        assert sum(p["prompt_tokens"] for p in records) == row["judge/prompt_tokens"]
    assert all(torch.equal(w, weights(plain)[name]) for name, w in weights(judged).items())
    assert len(given) >= len(BAD)


def test_a_limit_on_failures_ends_the_run_with_one_line(serve, tmp_path, capsys):
    path = tmp_path / "run"
    assert run(*FEW, *serve(always(text("no"))), "--judge-max-failures", "0.01", "--run-dir", path) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("train.py: the judge (endpoint) failed") and "not json" in error and "\n" not in error
    assert f"{path}/judge" in error and len(metrics(path)) == 1 and proposals(path, 1)


def test_a_stop_on_failures_stops_every_rank(serve, tmp_path):
    """Only one rank's judge fails; both ranks stop, with one line, and the record is that of both."""
    seen = []

    def script(handler, request):
        seen.append(request["seed"])
        return text("no") if request["seed"] == seen[0] else proposal(None, None)

    path = tmp_path / "run"
    process = start(*FEW, *serve(script), "--judge-max-failures", "0", "--run-dir", path, ranks=2)
    output = process.communicate(timeout=300)[0]
    assert process.returncode != 0 and output.count("train.py: ") == 1 and "failed 1 times" in output
    assert "Traceback" not in output.split("torch/distributed")[0]
    (row,) = metrics(path)
    assert row["judge/failures/not_json"] == 1 < row["judge/calls"]
    assert len({p["group"] % 2 for p in proposals(path, 1)}) == 2


def test_a_proposed_segment_is_verified(serve, tmp_path):
    path = tmp_path / "run"
    assert run(*FEW, *serve(always(proposal(0, 0, "they never looked"))), "--run-dir", path) == 0
    row = metrics(path)[0]
    assert row["prover/verified"] == row["prover/proposed"] > 0 == row["judge/failures"]
    lines = (path / "rollouts" / "step_000001.jsonl").read_text().splitlines()
    assert {s["reason"] for line in lines if (s := json.loads(line)["segment"])} == {"they never looked"}
    assert run(*FEW, "--credit", "grpo", "--judge", "endpoint", "--judge-url", "http://a", "--judge-model", "m",
               "--steps", "1", "--run-dir", tmp_path / "grpo") == 0  # fmt: skip


def test_a_server_that_is_not_there_stops_the_run_before_it_begins(tmp_path, capsys):
    fields = ["--judge", "endpoint", "--judge-url", "http://127.0.0.1:1", "--judge-model", "m"]
    assert run(*FEW, *fields, "--run-dir", tmp_path / "run") == 2
    error = capsys.readouterr().err.strip()
    assert "--judge-url http://127.0.0.1:1" in error and "\n" not in error and not (tmp_path / "run").exists()


@pytest.mark.parametrize("own", [False, True], ids=["the policy's weights", "a model of its own"])
def test_the_embedded_policy_judges(own, tmp_path):
    """It has not learned to judge: what is tested is that it is asked, answers, and that this is counted."""
    fields = ["--judge", "policy", "--judge-tokens", "24", "--judge-tool-calls", "1", "--max-context-tokens", "4000"]
    if own:
        fields += [
            "--judge-model",
            ASSETS / "searchqa",
            "--judge-context-tokens",
            "4000",
            "--max-context-tokens",
            "384",
        ]
    path = tmp_path / "run"
    assert run(*FEW, *fields, "--slots", "8", "--steps", "1", "--run-dir", path) == 0
    (row,) = metrics(path)
    records = proposals(path, 1)
    assert row["judge/calls"] == len(records) > 0 and row["judge/failures"] == sum(
        p["outcome"] == "failure" for p in records
    )
    assert row["judge/reply_tokens"] > 0 < row["judge/prompt_tokens"]
    spoke = [p for p in records if len(p["exchanges"]) == 5]  # once aloud, once asked, three repairs
    assert spoke and all(p["reason"] in ("not json", "empty reply") for p in spoke)
    assert all(p["reply_tokens"] <= 24 * 5 for p in records)


def test_a_policy_with_little_context_is_not_asked(tmp_path):
    assert run(*FEW, "--judge", "policy", "--steps", "1", "--run-dir", tmp_path / "run") == 0
    (row,) = metrics(tmp_path / "run")
    assert row["judge/failures/context"] == row["judge/calls"] > 0 == row["judge/reply_tokens"]


def test_a_policy_that_takes_too_long_is_cut(tmp_path):
    fields = ["--judge", "policy", "--judge-timeout", "0.01", "--max-context-tokens", "4000", "--slots", "8"]
    assert run(*FEW, *fields, "--steps", "1", "--run-dir", tmp_path / "run") == 0
    (row,) = metrics(tmp_path / "run")
    assert row["judge/failures/timeout"] == row["judge/calls"] > 0
    assert all(p["reason"] == "timeout" and p["prompt_tokens"] for p in proposals(tmp_path / "run", 1))
