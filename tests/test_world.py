"""The embedded world: facts known from elsewhere, unique answers, splits that share no entity, and a perfect searcher
that answers everything through the environment's own retriever."""

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from functools import cache

import pytest

from envs.searchqa import SearchQA, embedded_retriever, embedded_tasks, world
from prover_mini.errors import UserError

# sha256 of questions(split, mix) as JSON, from before there were 4-hop questions
PANELS = {
    ("train", ""): "e3938f0e40970091",
    ("dev", ""): "939b679f1b378c8c",
    ("test", ""): "1f3cbdaa1180ee31",
    ("train", "1-hop:.2,2-hop:.5,3-hop:.3"): "f98846c1646f9d96",
    ("test", "1-hop:1"): "8c7aa1525db0a029",
    ("train", "2-hop:1"): "eca28dedc68832ce",
    ("test", "2-hop:1"): "279fdc15ec3508c0",
    ("test", "3-hop:1"): "b890afab73ed496a",
    ("test", "2-hop:.8,comparison:.2"): "402ad924fc80d94c",
    ("train", "1-hop:.1,2-hop:.3,3-hop:.5,comparison:.1"): "4992212ad9860537",
}


@cache
def everything(split: str) -> list[dict]:
    countries = {country for country, name in world.country_split().items() if name == split}
    return list(world.real_world().all_questions(countries))


def entities(questions: list[dict]) -> set[str]:
    """Countries and cities that questions or their plans speak of: the longest of nested names, not of time zones."""
    names = {*world.real_world().countries, *world.real_world().tables["country"]}
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(names, key=len, reverse=True)))
    texts = {q["question"] for q in questions} | {value for q in questions for _, value in q["plan"]}
    return {name for text in texts if "/" not in text for name in pattern.findall(text)}


@pytest.mark.parametrize(
    "question, answer",
    [
        ("What is the capital of France?", "Paris"),
        ("In which country is Yokohama?", "Japan"),
        ("What is the calling code of the country in which Naples lies?", "+39"),
        ("What is the time zone of the capital of the country with the internet domain .pl?", "Europe/Warsaw"),
        ("What is the currency of the country in which Durban lies?", "Rand"),
        ("What is the capital of the only country that borders Portugal?", "Madrid"),
        (
            "What is the time zone of the capital of the only country that borders the country in which Porto lies?",
            "Europe/Madrid",
        ),
    ],
)
def test_facts_known_from_elsewhere(question, answer):
    found = {q["question"]: q["golden_answers"] for q in world.real_world().all_questions(set(world.country_split()))}
    assert found[question] == [answer]


def test_size_of_the_world():
    facts = world.real_world().tables
    assert len(facts["capital"]) >= 180 and len(facts["country"]) == 1000
    assert len(world.passages()) >= 4000
    assert all(len(p["contents"]) < 200 and p["contents"].startswith('"') for p in world.passages())
    assert [p["id"] for p in world.passages()] == [str(i) for i in range(len(world.passages()))]
    assert world.FACTS.stat().st_size < 200_000


def test_names_are_plain_and_mean_one_thing():
    facts = world.real_world().tables
    classes = [set(facts["capital"]), set(facts["country"]), set(facts["currency"].values())]
    names = Counter(name.lower() for group in classes for name in group)
    assert not [name for name, count in names.items() if count > 1]
    assert all(name.isascii() and not any(c.isdigit() for c in name) for name in names)


@pytest.mark.parametrize("split", list(world.SHARES))
def test_questions_are_distinct_and_end_at_their_gold_answer(split):
    questions = everything(split)
    assert len({q["question"] for q in questions}) == len(questions)
    for q in questions:
        if q["kind"] == "comparison":
            names, people = q["question"].split(", ")[1].rstrip("?").split(" or "), [v for _, v in q["plan"]]
            larger = names[int(world.quantity(people[1]) > world.quantity(people[0]))]
            assert q["golden_answers"] == [larger]
        else:
            assert q["golden_answers"] == [q["plan"][-1][1]] and q["kind"] == f"{len(q['plan'])}-hop"
            assert q["golden_answers"][0] not in q["question"].replace("?", " ").split()


@pytest.mark.parametrize("split", list(world.SHARES))
def test_every_ideal_query_finds_its_passage_among_the_best_three(split):
    for query, found in {hop for q in everything(split) for hop in q["plan"]}:
        assert any(found in passage for passage in embedded_retriever().search(query, 3)), query


@pytest.mark.parametrize("split, mix", [("test", ""), *((split, "4-hop:1") for split in world.SHARES)])
def test_a_perfect_searcher_answers_the_panel_in_the_environment(split, mix):
    suite = SearchQA(embedded_tasks(mix), embedded_retriever())
    plans = {q["id"]: q["plan"] for q in world.questions(split, mix)}
    for task in suite.tasks(split):
        env = suite.make_env()
        env.reset(task)
        for query, found in plans[task.id]:
            assert found in env.step(f"<search>{query}</search>").observation
        assert env.step(f"<answer>{found}</answer>").reward == 1


@pytest.mark.parametrize("split, count", [("train", 64), ("dev", 22), ("test", 26)])
def test_four_hops_lead_to_the_capital_of_the_only_neighbour(split, count):
    raw = world.facts()
    deepest = [q for q in everything(split) if q["kind"] == "4-hop"]
    assert len(deepest) == count
    for q in deepest:
        described, neighbour, capital, answer = (found for _, found in q["plan"])
        assert raw["borders"][described] == [neighbour] and raw["capital"][neighbour] == capital
        assert answer in (raw["time zone"][capital], world.number(raw["population"][capital]))
        assert not re.search(rf"\b({described}|{neighbour}|{capital}|{re.escape(answer)})\b", q["question"])


def test_splits_share_no_country_and_no_city():
    names = {split: entities(everything(split)) for split in world.SHARES}
    for one, other in itertools.combinations(names, 2):
        assert names[one] & names[other] == set()
        assert len(names[one]) > 100
    countries = Counter(world.country_split().values())
    for split, share in world.SHARES.items():
        assert math.isclose(countries[split], share * len(world.country_split()), abs_tol=2)


def test_default_panels_have_the_promised_sizes_and_shares():
    for split, size in {"train": 3000, "dev": 400, "test": 400}.items():
        questions = world.questions(split)
        kinds = Counter(q["kind"] for q in questions)
        assert len(questions) == size and len({q["id"] for q in questions}) == size
        assert kinds == {"1-hop": 0.15 * size, "2-hop": 0.5 * size, "3-hop": 0.35 * size}
        assert questions == sorted(questions, key=lambda q: q["id"])
    assert json.loads(json.dumps(world.questions("test")[0]))["question"]


@pytest.mark.parametrize("split, mix", PANELS)
def test_panels_are_those_on_record(split, mix):
    text = json.dumps(world.questions(split, mix))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == PANELS[split, mix]


@pytest.mark.parametrize("split", list(world.SHARES))
@pytest.mark.parametrize("mix", ["4-hop:1", "comparison:1", "2-hop:.5,4-hop:.5", "1-hop:.8,4-hop:.2,2-hop:0"])
def test_a_scarce_kind_makes_the_panel_smaller_and_keeps_the_shares(split, mix):
    have, chosen = (Counter(q["kind"] for q in qs) for qs in (everything(split), world.questions(split, mix)))
    shares = {kind: share for kind, share in world.parse_mix(mix).items() if share}
    scarcest = min(shares, key=lambda kind: have[kind] / shares[kind])
    assert chosen[scarcest] == have[scarcest] and chosen.total() < world.QUESTIONS[split]
    assert set(chosen) == set(shares)
    assert all(abs(chosen[kind] - share * chosen.total()) <= 0.5 for kind, share in shares.items())


def test_a_panel_is_whole_where_every_kind_has_what_its_share_rounds_to():
    shares = {"1-hop": 0.9365, "4-hop": 0.0635}  # 374.6 and 25.4 of 400
    assert world.counts_of(shares, {"1-hop": 375, "4-hop": 25}, 400) == {"1-hop": 375, "4-hop": 25}
    assert world.counts_of(shares, {"1-hop": 375, "4-hop": 24}, 400) == {"1-hop": 354, "4-hop": 24}
    assert world.counts_of(shares, {"1-hop": 374, "4-hop": 99}, 400) == {"1-hop": 374, "4-hop": 25}


@pytest.mark.parametrize("have", [{"1-hop": 500, "4-hop": 0}, {"1-hop": 500, "4-hop": 3}])
def test_a_panel_of_almost_nothing_is_refused(have, monkeypatch):
    items = [{"question": f"{kind} {i}?", "kind": kind} for kind, count in have.items() for i in range(count)]
    monkeypatch.setattr(world.World, "all_questions", lambda *_: items)
    with pytest.raises(UserError, match=f"500 1-hop, {have['4-hop']} 4-hop"):
        world.questions.__wrapped__("test", "1-hop:.5,4-hop:.5")


def test_a_mix_chooses_kinds_and_a_wrong_one_is_refused():
    assert {q["kind"] for q in world.questions("test", "2-hop:.8,comparison:.2")} == {"2-hop", "comparison"}
    for mix in ("2-hop", "5-hop:1", "2-hop:.5,3-hop:.4", "2-hop:x", "2-hop:nan", "2-hop:2,3-hop:-1"):
        with pytest.raises(UserError, match="mix"):
            world.questions("test", mix)
    with pytest.raises(UserError, match="split"):
        world.questions("validation")


@pytest.mark.parametrize(
    "value, text",
    [
        (66987244, "67 million"),
        (9450, "9,400"),
        (1411778724, "1.4 billion"),
        (21, "21"),
        (999_600, "1 million"),
        (0, "0"),
    ],
)
def test_numbers_are_rounded_to_two_digits(value, text):
    assert world.number(value) == text
    assert math.isclose(world.quantity(text), value, rel_tol=0.051, abs_tol=0.5)
