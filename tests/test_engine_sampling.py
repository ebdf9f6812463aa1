"""Rollout engine: draws against a brute-force inversion, states that die with the weights, refusals, self-check."""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from prover_mini import sampling
from prover_mini.engine import Engine, StaleState, self_check
from prover_mini.errors import UserError
from tests.tiny_models import BUILDERS, COMMON, MAX_TOKENS, SLOTS, VOCAB, Recorded, build, logprobs, qwen2, qwen3


@pytest.fixture(params=[512, 8, 7], ids="cells of {}".format)
def cell(request, monkeypatch):
    """The vocabulary as one cell, in whole cells, and with a last one that is not full."""
    monkeypatch.setattr(sampling, "CELL", request.param)


@torch.no_grad()
@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
def test_sampling_inverts_the_distribution_function(temperature, cell):
    engine = Engine(build("hybrid", 0.2), SLOTS, MAX_TOKENS)
    engine.extend([1, 4], [[1, 2, 3], [5]])
    for row in (1, 4):
        logits_V = engine.model.lm_head(engine._memory.hidden_SD[row]).double().numpy() / temperature
        p_V = np.exp(logits_V - logits_V.max())
        p_V /= p_V.sum()
        edges = np.cumsum(p_V)
        uniforms = np.random.default_rng(row).random(200)
        uniforms = uniforms[np.abs(uniforms[:, None] - edges).min(1) > 1e-6]  # fp32 softmax against float64
        want = [int(np.argmax(edges > u)) for u in uniforms]
        got = [engine.sample([row], np.array([u]), temperature) for u in uniforms]
        assert [tokens[0] for tokens, _ in got] == want
        assert [values[0] for _, values in got] == pytest.approx(np.log(p_V[want]), abs=1e-5)
        assert len(set(want)) > 10


def test_a_draw_depends_on_its_own_uniform_alone():
    engine = Engine(build("hybrid", 0.2), SLOTS, MAX_TOKENS)
    engine.extend([0, 1, 2], [[1, 2, 3], [5], [7, 7]])
    uniforms = np.array([0.3, 0.6, 0.9])
    tokens, _ = engine.sample([0, 1, 2], uniforms, 1.0)
    assert engine.sample([2, 0], uniforms[[2, 0]], 1.0)[0] == [tokens[2], tokens[0]]
    assert engine.sample([0, 1, 2], np.array([0.99, 0.6, 0.01]), 1.0)[0][1] == tokens[1]


def test_extreme_uniforms_draw_tokens_that_exist(cell):
    engine = Engine(build("qwen3", 0.02), SLOTS, MAX_TOKENS)
    engine.extend([0], [[1, 2, 3]])
    with torch.no_grad():
        engine.model.lm_head.weight.zero_()
        engine.model.lm_head.weight[[0, VOCAB - 1]] = -1e6 * engine._memory.hidden_SD[0]
    for uniform in (0.0, 1 - 2**-53):
        (token,), (logprob,) = engine.sample([0], np.array([uniform]), 1.0)
        assert 0 < token < VOCAB - 1 and logprob == pytest.approx(-math.log(VOCAB - 2), abs=1e-5)


def test_temperature_zero_takes_the_most_likely_token():
    engine = Engine(build("hybrid", 0.2), SLOTS, MAX_TOKENS)
    engine.extend([0, 1], [[1, 2, 3], [5]])
    tokens, values = engine.sample([0, 1], np.array([0.1, 0.9]), 0.0)
    for row in (0, 1):
        reference_V = logprobs(engine, [row])[0]
        assert tokens[row] == int(reference_V.argmax())
        assert values[row] == pytest.approx(float(reference_V.max()), abs=1e-6)


def test_states_die_with_the_weights():
    case = Recorded(Engine(build("hybrid"), SLOTS, MAX_TOKENS))
    engine = case.engine
    case.extend([0, 1], [4, 5])
    (mark,), state = engine.mark([0]), engine.snapshot(1)
    with torch.no_grad():
        engine.model.model.layers[0].mlp.up_proj.weight.mul_(1.5)
    engine.weights_changed()
    assert engine.weight_version == 1
    for use in (
        lambda: engine.decode([0], [1]), lambda: engine.extend([1], [[1, 2]]), lambda: engine.fork([0], [3]),
        lambda: engine.sample([0], np.array([0.5]), 1.0), lambda: engine.mark([1]), lambda: engine.snapshot(0),
        lambda: engine.restore([state], [2]),
    ):
        with pytest.raises(StaleState, match="weights changed"):
            use()
    engine.clear([0, 1])
    case.ids = [[] for _ in range(SLOTS)]
    case.extend([0, 1], [6, 2])
    with pytest.raises(StaleState):
        engine.seal(0, [mark])
    case.check()  # the changed weights are the ones in use, without a copy


def test_weights_stay_trainable():
    model = build("hybrid")
    engine = Engine(model, SLOTS, MAX_TOKENS)
    engine.extend([0], [[1, 2, 3]])
    engine.decode([0], [4])
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_misuse_is_an_error(cell):
    engine = Engine(build("qwen3"), SLOTS, MAX_TOKENS)
    engine.extend([0], [[1, 2, 3]])
    with pytest.raises(ValueError, match="slot 1 is empty"):
        engine.sample([0, 1], np.array([0.5, 0.5]), 1.0)
    with pytest.raises(ValueError, match="not of slot 1"):
        engine.seal(1, engine.mark([0]))
    with pytest.raises(ValueError, match="targets of a fork"):
        engine.fork([0], [0])
    with pytest.raises(ValueError, match="targets of a fork"):
        engine.fork([0, 0], [2, 2])
    with pytest.raises(ValueError, match="distinct"):
        engine.decode([0, 0], [1, 2])
    with torch.no_grad():
        engine.model.lm_head.weight[3] = math.nan
    for temperature in (0.0, 1.0):
        with pytest.raises(FloatingPointError, match="slot 0"):
            engine.sample([0], np.array([0.5]), temperature)


def test_counts_real_tokens_and_bytes():
    engine = Engine(build("hybrid"), SLOTS, MAX_TOKENS)
    engine.extend([0, 1], [[1] * 9, [2]])
    engine.decode([0], [3])
    assert engine.tokens_forwarded == 11
    (mark,), state = engine.mark([0]), engine.snapshot(0)
    recurrent, conv, hidden = 2 * 4 * 8 * 12 * 4, 2 * 3 * (2 * 16 + 48) * 4, 32 * 4
    assert mark.nbytes == recurrent + conv + hidden
    assert state.nbytes == mark.nbytes + 2 * 2 * 2 * 16 * 10 * 4


@pytest.mark.parametrize("name", BUILDERS)
def test_self_check_passes_and_leaves_the_slots_clean(name):
    engine = Engine(build(name), SLOTS, MAX_TOKENS)
    self_check(engine)
    assert engine.lengths == [0] * SLOTS and engine.tokens_forwarded == 0
    case = Recorded(engine)
    case.extend([0, 1], [3, 5])
    case.check()


@pytest.mark.parametrize("name, broken", [
    ("hybrid", "model.layers.0.linear_attn.in_proj_a"), ("hybrid", "model.layers.1.self_attn.v_proj"),
    ("qwen3", "model.norm"), ("qwen2", "model.layers.1.mlp.down_proj"),
])
def test_self_check_refuses_a_model_that_computes_something_else(name, broken):
    model = build(name, 0.1)
    engine = Engine(model, SLOTS, MAX_TOKENS)
    module = model.get_submodule(broken)
    original = module.forward

    def only_in_a_whole_forward(x):
        return original(x) * (1.5 if x.shape[1] > 15 else 1.0)

    module.forward = only_in_a_whole_forward
    if broken == "model.norm":
        module.forward = lambda x: original(x) * 1.5
    with pytest.raises(UserError, match=rf"{type(model).__name__}: the rollout engine.* differ .* by [0-9.e-]+ "):
        self_check(engine)


def test_unsupported_models_are_refused():
    llama = LlamaForCausalLM(LlamaConfig(**COMMON, num_hidden_layers=1, num_attention_heads=4))
    with pytest.raises(UserError, match="LlamaForCausalLM is not supported.*Qwen3_5ForCausalLM, Qwen3ForCausalLM"):
        Engine(llama, 1, 8)
    with pytest.raises(UserError, match="sliding_attention"):
        Engine(qwen2(0.02, use_sliding_window=True, sliding_window=8, max_window_layers=1), 1, 8)
    with pytest.raises(UserError, match="hidden_act gelu"):
        Engine(qwen3(0.02, hidden_act="gelu"), 1, 8)
    with pytest.raises(UserError, match="rope_type dynamic"):
        Engine(qwen3(0.02, rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)), 1, 8)
