"""Ranking and analysis: against brute force in float64, and against what Lucene itself answered."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.analysis import english, plain
from envs.bm25 import BM25, byte_length

RECORDED = json.loads(gzip.decompress((Path(__file__).parent / "data" / "lucene.json.gz").read_bytes()))


def brute_force(documents, query, k1, b, stored_length):
    """The formula, document by document, in float64."""
    filled = sum(1 for d in documents if d)
    mean = sum(map(len, documents)) / filled
    scores = {}
    for i, document in enumerate(documents):
        bag = Counter(document)
        score = 0.0
        for term, repeats in Counter(query).items():
            if bag[term]:
                n = sum(term in d for d in documents)
                idf = math.log(1 + (filled - n + 0.5) / (n + 0.5))
                norm = k1 * (1 - b + b * stored_length(len(document)) / mean)
                score += repeats * idf * bag[term] / (bag[term] + norm)
        if score:
            scores[i] = score
    return scores


def byte_length_by_table(length):
    """The largest length that Lucene's byte can say: 24 and a 4-bit float."""
    steps = [*range(16), *((8 + m) << s for s in range(1, 29) for m in range(8))]
    return max(v for v in [*range(24), *(24 + step for step in steps)] if v <= length)


@pytest.fixture(scope="module")
def recorded_index():
    documents = RECORDED["documents"]
    return list(documents), BM25.build(map(english, documents.values()), keys=list(documents))


def test_byte_length_is_the_largest_representable():
    lengths = np.array([*range(600), 1023, 1024, 65535, 10**6, 2**31 - 1], np.int32)
    assert byte_length(lengths).tolist() == [byte_length_by_table(int(n)) for n in lengths]


@pytest.mark.parametrize("byte_lengths", [True, False])
@pytest.mark.parametrize("k1, b", [(0.9, 0.4), (1.2, 0.75), (2.0, 0.0), (0.5, 1.0)])
def test_agrees_with_brute_force(k1, b, byte_lengths):
    rng = random.Random(f"{k1} {b}")
    words = [f"w{i}" for i in range(40)]
    weights = [1 / (i + 1) for i in range(40)]
    documents = [rng.choices(words, weights, k=rng.choice([0, 1, 5, 30, 90])) for _ in range(80)]
    index = BM25.build(documents, k1, b, byte_lengths)
    for _ in range(30):
        query = rng.choices([*words, "unknown"], k=rng.randint(1, 6))
        expected = brute_force(documents, query, k1, b, byte_length_by_table if byte_lengths else int)
        everything = index.search(query, len(documents))
        assert {i for i, _ in everything} == set(expected)
        assert all(score == pytest.approx(expected[i], rel=1e-5) for i, score in everything)
        assert [s for _, s in everything] == sorted((s for _, s in everything), reverse=True)
        for k in (1, 3, 10):
            assert index.search(query, k) == everything[:k]


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=3), max_size=12), st.randoms())
@settings(max_examples=60, deadline=None)
def test_ties_go_to_the_smaller_key(documents, rng):
    keys = [f"{i:02d}" for i in range(len(documents))]
    rng.shuffle(keys)
    hits = BM25.build(documents, keys=keys).search(["a", "b"], len(documents) + 1)
    order = [(-score, keys[i]) for i, score in hits]
    assert order == sorted(order)
    by_place = BM25.build(documents).search(["a", "b"], len(documents) + 1)
    assert sorted(by_place) == sorted(hits)
    assert [(-score, i) for i, score in by_place] == sorted((-score, i) for i, score in by_place)


def test_repeats_in_the_query_count_and_unknown_terms_do_not():
    index = BM25.build([["a"], ["b"], ["a", "b", "b"]])
    once, twice = dict(index.search(["a"], 3)), dict(index.search(["a", "a", "zzz"], 3))
    assert twice == pytest.approx({i: 2 * s for i, s in once.items()})
    assert index.search([], 3) == index.search(["zzz"], 3) == []


def test_no_documents_and_empty_documents():
    assert BM25.build([]).search(["a"], 3) == []
    assert BM25.build([[], []]).search(["a"], 3) == []
    assert [i for i, _ in BM25.build([[], ["a"], []]).search(["a"], 3)] == [1]


def test_saved_index_answers_the_same_from_mapped_files(tmp_path, recorded_index):
    _, index = recorded_index
    index.save(tmp_path)
    loaded = BM25.load(tmp_path)
    assert isinstance(loaded.arrays["documents"], np.memmap)
    for record in RECORDED["queries"]:
        assert loaded.search(english(record["query"]), 50) == index.search(english(record["query"]), 50)
    assert not any(b"\x80\x04" in file.read_bytes()[:2] for file in tmp_path.iterdir())  # no pickle


@pytest.mark.parametrize("record", RECORDED["queries"], ids=lambda record: record["query"][:30])
def test_ranks_like_lucene(record, recorded_index):
    keys, index = recorded_index
    hits = index.search(english(record["query"]), 50)
    assert [keys[i] for i, _ in hits] == [key for key, _ in record["hits"]]
    assert [score for _, score in hits] == pytest.approx([score for _, score in record["hits"]], abs=1e-4)


@pytest.mark.parametrize("record", RECORDED["analysis"], ids=lambda record: record["text"][:20])
def test_analyses_like_lucene(record):
    assert english(record["text"]) == record["tokens"]


def test_the_common_case_of_the_word_pattern_changes_nothing():
    text = "one two,three-four\nfive_six sev7en a.b c'd e:f 8'g h's i"
    words = text.replace("-", " ").replace(",", " ").split()
    assert english(text) == [term for word in words for term in english(word)]


def test_plain_analyser():
    assert plain("What is São Tomé's .st, code-name?") == ["what", "is", "são", "tomé", "s", "st", "code", "name"]


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_analysers_take_any_text(text):
    assert all(isinstance(term, str) and term for term in english(text) + plain(text))
