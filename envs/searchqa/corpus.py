"""Passage files, and their index on disk.

    {"id": "7", "contents": "\\"Title\\"\\ntext"}      one passage a line; or with "title" and "text"; .gz too

A corpus is indexed once, into a directory of the cache that holds the BM25 index and the passages' text; both are
memory-mapped, so that a later start reads neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rich.progress import wrap_file

from envs.analysis import Analyser
from envs.bm25 import BM25
from envs.cache import Texts, TextsWriter, cached_directory
from envs.searchqa.questions import read_rows
from prover_mini.errors import UserError

LAYOUT = "1"  # of the directory; one of another layout is not read


def passage_contents(row: Any) -> str:
    """The text of a passage, its title on a line of its own. Raises KeyError or TypeError for another layout."""
    if not isinstance(row, dict):
        raise TypeError("a passage must be an object")
    title, text = row.get("title"), row["contents"] if "contents" in row else row["text"]
    if not isinstance(text, str):
        raise TypeError("the text of a passage must be a string")
    return f'"{title}"\n{text}' if title and "contents" not in row else text


def read_corpus(path: Path, stream: BinaryIO | None = None) -> Iterator[str]:
    for line, row in read_rows(path, stream):
        try:
            yield passage_contents(row)
        except (KeyError, TypeError):
            raise UserError(f"{path}, line {line}: no passage: give 'contents', or 'title' and 'text'") from None


def open_corpus(path: Path, analyse: Analyser) -> tuple[BM25, Texts]:
    """Index and passages of a corpus file, built where the cache lacks them. Raises UserError."""
    if not path.is_file():
        raise UserError(f"--corpus {path}: no such file")
    name, layout = path.name.partition(".")[0], f"corpus {LAYOUT} {analyse.__name__}"
    directory = cached_directory(name, [path], layout, lambda aside: _build(path, analyse, aside))
    return BM25.load(directory), Texts(directory)


def _build(path: Path, analyse: Analyser, directory: Path) -> None:
    def terms(file: BinaryIO, texts: TextsWriter) -> Iterator[list[str]]:
        for contents in read_corpus(path, file):
            texts.add(contents)
            yield analyse(contents)

    with path.open("rb") as raw, TextsWriter(directory) as texts:
        with wrap_file(raw, path.stat().st_size, description=f"Indexing {path.name}") as watched:
            index = BM25.build(terms(watched, texts))
    if not index.terms:
        raise UserError(f"--corpus {path}: holds no passage with a word in it")
    index.save(directory)
