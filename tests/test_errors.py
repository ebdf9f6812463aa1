"""What a user reads of another library's error."""

import pytest

from prover_mini.errors import first_line


@pytest.mark.parametrize(
    "error, said",
    [
        (ValueError("\n  no such file\nby way of x"), "no such file"),
        (AssertionError(), "AssertionError"),
        (OSError(" \n"), "OSError"),
        (RuntimeError("x" * 1000), "x" * 300),
    ],
)
def test_first_line(error, said):
    assert first_line(error) == said
