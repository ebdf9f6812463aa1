"""Attention of one token to slots of unequal lengths against a float64 softmax; on torch, and on Triton interpreted."""

from importlib import import_module

import pytest
import torch

from kernels.decode_attention import decode_attention
from tests.interpreter import INTERPRETED  # noqa: F401  corrects the interpreter

module = import_module("kernels.decode_attention")


def cache(H, J, E, rows, slots=5, positions=50, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (rows, H, E), (slots, J, positions, E), (slots, J, positions, E)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


def by_softmax(q, key, value, rows, lengths, scale):
    """Each row and head alone; idle rows give zeros."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    group = q.shape[1] // key.shape[1]
    for n, (slot, length) in enumerate(zip(rows, lengths)):
        for h in range(q.shape[1]) if length else ():
            keys, values = (x[slot, h // group, :length].double() for x in (key, value))
            out[n, h] = torch.softmax(scale * (keys @ q[n, h].double()), 0) @ values
    return out


def compare(tensors, rows, lengths, scale=0.3, tolerance=1e-5):
    want = by_softmax(*tensors, rows, lengths, scale)
    got = decode_attention(*tensors, torch.tensor(rows), torch.tensor(lengths), scale)
    busy = torch.tensor(lengths) > 0
    assert got.dtype == tensors[0].dtype and got.shape == tensors[0].shape and got.isfinite().all()
    torch.testing.assert_close(got[busy].double(), want[busy], rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def parts_of_32_keys(monkeypatch):
    monkeypatch.setattr(module, "SPLIT", 32)


# query heads, K/V heads, head size
@pytest.mark.parametrize("shape", [(4, 2, 16), (2, 2, 8), (6, 1, 24), (14, 2, 32)], ids=str)
@pytest.mark.parametrize("rows, lengths", [
    ([0, 1, 2, 3, 4], [1, 31, 32, 33, 50]), ([4, 0, 2], [50, 0, 7]), ([3], [17]),
], ids=str)  # fmt: skip
def test_equals_a_softmax_at_any_length_in_any_slot(shape, rows, lengths):
    compare(cache(*shape, len(rows)), rows, lengths)


def test_what_lies_behind_the_end_of_a_row_does_not_matter():
    q, key, value = cache(4, 2, 16, 2)
    tensors = [x.clone() for x in (q, key, value)]
    for x in (key, value):
        x[:, :, 40:] = torch.nan if INTERPRETED else 1e30  # the CPU's attention masks scores, the kernel masks loads
        x[3, :, 5:] = x[0, 0, 45, 0]
    args = torch.tensor([1, 3]), torch.tensor([40, 5]), 0.3
    assert torch.equal(decode_attention(q, key, value, *args), decode_attention(*tensors, *args))


def test_large_scores_and_a_common_offset():
    q, key, value = cache(4, 2, 16, 3)
    key += 1e3 * q[0, 0] / q[0, 0].square().sum()
    compare((q, key, value), [0, 1, 2], [50, 40, 2], scale=5.0, tolerance=5e-4)


def test_a_row_does_not_depend_on_its_neighbours():
    q, key, value = cache(4, 2, 16, 3)
    together = decode_attention(q, key, value, torch.tensor([4, 0, 2]), torch.tensor([45, 3, 33]), 0.3)
    alone = decode_attention(q[2:], key, value, torch.tensor([2]), torch.tensor([33]), 0.3)
    torch.testing.assert_close(together[2:], alone, rtol=0, atol=0 if INTERPRETED else 1e-6)


def test_bfloat16():
    compare(cache(4, 2, 16, 3, dtype=torch.bfloat16), [4, 1, 0], [50, 33, 9], tolerance=0.02)


def test_slots_longer_than_one_part_of_the_shipped_size(monkeypatch):
    monkeypatch.setattr(module, "SPLIT", 512)
    compare(cache(2, 1, 16, 2, slots=2, positions=600), [1, 0], [600, 512])


def test_idle_rows_alone():
    got = decode_attention(*cache(4, 2, 16, 2), torch.tensor([1, 0]), torch.tensor([0, 0]), 0.3)
    assert got.shape == (2, 4, 16) and got.isfinite().all()


@pytest.mark.parametrize("change, message", [
    ({0: torch.zeros(2, 3, 16)}, "3 query heads cannot share 2 K/V heads"),
    ({2: torch.zeros(5, 2, 49, 16)}, "value must have shape"),
    ({1: torch.zeros(5, 2, 50, 16, dtype=torch.bfloat16)}, "key is torch.bfloat16"),
    ({3: torch.tensor([1])}, "rows and lengths must have shape"),
])
def test_what_does_not_fit_is_refused(change, message):
    arguments = [*cache(4, 2, 16, 2), torch.tensor([1, 0]), torch.tensor([3, 3])]
    for position, tensor in change.items():
        arguments[position] = tensor
    with pytest.raises(ValueError, match=message):
        decode_attention(*arguments, 0.3)
