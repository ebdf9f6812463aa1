"""Log-probs without logits against float64 log_softmax; runs on torch, and on Triton when interpreted."""

from importlib import import_module

import pytest
import torch

from kernels import linear_logprob, logits_logprob
from tests.interpreter import INTERPRETED

module = import_module("kernels.linear_logprob")  # `kernels.linear_logprob` is the function
D = 16


def problem(N, V, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    hidden_ND = torch.randn(N, D, generator=generator) * scale
    weight_VD = torch.randn(V, D, generator=generator) / D**0.5
    ids_N = torch.randint(0, V, (N,), generator=generator)
    ids_N[0] = V - 1
    return hidden_ND, weight_VD, ids_N


def reference(z_NV, ids_N):
    """Of scaled logits, in float64: (logprob, entropy, logsumexp)."""
    logprob_NV = z_NV.log_softmax(1)
    plogp_NV = torch.where(logprob_NV == -torch.inf, 0.0, logprob_NV.exp() * logprob_NV)
    return logprob_NV.gather(1, ids_N[:, None])[:, 0], -plogp_NV.sum(1), z_NV.logsumexp(1)


def linear_reference(hidden_ND, weight_VD, ids_N, temperature):
    return reference(hidden_ND @ weight_VD.T / temperature, ids_N)


def upstream(N, parts, seed=1):
    return torch.randn(parts, N, generator=torch.Generator().manual_seed(seed))


def check(hidden_ND, weight_VD, ids_N, temperature=1.0, entropy=True, rtol=1e-4, atol=3e-5):
    """Values and both gradients against the reference on the same numbers."""
    parts = 3 if entropy else 1
    g_PN = upstream(len(ids_N), parts)
    hidden_ND, weight_VD = hidden_ND.detach().requires_grad_(), weight_VD.detach().requires_grad_()
    out = linear_logprob(hidden_ND, weight_VD, ids_N, temperature, entropy=entropy, logsumexp=entropy)
    values = [x for x in out if x is not None]
    got = torch.autograd.grad(sum((g * x).sum() for g, x in zip(g_PN, values)), (hidden_ND, weight_VD))
    wide = [x.detach().double().requires_grad_() for x in (hidden_ND, weight_VD)]
    expected_values = linear_reference(*wide, ids_N, temperature)[:parts]
    expected = torch.autograd.grad(sum((g * x).sum() for g, x in zip(g_PN.double(), expected_values)), wide)
    for x, y in zip(values, expected_values):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.double(), y, rtol=rtol, atol=atol)
    for x, y, of in zip(got, expected, (hidden_ND, weight_VD)):
        assert x.dtype == of.dtype
        narrow = of.dtype != torch.float32
        torch.testing.assert_close(x.double(), y, rtol=2e-2 if narrow else rtol, atol=2e-3 if narrow else atol)
    return out


@pytest.mark.parametrize("V", [1, 2, 127, 1000, 4099])
@pytest.mark.parametrize("entropy", [False, True])
def test_equals_log_softmax_for_any_vocabulary(V, entropy):
    check(*problem(7, V), entropy=entropy)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.9])
def test_temperature_divides_the_logits(temperature):
    check(*problem(5, 333), temperature=temperature)


def test_many_chunks_write_each_slice_of_dweight_once(monkeypatch):
    monkeypatch.setattr(module, "chunk_columns", lambda N, device: 256)
    check(*problem(6, 256 * 9 + 5), temperature=0.8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_summed_in_float32(dtype):
    hidden_ND, weight_VD, ids_N = problem(6, 1500)
    check(hidden_ND.to(dtype), weight_VD.to(dtype), ids_N, temperature=0.7)


def test_double_inputs_stay_double():
    hidden_ND, weight_VD, ids_N = problem(4, 9000)
    inputs = [x.double().requires_grad_() for x in (hidden_ND, weight_VD)]
    out = linear_logprob(*inputs, ids_N, 0.9, entropy=True, logsumexp=True)
    expected = linear_reference(*inputs, ids_N, 0.9)
    for x, y in zip(out, expected):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    for x, y in zip(torch.autograd.grad(sum(out).sum(), inputs), torch.autograd.grad(sum(expected).sum(), inputs)):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("offset", [-1e4, 1e4])
def test_a_common_offset_of_all_logits_changes_nothing(offset):
    hidden_ND, weight_VD, ids_N = problem(5, 600)
    hidden_ND[:, -1], weight_VD[:, -1] = offset, 1.0
    # float32 logits of 1e4 come in steps of 1e-3
    out = linear_logprob(hidden_ND, weight_VD, ids_N, entropy=True)
    expected = linear_reference(hidden_ND.double(), weight_VD.double(), ids_N, 1.0)
    torch.testing.assert_close(out.logprob_N.double(), expected[0], rtol=1e-3, atol=4e-3)
    torch.testing.assert_close(out.entropy_N.double(), expected[1], rtol=1e-3, atol=4e-3)


def test_a_logprob_is_never_positive():
    hidden_ND, weight_VD, ids_N = problem(64, 300, scale=200.0)
    ids_N = (hidden_ND @ weight_VD.T).argmax(1)
    assert (linear_logprob(hidden_ND, weight_VD, ids_N).logprob_N <= 0).all()
    z_NV = torch.full((8, 1), 3.3e4)
    assert (logits_logprob(z_NV, torch.zeros(8, dtype=torch.int64)).logprob_N == 0).all()


def test_given_logits_of_any_dtype():
    hidden_ND, weight_VD, ids_N = problem(6, 1030)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits_NV = (hidden_ND @ weight_VD.T).to(dtype).requires_grad_()
        before_NV = logits_NV.detach().clone()
        out = logits_logprob(logits_NV, ids_N, 0.6, entropy=True, logsumexp=True)
        wide_NV = logits_NV.detach().double().requires_grad_()
        expected = reference(wide_NV / 0.6, ids_N)
        for x, y in zip(out, expected):
            torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-5)
        g_PN = upstream(6, 3)
        got = torch.autograd.grad(sum((g * x).sum() for g, x in zip(g_PN, out)), logits_NV)[0]
        want = torch.autograd.grad(sum((g * x).sum() for g, x in zip(g_PN.double(), expected)), wide_NV)[0]
        assert got.dtype == dtype and torch.equal(before_NV, logits_NV)
        exact = dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=1e-4 if exact else 1e-2, atol=1e-5 if exact else 1e-3)


def test_impossible_columns_have_no_entropy_and_no_gradient():
    generator = torch.Generator().manual_seed(3)
    logits_NV = torch.randn(4, 700, generator=generator)
    logits_NV[:, 100:650] = -torch.inf
    logits_NV[1, :650] = -torch.inf
    ids_N = torch.tensor([3, 660, 699, 0])
    logits_NV.requires_grad_()
    out = logits_logprob(logits_NV, ids_N, entropy=True, logsumexp=True)
    expected = reference(logits_NV.detach().double(), ids_N)
    for x, y in zip(out, expected):
        torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-5)
    gradient_NV = torch.autograd.grad(sum(x.sum() for x in out), logits_NV)[0]
    assert gradient_NV.isfinite().all() and (gradient_NV[:, 100:650] == 0).all()


def test_rows_beyond_2_to_the_31_elements():
    """Row 2 starts 2^31 elements in: an int32 offset would point elsewhere. Untouched memory costs nothing."""
    V, stride = 300, 2**30
    storage = torch.empty(2 * stride + V, dtype=torch.float16)
    logits_NV = storage.as_strided((3, V), (stride, 1))
    logits_NV.copy_(torch.randn(3, V, generator=torch.Generator().manual_seed(0)))
    ids_N = torch.tensor([0, 17, V - 1])
    out = logits_logprob(logits_NV, ids_N, entropy=True)
    expected = reference(logits_NV.double(), ids_N)
    torch.testing.assert_close(out.logprob_N.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.entropy_N.double(), expected[1], rtol=1e-5, atol=1e-5)


def test_more_rows_than_a_16_bit_grid_axis(monkeypatch):
    hidden_ND, weight_VD, ids_N = problem(70_000, 3)
    if not INTERPRETED:
        out = linear_logprob(hidden_ND, weight_VD, ids_N)
        expected = linear_reference(hidden_ND.double(), weight_VD.double(), ids_N, 1.0)[0]
        torch.testing.assert_close(out.logprob_N.double(), expected, rtol=1e-4, atol=1e-5)
        return
    grids = []

    class Recorder:
        def __getitem__(self, grid):
            grids.append(grid)
            return lambda *arguments, **options: None

    monkeypatch.setattr(module, "_online_softmax_kernel", Recorder())
    linear_logprob(hidden_ND, weight_VD, ids_N)
    assert grids == [(70_000,)]  # the first axis alone takes more than 65,535 programs


def test_views_give_the_same_result():
    hidden_ND, weight_VD, ids_N = problem(6, 520)
    expected = check(hidden_ND, weight_VD, ids_N)
    wide_ND = torch.stack([hidden_ND, -hidden_ND], 2)[:, :, 0]
    strided_N = torch.stack([ids_N, ids_N], 1)[:, 0]
    got = check(wide_ND, weight_VD.T.contiguous().T, strided_N)
    torch.testing.assert_close(got, expected)
    logits_NV = (hidden_ND @ weight_VD.T).T.contiguous().T
    torch.testing.assert_close(logits_logprob(logits_NV, ids_N).logprob_N, expected.logprob_N)


def test_backward_twice_gives_the_same_gradient():
    hidden_ND, weight_VD, ids_N = problem(5, 400)
    inputs = (hidden_ND.requires_grad_(), weight_VD.requires_grad_())
    loss = linear_logprob(*inputs, ids_N, entropy=True).logprob_N.sum()
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    second = torch.autograd.grad(loss, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    logits_NV = (hidden_ND @ weight_VD.T).detach().requires_grad_()
    loss = logits_logprob(logits_NV, ids_N).logprob_N.sum()
    first = torch.autograd.grad(loss, logits_NV, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, logits_NV)[0])


def test_only_what_needs_a_gradient_gets_one():
    hidden_ND, weight_VD, ids_N = problem(5, 400)
    weight_VD.requires_grad_()
    linear_logprob(hidden_ND, weight_VD, ids_N).logprob_N.sum().backward()
    frozen = weight_VD.detach()
    moving_ND = hidden_ND.clone().requires_grad_()
    linear_logprob(moving_ND, frozen, ids_N).logprob_N.sum().backward()
    assert hidden_ND.grad is None and frozen.grad is None and moving_ND.grad.isfinite().all()


def test_zero_rows_give_empty_results():
    hidden_ND, weight_VD, ids_N = torch.empty(0, D, requires_grad=True), torch.ones(9, D), torch.empty(0).long()
    out = linear_logprob(hidden_ND, weight_VD, ids_N, entropy=True, logsumexp=True)
    assert [x.shape for x in out] == [(0,)] * 3
    out.logprob_N.sum().backward()
    assert hidden_ND.grad.shape == (0, D)
    assert logits_logprob(torch.empty(0, 9), ids_N).logprob_N.shape == (0,)


def test_what_was_not_asked_for_is_none():
    out = linear_logprob(*problem(2, 50))
    assert out.entropy_N is None and out.logsumexp_N is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: torch.zeros(4)}, "two axes"),
        ({0: torch.zeros(4, D + 1)}, "both must be D"),
        ({1: torch.zeros(9, D, dtype=torch.float16)}, "use one dtype"),
        ({1: torch.zeros(9, D, device="meta")}, "weight on meta"),
        ({1: torch.zeros(0, D)}, "vocabulary is empty"),
        ({2: torch.zeros(3, dtype=torch.int64)}, "ids must have shape"),
        ({2: torch.zeros(4, dtype=torch.int32)}, "ids must be int64"),
        ({2: torch.tensor([0, 1, 2, 9])}, "outside 0..8"),
        ({2: torch.tensor([0, 1, 2, -1])}, "outside 0..8"),
        ({3: 0.0}, "temperature must be positive"),
        ({0: torch.zeros(4, D, dtype=torch.int64), 1: torch.zeros(9, D, dtype=torch.int64)}, "not supported"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = [torch.zeros(4, D), torch.zeros(9, D), torch.zeros(4, dtype=torch.int64), 1.0]
    for position, value in change.items():
        arguments[position] = value
    with pytest.raises(ValueError, match=message):
        linear_logprob(*arguments)


def test_an_unchecked_id_outside_the_vocabulary_gives_nan():
    hidden_ND, weight_VD, _ = problem(3, 40)
    ids_N = torch.tensor([1, 40, -1])
    softmax = module._FusedSoftmax if INTERPRETED else module.OnlineSoftmax
    state = softmax(ids_N, torch.float32, 1.0, False)
    state.add(hidden_ND @ weight_VD.T, 0)
    assert state.result()[0].isnan().tolist() == [False, True, True]
