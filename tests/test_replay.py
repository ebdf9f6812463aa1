"""The replay notices a wrong value, and says what is missing."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.replay import oracle_losses
from tests.replay.report import Report, Tolerance

ROOT = Path(__file__).parent.parent


def recording(**config):
    """One clipped loss over two rows, worked out by hand: ratios 2 and 1 | 1/2 (masked: 7)."""
    arrays = {
        "b/logprob": np.log([[0.8, 0.5], [0.2, 0.7]]),
        "b/old_logprob": np.log([[0.4, 0.5], [0.4, 0.1]]),
        "b/ref_logprob": np.zeros((2, 2)),
        "b/advantages": np.array([[1.0, 2.0], [-1.0, 5.0]]),
        "b/mask": np.array([[1.0, 1.0], [1.0, 0.0]]),
        "b/row_adv": np.array([1.0, -1.0]),
        "b/is_weights": np.ones((2, 2)),
        # clipped at 1.2, untouched, clipped at .8: only the second token has a gradient
        "c/grad": np.array([[0.0, -2.0], [0.0, 0.0]]) / 3,
    }
    case = {
        "id": "c", "batch": "b", "source": "verl", "fn": "vanilla", "loss": (-1.2 - 2.0 + 0.8) / 3,
        "config": {"clip_low": 0.2, "clip_high": 0.2, "clip_c": 3.0, "agg": "token-mean", **config},
        "metrics": {"pg_clipfrac": 2 / 3, "ppo_kl": 0.0},
    }  # fmt: skip
    return {"batches": [{"id": "b", "kind": "mild"}], "cases": [case]}, arrays


def replay(data, arrays):
    report = Report("policy_losses.json")
    oracle_losses.replay(data, arrays, report, fused=False)
    return report


def test_a_right_value_passes_and_a_wrong_one_is_named():
    data, arrays = recording()
    assert (replay(data, arrays).cases, replay(data, arrays).failed) == (1, [])
    data["cases"][0]["loss"] += 1e-5
    assert "loss" in replay(data, arrays).failed[0]
    data, arrays = recording()
    arrays["c/grad"][1, 1] = 1e-6
    assert "grad" in replay(data, arrays).failed[0]
    data, arrays = recording()
    data["cases"][0]["metrics"]["pg_clipfrac"] = 1 / 3
    assert "pg_clipfrac" in replay(data, arrays).failed[0]


@pytest.mark.parametrize(
    ("aggregation", "loss", "scale"),
    [
        ("seq-mean-token-mean", ((-1.2 - 2.0) / 2 + 0.8) / 2, 3 / 4),
        ("seq-mean-token-sum", (-1.2 - 2.0 + 0.8) / 2, 3 / 2),
        ("seq-mean-token-sum-norm", (-1.2 - 2.0 + 0.8) / 2, 3 / 2),
    ],
)
def test_other_aggregations(aggregation, loss, scale):
    data, arrays = recording(agg=aggregation)
    data["cases"][0]["loss"] = loss
    arrays["c/grad"] *= scale
    assert replay(data, arrays).failed == []


def test_a_loss_of_nothing_is_zero_where_others_divide_by_zero():
    data, arrays = recording()
    data["cases"][0]["loss"] = "nan"
    arrays["b/mask"][:] = 0
    arrays["c/grad"][:] = math.nan
    assert replay(data, arrays).failed == []


def test_what_is_not_built_is_counted():
    data, arrays = recording()
    data["cases"][0]["fn"] = "cispo"
    report = replay(data, arrays)
    assert (report.cases, dict(report.not_built)) == (0, {"CISPO": 1})


def test_tolerance_takes_shapes_and_nan_seriously():
    tolerance = Tolerance()
    assert tolerance.close([1.0, math.nan], [1.0, math.nan])
    assert not tolerance.close([1.0], [[1.0]]) and not tolerance.close(0.0, math.nan)


def test_the_command_says_what_is_missing(tmp_path):
    for arguments, message in (["nothing"], "usage"), (["oracles", str(tmp_path)], "policy_losses.json is missing"):
        command = [sys.executable, "-m", "tests.replay", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
