"""Derived seeds: against the published SplitMix64 sequence, and as draws."""

import numpy as np

from prover_mini.seeds import derive, uniforms

# First outputs of SplitMix64 from state 1234567, as its reference program prints them.
SPLITMIX64 = [
    6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
]  # fmt: skip


def test_uniforms_are_splitmix64():
    draws = uniforms(np.full(5, 1234567), np.arange(5))
    assert draws.tolist() == [(value >> 11) * 2.0**-53 for value in SPLITMIX64]


def test_places_have_seeds_of_their_own():
    places = [
        (seed, step, f"t{task}", k) for seed in range(4) for step in range(10) for task in range(10) for k in range(8)
    ]
    assert len({derive(*place) for place in places}) == len(places)
    assert derive(1, 23) != derive(12, 3)  # fields must not run together
    assert all(0 <= derive(*place) < 2**63 for place in places)


def test_draws_of_neighbouring_seeds_and_counters_are_uniform_and_uncorrelated():
    seeds, counters = np.meshgrid(np.arange(300), np.arange(300), indexing="ij")
    draws = uniforms(seeds.ravel(), counters.ravel()).reshape(300, 300)
    assert 0 <= draws.min() and draws.max() < 1
    counts = np.histogram(draws, bins=50, range=(0, 1))[0]
    chi2 = ((counts - 1800) ** 2 / 1800).sum()
    assert chi2 < 49 + 5 * (2 * 49) ** 0.5
    for shifted in (draws[1:], draws[:, 1:]):
        kept = draws[: shifted.shape[0], : shifted.shape[1]]
        assert abs(np.corrcoef(kept.ravel(), shifted.ravel())[0, 1]) < 5 / kept.size**0.5
