"""Passage files, and their index on disk.

    {"id": "7", "contents": "\\"Title\\"\\ntext"}      one passage a line; or with "title" and "text"; .gz too

A corpus is indexed once, into a directory of the cache ($XDG_CACHE_HOME or ~/.cache, under prover-mini) that is named
after the corpus file, its size, its time of change and the analyser. It holds the BM25 index and the passages' text;
both are memory-mapped, so that a later start reads neither. It appears complete or not at all, and may be deleted at
any time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from rich.progress import wrap_file

from envs.analysis import Analyser
from envs.bm25 import BM25
from envs.searchqa.questions import read_rows
from prover_mini.errors import UserError

LAYOUT = "1"  # of the cache directory; an older one is not read


class Passages(Sequence[str]):
    """Texts in one memory-mapped file of bytes; passage i is bytes ends[i - 1]..ends[i]."""

    def __init__(self, directory: Path):
        self.bytes = np.memmap(directory / "passages.bin", np.uint8, "r")
        self.ends = np.load(directory / "ends.npy", mmap_mode="r", allow_pickle=False)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> str:
        start = self.ends[i - 1] if i else 0
        return self.bytes[start : self.ends[i]].tobytes().decode()


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


def open_corpus(path: Path, analyse: Analyser) -> tuple[BM25, Passages]:
    """Index and passages of a corpus file, built where the cache lacks them. Raises UserError."""
    if not path.is_file():
        raise UserError(f"corpus {path}: no such file")
    home = cache_home()
    directory = home / f"{path.name.partition('.')[0]}-{_fingerprint(path, analyse)}"
    if not directory.exists():
        try:
            _build_aside(path, analyse, directory)
        except OSError as error:
            raise UserError(f"cache {home}: {error}; set XDG_CACHE_HOME to a place with room") from error
    return BM25.load(directory), Passages(directory)


def cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prover-mini"


def _fingerprint(path: Path, analyse: Analyser) -> str:
    status = path.stat()
    facts = (LAYOUT, path.resolve(), status.st_size, status.st_mtime_ns, analyse.__name__)
    return hashlib.blake2b("\n".join(map(str, facts)).encode(), digest_size=8).hexdigest()


def _build_aside(path: Path, analyse: Analyser, directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".building-", dir=directory.parent))
    try:
        _build(path, analyse, aside)
        _publish(aside, directory)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _build(path: Path, analyse: Analyser, directory: Path) -> None:
    ends = array("q")

    def terms(file: BinaryIO, text: BinaryIO) -> Iterator[list[str]]:
        for contents in read_corpus(path, file):
            text.write(contents.encode(errors="replace"))
            ends.append(text.tell())
            yield analyse(contents)

    size = path.stat().st_size
    with path.open("rb") as raw, (directory / "passages.bin").open("wb") as text:
        with wrap_file(raw, size, description=f"Indexing {path.name}") as watched:
            index = BM25.build(terms(watched, text))
    if not len(index.terms):
        raise UserError(f"corpus {path}: holds no passage with a word in it")
    index.save(directory)
    np.save(directory / "ends.npy", np.array(ends, np.int64), allow_pickle=False)


def _publish(built: Path, directory: Path) -> None:
    try:
        built.rename(directory)
    except OSError:
        if not directory.exists():  # else another process was first, with the same index
            raise
