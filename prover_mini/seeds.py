"""Randomness without state: every draw is a pure function of where it happens.

A trajectory's seed is a hash of (run seed, step, place in the step, task, sample), a continuation's one of that seed
and (turn, branch, number); the uniform for its n-th token is a hash of its seed and n. So a group's samples differ,
two runs with one seed agree, the order in which slots are served does not matter, and a resumed run needs no
generator state. A task that comes twice in a step, where an epoch ends, is sampled anew.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive(*where: object) -> int:
    """A 63-bit seed for a place in the run, e.g. `derive(seed, step, task_id, sample, "pre", k)`."""
    text = "\x1f".join(map(str, where)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def uniforms(seeds: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Uniform float64 draws in [0, 1), one per (seed, counter) pair: SplitMix64 of seed + counter * golden ratio.

    Args:
        seeds, counters: integer arrays of one shape.
    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    with np.errstate(over="ignore"):
        z = seeds.astype(np.uint64) + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
