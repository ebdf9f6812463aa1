"""The divergence judge: which step of a success its failures missed."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.judge_rules import Alone, Milestone, Novelty
from prover_mini.judge import DivergenceJudge
from prover_mini.judge.scripted import kind, names, said
from prover_mini.trajectory import Group
from tests.test_credit import TASK, trajectory
from tests.toys import toy_config

START = "You see a fridge 1, a microwave 1, and a table 1. Your task: put a hot egg on table."
IN_THE_FRIDGE = "In the fridge 1, you see an egg 1."


def play(reward: float, *steps: tuple[str, str], invalid=()):
    """A run of (action, what it brought)."""
    return trajectory(reward, [f"<action>{a}</action>" for a, _ in steps], [o for _, o in steps], invalid)


def proposed(reference, *failures, judge=DivergenceJudge, **options) -> tuple[int, int] | None:
    reference.turns[0].observation = START
    for failure in failures:
        failure.turns[0].observation = START
    (answer,) = judge(toy_config(**options)).propose([Group(0, TASK, [*failures, reference])], 1)
    assert answer is None or answer.trajectory is reference
    return answer and (answer.first_turn, answer.last_turn)


LOOK = ("go to fridge 1", IN_THE_FRIDGE)
TAKE = ("take egg 1 from fridge 1", "You pick up the egg 1.")
GO = ("go to microwave 1", "The microwave 1 is closed.")
HEAT = ("heat egg 1 with microwave 1", "You heat the egg 1.")
TABLE = ("go to table 1", "On the table 1, you see nothing.")
PUT = ("move egg 1 to table 1", "You move the egg 1.")


def success(**changes):
    return play(1, LOOK, TAKE, GO, HEAT, TABLE, PUT, **changes)


def test_the_step_that_the_failures_left_out_and_the_turn_that_led_there():
    failures = [play(0, LOOK, TAKE, TABLE, PUT) for _ in range(3)]
    assert proposed(success(), *failures) == (2, 3)


def test_what_was_not_found_could_not_be_taken():
    lost = [play(0, GO, TABLE, ("look", START)) for _ in range(3)]
    assert proposed(success(), *lost) is None
    careless = play(0, LOOK, TAKE, TABLE, PUT)
    assert proposed(success(), *lost, careless) is None  # one of four missed it
    assert proposed(success(), *lost[:1], careless) == (2, 3)  # one of two


def test_another_instance_is_the_same_kind_of_step():
    other = [play(0, ("take cup 2 from table 1", "the egg 1"), ("heat cup 2 with microwave 1", ""), TABLE, PUT)]
    assert proposed(success(), *other) is None


def test_an_action_that_failed_was_not_taken_and_one_of_the_reference_is_no_step():
    tried = [play(0, LOOK, HEAT, TABLE, PUT, invalid={1}) for _ in range(2)]
    assert proposed(success(), *tried) == (2, 3)
    did = [play(0, LOOK, TAKE, GO, TABLE, PUT) for _ in range(2)]
    assert proposed(success(invalid={3}), *did) is None
    assert proposed(success(invalid={2}), *did) == (3, 3)  # what led there is not creditable


def test_of_a_last_turn_only_what_led_there_is_credited():
    wandering = [play(0, LOOK, TAKE, GO, HEAT, TABLE, LOOK) for _ in range(2)]
    assert proposed(success(), *wandering) == (4, 4)


def test_the_last_of_equally_missed_steps():
    reference = play(1, LOOK, ("open fridge 1", ""), TAKE, ("clean egg 1 with fridge 1", ""), PUT)
    assert proposed(reference, *[play(0, LOOK, TAKE, PUT) for _ in range(2)]) == (2, 3)
    assert proposed(reference, *[play(0, LOOK, TAKE, PUT) for _ in range(2)], max_segment_turns=1) == (3, 3)


def test_prose_and_thoughts_around_an_action_do_not_count():
    plain = kind("<action>heat egg 1 with microwave 1</action>")
    assert kind("<think>Try <action>open x</action></think> I say: <Action>heat cup 2 with stove 1</ACTION>") == plain
    assert kind("<think>Try 1</think> Well 2: <action>heat cup 2 with stove 1</action> there") == plain
    assert plain == ("action", "heat", "#", "with", "#")
    assert kind("click[B0DIEBOMWO]") == ("click", "#") != kind("click[tall]") == ("click", "tall")
    assert kind("<search>capital of Sao Tome</search>") == ("search", "capital", "of", "#")
    assert kind("") == () and names('"Vatican City" borders .va, and the mug 12!') == {"vatican", "city", "mug 12"}


def test_the_judges_that_are_measured_beside_it():
    failures = [play(0, LOOK, TAKE, TABLE, PUT) for _ in range(3)]
    proposals = {judge: proposed(success(), *failures, judge=judge) for judge in (Alone, Novelty, Milestone)}
    assert proposals == {Alone: (3, 3), Novelty: (2, 2), Milestone: (2, 3)}
    unlucky = [*failures, play(0, GO, TABLE), play(0, GO, HEAT, TABLE)]
    assert proposed(success(), *unlucky, judge=Novelty) == (3, 3)  # what heating says is news to more of them
    assert proposed(success(), play(0, *[LOOK, TAKE, GO, HEAT, TABLE, PUT, LOOK]), judge=Novelty) is None
    assert proposed(success(invalid={2}), *failures, judge=Milestone) == (3, 3)
    assert proposed(play(1, LOOK, TAKE, TABLE, PUT), *failures, judge=Milestone) is None


def last_pair(text: str) -> str:
    """What stands between the last opening of the tag that is closed last and its next closing, by trying all places."""
    places = range(len(text))
    closed = [(n, tag) for n in places for tag in "ab" if text[n:].lower().startswith(f"</{tag}>")]
    if not closed:
        return text
    end, tag = closed[-1]
    starts = [n for n in places if n < end and text[n:].lower().startswith(f"<{tag}>")]
    if not starts:
        return text
    return f"{tag} {text[starts[-1] + 3 : min(n for n, t in closed if t == tag and n > starts[-1])]}"


@given(st.lists(st.sampled_from(["<a>", "</a>", "<A>", "</b>", "<b>", "</A>", "<", "/b>", "x", "\n"])).map("".join))
def test_the_last_tag_that_is_closed_says_what_was_done(text):
    assert said(text) == last_pair(text)


WORDS = ["go", "take", "mug 1", "mug 2", "Rome", "B7", "red"]
actions = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)
results = st.lists(st.sampled_from(WORDS), max_size=4).map(", ".join)
runs = st.lists(st.tuples(actions, results, st.booleans()), min_size=2, max_size=5)


@given(runs, st.lists(runs, min_size=1, max_size=3))
def test_no_other_step_was_missed_more(reference, failures):
    def built(reward, run):
        invalid = {n for n, (_, _, valid) in enumerate(run) if not valid}
        return trajectory(reward, [a for a, _, _ in run], [o for _, o, _ in run], invalid)

    def pattern(action):
        return re.sub(r"((mug \d|Rome|B7) ?)+", "# ", action).strip()

    def missed(action, failure):
        text = "start, " + ", ".join(o for _, o, _ in failure[:-1])  # what the last action brought was not shown
        there = all(name in text for name in re.findall(r"mug \d|Rome|B7", action))
        return there and pattern(action) not in [pattern(a) for a, _, valid in failure if valid]

    shares = [sum(missed(a, f) for f in failures) / len(failures) if valid else -1 for a, _, valid in reference]
    allowed = [valid and n < len(reference) - 1 for n, (_, _, valid) in enumerate(reference)]
    steps = [n for n in range(len(shares)) if shares[n] >= 0.5 and (allowed[n] or (n and allowed[n - 1]))]
    group = Group(0, TASK, [built(1, reference), *[built(0, f) for f in failures]])
    (answer,) = DivergenceJudge(toy_config()).propose([group], 1)
    if not steps:
        assert answer is None
        return
    n = max(steps, key=lambda n: (shares[n], n))
    turns = [m for m in (n - 1, n) if m >= 0 and allowed[m]]
    assert (answer.first_turn, answer.last_turn) == (turns[0], turns[-1])
