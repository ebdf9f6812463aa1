"""Decode steps in fixed shapes, as a GPU runs them: on torch, and on the kernels when Triton is interpreted."""

from functools import partial

import pytest
import torch

from prover_mini import decode
from prover_mini.decode import Decoder
from prover_mini.engine import Engine
from prover_mini.parallel import Shard
from tests.interpreter import INTERPRETED
from tests.ranks import on_ranks
from tests.tiny_models import BUILDERS, MAX_TOKENS, SLOTS, Recorded, build, logprobs, recomputed


def fixed_shapes(model, tolerance=5e-4, graphs=False) -> Recorded:
    engine = Engine(model, SLOTS, MAX_TOKENS)
    assert (engine._decoder is not None) == INTERPRETED
    engine._decoder = Decoder(model, engine._memory, engine._tables, graphs)
    return Recorded(engine, tolerance)


def content(engine, row):
    """All that a slot holds."""
    memory, length = engine._memory, engine.lengths[row]
    return [
        memory.key_ASJTE[:, row, :, :length], memory.value_ASJTE[:, row, :, :length],
        memory.conv_LSWC[:, row], memory.recurrent_LSHKV[:, row], memory.hidden_SD[row],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["hybrid"] if INTERPRETED else BUILDERS)
def test_equals_recomputation_for_any_rows(name):
    case = fixed_shapes(build(name, 0.2))
    case.extend(range(SLOTS - 1), [4, 9, 1, 6, 30])
    for rows in ([0, 2, 3], [5], [4, 0, 1, 5, 2, 3]):  # slot 5 begins by decoding
        case.decode(rows)
        case.check()
    case.extend([5, 0], [3, 2])
    case.fork([0], [4])
    case.decode([5, 4, 0, 1, 2])
    case.check()


def test_slots_beyond_the_asked_ones_stay_bit_for_bit_as_they_are():
    case = fixed_shapes(build("hybrid", 0.2))
    engine = case.engine
    case.extend(range(SLOTS), [5, MAX_TOKENS, 4, 7, 1, 3])
    before = {row: [x.clone() for x in content(engine, row)] for row in range(SLOTS)}
    assert engine._decoder.size(3) == 4
    case.decode([3, 5, 0])  # slot 1, which is full, idles beside them
    for row in (1, 2, 4):
        assert all(torch.equal(now, old) for now, old in zip(content(engine, row), before[row]))
    for row in (0, 3, 5):
        assert not torch.equal(content(engine, row)[4], before[row][4])
    case.check()


@pytest.mark.skipif(INTERPRETED, reason="the same for kernels and torch")
def test_rounding_up_the_rows_changes_nothing(monkeypatch):
    results = []
    for size in (None, SLOTS):
        case = fixed_shapes(build("hybrid", 0.2))
        if size:
            monkeypatch.setattr(Decoder, "size", lambda self, rows: size)
        case.extend(range(SLOTS), [5, 11, 4, 7, 1, 3])
        case.decode([2, 0])
        case.decode([2])
        results.append([x for row in (2, 0) for x in content(case.engine, row)])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(INTERPRETED, reason="the same for kernels and torch")
def test_sizes_are_powers_of_two_up_to_all_slots():
    model = build("qwen2")
    for slots, sizes in ((6, [1, 2, 4, 4, 6, 6]), (8, [1, 2, 4, 4, 8, 8, 8, 8]), (1, [1])):
        engine = Engine(model, slots, 8)
        decoder = Decoder(model, engine._memory, engine._tables, False)
        assert [decoder.size(rows) for rows in range(1, slots + 1)] == sizes


class RecordedGraph:
    """In place of a CUDA graph: does what it recorded on what its input holds by then, with weights where they were."""

    def __init__(self, model, run, pool):
        self.model, self.run, self.replays, self.shared = model, run, 0, pool or [self]
        self.places = self.weights()
        self.run()

    def weights(self):
        return [p.data_ptr() for p in self.model.model.parameters()]

    def replay(self):
        assert self.weights() == self.places
        self.replays += 1
        self.run()

    def pool(self):
        return self.shared


def start_anew(case, texts):
    """After a change of the weights: slots 0, 1, ... hold only these many tokens."""
    case.engine.weights_changed()
    case.engine.clear(list(range(SLOTS)))
    case.ids = [[] for _ in range(SLOTS)]
    case.extend(range(len(texts)), texts)


@pytest.mark.skipif(INTERPRETED, reason="the same for kernels and torch")
def test_one_graph_per_size_until_a_weight_moves(monkeypatch):
    case = fixed_shapes(build("hybrid", 0.2), graphs=True)
    decoder, model = case.engine._decoder, case.engine.model
    monkeypatch.setattr(decode, "capture", partial(RecordedGraph, model))
    case.extend(range(SLOTS), [5, 11, 4, 7, 1, 3])
    for rows in ([0, 2, 3], [5], [1, 4, 5, 0], [4], [1, 2, 3, 4, 5]):
        case.decode(rows)  # making a graph must not advance any slot
        case.check()
    graphs = dict(decoder._captured)
    assert decoder.captures == 3 and {size: graph.replays for size, graph in graphs.items()} == {4: 2, 1: 2, 6: 1}
    assert len({id(graph.pool()) for graph in graphs.values()}) == 1

    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(1.1)  # in place, as an optimizer does it
    start_anew(case, [4, 3])
    case.decode([1])
    case.check()
    assert decoder.captures == 3

    layer = model.model.layers[0].mlp.up_proj
    layer.weight = torch.nn.Parameter(layer.weight * 1.5)
    start_anew(case, [4, 3])
    for row in (1, 0):
        case.decode([row])
        case.check()
    assert decoder.captures == 4 and list(decoder._captured) == [1]


def sharded(rank, world):
    """Each gathering may put the weights elsewhere."""
    model, plain = build("hybrid", 0.2), build("hybrid", 0.2)
    weights = Shard(model)
    weights.gather()
    case = fixed_shapes(model, graphs=True)
    decode.capture = partial(RecordedGraph, model)
    for _ in range(3):
        start_anew(case, [3, 1])
        for rows in ([0, 1], [1], [1, 0]):
            case.decode(rows)
        want_BV = recomputed(plain, case.ids[:2])
        torch.testing.assert_close(logprobs(case.engine, [0, 1]), want_BV, rtol=0, atol=5e-4)
        weights.scatter()
        others = [torch.empty(997 * size) for size in range(1, 50)]  # take the place of what was freed
        weights.gather()
        del others


@pytest.mark.skipif(INTERPRETED, reason="the same for kernels and torch")
def test_no_graph_outlives_the_weights_that_a_rank_has_gathered(tmp_path):
    on_ranks(2, tmp_path / "meet", sharded)
