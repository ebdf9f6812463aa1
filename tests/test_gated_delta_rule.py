"""One token of a Gated DeltaNet layer against float64 loops over the equations; on torch, and on Triton interpreted."""

import math

import pytest
import torch

from kernels.gated_delta_rule import LARGEST_STATE, GatedDeltaWeights, gated_delta_rule
from tests.interpreter import INTERPRETED  # noqa: F401  corrects the interpreter

SLOTS, W = 5, 4
# key heads, value heads, key size, value size
SHAPES = [(2, 2, 8, 12), (2, 4, 16, 8), (1, 3, 5, 16), (3, 6, 4, 4)]


def layer(J, H, K, V, rows, dtype=torch.float32, seed=0, width=W - 1):
    """(inputs of `rows` tokens, weights, states of all slots)"""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, kind=dtype):
        return torch.randn(*shape, generator=generator).to(kind)

    C = 2 * J * K + H * V
    inputs = normal(rows, 1, C), normal(rows, 1, H, V), normal(rows, 1, H), 3 * normal(rows, 1, H)
    decay = normal(H, kind=torch.float32), normal(H, kind=torch.float32)
    weights = GatedDeltaWeights(normal(C, 1, width + 1) / 2, *decay, 1 + normal(V) / 4, 1e-6)
    return inputs, weights, [normal(SLOTS, width, C), normal(SLOTS, H, K, V, kind=torch.float32)]


def by_loop(inputs, weights, states, rows, counts):
    """The equations, value by value; idle rows give zeros."""
    qkv, z, b, a = (x[:, 0].double() for x in inputs)
    conv, log, bias, norm = (x.double() for x in weights[:4])
    window, state = (x.double() for x in states)
    _, H, K, V = state.shape
    J = (qkv.shape[1] - H * V) // (2 * K)
    out = torch.zeros(len(rows), 1, H, V, dtype=torch.float64)
    for n, (slot, count) in enumerate(zip(rows, counts)):
        if not count:
            continue
        x_WC = torch.cat((window[slot], qkv[n : n + 1]))
        window[slot] = x_WC[1:]
        y_C = (x_WC * conv[:, 0].T).sum(0)
        y_C = y_C / (1 + (-y_C).exp())
        for h in range(H):
            j = h // (H // J)
            q, k = y_C[j * K : (j + 1) * K], y_C[(J + j) * K : (J + j + 1) * K]
            v = y_C[2 * J * K + h * V : 2 * J * K + (h + 1) * V]
            q, k = q / (q.square().sum() + 1e-6).sqrt() / math.sqrt(K), k / (k.square().sum() + 1e-6).sqrt()
            decay = torch.exp(-log[h].exp() * math.log1p(math.exp(a[n, h] + bias[h])))
            decayed = decay * state[slot, h]
            state[slot, h] = decayed + torch.outer(k, (v - decayed.T @ k) / (1 + (-b[n, h]).exp()))
            o = state[slot, h].T @ q
            o = o / (o.square().mean() + weights.eps).sqrt() * norm
            out[n, 0, h] = o * z[n, h] / (1 + (-z[n, h]).exp())
    return out, window, state


def compare(inputs, weights, states, rows, counts, tolerance):
    want, want_window, want_state = by_loop(inputs, weights, states, rows, counts)
    before = [x.clone() for x in states]
    counts_B = None if all(counts) else torch.tensor(counts)
    got = gated_delta_rule(*inputs, weights, *states, torch.tensor(rows), counts_B)
    busy = torch.tensor(counts) > 0
    assert got.dtype == inputs[0].dtype and got.shape == inputs[1].shape and got.isfinite().all()
    torch.testing.assert_close(got[busy].double(), want[busy], rtol=tolerance, atol=tolerance)
    assert torch.equal(states[0].double(), want_window)
    torch.testing.assert_close(states[1].double(), want_state, rtol=1e-5 + tolerance / 10, atol=1e-6 + tolerance / 10)
    for slot in set(range(SLOTS)) - {row for row, count in zip(rows, counts) if count}:
        assert all(torch.equal(now[slot], old[slot]) for now, old in zip(states, before))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "rows, counts", [([0, 1, 2, 3, 4], [1] * 5), ([3, 0, 4, 2], [1, 0, 1, 0]), ([2], [1])], ids=str
)
def test_equals_the_equations_for_busy_and_idle_rows_in_any_slots(shape, rows, counts):
    compare(*layer(*shape, len(rows)), rows, counts, 1e-5)


def test_many_tokens_in_a_row():
    rows = [4, 1]
    inputs, weights, states = layer(2, 4, 8, 8, 2)
    exact = [x.double() for x in states]
    for token in range(6):
        inputs = layer(2, 4, 8, 8, 2, seed=token)[0]
        want, *exact = by_loop(inputs, weights, exact, rows, [1, 1])
        got = gated_delta_rule(*inputs, weights, *states, torch.tensor(rows))
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states[1].double(), exact[1], rtol=1e-5, atol=1e-5)


def test_bfloat16_inputs_and_a_float32_state():
    compare(*layer(2, 4, 8, 16, 3, torch.bfloat16), [4, 0, 2], [1, 0, 1], 0.06)


def test_extreme_gates():
    """Full forgetting, a closed and an open beta."""
    inputs, weights, states = layer(1, 6, 4, 4, 1)
    inputs[3][0, 0] = torch.tensor([-60.0, -16.0, -9.0, 30.0, 200.0, 0.0])
    inputs[2][0, 0] = torch.tensor([-80.0, 80.0, 0.0, -5.0, 5.0, 1.0])
    compare(inputs, weights, states, [3], [1], 1e-5)


def test_slow_decays_are_exact():
    """A thousand tokens multiply the error of one decay, which is 1e-6 where log(1 + x) is computed as written."""
    (qkv, z, b, a), weights, states = layer(1, 6, 4, 4, 1)
    a[0, 0] = torch.tensor([-17.3, -14.1, -11.3, -9.7, -8.1, -7.3])
    weights.a_log_H.fill_(math.log(16))
    weights.dt_bias_H.fill_(0.0)
    before = states[1][2].double()
    gated_delta_rule(qkv, z, b.fill_(-200.0), a, weights, *states, torch.tensor([2]))
    decay_H = torch.exp(-16.0 * torch.log1p(a[0, 0].double().exp()))
    torch.testing.assert_close(states[1][2].double(), before * decay_H[:, None, None], rtol=2.5e-7, atol=0)


def test_two_taps_and_none_of_the_state():
    inputs, weights, states = layer(2, 2, 4, 4, 2, width=1)
    states[0].zero_()
    states[1].zero_()
    compare(inputs, weights, states, [1, 3], [1, 1], 1e-5)


def test_rows_as_a_slice():
    inputs, weights, states = layer(2, 4, 8, 8, 3)
    others = [x.clone() for x in states]
    got = gated_delta_rule(*inputs, weights, *states, slice(1, 4))
    want = gated_delta_rule(*inputs, weights, *others, torch.tensor([1, 2, 3]))
    torch.testing.assert_close(got, want)
    for ours, theirs in zip(states, others):
        torch.testing.assert_close(ours, theirs)


def test_a_state_beyond_the_registers_goes_to_torch():
    K, V = 2, LARGEST_STATE
    compare(*layer(1, 1, K, V, 1), [2], [1], 1e-5)


@pytest.mark.parametrize("change, message", [
    (dict(qkv=torch.zeros(2, 1, 65)), "65 channels are not q and k of 8 and 4 v of 8"),
    (dict(z=torch.zeros(2, 1, 4, 7)), r"z must have shape \[B, T, 4, 8\]"),
    (dict(conv=torch.zeros(SLOTS, 2, 64)), r"conv must have shape \[5, 3, 64\]"),
    (dict(state=torch.zeros(SLOTS, 4, 8, 8, dtype=torch.bfloat16)), "must be float32"),
])
def test_what_does_not_fit_is_refused(change, message):
    (qkv, z, b, a), weights, (conv, state) = layer(2, 4, 8, 8, 2)
    given = dict(qkv=qkv, z=z, conv=conv, state=state) | change
    with pytest.raises(ValueError, match=message):
        gated_delta_rule(given["qkv"], given["z"], b, a, weights, given["conv"], given["state"], torch.tensor([0, 1]))
