"""The products of a data set with their search engine, on disk.

A catalogue is built once from the official files into a directory of the cache: the products as JSON texts, the index,
and small tables. A later start memory-maps it, and decodes a product when a page first shows it.

The search engine is the one that WebShop uses: BM25 with k1 .9 and b .4 over lower-cased title, description, first
bullet and options, 50 results, ties by asin. Four first words ask for something else:

    <c> category      all products of a category, in file order      <q> words     all products whose query is equal
    <r>               50 products drawn at random (here the same at every call, so that a page can be shown twice)
    <a> words         by attribute; fails in the reference, refused here
"""

from __future__ import annotations

import json
import math
import random
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from rich.progress import wrap_file

from envs.analysis import english
from envs.bm25 import BM25
from envs.cache import Texts, TextsWriter, cached_directory
from envs.webshop.files import Files, decode, encode, find_files, read_object, read_products
from prover_mini.errors import UserError

LAYOUT = "1"  # of the cache directory; an older one is not read
RESULTS = 50
MAX_TERMS = 1024  # Lucene refuses a query with more different terms
DECODED = 20_000  # products kept in memory


class NoSearch(Exception):
    """A query that the search engine refuses; the message says why."""


class Catalogue:
    """Products by row, 0..len - 1 in file order. `amounts`: (N, 2) float64, NaN behind a single price."""

    def __init__(self, directory: Path, files: Files):
        tables = json.loads((directory / "tables.json").read_text())
        self.files = files
        self.index = BM25.load(directory)
        self.amounts = np.load(directory / "amounts.npy", mmap_mode="r", allow_pickle=False)
        self.skipped: dict[str, int] = tables["skipped"]
        self.rows: dict[str, int] = {asin: row for row, asin in enumerate(tables["asins"])}
        self._by_category: dict[str, list[int]] = tables["category"]
        self._by_query: dict[str, list[int]] = tables["query"]
        texts = Texts(directory)
        self.product = lru_cache(DECODED)(lambda row: decode(texts[row]))

    def __len__(self) -> int:
        return len(self.amounts)

    def search(self, words: tuple[str, ...]) -> tuple[int, ...]:
        """Rows of the products that a query finds, best first. Raises NoSearch."""
        first, rest = words[0], " ".join(words[1:]).strip()
        if first == "<r>":
            return tuple(random.Random(0).sample(range(len(self)), min(RESULTS, len(self))))
        if first == "<q>":
            return tuple(self._by_query.get(rest, ()))
        if first == "<c>" and len(words) > 1:
            return tuple(self._by_category.get(words[1].strip(), ()))
        if first in ("<a>", "<c>"):
            raise NoSearch(f"{first} cannot be searched for like this")
        terms = english(" ".join(words))
        if len(set(terms)) > MAX_TERMS:
            raise NoSearch("the query has too many words")
        return tuple(row for row, _ in self.index.search(terms, RESULTS))


def open_catalogue(directory: Path) -> Catalogue:
    """The catalogue of a directory with the official files, built where the cache lacks it. Raises UserError."""
    files = find_files(directory)
    sources = (files.products, files.attributes)
    built = cached_directory(f"webshop-{directory.name}", sources, LAYOUT, lambda aside: _build(files, aside))
    catalogue = Catalogue(built, files)
    broken = sum(catalogue.skipped.values())
    if broken:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(catalogue.skipped.items()))
        print(f"{files.products}: skipped {broken} of {broken + len(catalogue)} products: {reasons}", file=sys.stderr)
    return catalogue


def _build(files: Files, directory: Path) -> None:
    attributes = read_object(files.attributes)
    skipped: Counter[str] = Counter()
    asins: list[str] = []
    amounts = array("d")
    by_category, by_query = defaultdict(list), defaultdict(list)

    def documents(stream: BinaryIO, texts: TextsWriter) -> Iterator[list[str]]:
        for row, product in enumerate(read_products(files.products, stream, attributes, skipped)):
            texts.add(encode(product))
            asins.append(product.asin)
            amounts.extend((*product.amounts, math.nan)[:2])
            by_category[product.category].append(row)
            by_query[product.query].append(row)
            yield english(product.search_text)

    size = files.products.stat().st_size
    with files.products.open("rb") as raw, TextsWriter(directory) as texts:
        with wrap_file(raw, size, description=f"Indexing {files.products.name}") as watched:
            index = BM25.build(documents(watched, texts), k1=0.9, b=0.4, byte_lengths=True, keys=asins)
    if not asins:
        raise UserError(f"{files.products}: holds no usable product ({skipped.total()} skipped)")
    index.save(directory)
    np.save(directory / "amounts.npy", np.array(amounts).reshape(-1, 2), allow_pickle=False)
    tables = {"asins": asins, "category": by_category, "query": by_query, "skipped": skipped}
    (directory / "tables.json").write_text(json.dumps(tables))
