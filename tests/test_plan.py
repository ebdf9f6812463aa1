"""The plan against arithmetic by hand, against what torch really allocates, and from the command line."""

import dataclasses

import pytest
import torch

from prover_mini import plan
from prover_mini.config import Config, parse
from prover_mini.forward import make_memory
from prover_mini.memory import GIB
from prover_mini.model import load_policy, policy_path
from tests.hub import hub_checkpoint
from tests.test_train import run
from tests.toys import toy_model

MIB, KIB = 2**20, 2**10
# 16 bytes per parameter (float32 master, gradient, AdamW) on one GPU and on 8, and 2 gathered, GiB; K/V per token, KiB;
# recurrent and convolution states, MiB: computed by hand from the shapes
BY_HAND = {"2B": (28.0, 3.5, 3.5, 12.0, 18.8), "4B": (62.7, 7.8, 7.8, 32.0, 49.5)}


def configured(model: str, *arguments: str) -> Config:
    return parse(["--model", model, "--dtype", "bfloat16", *arguments])[0]


@pytest.mark.parametrize("size", BY_HAND)
def test_sizes_agree_with_arithmetic_by_hand(size):
    whole, eighth, gathered, token, state = BY_HAND[size]
    config = configured(f"Qwen/Qwen3.5-{size}")
    shape = plan.shape_of(config)
    for sharded, expected in ((False, whole), (True, eighth)):
        items = plan.memory_of(shape, config, 8, sharded)
        held = sum(items[name] for name in ("float32 weights", "gradients", "AdamW")) / GIB
        assert held == pytest.approx(expected, rel=0.05)
        assert items["bfloat16 weights in rollouts"] / GIB == pytest.approx(gathered, rel=0.05)
    assert shape.token_bytes / KIB == pytest.approx(token, rel=0.05)
    assert shape.state_bytes / MIB == pytest.approx(state, rel=0.05)


@pytest.mark.parametrize("card, gib", [("A100 80 GB", 80.0), ("H100 80 GB", 79.6), ("H200 141 GB", 140.4)])
@pytest.mark.parametrize("size", BY_HAND)
def test_slots_agree_with_arithmetic_by_hand(size, card, gib):
    """Short trajectories one by one, so that the peak is the rollouts': weights, AdamW, gathered weights, a prefill."""
    _, eighth, gathered, token, state = BY_HAND[size]
    limits = "--max-context-tokens 2048 --micro-batch 1 --credit grpo".split()
    config = configured(f"Qwen/Qwen3.5-{size}", *limits)
    shape = plan.shape_of(config)
    (card,) = [c for c in plan.CARDS if c.name == card]
    prefill = plan.memory_of(shape, config, 8, True)["prefill of rollouts"] / GIB
    free = 0.92 * gib - 12 / 16 * eighth - gathered - prefill
    slots = free * GIB / (2048 * token * KIB + state * MIB)
    assert plan.slots_that_fit(shape, config, 8, True, card) == pytest.approx(slots, rel=0.05)


def test_the_larger_of_two_peaks_counts():
    config = configured("Qwen/Qwen3.5-2B", "--micro-batch", "4")
    shape = plan.shape_of(config)
    for sharded in (False, True):
        items = plan.memory_of(shape, config, 8, sharded)
        always = items["float32 weights"] + items["AdamW"] + items["states at turn boundaries"]
        gathered = items["bfloat16 weights in rollouts"]
        in_update = shape.pass_bytes if sharded else gathered
        update = items["gradients"] + in_update + items["activations of a micro-batch"] + items["chunk of log-probs"]
        assert update > gathered + items["prefill of rollouts"]
        assert items["peak"] == pytest.approx(always + update)
    embedding, layers = 248_320 * 2048, 2 * (shape.parameters - 248_320 * 2048) / 24
    assert shape.pass_bytes == pytest.approx(2 * (embedding + layers))
    without = plan.memory_of(shape, dataclasses.replace(config, activation_checkpointing=False), 8, True)
    assert without["activations of a micro-batch"] > 5 * items["activations of a micro-batch"]


@pytest.mark.parametrize("architecture", ["hybrid", "qwen3", "qwen2"])
def test_activations_are_those_that_a_forward_keeps(architecture, tmp_path):
    model = toy_model(architecture).train()
    model.config.save_pretrained(tmp_path)
    config = parse(["--model", str(tmp_path)])[0]
    shape = plan.shape_of(config)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def hold(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        model.model(input_ids=torch.zeros(1, 256, dtype=torch.long), use_cache=False)
    assert shape.kept_bytes == pytest.approx(sum(s.nbytes() for s in kept.values()) / 256, rel=0.15)
    assert shape.parameters == sum(p.numel() for p in model.parameters())


def test_slots_take_what_the_engine_allocates():
    config = parse([])[0]
    model, _ = load_policy(policy_path(config), "float32", torch.device("cpu"))
    memory = make_memory(model, 3, config.max_context_tokens)
    allocated = sum(getattr(memory, field.name).nbytes for field in dataclasses.fields(memory))
    assert 3 * plan.slot_bytes(plan.shape_of(config), config) == pytest.approx(allocated, rel=1e-6)


def test_floors_agree_with_the_usual_estimates():
    """6 N operations per trained token and 2 N more with checkpointing; a decoded token reads the weights once."""
    limits = "--max-context-tokens 2048 --max-turns 4 --max-turn-tokens 128".split()
    config = configured("Qwen/Qwen3.5-2B", *limits)
    shape, card = plan.shape_of(config), plan.Card("any", 0, bandwidth=2.0, flops=500.0)
    floors = plan.floors(shape, config, 8, card, 256)
    tokens = 2 * 8 * 2048
    body, head = 1.373e9, 0.509e9
    assert floors["update"] == pytest.approx((8 * body * tokens + 8 * head * tokens / 4) / 500e12, rel=0.05)
    reads = 2 * 1.882e9 + 16 * (1024 * 12 * KIB + 2 * 18.8 * MIB)
    prefill = 2 * body * tokens * 3 / 4 / 500e12
    assert floors["rollout"] == pytest.approx(512 * reads / 2e12 + prefill, rel=0.05)
    twice = plan.floors(shape, config, 8, card, 8)  # half the slots: two waves, each of which reads the weights
    assert twice["rollout"] == pytest.approx(floors["rollout"] + 512 * 2 * 1.882e9 / 2e12, rel=0.05)
    assert floors["step"] == pytest.approx(floors["rollout"] + floors["verify"] + floors["update"])
    assert plan.floors(shape, dataclasses.replace(config, credit="grpo"), 8, card, 256)["verify"] == 0


def test_the_micro_batch_is_halved_until_the_slots_fit():
    config = configured("Qwen/Qwen3.5-4B")
    shape = plan.shape_of(config)
    (card,) = [c for c in plan.CARDS if c.name == "H100 80 GB"]
    size, slots = plan.advice(shape, config, 8, True, card)
    wanted = 2 * config.continuations * 2
    assert 1 <= size < 32 and slots >= wanted
    larger = dataclasses.replace(config, micro_batch=2 * size)
    assert plan.slots_that_fit(shape, larger, 8, True, card) < wanted
    assert plan.advice(shape, config, 1, False, card)[1] == 0


def test_the_command_prints_the_plan_and_touches_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("--plan", "--model", "Qwen/Qwen3.5-2B", "--dtype", "bfloat16", "--gpus", "4") == 0
    shown = capsys.readouterr().out
    assert "1,881.83 M parameters" in shown and "in shards over 4" in shown
    assert all(card.name in shown for card in plan.CARDS)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("RANK", "1")
    assert run("--plan") == 0 and capsys.readouterr().out == ""


def test_a_checkpoint_of_an_image_and_text_model_is_planned_as_its_text_model(tmp_path):
    hub_checkpoint(tmp_path / "model")
    shape = plan.shape_of(configured(str(tmp_path / "model")))
    model, _ = load_policy(tmp_path / "model", "bfloat16", torch.device("cpu"))
    assert shape.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name, message", [("./nowhere", "no such directory"), ("empty", "no config.json")])
def test_what_cannot_be_planned_is_one_line(name, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert run("--plan", "--model", name) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"train.py: --model {name}") and message in line
