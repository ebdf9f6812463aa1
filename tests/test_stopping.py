"""Rounds of continuations: certain decisions against enumeration, doubtful ones against Monte Carlo, the game."""

import itertools
import math
import random

import pytest

from prover_mini.stopping import null_rate, predicted, rounds, settled
from prover_mini.trajectory import Segment, Verdict
from prover_mini.verify import verify
from tests.test_credit import group
from tests.test_rollout import play, player
from tests.toys import ToySuite, toy_config

REFERENCE = group([1, 0]).reference
CERTAIN = 1e-12  # no doubt is this small here: a segment stops only when nothing can change its sign


def coins(successes: int, n: int) -> list[float]:
    return [1.0] * successes + [0.0] * (n - successes)


def test_rounds_double_up_to_k():
    assert rounds(toy_config(continuations=8)) == [8]
    expected = {1: [1], 2: [2], 3: [2, 3], 8: [2, 4, 8], 9: [2, 4, 8, 9], 16: [2, 4, 8, 16]}
    assert {k: rounds(toy_config(continuations=k, sequential=0.2)) for k in expected} == expected


def test_what_is_certain_is_settled_and_nothing_else_without_tolerance():
    for n, remaining in ((2, 1), (4, 4), (3, 2)):
        for s, t in itertools.product(range(n + 1), repeat=2):
            signs = {t + j > s + i for i, j in itertools.product(range(remaining + 1), repeat=2)}
            assert settled(coins(s, n), coins(t, n), remaining, 0.0) == (len(signs) == 1)


@pytest.mark.parametrize("pre, post, remaining", [((0, 2), (1, 2), 6), ((1, 4), (3, 4), 4), ((2, 3), (1, 4), 2)])
def test_doubt_is_the_posterior_chance_that_the_sign_will_change(pre, post, remaining):
    """Against draws of both success rates from their posteriors, and of the continuations to come from these."""
    generator, changed = random.Random(0), 0
    (s, n), (t, m) = pre, post
    for _ in range(40000):
        p, q = generator.betavariate(1 + s, 1 + n - s), generator.betavariate(1 + t, 1 + m - t)
        end_s = s + sum(generator.random() < p for _ in range(remaining))
        end_t = t + sum(generator.random() < q for _ in range(remaining))
        changed += end_t / (m + remaining) > end_s / (n + remaining)
    doubt = min(changed, 40000 - changed) / 40000
    assert not settled(coins(s, n), coins(t, m), remaining, doubt - 0.015)
    assert settled(coins(s, n), coins(t, m), remaining, doubt + 0.015)


def test_predictions_are_a_distribution():
    for n, s, remaining in ((0, 0, 3), (4, 1, 4), (8, 8, 1)):
        assert sum(predicted(coins(s, n), remaining)) == math.comb(n + remaining + 1, remaining)


def test_null_rate_is_the_chance_of_a_lucky_segment():
    """Against an enumeration of every outcome of both sides."""
    verdict = Verdict(Segment(REFERENCE, 0, 0), [1, 0, 0], [1, 1, 0, 0])
    p = 3 / 7
    expected = 0.0
    for outcome in itertools.product([0, 1], repeat=7):
        weight = math.prod(p if x else 1 - p for x in outcome)
        expected += weight * (sum(outcome[3:]) / 4 > sum(outcome[:3]) / 3)
    assert null_rate(verdict, toy_config()) == pytest.approx(expected, abs=1e-12)
    half = Verdict(verdict.segment, [1, 0] * 4, [1, 0] * 4)
    assert null_rate(half, toy_config()) == pytest.approx((1 - math.comb(16, 8) / 2**16) / 2)


def test_null_rate_of_rounds_is_that_of_the_whole_procedure():
    """Against playing it: two fair coins, stopped by the same rule."""
    config, generator, accepted = toy_config(sequential=0.2), random.Random(0), 0
    for _ in range(20000):
        pre, post = [], []
        for total in rounds(config):
            while len(pre) < total:
                pre.append(float(generator.random() < 0.5))
                post.append(float(generator.random() < 0.5))
            if settled(pre, post, 8 - total, 0.2):
                break
        accepted += sum(post) / len(post) > sum(pre) / len(pre)
    half = Verdict(Segment(REFERENCE, 0, 0), [1.0, 0.0], [0.0, 1.0])
    assert null_rate(half, config) == pytest.approx(accepted / 20000, abs=0.015)
    assert null_rate(half, config) > null_rate(Verdict(half.segment, coins(4, 8), coins(4, 8)), toy_config())


def segments_of(p) -> list[Segment]:
    return [Segment(t, n, n) for g in play(p, copies=8, keep_states=True) for t in g.successes for n in (0, 1)]


def test_rounds_sample_the_first_of_the_continuations_and_certain_decisions_stay():
    p = player(suite=ToySuite(turns=3, needed=2, tasks=18), slots=64)
    segments = segments_of(p)
    whole, certain, doubtful = (
        verify(p, segments, toy_config(continuations=5, sequential=tolerance)) for tolerance in (0.0, CERTAIN, 0.2)
    )
    assert len(whole.verdicts) == len(segments) > 20
    for part, saved in ((certain, 0.0), (doubtful, 0.2)):
        assert part.sampled < (1 - saved) * whole.sampled
        for full, early in zip(whole.verdicts, part.verdicts, strict=True):
            assert len(early.pre) == len(early.post) in (2, 4, 5)
            assert early.pre == full.pre[: len(early.pre)] and early.post == full.post[: len(early.post)]
    assert [v.accepted for v in certain.verdicts] == [v.accepted for v in whole.verdicts]


def test_a_shared_boundary_is_continued_once():
    p = player(suite=ToySuite(turns=4, needed=2), slots=64)
    reference = next(g.reference for g in play(p, copies=8, keep_states=True) if g.reference)
    chain = [Segment(reference, 0, 0), Segment(reference, 1, 1), Segment(reference, 1, 2)]
    apart, shared = (verify(p, chain, toy_config(share_boundaries=share)) for share in (False, True))
    assert apart.verdicts[1].pre == apart.verdicts[2].pre and apart.sampled > shared.sampled
    first, second, third = shared.verdicts
    assert first.post == second.pre == third.pre
    assert [len(v.pre) for v in shared.verdicts] == [8] * 3
