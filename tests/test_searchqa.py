"""SearchQA: scores, actions, the game, suites."""

from __future__ import annotations

import string
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import load_suite
from envs.base import Task
from envs.searchqa.env import SearchQAEnv, parse_action, readable
from envs.searchqa.questions import Question
from envs.searchqa.scoring import exact_match, extract_answer, f1, normalize, sub_exact_match
from prover_mini.errors import UserError

PASSAGES = ['"Lyon"\nLyon is a city in France.', '"France"\nIts capital is Paris.', "Mali lies\nin Africa."]
TASK = Task("t1", "test", "2-hop", Question("What is the capital?", ("Paris", "the City of Light")))


class FixedRetriever:
    """Finds the passages that hold the query."""

    def search(self, query, k):
        return [passage for passage in PASSAGES if query.lower() in passage.lower()][:k]


@pytest.fixture
def env():
    env = SearchQAEnv(FixedRetriever(), topk=3)
    env.reset(TASK)
    return env


def config(**changes):
    return SimpleNamespace(**({"data": "", "corpus": "", "retriever_url": "", "topk": 3, "mix": ""} | changes))


# --- scores


@pytest.mark.parametrize(
    "text, normal",
    [
        ("The  U.S.A.", "usa"),
        ("a-ha", "aha"),
        ("The The", ""),
        ("1.5", "15"),
        ("An apple\ta\nday", "apple day"),
        ("theme", "theme"),
        ("Æ’s", "æ’s"),
    ],
)
def test_normalize(text, normal):
    assert normalize(text) == normal


@given(st.text())
def test_normal_form_is_stable_but_for_uncovered_articles(text):
    normal = normalize(text)
    assert not set(normal) & set(string.punctuation)
    assert exact_match(text, text) and sub_exact_match(text, text) and f1(text, text) == 1
    assert exact_match(f"The {text}!", text)


def test_matches():
    assert exact_match("the paris.", ["Rome", "Paris"]) and exact_match("Paris", "paris")
    assert not exact_match("in Paris", ["Paris"]) and sub_exact_match("in Paris", ["Paris"])
    assert not exact_match("Paris", [])


def test_f1_by_hand():
    assert f1("the old town of Paris", ["Paris"]) == pytest.approx(2 * (1 / 4) * 1 / (1 / 4 + 1))
    assert f1("a b b", "b b c") == pytest.approx(2 * 1 * (2 / 3) / (1 + 2 / 3))  # "a" is an article
    assert f1("x", ["y", "x"]) == 1 and f1("x", "y") == 0 and f1("x", []) == 0


def test_extract_answer_takes_the_last_block():
    text = "<answer> a </answer> and <answer>b\n</answer> <answer>c"
    assert extract_answer(text) == extract_answer(text, minimum_blocks=2) == "b"
    assert extract_answer("<answer>a</answer>", minimum_blocks=2) is None
    assert extract_answer("none") is None and extract_answer("none", minimum_blocks=0) is None


# --- actions


@pytest.mark.parametrize(
    "turn, kind, text",
    [
        ("<search>q</search>", "search", "q"),
        ("I think so. <Answer> A\nb </ANSWER> done", "answer", "A\nb"),
        ("<think>use <search> or <answer>x</answer></think><search>q</search>", "search", "q"),
        ("perhaps <search>p</search>?</think>\n<answer>a</answer>", "answer", "a"),
        ("<think>a <think>b</think><search>c</search>", "search", "c"),
        ("<answer>a</answer><think>was that <search>right</search>", "answer", "a"),
        ("</search><search>q</search></answer>", "search", "q"),
        ("<search>q</search><information>r</information>", "search", "q"),
        ("<search>a < b > c</search>", "search", "a < b > c"),
    ],
)
def test_one_action_is_read(turn, kind, text):
    action = parse_action(turn)
    assert (action.kind, action.text) == (kind, text)


@pytest.mark.parametrize(
    "turn, reason",
    [
        ("", "there is no"),
        ("plain words", "there is no"),
        ("< search>q</search>", "there is no"),
        ("<think><search>q</search>", "there is no"),
        ("<sea<think></think>rch>q</search>", "there is no"),
        ("<search>q</search><answer>a</answer>", "more than one"),
        ("<answer>a</answer> <answer>a</answer>", "more than one"),
        ("<search>a<answer>b</search>", "more than one"),
        ("<search>q", "not closed"),
        ("</search><search>q", "not closed"),
        ("<search>q</answer>", "not closed"),
        ("<search> \n</search>", "<search> is empty"),
        ("<answer></answer>", "<answer> is empty"),
    ],
)
def test_anything_else_is_explained(env, turn, reason):
    step = env.step(turn)
    assert reason in step.observation and step.observation.startswith("Invalid action")
    assert not step.valid and not step.done and step.reward == step.score == 0


TAGS = "<search> </search> <answer> </answer> <think> </think> <SEARCH>".split()
PIECES = st.sampled_from([*TAGS, "Paris", "<", " ", "\n"])
SOUP = st.lists(PIECES | st.text() | st.text(st.characters(categories=["Cs", "Cc", "Cf"])), max_size=12).map("".join)


@given(SOUP)
@settings(max_examples=300, deadline=None)
def test_any_text_is_answered(turn):
    env = SearchQAEnv(FixedRetriever(), topk=3)
    env.reset(TASK)
    step = env.step(turn)
    assert step.valid == (parse_action(turn).kind != "invalid")
    assert step.done <= step.valid and step.reward in (0, 1) and 0 <= step.reward <= step.score <= 1


@given(st.binary())
def test_byte_soup_is_answered(data):
    env = SearchQAEnv(FixedRetriever(), topk=3)
    env.reset(TASK)
    env.step(data.decode("utf-8", "replace"))
    env.step(data.decode("latin-1"))
    env.step(data.decode("utf-8", "surrogateescape"))


def test_long_hostile_text_is_answered():
    for text in ("<think>" * 20_000, "</think>" * 20_000, "<search>" * 20_000, "<" * 100_000):
        assert parse_action(text).kind == "invalid"


# --- the game


def test_episode(env):
    assert env.reset(TASK) == "Question: What is the capital?"
    found = env.step("<search>France</search>")
    lines = ["<information>", "1. Lyon is a city in France.", "2. France: Its capital is Paris.", "</information>"]
    assert found.observation.split("\n") == lines
    assert found.valid and not found.done and found.reward == 0
    assert env.step("<search>Chad</search>").observation == "<information>\nNothing found.\n</information>"
    last = env.step("<answer>the Paris</answer>")
    assert last.done and last.valid and last.reward == last.score == 1
    after = env.step("<answer>Paris</answer>")
    assert after.done and not after.valid and after.reward == 0


def test_wrong_answer_keeps_its_f1(env):
    last = env.step("<answer>Paris, France</answer>")
    assert last.done and last.valid and last.reward == 0
    assert last.score == pytest.approx(2 / 3)


def test_topk_limits_the_passages():
    env = SearchQAEnv(FixedRetriever(), topk=1)
    env.reset(TASK)
    assert "2. " not in env.step("<search>France</search>").observation


def test_readable_passages():
    assert readable("no title at all") == "no title at all"
    assert readable('"Title"\nSome  text\nmore') == "Title: Some text more"
    assert readable('"Lyon"\nIn lyon.') == "In lyon."


TURNS = st.sampled_from(["<search>France</search>", "x", "<answer>Paris</answer>", "<answer>no</answer>"])


@given(st.lists(TURNS, max_size=6), st.integers(0, 6))
def test_restored_state_goes_on_identically(turns, cut):
    first, other = SearchQAEnv(FixedRetriever(), 3), SearchQAEnv(FixedRetriever(), 3)
    first.reset(TASK)
    for turn in turns[:cut]:
        first.step(turn)
    state = first.snapshot()
    steps = [first.step(turn) for turn in turns[cut:]]
    for env in (other, first):
        env.restore(state)
        assert env.snapshot() == state
        assert [env.step(turn) for turn in turns[cut:]] == steps


# --- suites


def test_unknown_environment():
    with pytest.raises(UserError, match="'chess'.*searchqa"):
        load_suite("chess", config())


def test_embedded_suite():
    suite = load_suite("searchqa", config())
    assert suite.name == "searchqa" and suite.max_turns == 30 and suite.workers == 1
    for split in ("train", "dev", "test"):
        tasks = suite.tasks(split)
        assert [task.id for task in tasks] == sorted({task.id for task in tasks})
        assert {task.split for task in tasks} == {split}
    assert len(suite.tasks("test")) >= 300
    env = suite.make_env()
    env.reset(suite.tasks("test")[0])
    assert "1. The capital of France is Paris." in env.step("<search>capital of France</search>").observation
    with pytest.raises(UserError, match="'hold-out'"):
        suite.tasks("hold-out")


def test_data_needs_passages(tmp_path):
    data = tmp_path / "q.jsonl"
    data.write_text('{"question": "q", "answer": "a"}')
    with pytest.raises(UserError, match="--corpus or --retriever-url"):
        load_suite("searchqa", config(data=str(data)))
