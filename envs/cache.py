"""Directories that are made once from outside files, and texts that are read from disk one at a time.

The cache is $XDG_CACHE_HOME or ~/.cache, under prover-mini. A directory of it appears complete or not at all, also
when several processes make it at once, and may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from prover_mini.errors import UserError


def cached_directory(name: str, files: Sequence[Path], layout: str, build: Callable[[Path], None]) -> Path:
    """The directory that `build` fills from `files`, made where the cache lacks it.

    It is named after the files' places, sizes and times of change, and after `layout`, the builder's own version.
    Raises UserError where the cache cannot be written, and what `build` raises.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prover-mini"
    directory = home / f"{name}-{_fingerprint(files, layout)}"
    if directory.exists():
        return directory
    try:
        home.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".building-", dir=home))
        try:
            build(aside)
            _publish(aside, directory)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cache {home}: {error}; set XDG_CACHE_HOME to a place with room") from error
    return directory


def _fingerprint(files: Sequence[Path], layout: str) -> str:
    facts = [layout]
    for path in files:
        status = path.stat()
        facts += [str(path.resolve()), str(status.st_size), str(status.st_mtime_ns)]
    return hashlib.blake2b("\n".join(facts).encode(errors="replace"), digest_size=8).hexdigest()


def _publish(built: Path, directory: Path) -> None:
    try:
        built.rename(directory)
    except OSError:
        if not directory.exists():  # else another process was first, with the same content
            raise


class Texts(Sequence[str]):
    """Texts in one memory-mapped file of bytes; text i is bytes ends[i - 1]..ends[i]."""

    def __init__(self, directory: Path):
        self.bytes = np.memmap(directory / "texts.bin", np.uint8, "r")
        self.ends = np.load(directory / "ends.npy", mmap_mode="r", allow_pickle=False)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> str:
        start = self.ends[i - 1] if i else 0
        return self.bytes[start : self.ends[i]].tobytes().decode()


class TextsWriter:
    """Writes the files of `Texts` into an existing directory, one non-empty text after the other."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.file = (directory / "texts.bin").open("wb")
        self.ends = array("q")

    def add(self, text: str) -> None:
        self.file.write(text.encode(errors="replace"))
        self.ends.append(self.file.tell())

    def __enter__(self) -> TextsWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()
        np.save(self.directory / "ends.npy", np.array(self.ends, np.int64), allow_pickle=False)
