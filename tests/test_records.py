"""Records of a step: tokens, log-probs and credit as the loss saw them, against a plain forward pass."""

import json

import pytest
import torch

from prover_mini.credit import METHODS
from prover_mini.engine import Engine
from prover_mini.judge import JUDGES
from prover_mini.parallel import Replicate
from prover_mini.records import records
from prover_mini.rollout import Player
from prover_mini.trajectory import OFF_POLICY, Segment
from prover_mini.update import Learner, token_advantages
from prover_mini.verify import verify
from tests.toys import ToySuite, toy_chat, toy_config, toy_model


@pytest.fixture(scope="module", params=[1, 2], ids=["one optimizer step", "two"])
def step(request):
    """A step of the toy game: (trajectories, credit, records), with weights that the update has moved."""
    config = toy_config(minibatches=request.param, lr=0.1, max_successes=7, invalid_penalty=0.25)
    engine = Engine(toy_model(), 64, config.max_context_tokens)
    player = Player(engine, toy_chat(), ToySuite(needed=2), config)
    tasks = list(enumerate(player.suite.tasks("train")))
    groups = player.rollouts(tasks, 1, [8] * len(tasks), keep_states=True)
    mixed = [g for g in groups if g.mixed]
    segments = [s for s in JUDGES["random"](config).propose(mixed, 1) if isinstance(s, Segment)]
    verdicts = verify(player, segments, config).verdicts
    credit = METHODS["prover"].credit(groups, segments, verdicts, config)
    Learner(Replicate(engine.model), engine, config).update(groups, credit, 1)
    trajectories = [t for g in groups for t in g.trajectories]
    return groups, trajectories, credit, records(groups, credit, segments, verdicts, toy_chat(), 3)


def test_a_recorded_turn_is_the_token_stream_of_the_loss(step):
    _, trajectories, credit, found = step
    streams = token_advantages(trajectories, credit)
    model = toy_model()
    compared = 0
    for t, stream, record in zip(trajectories, streams, found):
        for n, turn in enumerate(record["turns"]):
            start, end = turn["token_span"]
            assert stream[start:end].tolist() == pytest.approx([record["advantage"] + turn["credit"]] * (end - start))
            if "tokens" not in turn:
                continue
            assert turn["tokens"] == [toy_chat().tokenizer.decode([i]) for i in t.ids[start:end]]
            before = record["turns"][n - 1]["token_span"][1] if n else 0
            assert turn["context"] == toy_chat().tokenizer.decode(t.ids[before:start])
            assert {t.turn_ids[i] for i in range(before, start)} == {OFF_POLICY}
            if turn["gaps"] is None:
                assert not stream.any()  # without advantage there is no loss, and no log-prob of the trainer
                continue
            with torch.no_grad():
                logits = model(torch.tensor([t.ids])).logits[0, start - 1 : end - 1].double()
            plain = logits.log_softmax(-1).gather(1, torch.tensor(t.ids[start:end])[:, None])[:, 0]
            assert torch.allclose(torch.tensor(turn["logprobs"]).double(), plain, atol=6e-5)
            sampler = torch.tensor(t.logprobs[start:end]).double()
            assert torch.allclose(sampler + torch.tensor(turn["gaps"]).double(), plain, atol=2e-6)
            compared += end - start
    assert compared > 50


def test_tokens_are_recorded_for_the_groups_with_a_segment_first(step):
    groups, _, _, found = step
    holders = {r["group"] for r in found if r["segment"]}
    detailed = {r["group"] for r in found if "tokens" in r["turns"][0]}
    assert len(detailed) == 3
    assert detailed <= holders or holders < detailed
    json.loads(json.dumps(found, allow_nan=False))
