"""Rollout engine against transformers: every log-prob must equal that of a full recomputation of the slot's ids."""

import numpy as np
import pytest
import torch

from kernels import torch_delta_rule
from prover_mini import engine as engine_module
from prover_mini.engine import Engine, self_check
from tests.tiny_models import BUILDERS, MAX_TOKENS, SLOTS, Recorded, build


@pytest.fixture(params=[(name, init) for name in BUILDERS for init in (0.02, 0.2)], ids=lambda p: f"{p[0]}-{p[1]}")
def case(request):
    name, init = request.param
    return Recorded(Engine(build(name, init), SLOTS, MAX_TOKENS), tolerance=1e-5 if init == 0.02 else 5e-4)


def test_ragged_prefill_and_continuation(case):
    case.extend([0, 1, 2, 3], [17, 1, 5, 9])
    case.check()
    case.extend([3, 1, 5], [2, 23, 7])
    case.check()
    case.extend([0, 1, 2], [0, 3, 1])
    case.check()


def test_decode_all_some_and_scattered_rows(case):
    case.extend(range(SLOTS), [4, 9, 1, 6, 2, 12])
    for rows in (list(range(SLOTS)), [0, 1, 2], [2, 3], [0, 2, 3, 5], [5], [4, 1, 3, 0], [5, 0], [3, 0, 5, 1, 2, 4]):
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
    monkeypatch.setattr(torch_delta_rule, "MAX_CHUNK", 8)
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
    case.extend(range(5), [5, MAX_TOKENS, 4, 7, MAX_TOKENS - 3])
    case.decode([0, 2, 3])
    case.extend([0, 4], [5, 3])  # the pads of slot 4 would lie beyond its end
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


def test_similar_lengths_share_a_forward(monkeypatch):
    assert list(engine_module._batches([3, 40, 0, 4, 33, 41])) == [[5, 1, 4], [3, 0]]
    monkeypatch.setattr(engine_module, "BATCH_TOKENS", 90)
    assert list(engine_module._batches([3, 40, 0, 4, 33, 41])) == [[5, 1], [4], [3, 0]]
