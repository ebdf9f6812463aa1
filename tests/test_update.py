"""The update: its gradient against plain autograd, and independent of how the batch is cut."""

import math

import pytest
import torch

from prover_mini import checkpoint
from prover_mini.credit import METHODS, Credit, batch
from prover_mini.engine import Engine, StaleState
from prover_mini.errors import UserError
from prover_mini.model import load_policy
from prover_mini.parallel import FLOAT32, Replicate
from prover_mini.rollout import Player
from prover_mini.trajectory import OFF_POLICY, Group
from prover_mini.update import Learner, learning_rate, token_advantages
from tests.ranks import on_ranks
from tests.toys import ToySuite, toy_chat, toy_config, toy_model, toy_tokenizer


class Probe(Learner):
    """Keeps the gradient that would be applied, and leaves the weights alone."""

    def _apply(self, gradient, step):
        self.gradient = gradient


def sampled_groups(config, **suite) -> tuple[Engine, list[Group]]:
    engine = Engine(toy_model(), 32, config.max_context_tokens)
    player = Player(engine, toy_chat(), ToySuite(**suite), config)
    tasks = list(enumerate(player.suite.tasks("train")))
    return engine, player.rollouts(tasks, 1, [8] * len(tasks))


def ours(config, groups) -> tuple[torch.Tensor, dict]:
    engine = Engine(toy_model(), 1, 8)
    reference = Replicate(toy_model(seed=9)) if config.kl_coef else None
    learner = Probe(Replicate(engine.model), engine, config, reference)
    metrics = learner.update(groups, METHODS["grpo"].credit(groups, [], [], config), 1)
    return learner.gradient, metrics


def plain(config, groups) -> tuple[torch.Tensor, float]:
    """The same loss trajectory by trajectory, from full logits, by the formulas (ratio 1: one optimizer step)."""
    model, reference = toy_model(), toy_model(seed=9)
    trajectories = batch(groups)
    streams = token_advantages(trajectories, METHODS["grpo"].credit(groups, [], [], config))
    tokens = sum(t.policy_tokens for t in trajectories)
    loss = 0.0
    for t, advantage in zip(trajectories, streams):
        mine = torch.tensor(t.turn_ids[1:]) != OFF_POLICY
        chosen = torch.tensor(t.ids[1:])[:, None]

        def logprobs(m):
            return (
                (m(torch.tensor([t.ids])).logits[0, :-1] / config.temperature)
                .log_softmax(-1)
                .gather(1, chosen)[mine, 0]
            )

        logprob = logprobs(model)
        token_loss = -(logprob - logprob.detach()).exp() * advantage[1:][mine]
        if config.kl_coef:
            with torch.no_grad():
                gap = logprobs(reference)
            gap = gap - logprob
            token_loss = token_loss + config.kl_coef * (gap.exp() - gap - 1)
        share = {
            "token_mean": 1 / tokens,
            "seq_mean_token_mean": 1 / (len(logprob) * len(trajectories)),
            "constant": 1 / (len(trajectories) * config.max_turns * config.max_turn_tokens),
        }[config.aggregation]
        loss = loss + (token_loss * share).sum()
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    return gradient * min(1.0, config.max_grad_norm / (gradient.norm().item() + 1e-6)), loss.item()


def assert_close(a: torch.Tensor, b: torch.Tensor, relative: float = 1e-5) -> None:
    assert b.norm() > 0
    assert (a - b).norm() / b.norm() < relative


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "constant"])
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.7, "kl_coef": 0.1}], ids=["plain", "temperature and KL"])
def test_gradient_is_that_of_plain_autograd(aggregation, fields):
    config = toy_config(aggregation=aggregation, max_grad_norm=1e9, **fields)
    _, groups = sampled_groups(config)
    gradient, metrics = ours(config, groups)
    expected, loss = plain(config, groups)
    assert_close(gradient, expected)
    assert metrics["loss/policy"] == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_micro_batches_do_not_change_the_gradient(size):
    config = toy_config(max_grad_norm=1e9)
    _, groups = sampled_groups(config)
    whole, metrics = ours(config, groups)
    config.micro_batch = size
    cut, same = ours(config, groups)
    assert_close(cut, whole)
    assert {k: pytest.approx(v, abs=1e-6, rel=1e-5) for k, v in metrics.items()} == same


def test_the_gradient_alone_is_the_one_that_is_applied_and_is_linear_in_credit():
    config = toy_config(max_grad_norm=1e9)
    engine, groups = sampled_groups(config)
    learner = Learner(Replicate(engine.model), engine, config)
    before = [p.clone() for p in learner.weights.parameters]
    outcome = METHODS["grpo"].credit(groups, [], [], config)
    zero = torch.zeros_like(outcome.advantage_B)
    bonus = Credit(zero, torch.rand(outcome.credit_BN.shape, generator=torch.Generator().manual_seed(0)))
    both = Credit(outcome.advantage_B, outcome.credit_BN + 3.0 * bonus.credit_BN)
    assert torch.equal(learner.gradient(groups, outcome), ours(config, groups)[0])
    expected = learner.gradient(groups, outcome) + 3.0 * learner.gradient(groups, bonus)
    assert_close(learner.gradient(groups, both), expected)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.weights.parameters))


class Cramped(Probe):
    """Has memory for the passes of `room` trajectories at a time."""

    room = 0

    def _loss(self, rows, denominator):
        loss, stats = super()._loss(rows, denominator)
        if len(rows) > self.room:
            loss.backward()  # what is added up by now has to be forgotten
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return loss, stats


def cramped(config, groups, room: int) -> tuple[torch.Tensor, dict]:
    engine = Engine(toy_model(), 1, 8)
    learner = Cramped(Replicate(engine.model), engine, config)
    learner.room = room
    metrics = learner.update(groups, METHODS["grpo"].credit(groups, [], [], config), 1)
    return learner.gradient, metrics


def test_out_of_memory_repeats_the_step_with_half_the_micro_batch():
    config = toy_config(max_grad_norm=1e9, micro_batch=12)
    _, groups = sampled_groups(config)
    gradient, metrics = cramped(config, groups, room=6)
    config.micro_batch = 6
    expected, same = ours(config, groups)
    assert torch.equal(gradient, expected)
    assert metrics == {**same, "update/out_of_memory": 1.0} and same["update/out_of_memory"] == 0.0


def one_cramped(rank: int, world: int, config, groups, path) -> None:
    found = cramped(config, groups[rank::world], 6 if rank else 100)
    config.micro_batch = 6
    torch.save((found, ours(config, groups[rank::world])), path / f"{rank}.pt")


def test_all_ranks_repeat_when_one_runs_out_of_memory(tmp_path):
    config = toy_config(max_grad_norm=1e9, micro_batch=12)
    on_ranks(2, tmp_path / "meet", one_cramped, config, sampled_groups(config)[1], tmp_path)
    for rank in range(2):
        (gradient, metrics), (expected, same) = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(gradient, expected)
        assert metrics == {**same, "update/out_of_memory": 1.0}


def test_out_of_memory_again_is_one_clear_line(monkeypatch):
    config = toy_config(micro_batch=12)
    _, groups = sampled_groups(config)
    with pytest.raises(UserError, match="6 trajectories at a time: lower --micro-batch"):
        cramped(config, groups, room=5)
    monkeypatch.setattr(Replicate, "sharded", True)  # the others wait inside their passes: nothing can be repeated
    with pytest.raises(UserError, match="12 trajectories at a time .CUDA out of memory.* lower --micro-batch"):
        cramped(config, groups, room=6)


def test_errored_trajectories_do_not_touch_the_gradient():
    config = toy_config(max_grad_norm=1e9)
    _, groups = sampled_groups(config)
    for g in groups:
        g.trajectories[3].error = "lost"
    without = [Group(g.index, g.task, g.healthy) for g in groups]
    assert_close(ours(config, groups)[0], ours(config, without)[0], 1e-12)


def test_the_ratio_is_one_and_the_mismatch_is_rounding():
    config = toy_config(minibatches=2, lr=0.0)
    engine, groups = sampled_groups(config)
    learner = Learner(Replicate(engine.model), engine, config)
    metrics = learner.update(groups, METHODS["grpo"].credit(groups, [], [], config), 1)
    assert metrics["clip_frac"] == 0 and metrics["kl"] == 0
    assert 0 < metrics["mismatch_max"] < 1e-4 and metrics["mismatch_kl"] < 1e-8


def test_a_second_optimizer_step_sees_ratios_against_the_sampling_weights():
    config = toy_config(minibatches=2, lr=0.5, clip_low=0.01, clip_high=0.01, max_grad_norm=1.0)
    engine, groups = sampled_groups(config)
    learner = Learner(Replicate(engine.model), engine, config)
    metrics = learner.update(groups, METHODS["grpo"].credit(groups, [], [], config), 1)
    assert metrics["clip_frac"] > 0.1


def test_importance_weights_scale_the_surrogate():
    """Sampler log-probs lowered by log 2 double every weight; the cap halves the excess away again."""
    config = toy_config(max_grad_norm=1e9)
    _, groups = sampled_groups(config)
    base, _ = ours(config, groups)
    for t in (t for g in groups for t in g.trajectories):
        t.logprobs = [x - math.log(2.0) for x in t.logprobs]
    config.importance_cap = 100.0
    assert_close(ours(config, groups)[0], 2.0 * base, 1e-4)
    config.importance_cap = 1.5
    assert_close(ours(config, groups)[0], 1.5 * base, 1e-4)


def test_weights_change_only_by_finite_steps_and_kill_engine_states():
    config = toy_config()
    engine, groups = sampled_groups(config)
    learner = Learner(Replicate(engine.model), engine, config)
    credit = METHODS["grpo"].credit(groups, [], [], config)
    before = [p.clone() for p in learner.weights.parameters]
    engine.clear([0])
    engine.extend([0], [[1, 2]])
    state = engine.snapshot(0)

    poisoned = METHODS["grpo"].credit(groups, [], [], config)
    poisoned.advantage_B[0] = float("nan")
    assert learner.update(groups, poisoned, 1)["update/applied"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, learner.weights.parameters))
    engine.restore([state], [1])

    assert learner.update(groups, credit, 2)["update/applied"] == 1
    assert not all(torch.equal(a, b) for a, b in zip(before, learner.weights.parameters))
    with pytest.raises(StaleState):
        engine.restore([state], [1])


def test_gradients_are_scaled_down_to_the_norm():
    config = toy_config(max_grad_norm=0.01)
    _, groups = sampled_groups(config)
    gradient, metrics = ours(config, groups)
    assert metrics["grad_norm"] > 0.01 and gradient.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_schedules():
    config = toy_config(lr=1.0, steps=10, warmup_steps=2, lr_schedule="linear")
    assert [learning_rate(config, step) for step in (1, 2, 3, 7, 10)] == pytest.approx([0.5, 1, 1, 0.5, 0.125])
    config.lr_schedule = "cosine"
    assert learning_rate(config, 7) == pytest.approx(0.5)
    config.lr_schedule, config.warmup_steps = "constant", 0
    assert {learning_rate(config, step) for step in range(1, 11)} == {1.0}


def bfloat16_learner(config, model=None) -> Learner:
    weights = Replicate(model or toy_model(), torch.bfloat16)
    return Learner(weights, Engine(weights.model, 1, 8), config)


def test_small_steps_add_up_in_bfloat16():
    """AdamW under a constant gradient moves every weight by lr a step, here far below what bfloat16 can hold."""
    learner = bfloat16_learner(toy_config(lr=1e-5))
    before = torch.cat([p.detach().flatten().double() for p in learner.weights.parameters])
    for step in range(1, 201):
        learner._apply(torch.ones(len(before)), step)
    after = torch.cat([p.detach().flatten().double() for p in learner.weights.parameters])
    assert (before - after).mean().item() == pytest.approx(200 * 1e-5, rel=0.05)
    kept = {name: p.dtype == torch.float32 for name, p in learner.weights.model.named_parameters()}
    assert any(kept.values()) and all(exact == name.endswith(FLOAT32) for name, exact in kept.items())


def test_micro_batches_add_up_in_float32():
    """300 equal gradients, of which bfloat16 would lose those after the first 256."""
    weights = bfloat16_learner(toy_config()).weights
    for _ in range(300):
        sum(p.sum() for p in weights.parameters).backward()
    gradient = weights.gradient()
    assert gradient.dtype == torch.float32 and gradient.eq(300).all()
    assert weights.gradient().eq(0).all()


def test_a_bfloat16_checkpoint_goes_on_bit_for_bit(tmp_path):
    config = toy_config(lr=1e-5)
    learner = bfloat16_learner(config)
    gradients = [
        torch.randn(sum(p.numel() for p in learner.weights.parameters), generator=torch.Generator().manual_seed(s))
        for s in range(4)
    ]
    for step, gradient in enumerate(gradients[:2], 1):
        learner._apply(gradient, step)
    checkpoint.save(tmp_path, 2, learner, toy_tokenizer(), 1)
    found = checkpoint.latest(tmp_path)
    resumed = bfloat16_learner(config, load_policy(str(found[0] / "model"), "float32", torch.device("cpu"))[0])
    checkpoint.restore_optimizer(*found, resumed)
    for step, gradient in enumerate(gradients[2:], 3):
        learner._apply(gradient, step)
        resumed._apply(gradient, step)
    assert all(torch.equal(a, b) for a, b in zip(learner.weights.masters, resumed.weights.masters))
    assert all(torch.equal(a, b) for a, b in zip(learner.weights.parameters, resumed.weights.parameters))
