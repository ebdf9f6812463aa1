"""What the README shows is run from its own text: the complete examples, and the commands' flags."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.readme import CHECKS, TRAINED
from prover_mini.config import parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = {
    re.search(r"python (\w+)\.py", text)[1]: text
    for text in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    if "train.main()" in text
}
SMALL = "--steps 1 --groups-per-step 2 --group-size 4 --continuations 2 --eval-tasks 4 --slots 16 --lr 1e-4".split()
COMMANDS = [
    (file.name, line.strip())
    for file in [ROOT / "README.md", *sorted((ROOT / "scripts").glob("*.sh"))]
    for line in file.read_text().replace("\\\n", " ").splitlines()
    if re.match(r"\s*(torchrun .*|python )train\.py ", line) and "--help" not in line
]


def test_there_is_one_of_each():
    assert list(EXAMPLES) == ["discounted", "rarest", "guess"]


@pytest.mark.parametrize("name", ["discounted", "rarest", "guess"])
def test_a_complete_example_runs(name, tmp_path):
    text = EXAMPLES[name]
    assert len(text.splitlines()) < 40
    (tmp_path / f"{name}.py").write_text(text)
    command = re.search(rf"python {name}\.py (.*?)\"\"\"", text)[1]
    flags = [str(ROOT / flag) if flag.startswith("prover_mini/") else flag for flag in shlex.split(command)]
    done = subprocess.run(
        [sys.executable, tmp_path / f"{name}.py", *flags, *SMALL, "--run-dir", tmp_path / "run"],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "latest").read_text().strip() == "step_000001"


@pytest.mark.parametrize("file, line", COMMANDS)
def test_every_shown_command_is_one_that_the_trainer_takes(file, line):
    words = shlex.split(line.partition("#")[0])
    flags = [word for word in words[words.index("train.py") + 1 :] if word not in ("$@", "...")]
    parse(flags)


@pytest.mark.parametrize("check", CHECKS + TRAINED, ids=lambda check: check.what)
def test_a_figure_that_is_measured_again_stands_in_the_readme(check):
    assert len(re.findall(check.stated, README)) == 1
