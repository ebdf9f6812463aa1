"""Studies: the plan, resuming and failing cells, the statistics against arithmetic by hand, and one real study."""

import json
import math
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from prover_mini import compare
from prover_mini.config import dumps, parse
from prover_mini.errors import UserError
from prover_mini.judge import JUDGES
from prover_mini.study import T_975, Curve, interval, lines_of, plot, summarise
from prover_mini.summary import figures
from tests.test_train import run

ROOT = Path(__file__).parent.parent
SMALL = (
    "--steps 2 --groups-per-step 4 --group-size 4 --continuations 2 --eval-tasks 12 --eval-every 1 --slots 32".split()
)


def main(*arguments) -> int:
    sys.argv = ["compare", *map(str, arguments)]
    return compare.main()


def curve(method: str, seed: int, success: list[float], tokens: list[int], **totals) -> Curve:
    sums = figures([]) | {"tokens": tokens[-1]} | totals
    return Curve(method, seed, list(range(len(success))), tokens, success, sums)


def test_quantiles_of_t():
    """Twice the tail beyond each of them, by integrating the density, is 5 %."""
    for df, t in enumerate(T_975, 1):
        x = np.linspace(0, t, 200001)
        density = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
        y = density * (1 + x * x / df) ** (-(df + 1) / 2)
        assert 2 * np.trapezoid(y, x) == pytest.approx(0.95, abs=2e-5)


def test_intervals_by_hand():
    assert interval([0.5]) == (0.5, None)
    mean, half = interval([0.1, 0.2, 0.6])
    assert mean == pytest.approx(0.3) and half == pytest.approx(4.3027 * math.sqrt(0.07) / math.sqrt(3), abs=1e-4)


def test_equal_tokens_are_interpolated_and_differences_are_paired():
    curves = [
        curve("grpo", 0, [0.2, 0.4], [0, 100]),
        curve("grpo", 1, [0.2, 0.6], [0, 120]),
        curve("prover", 0, [0.2, 0.3, 0.7], [0, 50, 250], verified=10, accepted=6, chance=0.3),
        curve("prover", 1, [0.2, 0.4, 0.8], [0, 80, 200], verified=30, accepted=12, chance=1 / 3),
        curve("prover", 7, [0.0, 0.0, 0.0], [0, 80, 200]),
    ]
    grpo, prover = summarise(curves)
    assert grpo["common_tokens"] == 100 and grpo["difference"] is None
    assert grpo["success"][0] == pytest.approx(0.5) and prover["success"][0] == pytest.approx(0.5)
    assert grpo["success_at_tokens"][0] == pytest.approx((0.4 + (0.2 + 0.4 * 100 / 120)) / 2)
    at = [0.3 + 0.4 * 50 / 200, 0.4 + 0.4 * 20 / 120]
    assert prover["success_at_tokens"][0] == pytest.approx((at[0] + at[1]) / 3)
    assert prover["difference"] == pytest.approx(interval([0.3, 0.2]))  # seed 7 has no partner
    assert prover["difference_at_tokens"] == pytest.approx(interval([at[0] - 0.4, at[1] - (0.2 + 0.4 * 100 / 120)]))
    along = [(0.25 + 0.5) / 2 - 0.3, (0.3 + 0.6) / 2 - 0.4]  # 2 steps for prover, 1 for grpo
    assert prover["difference_along"] == pytest.approx(interval(along))
    until = [(50 * 0.25 + 50 * (0.3 + at[0]) / 2) / 100, (80 * 0.3 + 20 * (0.4 + at[1]) / 2) / 100]
    other = [0.3, 0.2 + 0.4 * 50 / 120]
    assert prover["difference_along_tokens"] == pytest.approx(interval([a - b for a, b in zip(until, other)]))
    assert (prover["acceptance"], prover["chance"]) == pytest.approx((18 / 40, 13 / 40))
    lines = lines_of([grpo, prover])
    assert [line[0] for line in lines] == ["method", "grpo", "prover"] and len({len(line) for line in lines}) == 1
    updates = ["success", "difference", "difference_along"]
    tokens = ["success_at_tokens", "difference_at_tokens", "difference_along_tokens"]
    for first, names in ((2, updates), (5, tokens)):
        shown = [float(cell.partition(" ")[0]) for cell in lines[2][first : first + 3]]
        assert shown == pytest.approx([prover[name][0] for name in names], abs=5.1e-4)


def test_the_plot_is_an_svg_with_every_method(tmp_path):
    curves = [curve(m, s, [0.2, 0.3 + s / 10], [0, 100]) for m in ("grpo", "prover") for s in (0, 1)]
    plot(curves, tmp_path / "a.svg")
    plot(curves, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = xml.etree.ElementTree.parse(tmp_path / "a.svg").getroot()
    assert text.tag.endswith("svg") and (tmp_path / "a.svg").read_text().count("prover") >= 1


def test_methods_by_name_and_by_flags():
    methods = compare.named(["grpo", "random", "k2:--continuations 2 --judge random"])
    assert methods["k2"] == ["--continuations", "2", "--judge", "random"] and list(methods) == ["grpo", "random", "k2"]
    for bad in (["nobody"], ["grpo", "grpo"], ["a/b:--lr 1"], ["x:--seed 3"], ["x:--continuations"], ["x:--lr 'a"]):
        with pytest.raises(UserError):
            compare.named(bad)


def test_cells_differ_in_method_and_seed_alone(tmp_path):
    cells = compare.plan(tmp_path, SMALL, compare.named(["budget", "grpo", "prover", "k2:--continuations 1"]), 2)
    methods = ("grpo", "budget", "prover", "k2")
    assert sorted(cell.key for cell in cells) == sorted((method, seed) for method in methods for seed in (0, 1))
    order = [cell.key for cell in cells]
    assert all(order.index(("prover", s)) < order.index(("budget", s)) for s in (0, 1))
    fields = {}
    for cell in cells:
        config, _ = parse(cell.arguments)
        assert config.seed == cell.seed and config.run_dir == str(tmp_path / cell.name)
        fields[cell.key] = json.loads(dumps(config))
    free = {"credit", "budget_matched", "budget_run", "seed", "run_dir", "continuations"}
    assert len({json.dumps({k: v for k, v in f.items() if k not in free}) for f in fields.values()}) == 1
    assert fields["budget", 1]["budget_run"] == str(tmp_path / "prover-1")
    with pytest.raises(UserError, match="add prover"):
        compare.plan(tmp_path, SMALL, compare.named(["grpo", "budget"]), 1)


FAKE = """
import json, pathlib, shutil, sys, time
where = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
plan = pathlib.Path(sys.argv[0]).parent
with open(plan / "started", "a") as file:
    file.write(where.name + (" resumed" if "--resume" in sys.argv else "") + "\\n")
if (plan / f"{where.name}.wait").exists():
    time.sleep(60)
if (plan / f"{where.name}.fail").exists():
    sys.exit("train.py: it broke")
if "--budget-run" in sys.argv and not (pathlib.Path(sys.argv[sys.argv.index("--budget-run") + 1]) / "latest").exists():
    sys.exit("the cell that this one needs is not finished")
(where / "eval").mkdir(parents=True, exist_ok=True)
shutil.copy(plan / f"{where.name}.json", where / "config.json")
seed = int(where.name[-1])
keys = ("tokens/rollout tokens/extra_rollout tokens/continuation judge/calls judge/failures judge/prompt_tokens "
        "judge/reply_tokens prover/verified prover/accepted prover/null_rate time/total time/eval time/cpu").split()
with open(where / "metrics.jsonl", "w") as file:
    for step in (1, 2):
        file.write(json.dumps(dict.fromkeys(keys, 1) | {"step": step}) + "\\n")
for step in (0, 1, 2):
    (where / "eval" / f"step_{step:06d}.json").write_text(json.dumps({"step": step, "success_rate": seed / 10}))
(where / "latest").write_text("step_000002")
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A stand-in for train.py that writes a finished run in an instant, unless told to fail or to wait."""
    plan, out = tmp_path / "plan", tmp_path / "study"
    plan.mkdir()
    (plan / "train.py").write_text(FAKE)
    monkeypatch.setattr(compare, "TRAIN", plan / "train.py")
    for cell in compare.plan(out, SMALL, compare.named(["grpo", "prover", "budget"]), 2):
        (plan / f"{cell.name}.json").write_text(dumps(parse(cell.arguments)[0]))
    return plan, [*SMALL, "--methods", "budget", "grpo", "prover", "--out", str(out), "--seeds", 2]


def started(plan: Path) -> list[str]:
    lines = (plan / "started").read_text().splitlines() if (plan / "started").exists() else []
    (plan / "started").unlink(missing_ok=True)
    return sorted(lines)


def test_finished_cells_are_skipped_broken_ones_resumed(fake, tmp_path, capsys):
    plan, arguments = fake
    out = tmp_path / "study"
    assert main(*arguments, "--dry-run") == 0
    assert len(capsys.readouterr().out.splitlines()) == 6 and not out.exists()
    (plan / "prover-1.fail").touch()
    assert main(*arguments, "--jobs", 2) == 1
    shown = capsys.readouterr().out
    assert "prover-1 failed with code 1: train.py: it broke" in shown and "budget-1 left out" in shown
    assert started(plan) == ["budget-0", "grpo-0", "grpo-1", "prover-0", "prover-1"]
    rows = {row["method"]: row for row in json.loads((out / "results.json").read_text())["rows"]}
    assert rows["grpo"]["seeds"] == [0, 1] and rows["prover"]["seeds"] == [0] and rows["prover"]["tokens"] == 6

    (plan / "prover-1.fail").unlink()
    (out / "grpo-0" / "latest").unlink()  # as if killed before its last checkpoint
    assert main(*arguments) == 0
    assert started(plan) == ["budget-1", "grpo-0 resumed", "prover-1"]
    assert main(*arguments) == 0 and started(plan) == []
    assert main(*arguments, "--jobs", 0) == 0 and "| prover | 2 |" in (out / "table.md").read_text()
    capsys.readouterr()
    assert main(*arguments, "--lr", "0.5") == 2
    error = capsys.readouterr().err
    assert error.startswith("compare: ") and error.count("\n") == 1 and "--lr" in error and started(plan) == []
    kept = (out / "grpo-1" / "metrics.jsonl").read_text().splitlines(keepends=True)[1:]
    (out / "grpo-1" / "metrics.jsonl").write_text("".join(kept))
    assert main(*arguments) == 2
    assert "grpo-1/metrics.jsonl lacks the lines of step 1; move the run away" in capsys.readouterr().err


def test_a_study_that_is_stopped_stops_its_cells_and_is_not_started_twice(fake, tmp_path):
    plan, arguments = fake
    (plan / "grpo-0.wait").touch()
    script = (
        f"import sys; sys.argv[1:] = {list(map(str, arguments))!r}; "
        "from prover_mini import compare; from pathlib import Path; "
        f"compare.TRAIN = Path({str(plan / 'train.py')!r}); sys.exit(compare.main())"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (plan / "started").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None
    assert main(*arguments) == 2  # the lock
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert main(*arguments, "--jobs", 0) == 2  # nothing is finished, and the lock is free: its cell is gone too
    (plan / "grpo-0.wait").unlink()
    assert main(*arguments) == 0


def test_a_script_of_the_users_own_is_what_cells_run(tmp_path, capsys):
    script = tmp_path / "mine.py"
    script.write_text(
        "import sys, train\nfrom prover_mini.judge import JUDGES, RandomJudge\nJUDGES['mine'] = RandomJudge\n"
        "if __name__ == '__main__':\n    sys.exit(train.main())\n"
    )
    arguments = [*SMALL, "--methods", "own:--judge mine", "--seeds", 1, "--out", tmp_path / "study", "--dry-run"]
    try:
        assert main(*arguments, "--train", script) == 0
        assert f" {script} " in capsys.readouterr().out
    finally:
        JUDGES.pop("mine", None)
    assert main(*arguments) == 2 and "mine" in capsys.readouterr().err
    script.write_text("import nowhere_to_be_found\n")
    assert main(*arguments, "--train", script) == 2 and "nowhere_to_be_found" in capsys.readouterr().err


def test_bad_input_is_one_clear_line_and_code_2(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = {
        "--seeds": ["--seeds", 0], "--methods": ["--methods", "nobody"], "--seed": ["--seed", 3],
        "--env": ["--env", "chess"], "--batches": ["--alignment", "--batches", 2],
        "--group-size": ["--alignment", "--methods", "x:--group-size 4"],
        "grpo": ["--alignment", "--methods", "grpo"], "nowhere": ["--alignment", "--checkpoint", "nowhere"],
        "--ranks": ["--ranks", "x"], "--weights": ["--alignment", "--weights", "1", "nan"],
        "--plan": ["--plan", "--dry-run"], "--checkpoint": ["--checkpoint", ".", "--dry-run"],
    }  # fmt: skip
    for named, arguments in cases.items():
        assert main(*arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("compare: ") and error.count("\n") == 1 and named in error
    monkeypatch.setitem(os.environ, "RANK", "0")
    assert main("--seeds", 1) == 2 and "torchrun" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_study_of_real_runs_and_an_alignment_at_one_of_them(tmp_path, capsys):
    out = tmp_path / "study"
    arguments = [*SMALL, "--methods", "grpo", "prover", "--out", out, "--seeds", 1]
    cells = compare.plan(out, SMALL, compare.named(["grpo", "prover"]), 1)
    for cell in cells:  # in this process, to save the start of another one
        assert run(*cell.arguments) == 0
    assert [compare.state(cell) for cell in cells] == ["finished", "finished"]
    assert main(*arguments, "--jobs", 0) == 0
    rows = {row["method"]: row for row in json.loads((out / "results.json").read_text())["rows"]}
    spent = [json.loads(line) for line in (out / "prover-0" / "metrics.jsonl").read_text().splitlines()]
    assert rows["prover"]["tokens"] == sum(row["tokens/rollout"] + row["tokens/continuation"] for row in spent)
    assert rows["prover"]["continuation_tokens"] > 0 == rows["grpo"]["continuation_tokens"]
    assert rows["prover"]["cpu_seconds"] > 0 and rows["prover"]["start"] == rows["grpo"]["start"]

    aligned = tmp_path / "alignment"
    arguments = ["--alignment", "--checkpoint", out / "prover-0", "--batches", 4, "--methods", "prover"]
    assert main(*arguments, "--out", aligned) == 0
    result = json.loads((aligned / "alignment.json").read_text())
    assert result["config"]["model"] == "tiny"
    assert result["policy"] == str(out / "prover-0" / "checkpoints" / "step_000002" / "model")
    assert result["config"]["groups_per_step"] == 4 and result["config"]["max_turns"] == 6
    assert [row["method"] for row in result["rows"]] == ["grpo", "grpo, twice the groups", "prover", "prover"]
    assert "| prover | 4 |" in (aligned / "alignment.md").read_text()

    (out / "prover-0" / "checkpoints" / "step_000002" / "state.json").unlink()
    capsys.readouterr()
    assert main(*arguments) == 2
    assert "step_000002: the checkpoint is damaged" in capsys.readouterr().err
