"""Root mean square norm against its definition in float64; on torch, and on Triton interpreted."""

import pytest
import torch

from kernels.rms_norm import rms_norm
from tests.interpreter import INTERPRETED  # noqa: F401  corrects the interpreter


def by_definition(x, weight, eps, offset):
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (offset + weight.double())


@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (2, 3, 4, 16), (2, 257), (3, 1500)], ids=str)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 8e-3)], ids=str)
def test_equals_the_definition(shape, dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(shape, generator=generator)).to(dtype)
    weight = torch.randn(shape[-1], generator=generator).to(dtype)
    for offset, eps in ((0.0, 1e-6), (1.0, 0.5)):
        got = rms_norm(x, weight, eps, offset)
        assert got.dtype == dtype and got.shape == x.shape
        want = by_definition(x, weight, eps, offset)
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


def test_a_float32_weight_of_bfloat16_rows():
    x, weight = torch.randn(4, 32).bfloat16(), torch.randn(32)
    got = rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(got.double(), by_definition(x, weight, 1e-6, 0.0), rtol=8e-3, atol=8e-3)


def test_rows_may_be_views():
    wide = torch.randn(2, 5, 3, 32)
    query = wide.chunk(2, -1)[1]
    got = rms_norm(query, torch.ones(16), 1e-6)
    torch.testing.assert_close(got, rms_norm(query.contiguous(), torch.ones(16), 1e-6))
    turned = torch.randn(16, 4).T
    got = rms_norm(turned, torch.ones(16), 1e-6)
    torch.testing.assert_close(got, rms_norm(turned.contiguous(), torch.ones(16), 1e-6))


def test_rows_of_zeros_and_no_rows():
    assert rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6).tolist() == [[0.0] * 8] * 2
    assert rms_norm(torch.zeros(0, 8), torch.ones(8), 1e-6).shape == (0, 8)


def test_a_weight_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"weight must have shape \[8\], not \[9\]"):
        rms_norm(torch.zeros(2, 8), torch.ones(9), 1e-6)
