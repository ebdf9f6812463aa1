"""Rollout engine against transformers: every log-prob must equal that of a full recomputation of the slot's ids."""

import math

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config,
    Qwen3ForCausalLM,
)

from prover_mini import delta_rule, engine as engine_module
from prover_mini.engine import Engine, StaleState, self_check
from prover_mini.errors import UserError

VOCAB, SLOTS, MAX_TOKENS = 96, 6, 96
COMMON = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, max_position_embeddings=256, pad_token_id=0)
HYBRID = dict(
    head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
    layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
    rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[2, 1, 1]),
)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64)


def hybrid(init, **changes):
    config = dict(COMMON, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, **HYBRID)
    config |= dict(initializer_range=init, tie_word_embeddings=True)
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config | changes))


def qwen3(init, **changes):
    config = dict(COMMON, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    return Qwen3ForCausalLM(Qwen3Config(**config | dict(initializer_range=init, tie_word_embeddings=False) | changes))


def qwen2(init, **changes):
    config = dict(COMMON, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, rope_parameters=YARN)
    return Qwen2ForCausalLM(Qwen2Config(**config | dict(initializer_range=init, tie_word_embeddings=True) | changes))


BUILDERS = {"hybrid": hybrid, "qwen3": qwen3, "qwen2": qwen2}


def build(name, init=0.02, **changes):
    torch.manual_seed(0)
    model = BUILDERS[name](init, **changes).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms, biases and decays start at constants, which would hide mistakes
                parameter.add_(torch.randn_like(parameter) * init)
    return model


@pytest.fixture(params=[(name, init) for name in BUILDERS for init in (0.02, 0.2)], ids=lambda p: f"{p[0]}-{p[1]}")
def case(request):
    name, init = request.param
    return Recorded(Engine(build(name, init), SLOTS, MAX_TOKENS), tolerance=1e-5 if init == 0.02 else 5e-4)


class Recorded:
    """An engine next to plain lists of the ids that each slot should hold."""

    def __init__(self, engine, tolerance=1e-5):
        self.engine, self.tolerance, self.ids = engine, tolerance, [[] for _ in range(engine.slots)]
        self.rng = np.random.default_rng(0)
        self.worst = 0.0

    def extend(self, rows, sizes):
        chunks = [self.rng.integers(VOCAB, size=size).tolist() for size in sizes]
        self.engine.extend(rows, chunks)
        for row, chunk in zip(rows, chunks):
            self.ids[row] = self.ids[row] + chunk

    def decode(self, rows):
        tokens = self.rng.integers(VOCAB, size=len(rows)).tolist()
        self.engine.decode(rows, tokens)
        for row, token in zip(rows, tokens):
            self.ids[row] = self.ids[row] + [token]

    def fork(self, sources, targets):
        self.engine.fork(sources, targets)
        for source, target in zip(sources, targets):
            self.ids[target] = self.ids[source]

    def check(self):
        """All slots, whether touched by the last call or not."""
        assert self.engine.lengths == list(map(len, self.ids))
        for row, ids in enumerate(self.ids):
            if ids:
                difference = (logprobs(self.engine, row) - recomputed(self.engine.model, ids)).abs().max().item()
                self.worst = max(self.worst, difference)
                assert difference <= self.tolerance, f"slot {row}, {len(ids)} tokens: off by {difference}"


@torch.no_grad()
def logprobs(engine, row):
    """[V], from the hidden state that `sample` would draw from."""
    hidden_D = engine._memory.hidden_SD[row]
    return engine.model.lm_head(hidden_D).float().log_softmax(-1)


@torch.no_grad()
def recomputed(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0, -1].float().log_softmax(-1)


def test_ragged_prefill_and_continuation(case):
    case.extend([0, 1, 2, 3], [17, 1, 5, 9])
    case.check()
    case.extend([3, 1, 5], [2, 23, 7])
    case.check()
    case.extend([0, 1, 2], [0, 3, 1])
    case.check()


def test_decode_all_some_and_scattered_rows(case):
    case.extend(range(SLOTS), [4, 9, 1, 6, 2, 12])
    for rows in (list(range(SLOTS)), [0, 1, 2], [2, 3], [0, 2, 3, 5], [5], [4, 1, 3, 0], [5, 0], list(range(SLOTS))):
        case.decode(rows)
        case.check()


def test_random_interleaving(case):
    for _ in range(8):
        rows = case.rng.permutation(SLOTS)[:case.rng.integers(1, SLOTS + 1)].tolist()
        case.extend(rows, case.rng.integers(0, 7, size=len(rows)))
        case.decode([row for row in range(SLOTS) if case.rng.random() < 0.6])
        source, *targets = case.rng.permutation(SLOTS)[:3].tolist()
        case.fork([source] * len(targets), targets)
        case.check()


def test_chunks_longer_than_one_block_of_the_delta_rule(case, monkeypatch):
    monkeypatch.setattr(delta_rule, "MAX_CHUNK", 8)
    case.extend([0, 1, 2], [37, 20, 8])
    case.extend([0, 1, 2], [9, 33, 17])
    case.check()


def test_fork_at_every_turn_boundary(case):
    case.extend([0], [11])
    for turn in range(4):
        case.fork([0, 0], [turn + 1, 5])
        for _ in range(3):
            case.decode([0, 5])
        case.extend([0], [5 + turn])
        case.check()
    case.decode([1, 2, 3, 4])
    case.check()


def test_marks_of_one_rollout_share_its_keys_and_restore_anywhere(case):
    engine, marks, prefixes = case.engine, [], []
    case.extend([2, 4], [7, 3])
    for turn in range(4):
        marks += engine.mark([2])
        prefixes.append(case.ids[2])
        case.decode([2, 4])
        case.extend([2, 4], [6, 2 + turn])
    states = engine.seal(2, marks)
    assert len({state.key_AJTE.data_ptr() for state in states}) == 1
    assert [state.length for state in states] == [7, 14, 21, 28]
    engine.clear([2])
    case.ids[2] = []
    case.extend([2], [40])  # what the slot does next must not reach the states
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        engine.restore([states[i] for i in order], [0, 5, 3, 1])
        for i, row in zip(order, [0, 5, 3, 1]):
            case.ids[row] = prefixes[i]
        case.check()
        case.decode([0, 1, 3, 5])
        case.extend([5, 0], [3, 8])
        case.check()


def test_snapshot_survives_its_slot(case):
    case.extend([0, 1], [6, 13])
    state, ids = case.engine.snapshot(1), case.ids[1]
    case.decode([0, 1])
    case.engine.clear([1])
    case.ids[1] = []
    case.check()
    case.engine.restore([state, state], [1, 4])
    case.ids[1] = case.ids[4] = ids
    case.check()
    case.decode([1, 4])
    case.check()


def test_a_cleared_slot_starts_anew(case):
    case.extend([0, 1], [20, 20])
    case.engine.clear([0])
    case.ids[0] = []
    case.extend([0], [3])
    case.check()


def test_a_full_slot_idles_beside_busy_ones(case):
    case.extend(range(4), [5, MAX_TOKENS, 4, 7])
    case.decode([0, 2, 3])
    case.extend([2], [MAX_TOKENS - 5])
    case.check()
    with pytest.raises(ValueError, match="slot 1 holds 96 tokens: 1 more exceed 96"):
        case.engine.decode([0, 1], [1, 1])
    case.check()


def test_only_linear_layers_and_untied_head():
    model = build("hybrid", layer_types=["linear_attention"] * 2, num_hidden_layers=2, tie_word_embeddings=False)
    case = Recorded(Engine(model, SLOTS, MAX_TOKENS))
    case.extend([0, 3], [5, 9])
    case.decode([0, 3])
    case.fork([3], [1])
    case.extend([1, 3], [4, 2])
    case.check()


@pytest.mark.parametrize("name", BUILDERS)
def test_bfloat16(name):
    model = build(name, 0.1).bfloat16()
    case = Recorded(Engine(model, SLOTS, MAX_TOKENS), tolerance=0.25)
    self_check(case.engine)
    case.extend([0, 1, 2], [9, 4, 17])
    case.decode([0, 2])
    case.check()
    if name == "hybrid":
        assert case.engine.mark([0])[0].recurrent_LHKV.dtype == torch.float32


def test_same_calls_give_the_same_bits():
    def run():
        case = Recorded(Engine(build("hybrid", 0.2), SLOTS, MAX_TOKENS))
        case.extend([0, 1, 2, 4], [9, 4, 17, 30])
        case.decode([0, 2, 4])
        case.fork([2, 2], [3, 5])
        case.decode([0, 5])
        return case.engine.sample([0, 2, 3, 5], np.array([0.1, 0.5, 0.7, 0.9]), 1.0)

    assert run() == run()


@torch.no_grad()
@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
def test_sampling_inverts_the_distribution_function(temperature):
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


def test_extreme_uniforms_draw_tokens_that_exist():
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
        reference_V = logprobs(engine, row)
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


def test_misuse_is_an_error():
    engine = Engine(build("qwen3"), SLOTS, MAX_TOKENS)
    engine.extend([0], [[1, 2, 3]])
    with pytest.raises(ValueError, match="slot 1 is empty"):
        engine.sample([0, 1], np.array([0.5, 0.5]), 1.0)
    with pytest.raises(ValueError, match="not of slot 1"):
        engine.seal(1, engine.mark([0]))
    with pytest.raises(ValueError, match="source and target"):
        engine.fork([0], [0])
    with pytest.raises(ValueError, match="distinct"):
        engine.decode([0, 0], [1, 2])


def test_counts_real_tokens_and_bytes():
    engine = Engine(build("hybrid"), SLOTS, MAX_TOKENS)
    engine.extend([0, 1], [[1] * 9, [2]])
    engine.decode([0], [3])
    assert engine.tokens_forwarded == 11
    (mark,), state = engine.mark([0]), engine.snapshot(0)
    recurrent, conv, hidden = 2 * 4 * 8 * 12 * 4, 2 * 3 * (2 * 16 + 48) * 4, 32 * 4
    assert mark.nbytes == recurrent + conv + hidden
    assert state.nbytes == mark.nbytes + 2 * 2 * 2 * 16 * 10 * 4


def test_similar_lengths_share_a_forward(monkeypatch):
    assert list(engine_module._batches([3, 40, 0, 4, 33, 41])) == [[5, 1, 4], [3, 0]]
    monkeypatch.setattr(engine_module, "BATCH_TOKENS", 90)
    assert list(engine_module._batches([3, 40, 0, 4, 33, 41])) == [[5, 1], [4], [3, 0]]


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
