"""SearchQA: the game, its scores, its question and passage files."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import string
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import load_suite
from envs.base import Task
from envs.searchqa import corpus_retriever
from envs.searchqa.env import SearchQAEnv, parse_action, readable
from envs.searchqa.questions import Question, load_questions
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


def write(path, *rows):
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


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
    data = write(tmp_path / "q.jsonl", {"question": "q", "answer": "a"})
    with pytest.raises(UserError, match="--corpus or --retriever-url"):
        load_suite("searchqa", config(data=str(data)))


# --- question files


def test_layouts(tmp_path):
    rows = [
        {"id": "b", "question": "q1", "golden_answers": ["x", "y"], "split": "test", "kind": "bridge"},
        {"id": 7, "question": " q2 ", "answer": "x", "split": "validation", "type": "comparison"},
        {"question": "q3", "answers": [1912], "split": "train"},
    ]
    expected = [
        Task("b", "test", "bridge", Question("q1", ("x", "y"))),
        Task("7", "dev", "comparison", Question("q2", ("x",))),
        Task("", "train", "qa", Question("q3", ("1912",))),
    ]
    lines = write(tmp_path / "a.jsonl", *rows, "", "  ")
    listed = tmp_path / "a.json"
    listed.write_text("\ufeff " + json.dumps(rows, indent=1), encoding="utf-8")
    zipped = tmp_path / "a.jsonl.gz"
    zipped.write_bytes(gzip.compress(lines.read_bytes()))
    for path in (lines, listed, zipped):
        tasks = load_questions(path)
        assert [task.id for task in tasks] == ["b", "7", "a-0000003"]
        assert [(t.split, t.kind, t.data) for t in tasks] == [(t.split, t.kind, t.data) for t in expected]


def test_split_by_hash_is_stable_and_keeps_repeats_together(tmp_path):
    rows = [{"question": f"q{i % 500}", "answer": "a"} for i in range(1000)]
    first = load_questions(write(tmp_path / "a.jsonl", *rows))
    again = load_questions(write(tmp_path / "b.jsonl", *reversed(rows)))
    side = {task.data.question: task.split for task in first}
    assert all(task.split == side[task.data.question] for task in first + again)
    assert 0.12 < sum(task.split == "test" for task in first) / len(first) < 0.28


def test_directory_of_splits(tmp_path):
    for name in ("train", "dev", "test"):
        rows = ({"id": str(i), "question": f"{name} {i}", "golden_answers": ["a"]} for i in range(3))
        write(tmp_path / f"{name}.jsonl", *rows)
    write(tmp_path / "notes.txt", "not read")
    write(tmp_path / "corpus.jsonl", {"id": "1", "contents": "a passage to find"})
    suite = load_suite("searchqa", config(data=str(tmp_path), corpus=str(tmp_path / "corpus.jsonl")))
    assert [task.id for task in suite.tasks("test")] == ["test-0", "test-1", "test-2"]
    assert [task.data.question for task in suite.tasks("train")] == ["train 0", "train 1", "train 2"]
    assert len({task.id for task in suite.all_tasks}) == 9


GOOD = {"question": "q", "answer": "a"}


@pytest.mark.parametrize(
    "rows, message",
    [
        ([GOOD, '{"question": "q", '], "line 2: not JSON"),
        ([GOOD, "", "[1]"], "line 3: an object"),
        ([GOOD, {"answer": "a"}], "line 2: 'question'"),
        ([GOOD, {"question": "  ", "answer": "a"}], "line 2: 'question'"),
        ([GOOD, {"question": ["q"], "answer": "a"}], "line 2: 'question'"),
        ([GOOD, {"question": "q"}], "line 2: no answer"),
        ([GOOD, {"question": "q", "answer": []}], "line 2: 'answer'"),
        ([GOOD, {"question": "q", "golden_answers": [None]}], "line 2: 'golden_answers'"),
        ([GOOD, GOOD | {"split": "exam"}], "line 2: split 'exam'"),
        ([GOOD | {"id": "x"}, GOOD | {"id": "x"}], "line 2: id x is that of line 1"),
        ([GOOD, "[" * 100_000], "line 2: nested"),
        (["[", json.dumps(GOOD) + ",", "{]"], "line 3: not JSON"),
        (["[1]"], "line 1: an object"),
        ([], "holds no question"),
        (["[]"], "holds no question"),
    ],
)
def test_bad_question_files(tmp_path, rows, message):
    path = write(tmp_path / "q.jsonl", *rows)
    with pytest.raises(UserError, match=message) as caught:
        load_questions(path)
    assert "q.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_unreadable_question_files(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        load_questions(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="no train, dev or test"):
        load_questions(tmp_path)
    binary = tmp_path / "q.jsonl"
    binary.write_bytes(json.dumps(GOOD).encode() + b"\n\xff\xfe\n")
    with pytest.raises(UserError, match="line 2: not UTF-8"):
        load_questions(binary)
    cut = tmp_path / "q.jsonl.gz"
    cut.write_bytes(gzip.compress(os.urandom(2000))[:-500])
    with pytest.raises(UserError, match="q.jsonl.gz"):
        load_questions(cut)


def test_parquet_without_pyarrow_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "q.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="pip install pyarrow"):
        load_questions(tmp_path / "q.parquet")


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is optional")
def test_parquet(tmp_path):
    import pyarrow
    from pyarrow import parquet

    rows = [{"id": "1", "question": "q", "golden_answers": ["a", "b"], "split": "test"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "q.parquet")
    assert load_questions(tmp_path / "q.parquet") == [Task("1", "test", "qa", Question("q", ("a", "b")))]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(UserError, match="bad.parquet"):
        load_questions(tmp_path / "bad.parquet")


# --- passage files


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "prover-mini"


def test_corpus_is_indexed_once_and_again_when_it_changes(tmp_path, cache):
    rows = [
        {"id": "1", "contents": '"Lyon"\nA cité in France.'},
        {"id": "2", "title": "Mali", "text": "Running in Africa"},
    ]
    path = write(tmp_path / "c.jsonl", *rows)
    assert corpus_retriever(path).search("runs mali", 3) == ['"Mali"\nRunning in Africa']  # stemmed
    (built,) = cache.iterdir()
    before = built.stat().st_mtime_ns
    assert corpus_retriever(path).search("the cité", 3) == [rows[0]["contents"]]
    assert [entry.stat().st_mtime_ns for entry in cache.iterdir()] == [before]
    write(path, *rows, {"id": "3", "contents": "A cité apart"})
    assert len(corpus_retriever(path).search("cité", 3)) == 2


def test_zipped_corpus(tmp_path):
    path = tmp_path / "c.jsonl.gz"
    lines = [json.dumps({"contents": f"passage w{i}"}) + "\n" for i in range(3000)]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    retriever = corpus_retriever(path)
    assert len(retriever.passages) == 3000
    assert all(retriever.search(f"w{i}", 2) == [f"passage w{i}"] for i in range(0, 3000, 250))


@pytest.mark.parametrize(
    "rows, message",
    [
        ([], "holds no passage"),
        ([{"contents": " .. "}], "holds no passage"),
        ([{"contents": "a"}, {"id": "2"}], "line 2: no passage"),
        ([{"contents": "a"}, {"contents": 3}], "line 2: no passage"),
        ([{"contents": "good"}, "{"], "line 2: not JSON"),
    ],
)
def test_bad_corpus_leaves_nothing_behind(tmp_path, cache, rows, message):
    path = write(tmp_path / "c.jsonl", *rows)
    with pytest.raises(UserError, match=message):
        corpus_retriever(path)
    assert list(cache.iterdir()) == []


def test_missing_corpus_and_unusable_cache(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no such file"):
        corpus_retriever(tmp_path / "none.jsonl")
    path = write(tmp_path / "c.jsonl", {"contents": "a passage"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    with pytest.raises(UserError, match="set XDG_CACHE_HOME"):
        corpus_retriever(path)


def test_another_process_was_first(tmp_path, cache, monkeypatch):
    from envs.searchqa import corpus

    path = write(tmp_path / "c.jsonl", {"contents": "lonely passage"})
    build = corpus._build

    def build_twice(*arguments):
        monkeypatch.setattr(corpus, "_build", build)
        corpus_retriever(path)  # the other process
        build(*arguments)

    monkeypatch.setattr(corpus, "_build", build_twice)
    assert corpus_retriever(path).search("lonely", 1) == ["lonely passage"]
    assert len(list(cache.iterdir())) == 1
