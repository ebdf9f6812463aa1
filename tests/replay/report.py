"""What a replay found in one file: cases compared, failures, and what was left out and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Tolerance:
    rtol: float = 1e-6
    atol: float = 1e-9

    def close(self, got: Any, expected: Any) -> bool:
        got, expected = np.asarray(got, dtype=np.float64), np.asarray(expected, dtype=np.float64)
        return got.shape == expected.shape and np.allclose(got, expected, self.rtol, self.atol, equal_nan=True)


@dataclass
class Report:
    file: str
    cases: int = 0
    failed: list[str] = field(default_factory=list)
    not_built: Counter[str] = field(default_factory=Counter)
    other_definition: Counter[str] = field(default_factory=Counter)

    def case(self, name: str, values: dict[str, tuple], tolerance: Tolerance = Tolerance()) -> None:
        """One compared case: (got, expected) per field, numbers by tolerance and the rest by equality.

        A third entry, where given, is the field's own tolerance.
        """
        self.cases += 1
        for label, (got, expected, *own) in values.items():
            numeric = isinstance(expected, (float, np.ndarray)) or isinstance(expected, list) and bool(expected)
            same = (own[0] if own else tolerance).close(got, expected) if numeric else got == expected
            if not same:
                self.failed.append(f"{name} {label}: got {_short(got)}, expected {_short(expected)}")
                return

    def show(self, shown_failures: int = 5) -> None:
        left_out = self.not_built.total() + self.other_definition.total()
        print(f"{self.file:26} cases {self.cases:5}  failures {len(self.failed):4}  not covered {left_out:5}")
        for line in self.failed[:shown_failures]:
            print(f"    FAILED {line}")
        for reason, count in self.not_built.items():
            print(f"    not built yet ({count}): {reason}")
        for reason, count in self.other_definition.items():
            print(f"    other definition ({count}): {reason}")


def _short(value: Any) -> str:
    return str(np.asarray(value).ravel()[:6] if isinstance(value, (list, np.ndarray)) else value)[:120]
