"""Credit against arithmetic by hand, brute force and recorded rules."""

import math
import random

import pytest
import torch

from envs.base import Task
from prover_mini.credit import (
    METHODS, batch, eligible, group_advantage, rloo_advantage, segment_error, shrunk_delta, valid_segments,
)  # fmt: skip
from prover_mini.judge import Failure, RandomJudge
from prover_mini.trajectory import OFF_POLICY, Group, Segment, Trajectory, Verdict
from prover_mini.update import token_advantages
from tests.toys import toy_config

TASK = Task("t", "train", "toy", None)


def trajectory(reward: float, actions: list[str], results: list[str] | None = None, invalid=(), sample=0) -> Trajectory:
    """Two prompt tokens, then per turn two sampled tokens and one observed."""
    t = Trajectory(TASK, sample, seed=sample)
    t.observe([1, 2])
    observations = ["start", *(results or [f"saw {a}" for a in actions])]
    for n, action in enumerate(actions):
        t.open_turn(observations[n], env_state=None)
        t.act(5, -0.5)
        t.act(6, -0.5)
        t.close_turn(action, n not in invalid)
        t.observe([7])
    t.reward = reward
    return t


def group(rewards: list[float], turns: int = 3) -> Group:
    return Group(0, TASK, [trajectory(r, list("abcdef"[:turns]), sample=i) for i, r in enumerate(rewards)])


def test_group_advantage_of_a_success():
    assert group_advantage([1, 0, 0, 0, 0, 0, 0, 0])[0] == 0.875
    assert group_advantage([1, 1, 1, 0, 0, 0, 0, 0])[0] == 0.625
    assert group_advantage([1, 0], divide_by_std=True) == pytest.approx(
        [0.5 / (math.sqrt(0.5) + 1e-6)] * 1 + [-0.5 / (math.sqrt(0.5) + 1e-6)]
    )
    assert group_advantage([1.0] * 8, divide_by_std=True) == [0.0] * 8


def test_rloo_is_the_reward_minus_the_mean_of_the_others():
    rewards = [1.0, 0.0, 0.5, 0.25]
    expected = [r - sum(rewards[:i] + rewards[i + 1 :]) / 3 for i, r in enumerate(rewards)]
    assert rloo_advantage(rewards) == pytest.approx(expected)


@pytest.mark.parametrize(
    "successes, limit, expected",
    [(0, 3, False), (1, 3, True), (3, 3, True), (4, 3, False), (4, 4, True), (8, 8, False)],
)
def test_eligible_groups_are_mixed_with_few_successes(successes, limit, expected):
    assert eligible(group([1.0] * successes + [0.0] * (8 - successes)), limit) is expected


def test_errored_trajectories_enter_nothing():
    g = group([1.0, 0.0, 1.0, 0.0])
    g.trajectories[2].error = "server lost"
    assert [t.reward for t in batch([g])] == [1.0, 0.0, 0.0]
    credit = METHODS["grpo"].credit([g], [], [], toy_config())
    assert credit.advantage_B.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    g.trajectories[0].error = g.trajectories[1].error = "server lost"
    assert batch([g]) == []  # one healthy trajectory has no baseline
    assert not eligible(g, 3)


def test_reference_is_the_shortest_success_and_the_first_of_equals():
    g = Group(
        0,
        TASK,
        [trajectory(1, list("abcd")), trajectory(0, ["a"]), trajectory(1, list("ab")), trajectory(1, list("cd"))],
    )
    assert g.reference is g.trajectories[2]


def test_segment_errors():
    six = trajectory(1, list("abcdef"), invalid={2})
    cases = {
        (0, 1): "", (3, 4): "", (0, 4): "length", (4, 5): "terminal", (3, 2): "bounds", (-1, 1): "bounds",
        (4, 6): "bounds", (1, 3): "invalid action", (2, 2): "invalid action",
    }  # fmt: skip
    assert {case: segment_error(six, *case, max_turns=4) for case in cases} == cases


def test_prover_adds_lambda_delta_to_the_policy_tokens_of_the_segment_alone():
    g = group([0, 1, 0, 0], turns=4)
    verdict = Verdict(Segment(g.reference, 1, 2), [0, 0, 0, 1], [1, 1, 1, 0])
    config = toy_config(credit_weight=2.0)
    streams = token_advantages(batch([g]), METHODS["prover"].credit([g], [verdict.segment], [verdict], config))
    for t, stream in zip(g.trajectories, streams):
        for turn, value in zip(t.turn_ids, stream.tolist()):
            base = 0.75 if t is g.reference else -0.25
            bonus = 2.0 * 0.5 if t is g.reference and turn in (1, 2) else 0.0
            assert value == (0.0 if turn == OFF_POLICY else base + bonus)


def test_rejected_segments_change_nothing():
    g = group([0, 1, 0, 0])
    rejected = [Verdict(Segment(g.reference, 0, 0), pre, post) for pre, post in (([1, 0], [0, 1]), ([1, 1], [0, 1]))]
    plain = METHODS["grpo"].credit([g], [], [], toy_config())
    credited = METHODS["prover"].credit([g], [], rejected, toy_config())
    assert torch.equal(plain.credit_BN, credited.credit_BN) and torch.equal(plain.advantage_B, credited.advantage_B)


def test_shrinkage_removes_small_deltas_and_leaves_large_ones():
    g = group([0, 1, 0, 0])

    def verdict(pre: int, post: int, n: int = 8) -> Verdict:
        return Verdict(Segment(g.reference, 0, 0), [1.0] * pre + [0.0] * (n - pre), [1.0] * post + [0.0] * (n - post))

    def variance(pre: int, post: int, n: int = 8) -> float:
        """Of the difference of two proportions, by exact enumeration, each with a success and a failure added."""
        total = 0.0
        for s in (pre, post):
            p = (s + 1) / (n + 2)
            draws = [(math.comb(n + 2, j) * p**j * (1 - p) ** (n + 2 - j), j / (n + 2)) for j in range(n + 3)]
            mean = sum(w * x for w, x in draws)
            total += sum(w * (x - mean) ** 2 for w, x in draws)
        return total

    for pre, post in ((0, 8), (1, 7), (2, 6), (0, 3)):
        delta = (post - pre) / 8
        assert shrunk_delta(verdict(pre, post), 1.0) == pytest.approx(delta - variance(pre, post) / delta)
        assert shrunk_delta(verdict(pre, post), 0.5) == pytest.approx(delta - variance(pre, post) / delta / 2)
        assert shrunk_delta(verdict(pre, post), 0.0) == delta
    assert [shrunk_delta(verdict(pre, post), 1.0) for pre, post in ((3, 4), (4, 5), (4, 4))] == [0.0] * 3
    assert shrunk_delta(verdict(0, 2, 2), 1.0) < shrunk_delta(verdict(0, 8), 1.0) < 1.0
    config = toy_config(shrinkage=1.0, credit_weight=2.0)
    credit = METHODS["prover"].credit([g], [], [verdict(2, 6)], config)
    assert credit.credit_BN[1].tolist() == pytest.approx([2 * (0.5 - variance(2, 6) / 0.5), 0.0, 0.0])


def test_judge_reward_believes_the_judge():
    g = group([0, 1, 0, 0])
    credit = METHODS["judge_reward"].credit([g], [Segment(g.reference, 0, 1)], [], toy_config(judge_bonus=0.25))
    assert credit.credit_BN[1].tolist() == [0.25, 0.25, 0.0]


def test_invalid_actions_cost_what_the_penalty_says():
    g = Group(0, TASK, [trajectory(1, list("ab"), invalid={1}), trajectory(0, list("abc"))])
    credit = METHODS["grpo"].credit([g], [], [], toy_config(invalid_penalty=0.125))
    assert credit.credit_BN.tolist() == [[0, -0.125, 0], [0, 0, 0]]


def test_random_judge_is_uniform_over_valid_segments():
    g = Group(0, TASK, [trajectory(1, list("abcdef"), invalid={2}), trajectory(0, ["a"])])
    allowed = valid_segments(g.reference, 4)
    assert allowed == [(0, 0), (0, 1), (1, 1), (3, 3), (3, 4), (4, 4)]
    judge = RandomJudge(toy_config())
    answers = [judge.propose([g], step)[0] for step in range(1200)]
    counts = [sum((a.first_turn, a.last_turn) == segment for a in answers) for segment in allowed]
    assert sum(counts) == 1200 and all(abs(c - 200) < 5 * math.sqrt(1200 * (1 / 6) * (5 / 6)) for c in counts)


def test_whatever_a_judge_says_is_checked_and_counted():
    class Careless(RandomJudge):
        def propose_one(self, group, step):
            return [Segment(group.reference, 0, 99), Segment(group.reference, 2, 2), Failure("timeout"), None][step]

    judge = Careless(toy_config())
    g = group([1, 0])
    answers = [judge.propose([g], step)[0] for step in range(4)]
    assert answers == [Failure("bounds"), Failure("terminal"), Failure("timeout"), None]
    usage = judge.take_usage()
    assert usage.calls == 4 and usage.failures == {"bounds": 1, "terminal": 1, "timeout": 1}
    assert judge.take_usage().calls == 0


def test_random_groups_keep_the_invariants_of_credit():
    """Over random groups: advantages of a group sum to 0, bonuses are at most lambda and only where accepted."""
    generator = random.Random(0)
    for _ in range(50):
        groups = [group([float(generator.random() < 0.4) for _ in range(8)], generator.randint(1, 5)) for _ in range(3)]
        verdicts = []
        for g in groups:
            allowed = valid_segments(g.reference, 4) if g.mixed else []
            if allowed:
                pre, post = ([float(generator.random() < 0.5) for _ in range(8)] for _ in range(2))
                verdicts.append(Verdict(Segment(g.reference, *generator.choice(allowed)), pre, post))
        credit = METHODS["prover"].credit(groups, [], verdicts, toy_config())
        assert credit.advantage_B.view(3, 8).sum(1).abs().max() < 1e-12
        assert credit.credit_BN.min() >= 0 and credit.credit_BN.max() <= 1
        assert (credit.credit_BN > 0).any(1).sum() == sum(v.accepted for v in verdicts)
