"""Files of a run: names, whole writes, and reading what is whole."""

from __future__ import annotations

import json
import math
import os
from itertools import groupby
from pathlib import Path
from typing import Any

from prover_mini.errors import UserError


def write_text(path: Path, text: str) -> None:
    """Writes a file so that its old content stays until the new one is complete on disk."""
    aside = path.with_name(path.name + ".tmp")
    with open(aside, "w", encoding="utf-8", errors="backslashreplace") as file:  # as JSON escapes it too
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def next_free(stem: str) -> Path:
    """The first of stem-001, stem-002, ... that is not there yet."""
    number = 1
    while (path := Path(f"{stem}-{number:03d}")).exists():
        number += 1
    return path


def step_name(step: int) -> str:
    return f"step_{step:06d}"


def spans(steps: list[int]) -> str:
    """Rising numbers in short, such as "1-3, 7"."""
    groups = [[step for _, step in run] for _, run in groupby(enumerate(steps), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{group[0]}-{group[-1]}" if len(group) > 1 else str(group[0]) for group in groups)


def read_metrics(path: Path) -> list[dict]:
    """All complete lines of metrics.jsonl; a line that a crash cut short or filled with other bytes is dropped.

    Raises UserError for a line that is JSON but not a step's metrics.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
        if not isinstance(rows[-1], dict) or not isinstance(rows[-1].get("step"), int):
            raise UserError(f"{path}, line {number}: is not what a run writes there")
    return rows


def lost_lines(path: Path, rows: list[dict], last: int) -> str:
    """Says which of the steps 1 to `last` have no line among the rows of the metrics at `path`; "" where all have."""
    lost = sorted(set(range(1, last + 1)) - {row["step"] for row in rows})
    return f"{path} lacks the lines of step {spans(lost)}" if lost else ""


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
