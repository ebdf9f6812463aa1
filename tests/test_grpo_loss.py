"""The policy loss against its textbook form in float64; runs on torch, and on Triton when interpreted."""

import math
from importlib import import_module

import pytest
import torch

from kernels import LossStats, grpo_loss
from tests.interpreter import INTERPRETED

LENGTHS = [5, 0, 1, 300, 12, 260]
MASKED_ROW = 4


def batch(seed=0, spread=0.4, lengths=LENGTHS):
    generator = torch.Generator().manual_seed(seed)
    T = sum(lengths)

    def normal(scale):
        return torch.randn(T, generator=generator) * scale

    cu_seqlens_B1 = torch.tensor([0, *lengths]).cumsum(0)
    mask_T = torch.rand(T, generator=generator) > 0.3
    if len(lengths) > MASKED_ROW:
        mask_T[cu_seqlens_B1[MASKED_ROW] : cu_seqlens_B1[MASKED_ROW + 1]] = False
    logprob_T = -normal(2.0).abs()
    return {
        "logprob_T": logprob_T,
        "old_logprob_T": logprob_T + normal(spread),
        "advantage_T": normal(1.0),
        "cu_seqlens_B1": cu_seqlens_B1,
        "mask_T": mask_T,
        "ref_logprob_T": logprob_T + normal(spread),
        "weight_T": normal(1.0).abs(),
    }


def textbook(
    logprob_T, old_logprob_T, advantage_T, cu_seqlens_B1, mask_T, *, denominator, clip_low=0.2, clip_high=0.2,
    dual_clip=None, level="token", aggregation="token_mean", log_ratio_range=(-20.0, 20.0), ref_logprob_T=None,
    kl_coef=0.0, kl="k3", kl_max=10.0, weight_T=None,
):  # fmt: skip
    """One trajectory at a time, policy tokens only: the formulas as papers write them, in float64."""
    total, cuts = torch.zeros((), dtype=torch.float64), cu_seqlens_B1.tolist()
    for start, end in zip(cuts, cuts[1:]):
        policy = mask_T[start:end]
        if not policy.any():
            continue
        new, old, advantage = (
            x[start:end][policy].double() for x in (logprob_T, old_logprob_T, advantage_T)
        )
        log_ratio = new - old
        if level == "sequence":
            log_ratio = log_ratio.mean().expand(len(new))
        if level == "sequence_token":
            log_ratio = log_ratio.mean().detach() + new - new.detach()
        ratio = log_ratio.clamp(*log_ratio_range).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
        if dual_clip:
            surrogate = torch.where(advantage < 0, torch.maximum(surrogate, dual_clip * advantage), surrogate)
        loss = -surrogate
        if weight_T is not None:
            loss = loss * weight_T[start:end][policy].double()
        if kl_coef:
            difference = new - ref_logprob_T[start:end][policy].double()
            k3 = (torch.exp(-difference) + difference - 1).clamp(max=kl_max)
            loss = loss + kl_coef * {"k1": difference, "k2": difference**2 / 2, "k3": k3}[kl]
        total = total + (loss.mean() if aggregation == "seq_mean_token_mean" else loss.sum())
    return total / denominator


def with_gradient(function, inputs, **options):
    logprob_T = inputs["logprob_T"].clone().requires_grad_()
    out = function(**{**inputs, "logprob_T": logprob_T}, **options)
    loss = out[0] if isinstance(out, tuple) else out
    loss.backward()
    return loss.detach(), logprob_T.grad, (out[1] if isinstance(out, tuple) else None)


VARIANTS = [
    {},
    {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0},
    {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 1.4, "aggregation": "constant"},
    {"aggregation": "seq_mean_token_mean"},
    {"level": "sequence", "clip_low": 3e-2, "clip_high": 4e-2},
    {"level": "sequence", "aggregation": "seq_mean_token_mean", "clip_low": 3e-2, "clip_high": 4e-2},
    {"level": "sequence_token", "clip_low": 3e-2, "clip_high": 4e-2},
    {"level": "sequence_token", "aggregation": "seq_mean_token_mean", "dual_clip": 1.05},
    {"kl_coef": 0.1, "kl": "k1"},
    {"kl_coef": 0.1, "kl": "k2", "aggregation": "seq_mean_token_mean"},
    {"kl_coef": 0.1, "kl": "k3", "level": "sequence"},
    {"kl_coef": 0.1, "kl": "k3", "kl_max": 0.05},
    {"log_ratio_range": (-0.3, 0.4)},
    {"log_ratio_range": (-math.inf, math.inf)},
]


@pytest.mark.parametrize("weighted", [True] if INTERPRETED else [False, True])
@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()) or "default")
def test_loss_and_gradient_equal_the_textbook(options, weighted):
    inputs = batch()
    if not weighted:
        del inputs["weight_T"]
    loss, gradient_T, _ = with_gradient(grpo_loss, inputs, denominator=77.0, **options)
    expected, expected_T, _ = with_gradient(textbook, inputs, denominator=77.0, **options)
    torch.testing.assert_close(loss.double(), expected, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(gradient_T.double(), expected_T.double(), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_masked_tokens_take_no_part_whatever_they_hold(level, aggregation):
    clean = batch()
    dirty = {name: x.clone() for name, x in clean.items()}
    garbage = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, 1e4])
    for name in ("logprob_T", "old_logprob_T", "advantage_T", "ref_logprob_T", "weight_T"):
        places = (~clean["mask_T"]).nonzero()[:, 0]
        dirty[name][places] = garbage[torch.arange(len(places)) % len(garbage)]
        clean[name][places] = 0.0
    options = {"denominator": 50.0, "level": level, "aggregation": aggregation, "kl_coef": 0.1, "dual_clip": 3.0}
    expected = with_gradient(grpo_loss, clean, **options)
    got = with_gradient(grpo_loss, dirty, **options)
    assert got[0] == expected[0] and torch.equal(got[1], expected[1])
    assert (got[1][~clean["mask_T"]] == 0).all()
    assert all(torch.equal(a, b) for a, b in zip(got[2], expected[2]))


def test_statistics_are_counts_and_sums_over_policy_tokens():
    inputs = batch(spread=0.8)
    _, stats = grpo_loss(**inputs, denominator=1.0, clip_low=0.2, clip_high=0.3, dual_clip=1.5)
    policy = inputs["mask_T"]
    new, old, advantage, ref = (
        inputs[name][policy].double() for name in ("logprob_T", "old_logprob_T", "advantage_T", "ref_logprob_T")
    )
    ratio = (new - old).exp()
    expected = {
        "tokens": policy.sum(),
        "clipped_low": ((advantage < 0) & (ratio < 0.8)).sum(),
        "clipped_high": ((advantage > 0) & (ratio > 1.3)).sum(),
        "clipped_dual": ((advantage < 0) & (ratio > 1.5)).sum(),
        "ratio_sum": ratio.sum(),
        "ratio_max": ratio.max(),
        "old_kl_sum": (old - new).sum(),
        "kl_sum": ((ref - new).exp() - (ref - new) - 1).sum(),
    }
    assert min(expected[name] for name in ("clipped_low", "clipped_high", "clipped_dual")) > 0
    for name, value in expected.items():
        torch.testing.assert_close(getattr(stats, name).double(), value.double(), rtol=1e-5, atol=1e-5, msg=name)


def test_micro_batches_add_up_to_the_step():
    inputs, lengths = batch(), LENGTHS
    cuts = inputs["cu_seqlens_B1"].tolist()
    for options in ({}, {"level": "sequence"}, {"aggregation": "seq_mean_token_mean", "level": "sequence_token"}):
        whole, whole_T, stats = with_gradient(grpo_loss, inputs, denominator=31.0, **options)
        losses, gradients, merged = [], [], None
        for first, last in ((0, 2), (2, 4), (4, len(lengths))):
            part = {name: x[cuts[first] : cuts[last]] for name, x in inputs.items()}
            part["cu_seqlens_B1"] = inputs["cu_seqlens_B1"][first : last + 1] - cuts[first]
            loss, gradient_T, part_stats = with_gradient(grpo_loss, part, denominator=31.0, **options)
            losses.append(loss)
            gradients.append(gradient_T)
            merged = part_stats if merged is None else merged.merged(part_stats)
        torch.testing.assert_close(sum(losses), whole, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(torch.cat(gradients), whole_T, rtol=1e-6, atol=1e-9)
        for name in LossStats._fields:
            torch.testing.assert_close(getattr(merged, name), getattr(stats, name), rtol=1e-5, atol=1e-4, msg=name)


def test_ratio_is_exactly_one_when_nothing_changed():
    inputs = batch()
    inputs |= {"old_logprob_T": inputs["logprob_T"].clone()}
    del inputs["weight_T"]
    _, gradient_T, stats = with_gradient(grpo_loss, inputs, denominator=1.0)
    assert stats.ratio_max == 1 and stats.ratio_sum == stats.tokens and stats.old_kl_sum == 0
    assert stats.clipped_low == stats.clipped_high == 0
    expected_T = torch.where(inputs["mask_T"], -inputs["advantage_T"], 0.0)
    torch.testing.assert_close(gradient_T, expected_T, rtol=0, atol=0)


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
def test_no_policy_token_gives_zero(level):
    inputs = batch()
    inputs["mask_T"] = torch.zeros_like(inputs["mask_T"])
    loss, gradient_T, stats = with_gradient(grpo_loss, inputs, denominator=1.0, level=level)
    assert loss == 0 and (gradient_T == 0).all() and all(value == 0 for value in stats)


def test_zero_tokens_give_zero():
    inputs = batch(lengths=[0, 0])
    loss, gradient_T, stats = with_gradient(grpo_loss, inputs, denominator=1.0)
    assert loss == 0 and gradient_T.shape == (0,) and stats.tokens == 0


def test_impossible_tokens_stay_finite():
    """A token whose probability fell to 0 or came from 0, and ratios far beyond float32's exp."""
    logprob_T = torch.tensor([-torch.inf, -1.0, -1.0, -300.0, -1.0, -300.0])
    old_T = torch.tensor([-1.0, -torch.inf, -300.0, -1.0, -300.0, -1.0])
    advantage_T = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, -1.0])
    inputs = {
        "logprob_T": logprob_T,
        "old_logprob_T": old_T,
        "advantage_T": advantage_T,
        "cu_seqlens_B1": torch.tensor([0, 6]),
        "mask_T": torch.ones(6, dtype=torch.bool),
        "ref_logprob_T": torch.full((6,), -1.0),
    }
    loss, gradient_T, stats = with_gradient(grpo_loss, inputs, denominator=1.0, dual_clip=3.0, kl_coef=0.1)
    assert loss.isfinite() and gradient_T.isfinite().all()
    assert stats.ratio_max == pytest.approx(math.exp(20), rel=1e-5)
    # k3 is at its bound of 10 for the three tokens that became impossible
    assert stats.kl_sum == pytest.approx(30.0, rel=1e-5)
    open_range = {"log_ratio_range": (-math.inf, math.inf), "dual_clip": 3.0}
    loss, gradient_T, _ = with_gradient(grpo_loss, inputs, denominator=1.0, **open_range)
    assert loss.isfinite() and gradient_T.isfinite().all()


def test_a_nan_policy_token_is_not_hidden():
    inputs = batch()
    inputs["logprob_T"][inputs["mask_T"].nonzero()[0]] = torch.nan
    loss, stats = grpo_loss(**inputs, denominator=1.0)
    assert loss.isnan() and stats.ratio_sum.isnan()


def test_backward_twice_gives_the_same_gradient():
    inputs = batch()
    logprob_T = inputs.pop("logprob_T").requires_grad_()
    loss, _ = grpo_loss(logprob_T, **inputs, denominator=9.0)
    first = torch.autograd.grad(loss, logprob_T, retain_graph=True)[0]
    second = torch.autograd.grad(2 * loss, logprob_T)[0]
    torch.testing.assert_close(second, 2 * first, rtol=0, atol=0)


def test_views_and_half_precision():
    inputs = batch()
    expected = with_gradient(grpo_loss, inputs, denominator=9.0, kl_coef=0.1)
    strided = {name: torch.stack([x, x], 1)[:, 0] if name != "cu_seqlens_B1" else x for name, x in inputs.items()}
    got = with_gradient(grpo_loss, strided, denominator=9.0, kl_coef=0.1)
    torch.testing.assert_close(got[:2], expected[:2])
    for dtype in (torch.bfloat16, torch.float16):
        narrow = {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}
        loss, gradient_T, _ = with_gradient(grpo_loss, narrow, denominator=9.0, level="sequence")
        reference, reference_T, _ = with_gradient(textbook, narrow, denominator=9.0, level="sequence")
        assert loss.dtype == torch.float32 and gradient_T.dtype == dtype
        torch.testing.assert_close(loss.double(), reference, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient_T.double(), reference_T.double(), rtol=1e-2, atol=1e-5)


def test_more_tokens_than_16_bits_count(monkeypatch):
    few_programs = {"BLOCK": 4096, "num_warps": 4}
    monkeypatch.setattr(import_module("kernels.grpo_loss"), "parameters", lambda *key: few_programs)
    inputs = batch(lengths=[66_000, 1, 4_100])
    loss, gradient_T, _ = with_gradient(grpo_loss, inputs, denominator=70_000.0)
    expected, expected_T, _ = with_gradient(textbook, inputs, denominator=70_000.0)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradient_T.double(), expected_T.double(), rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"denominator": 0.0}, "denominator must be positive"),
        ({"level": "turn"}, "level must be one of"),
        ({"aggregation": "mean"}, "aggregation must be one of"),
        ({"kl": "k4"}, "kl must be one of"),
        ({"dual_clip": 0.5}, "dual_clip must be above 1"),
        ({"kl_coef": 0.1, "ref_logprob_T": None}, "kl_coef needs ref_logprob"),
        ({"mask_T": torch.ones(6)}, "mask must be bool"),
        ({"old_logprob_T": torch.zeros(5)}, "old_logprob must have shape"),
        ({"advantage_T": torch.zeros(6, dtype=torch.int64)}, "advantage must be floating point"),
        ({"weight_T": torch.zeros(6, device="meta")}, "weight must be on cpu"),
        ({"cu_seqlens_B1": torch.tensor([0, 3, 5])}, "from 0 to T"),
        ({"logprob_T": torch.zeros(2, 3)}, "logprob must be floating point on one axis"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    inputs = batch(lengths=[2, 4]) | {"denominator": 1.0} | change
    with pytest.raises(ValueError, match=message):
        grpo_loss(**inputs)
