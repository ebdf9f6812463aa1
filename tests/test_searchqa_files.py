"""SearchQA's files: questions and passages, good and bad."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import sys
from types import SimpleNamespace

import pytest

from envs import load_suite
from envs.base import Task
from envs.searchqa import corpus, corpus_retriever
from envs.searchqa.questions import Question, load_questions
from prover_mini.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "prover-mini"


def write(path, *rows):
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


# --- questions


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
    passages = str(tmp_path / "corpus.jsonl")
    config = SimpleNamespace(data=str(tmp_path), corpus=passages, retriever_url="", topk=3, mix="")
    suite = load_suite("searchqa", config)
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
        ([GOOD, '{"answer": ' + "1" * 5000 + "}"], "line 2: .*digits"),
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
    damaged = bytearray(gzip.compress(b'{"question": "who?", "answer": "me"}\n' + os.urandom(50).hex().encode()))
    damaged[12:40] = b"\xff" * 28
    cut.write_bytes(damaged)
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


# --- passages


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
    changed = path.stat().st_mtime_ns
    write(path, *rows, {"id": "3", "contents": "A cité apart"})
    os.utime(path, ns=(changed, changed))  # the size alone gives it away
    assert len(corpus_retriever(path).search("cité", 3)) == 2
    write(path, *rows, {"id": "3", "contents": "A city well apart"})
    os.utime(path, ns=(changed + 1, changed + 1))  # and so does the time
    assert len(corpus_retriever(path).search("cité", 3)) == 1


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
    path = write(tmp_path / "c.jsonl", {"contents": "lonely passage"})
    build = corpus._build

    def build_twice(*arguments):
        monkeypatch.setattr(corpus, "_build", build)
        corpus_retriever(path)  # the other process
        build(*arguments)

    monkeypatch.setattr(corpus, "_build", build_twice)
    assert corpus_retriever(path).search("lonely", 1) == ["lonely passage"]
    assert len(list(cache.iterdir())) == 1
