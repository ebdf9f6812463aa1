"""Measures the README's cheap figures again: `python -m benchmarks.readme [--train]`, about two minutes on one core.

A check runs a command, finds its figures in what that prints, finds the README's, and compares them within the noise
that is stated: a factor either way, 1 for figures that must be equal. `--train` trains on SearchQA, seed 0, as well
(two ranks, minutes). Exit code 1 if a figure is outside.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Check:
    """`stated` and `printed` are patterns with one group for each figure, in the README and in the command's output; of
    several matches in the output the largest figure counts."""

    what: str
    command: str
    stated: str
    printed: str
    factor: float


PASSAGES = 'python -c "from envs.searchqa import world; print(len(world.passages()))"'
PARAMETERS = (
    "python -c \"from safetensors import safe_open; f = safe_open('prover_mini/assets/{}/model.safetensors', 'pt'); "
    'print(sum(f.get_tensor(k).numel() for k in f.keys()) / 1e6)"'
)
EXACTNESS = "python -m pytest -q -s tests/test_exactness.py"
FORKS = "python -m benchmarks.verify_cost"
ALFWORLD = "python -m benchmarks.alfworld_speed"
CHECKS = [
    Check("passages", PASSAGES, r"searching\s+([\d,]+)\s+passages", r"(\d+)", 1),
    Check(
        "parameters, searchqa, M", PARAMETERS.format("searchqa"),
        r"hybrid of ([\d.]+) M parameters", r"([\d.]+)", 1.02,
    ),
    Check(
        "parameters, alfworld, M", PARAMETERS.format("alfworld"),
        r"Qwen3 of ([\d.]+) M\. WebShop", r"([\d.]+)", 1.02,
    ),
    Check(
        "parameters, webshop, M", PARAMETERS.format("webshop"),
        r"Qwen3 of ([\d.]+) M; success", r"([\d.]+)", 1.02,
    ),
    Check(
        "log-probs, three architectures", EXACTNESS,
        r"largest difference \| ([\d.e-]+) \(", r"(?:hybrid|qwen3|qwen2) .* difference ([\d.e-]+) over", 3,
    ),
    Check(
        "log-probs, embedded policy", EXACTNESS,
        r"below ([\d.e-]+) \(embedded", r"tiny .* difference ([\d.e-]+) over", 10,
    ),
    Check(
        "tokens, forks against generate", FORKS,
        r"([\d.]+) times fewer tokens, [\d.]+ times less CPU time \| `python -m b",
        r"\(b\) .* ([\d.]+)x +[\d.]+x", 1.05,
    ),
    Check(
        "time, forks against generate", FORKS,
        r"times fewer tokens, ([\d.]+) times less CPU time \| `python -m b",
        r"\(b\) .* [\d.]+x +([\d.]+)x", 1.6,
    ),
    Check(
        "tokens, forks against no reuse", FORKS,
        r"([\d.]+) times fewer tokens, [\d.]+ times less CPU time \| the same",
        r"\(a\) .* ([\d.]+)x +[\d.]+x", 1.05,
    ),
    Check(
        "rollout tokens per CPU second", FORKS,
        r"engine against `generate` \| ([\d.]+) times", r"rollout.* ([\d.]+)x", 1.6,
    ),
    Check(
        "ALFWorld steps against the original's", ALFWORLD,
        r"ALFWorld engine's steps .* \| ([\d,]+) times", r"step +[\d.]+ us +(\d+) times", 2.5,
    ),
    Check(
        "ALFWorld snapshot and restore, us", ALFWORLD,
        r"snapshot and restore ([\d.]+) µs \| `python -m benchmarks\.alfworld",
        r"snapshot \+ restore +([\d.]+) us", 2.5,
    ),
    Check(
        "ALFWorld recordings in the repository", "python -m tests.replay alfworld tests/data/alfworld",
        r"0 differences \((\d+) of them", r"(\d+) records, 0 mismatches", 1,
    ),
]  # fmt: skip
TRAINED = [
    Check(
        f"SearchQA, seed 0, {when}", "train",
        rf"`searchqa` \| 0 \| {stated}", rf"success {when} .*?(0\.\d+)  95", 1.1,
    )
    for when, stated in (("before", r"(\.\d+)"), ("after", r"\.\d+ [^|]*\| (\.\d+)"))
]  # fmt: skip


def number(text: str) -> float:
    return float(text.replace(",", ""))


def output(command: str) -> str:
    """What a command of the README prints, run with this interpreter."""
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        sys.exit(f"{command}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__.splitlines()[0])
    parser.add_argument("--train", action="store_true", help="train on SearchQA, seed 0, too: two ranks, minutes")
    checks = CHECKS + (TRAINED if parser.parse_args().train else [])
    readme, outputs, outside = (ROOT / "README.md").read_text(), {}, 0
    print(f"{'figure':40}{'README':>12}{'now':>12}   allowed factor")
    with tempfile.TemporaryDirectory() as directory:
        train = f"python -m torch.distributed.run --standalone --nproc-per-node 2 train.py --run-dir {directory}/run"
        for check in checks:
            command = train if check.command == "train" else check.command
            if command not in outputs:
                outputs[command] = output(command)
            stated = number(re.search(check.stated, readme)[1])
            now = max(map(number, re.findall(check.printed, outputs[command])))
            ok = stated / check.factor <= now <= stated * check.factor
            outside += not ok
            print(f"{check.what:40}{stated:12g}{now:12g}   {check.factor:g}{'' if ok else '   OUTSIDE'}", flush=True)
    return int(outside > 0)


if __name__ == "__main__":
    sys.exit(main())
