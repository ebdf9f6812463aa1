"""The token stream of credit tables against a loop over tokens; runs on torch, and on Triton when interpreted."""

from importlib import import_module

import pytest
import torch

from kernels import credit_table, segment_advantage
from tests.interpreter import INTERPRETED  # noqa: F401  corrects the interpreter


def packed(lengths, N, seed=0, index=torch.int64):
    generator = torch.Generator().manual_seed(seed)
    cu_seqlens_B1 = torch.tensor([0, *lengths]).cumsum(0).to(index)
    turn_ids_T = torch.randint(-1, N, (sum(lengths),), generator=generator).to(index)
    advantage_B = torch.randn(len(lengths), generator=generator)
    credit_BN = torch.randn(len(lengths), N, generator=generator)
    return advantage_B, credit_BN, cu_seqlens_B1, turn_ids_T


def by_loop(advantage_B, credit_BN, cu_seqlens_B1, turn_ids_T):
    stream, cuts = [], cu_seqlens_B1.tolist()
    for i, (start, end) in enumerate(zip(cuts, cuts[1:])):
        for turn in turn_ids_T[start:end].tolist():
            stream.append(float(advantage_B[i].double() + credit_BN[i, turn].double()) if turn >= 0 else 0.0)
    return torch.tensor(stream, dtype=torch.float64)


@pytest.mark.parametrize("lengths", [[1], [5], [0, 3, 0, 0, 7, 0], [255, 1, 256, 257], [1] * 33, [700, 2, 600]])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_equals_a_loop_over_tokens(lengths, index):
    tables = packed(lengths, N=6, index=index)
    stream_T = segment_advantage(*tables)
    assert stream_T.dtype == torch.float32
    torch.testing.assert_close(stream_T.double(), by_loop(*tables), rtol=1e-6, atol=1e-6)


def test_more_tokens_than_16_bits_count(monkeypatch):
    few_programs = {"BLOCK": 4096, "num_warps": 4}
    monkeypatch.setattr(import_module("kernels.segment_advantage"), "parameters", lambda *key: few_programs)
    lengths = [40_000, 1, 30_500]
    tables = packed(lengths, N=3)
    torch.testing.assert_close(segment_advantage(*tables).double(), by_loop(*tables), rtol=1e-6, atol=1e-6)


def test_tables_may_be_views():
    advantage_B, credit_BN, cu_seqlens_B1, turn_ids_T = packed([4, 9], N=5)
    doubled = torch.stack([turn_ids_T, turn_ids_T], 1).flatten()[::2]
    transposed = credit_BN.T.contiguous().T
    wide = torch.stack([advantage_B, -advantage_B], 1)[:, 0]
    got_T = segment_advantage(wide, transposed, cu_seqlens_B1, doubled)
    torch.testing.assert_close(got_T, segment_advantage(advantage_B, credit_BN, cu_seqlens_B1, turn_ids_T))


def test_double_tables_give_a_double_stream():
    advantage_B, credit_BN, *rest = packed([3, 4], N=2)
    tables = (advantage_B.double() + 1e-12, credit_BN.double(), *rest)
    stream_T = segment_advantage(*tables)
    assert stream_T.dtype == torch.float64
    torch.testing.assert_close(stream_T, by_loop(*tables), rtol=0, atol=1e-15)


def test_no_token_and_no_policy_token():
    advantage_B, credit_BN, cu_seqlens_B1, _ = packed([0, 0], N=2)
    empty = torch.empty(0, dtype=torch.int64)
    assert segment_advantage(advantage_B, credit_BN, cu_seqlens_B1, empty).shape == (0,)
    masked = torch.full((3,), -1)
    stream_T = segment_advantage(torch.tensor([torch.inf]), torch.full((1, 1), torch.nan), torch.tensor([0, 3]), masked)
    assert stream_T.tolist() == [0, 0, 0]


def test_no_turns_at_all():
    stream_T = segment_advantage(torch.ones(1), torch.empty(1, 0), torch.tensor([0, 2]), torch.tensor([-1, -1]))
    assert stream_T.tolist() == [0, 0]


def test_segments_add_where_they_overlap():
    table_BN = credit_table([1, 1, 0], [0, 2, 3], [2, 3, 3], [0.5, 0.25, -1.0], B=2, N=4)
    assert table_BN.tolist() == [[0, 0, 0, -1], [0.5, 0.5, 0.75, 0.25]]


@pytest.mark.parametrize("segment", [(2, 0, 0), (-1, 0, 0), (0, 1, 0), (0, 0, 3), (0, -1, 0)])
def test_a_segment_outside_the_table_is_refused(segment):
    with pytest.raises(ValueError, match="outside"):
        credit_table([segment[0]], [segment[1]], [segment[2]], [1.0], B=2, N=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: torch.ones(3)}, "advantage must have shape"),
        ({1: torch.ones(5, 2)}, "credit must have shape"),
        ({1: torch.ones(2, 2, dtype=torch.int64)}, "credit must be floating point"),
        ({2: torch.tensor([0, 4, 8])}, "from 0 to T"),
        ({2: torch.tensor([0, 9, 7])}, "must not fall"),
        ({2: torch.tensor([0.0, 4.0, 7.0])}, "int32 or int64"),
        ({3: torch.full((7,), 2)}, "outside -1..1"),
        ({3: torch.full((7,), -2)}, "outside -1..1"),
        ({3: torch.zeros(7)}, "turn_ids must be int32 or int64"),
        ({0: torch.ones(2, device="meta")}, "one device"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    tables = [torch.ones(2), torch.ones(2, 2), torch.tensor([0, 4, 7]), torch.zeros(7, dtype=torch.int64)]
    for position, value in change.items():
        tables[position] = value
    with pytest.raises(ValueError, match=message):
        segment_advantage(*tables)
