"""Worlds with the real names and no real fact: what the embedded policy learns to search in.

Every relation is dealt anew among its subjects, and no subject keeps a value that is true of it. A policy that has
seen only such worlds knows every name and the way to an answer, but no answer: in the real world it has to search.
"""

from __future__ import annotations

import random

from envs.searchqa.world import MAX_BORDERS, World, facts, listed, real_world

DEALT = ("capital", "currency", "continent", "internet domain", "calling code", "population", "area", "time zone")


def counterfactual(seed: int) -> World:
    """A world of the real names in which no passage is true; the same seed makes the same world."""
    rng = random.Random(seed)
    truth = real_world().tables
    tables = {relation: dealt(truth[relation], rng) for relation in DEALT}
    seats = {capital: country for country, capital in tables["capital"].items()}
    tables["country"] = dealt({c: o for c, o in truth["country"].items() if c not in seats}, rng) | seats
    new_name = renamed_borders(rng)
    tables["borders"] = {
        new_name[country]: listed([new_name[name] for name in around[:MAX_BORDERS]])
        for country, around in facts()["borders"].items()
        if around
    }
    tables["only border"] = {new_name[c]: new_name[n] for c, n in truth["only border"].items()}
    return World(tables)


def dealt(table: dict[str, str], rng: random.Random) -> dict[str, str]:
    """The values of a table in an order that leaves none in its place, nor an equal one."""
    subjects, values = list(table), list(table.values())
    rng.shuffle(values)
    for i, subject in enumerate(subjects):
        while values[i] == table[subject]:
            j = rng.randrange(len(subjects))
            if values[j] != table[subject] and values[i] != table[subjects[j]]:
                values[i], values[j] = values[j], values[i]
    return dict(zip(subjects, values))


def true_borders() -> set[tuple[str, str]]:
    return {(country, name) for country, names in facts()["borders"].items() for name in names}


def renamed_borders(rng: random.Random) -> dict[str, str]:
    """A permutation of the countries under which no border is a true one: the map keeps its shape."""
    borders = true_borders()
    countries = real_world().countries
    names = countries.copy()
    rng.shuffle(names)
    new_name = dict(zip(countries, names))
    while kept := [a for a, b in sorted(borders) if (new_name[a], new_name[b]) in borders]:
        a, other = rng.choice(kept), rng.choice(countries)
        new_name[a], new_name[other] = new_name[other], new_name[a]
    return new_name
