"""Gated delta rule against its own recurrence, one token at a time in float64."""

import pytest
import torch

from kernels import torch_delta_rule as module
from kernels.torch_delta_rule import delta_rule, unit_heads

B, H, K, V = 3, 4, 6, 5


def inputs(tokens):
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    q, k = unit_heads(normal(B, tokens, 2, H, K), H).unbind(2)
    return q, k, normal(B, tokens, H, V), -2 * normal(B, tokens, H).abs(), normal(B, tokens, H).sigmoid()


def recurrence(q, k, v, g, beta, state):
    q, k, v, g, beta, state = (x.double() for x in (q * K**-0.5, k, v, g, beta, state))
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        error = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], error)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 24, 25])
def test_equals_the_recurrence_from_any_state(tokens, monkeypatch):
    monkeypatch.setattr(module, "MAX_CHUNK", 8)
    state = torch.randn(B, H, K, V, generator=torch.Generator().manual_seed(0))
    want, want_state = recurrence(*inputs(tokens), state)
    got = delta_rule(*inputs(tokens), state)
    torch.testing.assert_close(got, want.float(), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(state, want_state.float(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("tokens", [1, 5])
def test_pads_leave_the_state_exactly_as_it_is(tokens):
    q, k, v, g, beta = inputs(tokens)
    state = torch.randn(B, H, K, V)
    before = state.clone()
    delta_rule(q, k, v, torch.zeros_like(g), torch.zeros_like(beta), state)
    assert torch.equal(state, before)


def test_unit_heads_normalises_and_repeats_in_place_order():
    x = torch.randn(2, 3, 2, K)
    got = unit_heads(x, 4)
    torch.testing.assert_close(got.norm(dim=-1), torch.ones(2, 3, 4), atol=1e-5, rtol=0)
    for head in range(4):
        torch.testing.assert_close(got[:, :, head] * x[:, :, head // 2].norm(dim=-1, keepdim=True), x[:, :, head // 2])
