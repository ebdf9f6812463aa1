"""Decode steps in fixed shapes, as a GPU runs them: on torch, and on the kernels when Triton is interpreted."""

import pytest
import torch

from prover_mini import decode
from prover_mini.decode import Decoder
from prover_mini.engine import Engine
from tests.interpreter import INTERPRETED
from tests.tiny_models import BUILDERS, MAX_TOKENS, SLOTS, Recorded, build


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
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(INTERPRETED, reason="the same for kernels and torch")
def test_sizes_are_powers_of_two_up_to_all_slots():
    model = build("qwen2")
    for slots, sizes in ((6, [1, 2, 4, 4, 6, 6]), (8, [1, 2, 4, 4, 8, 8, 8, 8]), (1, [1])):
        engine = Engine(model, slots, 8)
        decoder = Decoder(model, engine._memory, engine._tables, False)
        assert [decoder.size(rows) for rows in range(1, slots + 1)] == sizes


class RecordedGraph:
    """In place of a CUDA graph, which does what it recorded on whatever its input holds by then."""

    def __init__(self, run, pool):
        self.run, self.replays, self.shared = run, 0, pool or [self]
        self.run()

    def replay(self):
        self.replays += 1
        self.run()

    def pool(self):
        return self.shared


@pytest.mark.skipif(INTERPRETED, reason="the same for kernels and torch")
def test_one_graph_per_size_until_a_weight_moves(monkeypatch):
    monkeypatch.setattr(decode, "capture", RecordedGraph)
    case = fixed_shapes(build("hybrid", 0.2), graphs=True)
    decoder = case.engine._decoder
    case.extend(range(SLOTS), [5, 11, 4, 7, 1, 3])
    for rows in ([0, 2, 3], [5], [1, 4, 5, 0], [4], [1, 2, 3, 4, 5]):
        case.decode(rows)  # making a graph must not advance any slot
        case.check()
    graphs = dict(decoder._captured)
    assert decoder.captures == 3 and {size: graph.replays for size, graph in graphs.items()} == {4: 2, 1: 2, 6: 1}
    assert len({id(graph.pool()) for graph in graphs.values()}) == 1

    model = case.engine.model
    weight = model.model.layers[0].mlp.up_proj.weight
    with torch.no_grad():
        weight.mul_(1.1)  # in place, as an optimizer does it
    case.engine.weights_changed()
    case.engine.clear(list(range(SLOTS)))
    case.ids = [[] for _ in range(SLOTS)]
    case.extend([0, 1], [4, 3])
    case.decode([1])
    case.check()
    assert decoder.captures == 3

    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(weight * 1.5)  # elsewhere, as a gathered shard is
    case.engine.weights_changed()
    case.engine.clear([0, 1])
    case.ids = [[] for _ in range(SLOTS)]
    case.extend([0, 1], [4, 3])
    case.decode([1])
    case.check()
    case.decode([0])
    case.check()
    assert decoder.captures == 4 and list(decoder._captured) == [1]
