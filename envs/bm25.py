"""BM25 ranking with Lucene's arithmetic, over an inverted index in flat arrays.

    score(q, d) = sum over distinct terms t of q:  c(t, q) * idf(t) * tf / (tf + norm(d))
    idf(t)      = ln(1 + (N - n(t) + .5) / (n(t) + .5))          N documents with a term, n(t) of them with t
    norm(d)     = k1 * (1 - b + b * length(d) / mean length)     no (k1 + 1) factor above

Lucene stores a length in one byte, exact up to 40 and then with 4 significant bits; `byte_lengths` does the same
(the mean stays exact). Each term's part is a float32, their sum a float64 that is rounded to float32 at the end: the
order of near-ties depends on it. Ties go to the smaller key.

The index is compressed sparse rows: the postings of term t are `documents[start[t]:start[t + 1]]`, with `counts`.
A query costs time in proportion to the postings of its terms. Saved, an index is a directory of `.npy` arrays, which
are memory-mapped on load, a list of terms and a JSON file of parameters.

Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; Apache Lucene 9,
BM25Similarity and SmallFloat.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

ARRAYS = ("start", "documents", "counts", "lengths", "tie_rank")
MAX_COUNT = np.iinfo(np.uint16).max
EXACT_LENGTHS = 24  # lengths below this keep their value; what is above it keeps 4 significant bits


class BM25:
    """An immutable index. Searching is thread-safe."""

    def __init__(self, terms: list[str], arrays: dict[str, np.ndarray], k1: float, b: float, byte_lengths: bool):
        self.terms = terms
        self.arrays = arrays
        self.parameters = {"k1": k1, "b": b, "byte_lengths": byte_lengths}
        self._ids = {term: i for i, term in enumerate(terms)}
        self._start, self._documents, self._counts, lengths, self._tie_rank = (arrays[name] for name in ARRAYS)
        self._filled = int(np.count_nonzero(lengths))
        self._inverse_norm = _inverse_norms(lengths, self._filled, k1, b, byte_lengths)

    def __len__(self) -> int:
        return len(self._tie_rank)

    @classmethod
    def build(
        cls,
        documents: Iterable[list[str]],
        k1: float = 0.9,
        b: float = 0.4,
        byte_lengths: bool = True,
        keys: Sequence[str] | None = None,
    ) -> BM25:
        """Indexes documents given as lists of terms; a generator is consumed once.

        Args:
            keys: one per document, to order ties by; without them ties go to the earlier document.
        """
        ids: dict[str, int] = {}
        lengths, sizes, terms, counts = array("i"), array("i"), array("i"), array("H")
        for document in documents:
            bag = Counter(document)
            lengths.append(len(document))
            sizes.append(len(bag))
            terms.extend(ids.setdefault(term, len(ids)) for term in bag)
            counts.extend(min(count, MAX_COUNT) for count in bag.values())
        term = np.array(terms, np.int32)
        order = np.argsort(term, kind="stable")
        count = len(lengths)
        tie_rank = np.arange(count, dtype=np.int32)
        if keys is not None:
            tie_rank[sorted(range(count), key=keys.__getitem__)] = np.arange(count, dtype=np.int32)
        arrays = {
            "start": np.concatenate([[0], np.cumsum(np.bincount(term, minlength=len(ids)))]),
            "documents": np.repeat(np.arange(count, dtype=np.int32), np.array(sizes, np.int32))[order],
            "counts": np.array(counts, np.uint16)[order],
            "lengths": np.array(lengths, np.int32),
            "tie_rank": tie_rank,
        }
        return cls(list(ids), arrays, k1, b, byte_lengths)

    def search(self, query: list[str], k: int) -> list[tuple[int, float]]:
        """The k best documents that hold a term of the query, as (index, score), best first."""
        scores = np.zeros(len(self))  # fresh pages from the system: only those that are written cost anything
        touched = [np.empty(0, np.int32)]
        for term, repeats in Counter(query).items():
            if term in self._ids:
                documents, parts = self._postings(self._ids[term], repeats)
                touched.append(documents[scores[documents] == 0])
                scores[documents] += parts
        found = np.concatenate(touched)
        found_scores = scores[found].astype(np.float32)
        if len(found) > k > 0:
            least = np.partition(found_scores, len(found) - k)[len(found) - k]
            kept = found_scores >= least
            found, found_scores = found[kept], found_scores[kept]
        best = np.lexsort((self._tie_rank[found], -found_scores))[:k]
        return [(int(found[i]), float(found_scores[i])) for i in best]

    def _postings(self, term: int, repeats: int) -> tuple[np.ndarray, np.ndarray]:
        """Documents with the term, and the term's part of their scores in float32, in Lucene's order of operations."""
        first, last = self._start[term], self._start[term + 1]
        documents, n = self._documents[first:last], int(last - first)
        weight = np.float32(repeats) * np.float32(math.log(1 + (self._filled - n + 0.5) / (n + 0.5)))
        saturation = self._counts[first:last].astype(np.float32) * self._inverse_norm[documents]
        return documents, weight - weight / (np.float32(1) + saturation)

    def save(self, directory: Path) -> None:
        """Writes the index into an existing directory."""
        for name, values in self.arrays.items():
            np.save(directory / f"{name}.npy", values, allow_pickle=False)
        (directory / "terms.txt").write_text("\n".join(self.terms), encoding="utf-8", newline="\n")
        (directory / "bm25.json").write_text(json.dumps(self.parameters))

    @classmethod
    def load(cls, directory: Path) -> BM25:
        parameters = json.loads((directory / "bm25.json").read_text())
        arrays = {name: np.load(directory / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS}
        text = (directory / "terms.txt").read_text(encoding="utf-8")
        return cls(text.split("\n") if text else [], arrays, **parameters)


def byte_length(lengths: np.ndarray) -> np.ndarray:
    """What is left of integer lengths after Lucene's one-byte code: rounded down, (N,) -> (N,) int64."""
    above = np.maximum(lengths.astype(np.int64) - EXACT_LENGTHS, 0)
    bits = np.frexp(above.astype(np.float64))[1]  # the bit length of each number
    shift = np.maximum(bits - 4, 0)
    return np.minimum(lengths, EXACT_LENGTHS) + (above >> shift << shift)


def _inverse_norms(lengths: np.ndarray, filled: int, k1: float, b: float, byte_lengths: bool) -> np.ndarray:
    mean = np.float32(lengths.sum(dtype=np.int64) / max(filled, 1))
    stored = byte_length(lengths) if byte_lengths else lengths
    one, k1, b = np.float32(1), np.float32(k1), np.float32(b)
    relative = np.maximum(stored, 1).astype(np.float32) / max(mean, one)  # an empty document is never scored
    return one / (k1 * ((one - b) + b * relative))
