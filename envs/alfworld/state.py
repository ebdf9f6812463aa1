"""The state of an ALFWorld game: everything that actions change, as one immutable value.

A step makes a new state that shares what it did not touch, so that keeping an old one costs a reference. Things,
receptacles and places are named by their PDDL names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class State(NamedTuple):
    """`inside` maps every receptacle to its things, sorted; it is replaced, never changed. `at` are the recorded
    (thing, place) pairs. `taken` are the pairs (thing, receptacle) of things taken out of it and not put back."""

    place: str
    held: str | None
    inside: Mapping[str, tuple[str, ...]]
    at: frozenset[tuple[str, str]]
    taken: frozenset[tuple[str, str]]
    opened: frozenset[str]
    clean: frozenset[str]
    hot: frozenset[str]
    cool: frozenset[str]
    toggled: frozenset[str]
    sliced: frozenset[str]
