"""The judge in the rollout engine, with replies that a puppet puts into the policy's mouth."""

from __future__ import annotations

import json

import pytest
import torch

from prover_mini.chat import Chat
from prover_mini.engine import Engine
from prover_mini.errors import UserError
from prover_mini.judge import Failure
from prover_mini.judge.policy import PolicyJudge
from prover_mini.model import ASSETS, load_policy
from prover_mini.rollout import Player
from tests.test_judge_endpoint import group
from tests.toys import ToySuite, toy_config

LOOK = '{"tool": "get_segment", "arguments": {"traj_id": "failed-0", "start_turn": 1, "end_turn": 1}}'
PROPOSAL = '{"reason": "they left", "first_turn": 1, "last_turn": 2}'


class Puppet(Engine):
    """An engine whose every slot says one reply after the other, each closed by the end token."""

    script: list[int]

    def sample(self, rows, uniforms, temperature):
        self.said = getattr(self, "said", {})
        self.draws = getattr(self, "draws", []) + [uniforms.tolist()]
        tokens = []
        for row in rows:
            tokens.append(self.script[self.said.get(row, 0)])
            self.said[row] = self.said.get(row, 0) + 1
        return tokens, [0.0] * len(rows)


def judge(*replies: str, context: int = 6000, **fields) -> PolicyJudge:
    model, tokenizer = load_policy(ASSETS / "searchqa", "float32", torch.device("cpu"))
    chat = Chat(tokenizer, "", 64)
    engine = Puppet(model, 4, context)
    engine.script = [id for reply in replies for id in [*chat.encode(reply), chat.end]]
    config = toy_config(judge="policy", slots=4, max_context_tokens=context, **{"judge_tokens": 400, **fields})
    out = PolicyJudge(config, Player(engine, chat, ToySuite(), config))
    out.prepare()
    return out


def test_it_looks_proposes_and_is_recorded():
    asked = judge(LOOK, PROPOSAL)
    groups = [group(i) for i in range(3)]
    answers = asked.propose(groups, 7)
    assert [(a.trajectory, a.first_turn, a.last_turn, a.reason) for a in answers] == [
        (g.reference, 1, 2, "they left") for g in groups
    ]
    records, usage = asked.take_records(), asked.take_usage()
    assert [[e["answer"] for e in r["exchanges"]] for r in records] == [[LOOK, PROPOSAL]] * 3
    first, second = records[0]["exchanges"]
    assert [m["role"] for m in first["sent"]] == ["system", "user"] and [m["role"] for m in second["sent"]] == ["user"]
    assert "did:\n| leave" in second["sent"][0]["content"]
    script = len(asked.player.engine.script)
    assert usage.reply_tokens == 3 * script == sum(r["reply_tokens"] for r in records)
    chat = asked.judge_player.chat
    told = [chat.prompt(first["sent"][1]["content"]), chat.answer(second["sent"][0]["content"], ended=True)]
    assert records[0]["prompt_tokens"] == sum(map(len, told))
    assert json.loads(json.dumps(records)) == records


def test_draws_belong_to_step_and_group():
    asked = judge(*[PROPOSAL] * 4, context=8000)
    engine = asked.player.engine
    asked.propose([group(0), group(1)], 1)
    first, engine.draws, engine.said = engine.draws, [], {}
    engine.weights_changed()  # as an update between steps does; slots of before are not used again
    asked.propose([group(0), group(1)], 1)
    again, engine.draws, engine.said = engine.draws, [], {}
    asked.propose([group(0), group(1)], 2)
    assert first == again and engine.draws != first
    assert all(a != b for a, b in (row for row in first if len(row) == 2))


def test_no_finite_logits_are_a_failure(monkeypatch):
    asked = judge(PROPOSAL)

    def sample(rows, uniforms, temperature):
        raise FloatingPointError("slot 0")

    monkeypatch.setattr(asked.player.engine, "sample", sample)
    assert asked.propose([group(), group(1)], 1) == [Failure("not finite")] * 2


def test_an_endless_reply_ends_at_its_limit():
    asked = judge("la " * 1000, judge_tokens=30, judge_tool_calls=0)
    assert asked.propose([group()], 1) == [Failure("not json")]
    (record,) = asked.take_records()
    assert record["reply_tokens"] == 4 * 30 and len(record["exchanges"]) == 4


def test_a_conversation_that_outgrows_the_context_is_a_failure():
    opening = opening_tokens()
    asked = judge(*["no " * 60] * 9, context=opening + 700, judge_tokens=200)
    assert asked.propose([group()], 1) == [Failure("context")]
    (record,) = asked.take_records()
    assert 1 < len(record["exchanges"]) < 5 and record["prompt_tokens"] + record["reply_tokens"] <= opening + 700
    assert judge(PROPOSAL, context=opening // 2, judge_tokens=200).propose([group()], 1) == [Failure("context")]


def opening_tokens() -> int:
    asked = judge(PROPOSAL)
    asked.propose([group()], 1)
    return asked.take_records()[0]["prompt_tokens"]


def test_fields_that_cannot_work_are_said():
    with pytest.raises(UserError, match="--judge-model nowhere: no such directory"):
        judge(judge_model="nowhere")
    with pytest.raises(UserError, match="--judge-timeout 9999"):
        judge(judge_timeout=9999.0)
