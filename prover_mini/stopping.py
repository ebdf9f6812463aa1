"""How many continuations decide on a segment, and how often chance alone would have accepted it.

K from each side at once by default. With `sequential` they come in rounds, to 2, 4, 8, ... and K in total, and end when
the sign that K would show is settled: by Laplace's rule of succession (a uniform prior on each side's success rate),

    P(j of the m to come succeed | s of n did) = C(s+j, j) C(n-s+m-j, m-j) / C(n+m+1, m)

gives the chance that all K would accept the segment; it is settled when this or its complement is at most `sequential`.
Stopping on a clear early result makes the delta of those that stopped larger than it is; `shrinkage` counters that.

Source: stochastic curtailment, Lan, Simon, Halperin, "Stochastically curtailed tests in long-term clinical trials",
1982; with a predictive distribution, Spiegelhalter, Freedman, Blackburn, "Monitoring clinical trials", 1986.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from prover_mini.config import Config
from prover_mini.trajectory import Verdict


def rounds(config: Config) -> list[int]:
    """Continuations per side after each round; the last is K."""
    totals = [config.continuations]
    if config.sequential:
        doubling = [2**i for i in range(1, config.continuations.bit_length())]
        totals = [n for n in doubling if n < config.continuations] + totals
    return totals


def settled(pre: list[float], post: list[float], remaining: int, tolerance: float) -> bool:
    """Whether `remaining` more continuations a side would change the sign with a chance of at most `tolerance`."""
    before, after = predicted(pre, remaining), predicted(post, remaining)
    n_pre, n_post = len(pre) + remaining, len(post) + remaining
    accepting = sum(
        before[i] * after[j]
        for i in range(remaining + 1)
        for j in range(remaining + 1)
        if (sum(post) + j) * n_pre > (sum(pre) + i) * n_post
    )
    everything = sum(before) * sum(after)
    return min(accepting, everything - accepting) <= tolerance * everything


def predicted(rewards: list[float], remaining: int) -> list[int]:
    """Relative weights of 0..remaining further successes; whole numbers, so that certainty is exact."""
    n, s = len(rewards), sum(reward > 0 for reward in rewards)
    return [math.comb(s + j, j) * math.comb(n - s + remaining - j, remaining - j) for j in range(remaining + 1)]


def null_rate(verdict: Verdict, config: Config) -> float:
    """P(accepted) if the segment had no effect: both sides binomial with the pooled success rate.

    The rate is estimated from the same continuations, so the result is low where success is near 0 or 1 (K = 8: .26
    on average for a true .32 at p = .1, and unbiased to .01 from p = .3 on).
    """
    k_pre, k_post = len(verdict.pre), len(verdict.post)
    p = (sum(verdict.pre) + sum(verdict.post)) / (k_pre + k_post)
    sizes = [(n, n) for n in rounds(config)] if config.sequential else [(k_pre, k_post)]
    rate, going, had = 0.0, Counter({(0, 0): 1.0}), (0, 0)
    for size in sizes:
        new_pre, new_post = (binomial(now - then, p) for now, then in zip(size, had))
        reached: Counter[tuple[int, int]] = Counter()
        for (i, j), weight in going.items():
            for di, w_pre in enumerate(new_pre):
                for dj, w_post in enumerate(new_post):
                    reached[i + di, j + dj] += weight * w_pre * w_post
        going, had = Counter(), size
        for (i, j), weight in reached.items():
            pre, post = ([1.0] * s + [0.0] * (n - s) for s, n in zip((i, j), size))
            if size == sizes[-1] or settled(pre, post, config.continuations - size[0], config.sequential):
                rate += weight * replace(verdict, pre=pre, post=post).accepted
            else:
                going[i, j] = weight
    return rate


def binomial(n: int, p: float) -> list[float]:
    return [math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(n + 1)]
