"""The embedded world: real facts about countries and cities, as one-line passages and as questions with exact answers.

A world is a set of tables, relation -> subject -> value ("capital" -> "France" -> "Paris"). Every fact is one passage
and can be one hop of a question:

    1-hop       What is the area of France in square kilometres?
    2-hop       What is the capital of the country in which Lyon lies?
    3-hop       What is the population of the capital of the country with the internet domain .fr?
    4-hop       What is the time zone of the capital of the only country that borders the country in which Porto lies?
    comparison  Which country has the larger population, France or Chad?

A question carries the queries of a perfect searcher and what each of them finds. Values that many subjects share
(continents, the Euro) are never asked for: they could be guessed. Countries are split 60 / 15 / 25 into train, dev and
test, cities follow their country, and a question stays inside one split.

Source: GeoNames, CC BY 4.0 (data/ATTRIBUTION.md); the corpus has the layout of Search-R1 (arXiv:2503.09516).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from prover_mini.errors import UserError
from prover_mini.seeds import derive

FACTS = Path(__file__).parent / "data" / "facts.json"
SHARES = {"train": 0.60, "dev": 0.15, "test": 0.25}
QUESTIONS = {"train": 3000, "dev": 400, "test": 400}  # of a mix whose kinds have that many
FEWEST = 8  # a panel of less says nothing
KINDS = ("1-hop", "2-hop", "3-hop", "4-hop", "comparison")
DEFAULT_MIX = "1-hop:.15,2-hop:.5,3-hop:.35"
MAX_BORDERS = 4  # names in one passage
LARGER = 1.5  # the least ratio of two populations that are compared

PASSAGES = {
    "capital": "The capital of {s} is {o}.",
    "country": "{s} is a city in {o}.",
    "currency": "The currency of {s} is the {o}.",
    "continent": "{s} is a country in {o}.",
    "internet domain": "The internet domain of {s} is {o}.",
    "calling code": "The calling code of {s} is {o}.",
    "population": "The population of {s} is {o}.",
    "area": "The area of {s} is {o} square kilometres.",
    "time zone": "The time zone of {s} is {o}.",
    "borders": "{s} borders {o}.",
}
# What a perfect searcher types, and how a question asks for the value of a relation. {s} may be a description.
QUERIES = {
    "capital": "capital of {s}",
    "country": "{s} is a city",
    "currency": "currency of {s}",
    "internet domain": "internet domain of {s}",
    "calling code": "calling code of {s}",
    "population": "population of {s}",
    "area": "area of {s}",
    "time zone": "time zone of {s}",
    "only border": "{s} borders",
}
ASKED = {
    "country": "In which country is {s}?",
    "capital": "What is the capital of {s}?",
    "currency": "What is the currency of {s}?",
    "internet domain": "What is the internet domain of {s}?",
    "calling code": "What is the calling code of {s}?",
    "population": "What is the population of {s}?",
    "area": "What is the area of {s} in square kilometres?",
    "time zone": "What is the time zone of {s}?",
}
# Descriptions of something one hop away: relation, phrase, query; the last two read the table from value to subject.
DESCRIBED = {
    "country": "the country in which {s} lies",
    "capital": "the capital of {s}",
    "only border": "the only country that borders {s}",
    "internet domain": "the country with the internet domain {s}",
    "calling code": "the country with the calling code {s}",
}
INVERSE_QUERIES = {"internet domain": "internet domain {s}", "calling code": "calling code {s}"}
COMPARED = "Which country has the larger population, {s} or {o}?"
OF_A_COUNTRY = ("capital", "currency", "internet domain", "calling code", "population", "area")
OF_A_CAPITAL = ("population", "time zone")

Hop = tuple[str, str]  # (query, what it finds)


@dataclass(frozen=True)
class Topic:
    """Something a question can be about: the words for it, the country or city it is, and the hops that reach it."""

    phrase: str
    name: str
    hops: tuple[Hop, ...] = ()

    def towards(self, phrase: str, query: str, found: str) -> Topic:
        """The topic one hop further."""
        return Topic(phrase.format(s=self.phrase), found, (*self.hops, (query.format(s=self.name), found)))


@dataclass(frozen=True)
class World:
    """Facts in tables, relation -> subject -> value, all of it text."""

    tables: dict[str, dict[str, str]]

    @cached_property
    def countries(self) -> list[str]:
        return sorted(self.tables["capital"])

    @cached_property
    def cities(self) -> list[str]:
        """Cities that are no capitals: the start of a chain must not be guessed from the country."""
        capitals = set(self.tables["capital"].values())
        return sorted(city for city in self.tables["country"] if city not in capitals)

    @cached_property
    def unique(self) -> dict[str, dict[str, str]]:
        """relation -> value -> subject, for the values that one subject alone has."""
        return {
            relation: {value: subject for subject, value in table.items() if counts[value] == 1}
            for relation, table in self.tables.items()
            for counts in [Counter(table.values())]
        }

    def passages(self) -> list[dict[str, str]]:
        """The corpus: {"id", "contents"}, the title in quotes on the first line, sorted by title."""
        lines = sorted(
            (subject, template.format(s=subject, o=value))
            for relation, template in PASSAGES.items()
            for subject, value in self.tables[relation].items()
        )
        return [{"id": str(i), "contents": f'"{title}"\n{text}'} for i, (title, text) in enumerate(lines)]

    def all_questions(self, countries: set[str]) -> Iterator[dict]:
        """Every question about `countries` and their cities: question, golden_answers, kind, plan."""
        cities = [city for city in self.cities if self.tables["country"][city] in countries]
        capitals = [self.tables["capital"][country] for country in sorted(countries)]
        for place in [*cities, *capitals]:
            yield from self._ask(Topic(place, place), ("population", "time zone"))
        for city in cities:
            yield from self._ask(Topic(city, city), ("country",))
        direct = [Topic(country, country) for country in sorted(countries)]
        reached = [self._country_of(city) for city in cities]
        reached += [t for relation in INVERSE_QUERIES for t in self._named_by(relation, countries)]
        for topic in [*direct, *reached]:
            yield from self._ask(topic, OF_A_COUNTRY)
            yield from self._ask(self._capital_of(topic), OF_A_CAPITAL)
            if topic.name in self.tables["only border"]:
                neighbour = self._neighbour_of(topic)
                yield from self._ask(neighbour, OF_A_COUNTRY)
                if topic.hops:  # else it would take three hops, and change which 3-hop questions are chosen
                    yield from self._ask(self._capital_of(neighbour), OF_A_CAPITAL)
        yield from self._comparisons(sorted(countries))

    def _ask(self, topic: Topic, relations: tuple[str, ...]) -> Iterator[dict]:
        for relation in relations:
            answer = self.tables[relation].get(topic.name)
            shared = relation == "currency" and answer not in self.unique[relation]
            if answer is None or shared or answer in topic.phrase:
                continue
            plan = (*topic.hops, (QUERIES[relation].format(s=topic.name), answer))
            yield {
                "question": ASKED[relation].format(s=topic.phrase),
                "golden_answers": [answer],
                "kind": f"{len(plan)}-hop",
                "plan": list(plan),
            }

    def _country_of(self, city: str) -> Topic:
        return Topic(city, city).towards(DESCRIBED["country"], QUERIES["country"], self.tables["country"][city])

    def _capital_of(self, topic: Topic) -> Topic:
        return topic.towards(DESCRIBED["capital"], QUERIES["capital"], self.tables["capital"][topic.name])

    def _neighbour_of(self, topic: Topic) -> Topic:
        return topic.towards(DESCRIBED["only border"], QUERIES["only border"], self.tables["only border"][topic.name])

    def _named_by(self, relation: str, countries: set[str]) -> Iterator[Topic]:
        """Countries described by a value that is theirs alone."""
        for value, country in sorted(self.unique[relation].items()):
            if country in countries:
                yield Topic(value, value).towards(DESCRIBED[relation], INVERSE_QUERIES[relation], country)

    def _comparisons(self, countries: list[str]) -> Iterator[dict]:
        people = self.tables["population"]
        for first in countries:
            others = sorted((c for c in countries if c != first), key=lambda other: derive("compared", first, other))
            for second in others[:4]:
                sizes = quantity(people[first]), quantity(people[second])
                if max(sizes) < LARGER * min(sizes):
                    continue
                yield {
                    "question": COMPARED.format(s=first, o=second),
                    "golden_answers": [first if sizes[0] > sizes[1] else second],
                    "kind": "comparison",
                    "plan": [(QUERIES["population"].format(s=c), people[c]) for c in (first, second)],
                }


def number(value: int) -> str:
    """Two significant digits in words and figures: 66987244 -> "67 million", 9450 -> "9,400"."""
    digits = len(str(value))
    rounded = round(value, 2 - digits)
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if rounded >= unit:
            return f"{rounded / unit:.3g} {name}"
    return f"{rounded:,}"


def quantity(text: str) -> float:
    """The inverse of `number`."""
    figure, _, unit = text.partition(" ")
    return float(figure.replace(",", "")) * {"": 1, "million": 10**6, "billion": 10**9}[unit]


def listed(names: list[str]) -> str:
    """["A", "B", "C"] -> "A, B and C"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def make_world(tables: dict[str, dict]) -> World:
    """A world of raw tables, as data/facts.json holds them: numbers are integers, borders are lists."""
    texts = {r: {s: number(o) if isinstance(o, int) else o for s, o in t.items()} for r, t in tables.items()}
    texts["borders"] = {c: listed(around[:MAX_BORDERS]) for c, around in tables["borders"].items() if around}
    return World(texts)


@cache
def facts() -> dict[str, dict]:
    return json.loads(FACTS.read_text(encoding="utf-8"))


@cache
def real_world() -> World:
    return make_world(facts())


@cache
def country_split() -> dict[str, str]:
    """country -> "train", "dev" or "test". A country and its only neighbour stay together."""
    together = {country: {country} for country in real_world().countries}
    for country, neighbour in real_world().tables["only border"].items():
        joined = together[country] | together[neighbour]
        together |= dict.fromkeys(joined, joined)
    blocks = sorted({tuple(sorted(block)) for block in together.values()}, key=lambda block: derive("split", *block))
    split, filled, total = {}, Counter(), len(together)
    for block in sorted(blocks, key=len, reverse=True):  # stable: large blocks first, then by hash
        emptiest = min(SHARES, key=lambda name: filled[name] / (SHARES[name] * total))
        split |= dict.fromkeys(block, emptiest)
        filled[emptiest] += len(block)
    return split


def parse_mix(mix: str) -> dict[str, float]:
    """"1-hop:.5,2-hop:.5" -> shares of the kinds, which must sum to 1."""
    try:
        shares = {kind.strip(): float(share) for kind, _, share in (part.partition(":") for part in mix.split(","))}
    except ValueError:
        shares = {}
    if not shares or set(shares) - set(KINDS) or min(shares.values()) < 0 or not abs(sum(shares.values()) - 1) < 1e-6:
        raise UserError(f"--mix {mix!r}: give shares that sum to 1 of {', '.join(KINDS)}, such as {DEFAULT_MIX!r}")
    return shares


def passages() -> list[dict[str, str]]:
    """The corpus of the real world."""
    return real_world().passages()


@cache
def questions(split: str, mix: str = "") -> list[dict]:
    """The questions of a split, sorted by id: {"id", "question", "golden_answers", "kind", "plan"}.

    Of every kind in the mix as many as its share says, chosen and ordered by a hash, so that the same mix always
    gives the same panel: QUESTIONS[split] in all, or fewer in the same shares where a kind has too few. Raises
    UserError where that is less than FEWEST.
    """
    shares = parse_mix(mix or DEFAULT_MIX)
    if split not in SHARES:
        raise UserError(f"split {split!r} of the embedded world: choose one of {', '.join(SHARES)}")
    pools = defaultdict(list)
    for item in real_world().all_questions({c for c, name in country_split().items() if name == split}):
        pools[item["kind"]].append(item)
    counts = counts_of(shares, {kind: len(pools[kind]) for kind in shares}, QUESTIONS[split])
    if sum(counts.values()) < FEWEST:
        have = ", ".join(f"{len(pools[kind])} {kind}" for kind, share in shares.items() if share)
        raise UserError(f"--mix {mix!r}: {split} has too few questions ({have}); lower the share of the scarce kind")
    chosen = []
    for kind, count in counts.items():
        ranked = sorted(pools[kind], key=lambda item: derive("panel", item["question"]))[:count]
        chosen += [{"id": f"{split}-{kind}-{i:04d}", **item} for i, item in enumerate(ranked)]
    return sorted(chosen, key=lambda item: item["id"])


def counts_of(shares: dict[str, float], have: dict[str, int], most: int) -> dict[str, int]:
    """kind -> how many of the `have` questions to take: `most` in all, or else all of the scarcest kind."""
    size = float(most)
    if any(round(share * most) > have[kind] for kind, share in shares.items()):
        size = min(have[kind] / share for kind, share in shares.items() if share)
    return {kind: round(share * size) for kind, share in shares.items()}
