"""The judge over HTTP, against a server of the suite's own that behaves, or does not."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from envs.base import Task
from prover_mini.errors import UserError
from prover_mini.judge import Failure, endpoint
from prover_mini.judge.endpoint import EndpointJudge
from prover_mini.trajectory import Group, Segment, Trajectory
from tests import judge_server
from tests.judge_server import KEY, always, at_first, call, cut, endless, in_turn, late, proposal, raw, status, text
from tests.toys import toy_config

TASK = Task("t", "train", "toy", None)
DIFFERENCE = proposal(1, 2)
progress: list[tuple] = []  # what the judge last made reported


def run(reward: float, actions: list[str], sample: int, invalid=()) -> Trajectory:
    t = Trajectory(TASK, sample, seed=sample, reward=reward)
    for n, action in enumerate(actions):
        t.open_turn("what" if n == 0 else f"saw {actions[n - 1]}", env_state=None)
        t.close_turn(action, n not in invalid)
    return t


def group(index: int = 0) -> Group:
    """A success of six turns, the fourth of them invalid, and two failures."""
    runs = [run(0, ["look", "leave"], 0), run(1, list("abcdef"), 1, invalid={3}), run(0, ["wait"] * 3, 2)]
    return Group(index, TASK, runs)


@pytest.fixture
def serve(monkeypatch):
    servers = []

    def start(script, **options) -> judge_server.Server:
        servers.append(judge_server.Server(script, **options))
        return servers[-1]

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(endpoint, "FIRST_PAUSE_SECONDS", 0.01)
    yield start
    for server in servers:
        server.close()


def judge(server, **fields) -> EndpointJudge:
    defaults = dict(judge="endpoint", judge_url=server.url, judge_model="m", judge_timeout=20.0)
    config = toy_config(**{**defaults, **fields})
    config.validate()
    progress.clear()
    player = SimpleNamespace(
        suite=SimpleNamespace(instructions="Open the box."), report=lambda *at: progress.append(at)
    )
    out = EndpointJudge(config, player)
    out.prepare()
    return out


def spans(answers) -> list:
    return [(a.first_turn, a.last_turn) if isinstance(a, Segment) else a for a in answers]


def test_looks_with_tools_then_proposes(serve):
    steps = [
        call("search_trajectory", query="wait", k=2),
        call("get_segment", traj_id="failed-0", start_turn=0, end_turn=1),
    ]
    server = serve(in_turn(*steps, DIFFERENCE))
    asked = judge(server)
    assert spans(asked.propose([group()], 1)) == [(1, 2)]
    first, second, third = server.requests
    assert {"tools", "max_tokens", "temperature", "seed"} <= set(first) and first["model"] == "m"
    results = [m["content"] for m in third["messages"] if m["role"] == "tool"]
    assert "| 0: wait → saw wait" in results[0] and "saw:\n| saw look\ndid:\n| leave" in results[1]
    (record,) = asked.take_records()
    assert (record["outcome"], record["first_turn"], record["last_turn"]) == ("segment", 1, 2)
    assert [json.loads(e["answer"])["choices"][0]["message"] for e in record["exchanges"]] == [
        {"role": "assistant", **m} for m in (*steps, DIFFERENCE)
    ]
    assert [m for e in record["exchanges"] for m in e["sent"]] == third["messages"]
    assert KEY not in json.dumps(record)
    usage = asked.take_usage()
    assert (usage.calls, usage.prompt_tokens, usage.reply_tokens, usage.failures) == (1, 300, 30, {})


def test_the_last_question_asks_for_the_schema(serve):
    server = serve(in_turn(text("They all waited."), DIFFERENCE))
    assert spans(judge(server).propose([group()], 1)) == [(1, 2)]
    aloud, final = server.requests
    assert "tools" in aloud and "response_format" not in aloud
    assert "tools" not in final and list(final["response_format"]["json_schema"]["schema"]["properties"])[0] == "reason"


def test_nothing_worth_verifying_is_no_failure(serve):
    asked = judge(serve(always(proposal(None, None, "only luck"))))
    assert asked.propose([group()], 1) == [None]
    assert not asked.take_usage().failures and asked.take_records()[0]["outcome"] == "none"


def test_a_proposal_is_repaired_in_at_most_three_turns(serve):
    wrong = [text({"reason": "x", "first_turn": "1", "last_turn": 2}), proposal(4, 5), proposal(2, 3)]
    server = serve(in_turn(*wrong, proposal(0, 1)))
    assert spans(judge(server).propose([group()], 1)) == [(0, 1)]
    complaints = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "user"][1:]
    assert len(complaints) == 3
    assert "integers" in complaints[0] and "turn 5 is the last" in complaints[1] and "(3)" in complaints[2]
    server = serve(in_turn(*wrong, proposal(0, 9), proposal(0, 1)))
    assert judge(server).propose([group()], 1) == [Failure("bounds")]
    assert len(server.requests) == 4


GOOD = always(DIFFERENCE)
CASES = {  # script, fields, what comes of it, and whether all that the server said is in the record
    "late": (late(0.2, DIFFERENCE), {}, (1, 2)),
    "slow": (late(30, DIFFERENCE), {"judge_timeout": 0.4}, "timeout"),
    "429 once": (at_first(status(429, Retry_After="0.05"), GOOD), {}, (1, 2)),
    "429 with a date": (at_first(status(429, Retry_After="Wed, 01 Jan 2020 00:00:00 GMT"), GOOD), {}, (1, 2)),
    "429 for ever": (status(429), {}, "rate limit"),
    "429 for an hour": (status(429, Retry_After="3600"), {}, "rate limit"),
    "429 for infinity": (status(429, Retry_After="inf"), {}, "rate limit"),
    "500 once": (at_first(status(500), GOOD), {}, (1, 2)),
    "500 for ever": (status(500), {}, "http 500"),
    "404": (status(404), {}, "http 404"),
    "cut once": (at_first(cut, GOOD), {}, (1, 2)),
    "cut for ever": (cut, {}, "connection"),
    "no body": (raw(b""), {}, "bad response"),
    "a page": (raw(b"<html>\xff</html>"), {}, "bad response"),
    "null": (raw(b"null"), {}, "bad response"),
    "no choices": (raw(b'{"choices": []}'), {}, "bad response"),
    "choices of another type": (raw(b'{"choices": {"0": 1}, "usage": [1]}'), {}, "bad response"),
    "deep": (raw(b"[" * 100_000), {}, "bad response"),
    "empty": (always(text("")), {}, "empty reply"),
    "not json": (always(text("I think it is turn 3.")), {}, "not json"),
    "half of json": (always(text('{"reason": "x", "first_turn": 1, "last_')), {}, "not json"),
    "open brackets": (always(text('{"a":' * 1500)), {}, "not json"),
    "texts as turns": (always(proposal("1", "2")), {}, "schema"),
    "truth as turns": (always(proposal(True, True)), {}, "schema"),
    "a fraction": (always(proposal(1.5, 2)), {}, "schema"),
    "one turn": (always(text({"reason": "x", "first_turn": 1})), {}, "schema"),
    "half of nothing": (always(proposal(None, 2)), {}, "schema"),
    "no reason": (always(text({"reason": 3, "first_turn": 1, "last_turn": 1})), {}, "schema"),
    "a list": (always(proposal([1], {"a": 2})), {}, "schema"),
    "out of range": (always(proposal(1, 60)), {}, "bounds"),
    "negative": (always(proposal(-1, 0)), {}, "bounds"),
    "backwards": (always(proposal(2, 1)), {}, "bounds"),
    "huge": (always(text('{"reason": "x", "first_turn": 1' + "0" * 400 + ', "last_turn": 2}')), {}, "bounds"),
    "terminal": (always(proposal(5, 5)), {}, "terminal"),
    "too long": (always(proposal(0, 4)), {}, "length"),
    "invalid action": (always(proposal(3, 3)), {}, "invalid action"),
    "tool loop": (always(call("search_trajectory", query="wait", k=1)), {}, "tool loop"),
    "written tool loop": (always(text({"tool": "search_trajectory", "arguments": {"query": "a"}})), {}, "tool loop"),
    "unknown tool": (in_turn(call("open_shell", cmd="ls"), DIFFERENCE), {}, (1, 2)),
    "wrong arguments": (in_turn(call("get_segment", traj_id=3), DIFFERENCE), {}, (1, 2)),
    "trickle": (endless(0.02), {"judge_timeout": 0.4}, "timeout"),
    "flood": (endless(0, b"and " * 50_000), {}, "endless reply"),
    "half a character": (in_turn(text("\ud800"), text('{"reason": "\\ud800", "first_turn": 0, "last_turn": 0}')),
                         {}, (0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_case_is_counted_and_recorded(case, serve):
    script, fields, expected = CASES[case]
    server = serve(script)
    asked = judge(server, **fields)
    answers = asked.propose([group()], 1)
    assert spans(answers) == [Failure(expected) if isinstance(expected, str) else expected]
    usage = asked.take_usage()
    assert usage.calls == 1 and usage.failures == ({expected: 1} if isinstance(expected, str) else {})
    (record,) = asked.take_records()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert len(record["exchanges"]) == server.attempts > 0
    assert record["reason"] == expected if isinstance(expected, str) else record["outcome"] == "segment"
    sent = [m for e in record["exchanges"] for m in e["sent"]]
    assert sent == max((r["messages"] for r in server.requests), key=len)
    answered = [e for e in record["exchanges"] if e["status"] == 200]
    assert usage.prompt_tokens == 100 * sum('"usage": {"prompt' in e["answer"] for e in answered)
    assert server.attempts <= 13  # 8 looks, 1 proposal and 3 repairs, or 4 attempts


def test_a_wrong_key_is_counted(serve, monkeypatch):
    server = serve(GOOD)  # which repeats the key that it refuses
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong\n")
    asked = judge(server)
    assert asked.propose([group(), group(1)], 1) == [Failure("key refused")] * 2
    records = asked.take_records()
    assert server.attempts == 2 and not server.requests and "sk-wrong" not in json.dumps(records)
    assert [e["status"] for r in records for e in r["exchanges"]] == [401, 401]
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\u20ac")
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        judge(server)


@pytest.mark.parametrize("names", [True, False])
def test_fields_that_a_server_refuses_are_left_out(serve, names):
    server = serve(
        in_turn(text({"tool": "search_trajectory", "arguments": {"query": "leave"}}), text("hm"), DIFFERENCE),
        refuses=("response_format", "tools", *(("max_tokens", "seed", "temperature") if names else ())),
        names=names,
    )
    asked = judge(server)
    assert spans(asked.propose([group()], 1)) == spans(asked.propose([group()], 2)) == [(1, 2)]
    assert not any({"tools", "response_format"} & set(r) for r in server.requests)
    assert all(("max_completion_tokens" in r) is names for r in server.requests)
    assert "| 1: leave → the run ended without success" in server.requests[1]["messages"][-1]["content"]
    assert server.attempts == (6 + 5 if names else 6 + 6)  # where the refusal names the field, it is learned


def test_proposals_of_a_step_run_together_within_the_limit(serve):
    scripts = {i: late(0.3, DIFFERENCE) for i in range(12)}
    server = serve(lambda handler, request: scripts[0](handler, request))
    asked = judge(server, judge_concurrency=4)
    assert spans(asked.propose([group(i) for i in range(12)], 1)) == [(1, 2)] * 12
    assert server.busiest == 4 and progress == [("judge", n, 12) for n in range(1, 13)]
    assert [r["group"] for r in asked.take_records()] == list(range(12))


def test_one_slow_proposal_does_not_hold_up_the_others(serve):
    def script(handler, request):
        return (late(30, DIFFERENCE) if request["seed"] == slow else GOOD)(handler, request)

    server = serve(GOOD)
    asked = judge(server, judge_timeout=3.0)
    asked.propose([group(i) for i in range(3)], 1)
    slow = server.requests[1]["seed"]
    server.script = script
    answers = spans(asked.propose([group(i) for i in range(3)], 1))
    assert sorted(answers, key=str) == [(1, 2), (1, 2), Failure("timeout")]


def test_a_reference_without_a_choice_is_not_asked_about(serve):
    server = serve(GOOD)
    single = Group(0, TASK, [run(1, ["a"], 0), run(0, ["b", "c"], 1)])
    assert judge(server).propose([single], 1) == [None] and server.attempts == 0


def test_a_small_context_shortens_the_material(serve):
    server = serve(GOOD)
    long = Group(0, TASK, [run(1, [f"{c} " * 800 for c in "abcdef"], 0), run(0, ["x" * 5000] * 40, 1)])
    judge(server, judge_context_tokens=100_000).propose([long], 1)
    judge(server, judge_context_tokens=9000).propose([long], 1)
    whole, short = (sum(len(m["content"]) for m in r["messages"]) for r in server.requests)
    assert whole > 2 * short and short / 3 < 9000 - 4096
    assert judge(server, judge_context_tokens=5000).propose([long], 1) == [Failure("context")]


@pytest.mark.parametrize(
    "url, part",
    [("http://127.0.0.1:1/v1", "127.0.0.1:1"), ("ftp://a/b", "ftp"), ("nonsense", "nonsense"), ("http://[::1", "::1")],
)
def test_a_server_that_is_not_there_is_said_at_the_start(url, part):
    with pytest.raises(UserError, match="--judge-url .*start the server or correct the address") as error:
        judge(SimpleNamespace(url=url))
    assert part in str(error.value)


def test_an_address_without_a_path_gets_one(serve):
    server = serve(GOOD)
    server.url = server.url.removesuffix("/v1")
    assert spans(judge(server).propose([group()], 1)) == [(1, 2)]


def test_a_step_must_end_before_other_ranks_give_up(serve):
    with pytest.raises(UserError, match="--judge-timeout 600: .*6 times"):
        judge(serve(GOOD), judge_timeout=600.0, judge_concurrency=1)
