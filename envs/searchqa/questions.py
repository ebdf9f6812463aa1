"""Question files: JSON lines, JSON lists and parquet, in the layouts of Search-R1, FlashRAG, NQ-open and HotpotQA.

    {"id": "q1", "question": "...", "golden_answers": ["...", "..."], "split": "test", "kind": "bridge"}

`answer` and `answers` stand for `golden_answers`, a single string for a list, `type` for `kind`; all but the question
and its answers may be missing. A directory holds train.*, dev.* and test.*. A file whose rows name no split is split
by a hash of each question, four to one, so that the same question is never on both sides. Files may be gzipped.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from envs.base import Task
from prover_mini.errors import UserError, first_line
from prover_mini.seeds import derive

SPLITS = {"train": "train", "dev": "dev", "valid": "dev", "validation": "dev", "val": "dev", "test": "test"}
ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")
ONE_IN_TEST = 5


@dataclass(frozen=True)
class Question:
    question: str
    golden_answers: tuple[str, ...]


def load_questions(path: Path) -> list[Task]:
    """All questions of a file, or of the train, dev and test files of a directory. Raises UserError."""
    if not path.exists():
        raise UserError(f"--data {path}: no such file or directory")
    if path.is_dir():
        tasks = [task for split, file in _split_files(path) for task in _load_file(file, split)]
    else:
        tasks = list(_load_file(path, ""))
    if not tasks:
        raise UserError(f"--data {path}: holds no question")
    return tasks


def _split_files(directory: Path) -> list[tuple[str, Path]]:
    files = []
    for file in sorted(directory.iterdir()):
        stem, _, ending = file.name.partition(".")
        if stem in SPLITS and f".{ending}" in ENDINGS:
            files.append((SPLITS[stem], file))
    if not files:
        raise UserError(f"--data {directory}: holds no train, dev or test file ending in {', '.join(ENDINGS)}")
    return files


def _load_file(path: Path, split: str) -> Iterator[Task]:
    """`split` is what the file's name says; ids then begin with it, for each file of a directory may count from 0."""
    stem = path.name.partition(".")[0]
    lines: dict[str, int] = {}
    for line, row in read_rows(path):
        try:
            question = Question(_text(row, "question"), _golden(row))
            kind = str(row.get("kind") or row.get("type") or "qa")
            own_split = split or _own_split(row, question)
        except ValueError as error:
            raise UserError(f"{path}, line {line}: {error}") from None
        name = str(row.get("id", f"{stem}-{line:07d}"))
        name = name if name.startswith(split) else f"{split}-{name}"
        if name in lines:
            raise UserError(f"{path}, line {line}: id {name} is that of line {lines[name]} too; make ids unique")
        lines[name] = line
        yield Task(name, own_split, kind, question)


def _text(row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"'{field}' must be a text that isn't empty")
    return value.strip()


def _golden(row: dict[str, Any]) -> tuple[str, ...]:
    for field in ("golden_answers", "answer", "answers"):
        value = row.get(field)
        if value is not None:
            answers = value if isinstance(value, list) else [value]
            if not answers or not all(isinstance(answer, str | int | float) for answer in answers):
                raise ValueError(f"'{field}' must be a text or a list of at least one text")
            return tuple(map(str, answers))
    raise ValueError("no answer: give 'golden_answers', 'answer' or 'answers'")


def _own_split(row: dict[str, Any], question: Question) -> str:
    if row.get("split") is None:
        return "test" if derive("split", question.question) % ONE_IN_TEST == 0 else "train"
    if row["split"] not in SPLITS:
        raise ValueError(f"split {row['split']!r} is none of {', '.join(SPLITS)}")
    return SPLITS[row["split"]]


def read_rows(path: Path, stream: BinaryIO | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, or place in a list, from 1; object) of a JSON-lines, JSON-list or parquet file. Raises UserError.

    Args:
        stream: the file, open for reading bytes, where the caller watches how far it is read.
    """
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
        return
    try:
        with stream or path.open("rb") as raw:
            yield from _read_json(path, gzip.open(raw) if path.suffix == ".gz" else raw)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: can't be read ({error})") from error


def _read_json(path: Path, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, data in enumerate(file, 1):
        if line == 1 and data.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
            rows = _parse(path, 0, data + file.read())
            yield from ((place, _object(path, place, row)) for place, row in enumerate(rows, 1))
        elif data.strip():
            yield line, _object(path, line, _parse(path, line, data))


def _parse(path: Path, line: int, data: bytes) -> Any:
    """Parses one line, or the whole file where `line` is 0."""
    try:
        return json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {line or error.lineno}: not JSON ({error.msg}); correct or remove it") from None
    except UnicodeDecodeError as error:
        line = line or data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not UTF-8 ({error.reason})") from None
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{path}, line {line or 1}: {error}") from None
    except RecursionError:
        raise UserError(f"{path}, line {line or 1}: nested too deeply") from None


def _object(path: Path, line: int, row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UserError(f"{path}, line {line}: an object {{...}} is needed, not {type(row).__name__}")
    return row


def _read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{path}: reading parquet needs pyarrow: pip install pyarrow") from None
    try:
        yield from enumerate(parquet.read_table(path).to_pylist(), 1)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: can't be read as parquet ({first_line(error)})") from error
