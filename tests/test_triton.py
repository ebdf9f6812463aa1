"""The Triton kernels without a GPU: interpreted, on guarded memory, in a trainer step, and compiled for real targets.

The interpreter replaces Triton's compiler when the kernels are imported, so it runs in processes of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.launch import fused
from tests.aot import SHARED_LIMIT, compile_job, jobs
from tests.test_update import ours, sampled_groups
from tests.toys import toy_config

ROOT = Path(__file__).parent.parent
INTERPRETED = (
    "segment_advantage", "grpo_loss", "linear_logprob", "gated_delta_rule", "decode_attention", "rms_norm", "decode"
)  # fmt: skip
STEP = toy_config(temperature=0.7, kl_coef=0.1, importance_cap=1.5, max_grad_norm=1e9)
KERNEL_TESTS = [f"tests/test_{name}.py" for name in INTERPRETED]

INTERPRETED_STEP = """
import sys, torch
from tests.test_triton import step
torch.save(step(torch.load(sys.argv[1], weights_only=False)), sys.argv[2])
"""


def step(groups):
    """(whether Triton ran it, gradient, metrics) of one trainer step."""
    return fused(torch.zeros(())), *ours(STEP, groups)


def run(arguments):
    """In a process of its own, interpreted."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_kernels_pass_their_tests_when_interpreted():
    done = run(["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-W", "ignore", *KERNEL_TESTS])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


def test_no_access_outside_of_any_tensor():
    done = run(["-W", "ignore", "-m", "tests.guard"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["one column too many was caught", "every other access was inside"]


def test_a_trainer_step_is_the_same_on_torch_and_triton(tmp_path):
    _, groups = sampled_groups(STEP, tasks=1, turns=2)
    torch.save(groups, tmp_path / "groups.pt")
    on_triton, gradient, metrics = step(groups)
    done = run(["-W", "ignore", "-c", INTERPRETED_STEP, str(tmp_path / "groups.pt"), str(tmp_path / "step.pt")])
    assert done.returncode == 0, done.stderr[-2000:]
    fused_on_triton, fused_gradient, fused_metrics = torch.load(tmp_path / "step.pt")
    assert (on_triton, fused_on_triton) == (False, True) and gradient.norm() > 0
    torch.testing.assert_close(fused_gradient, gradient, rtol=1e-4, atol=1e-6 * gradient.abs().max().item())
    assert fused_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("job", list(jobs()), ids=lambda job: f"{job.target}-{job.name}-{job.label}")
def test_every_configuration_compiles_without_spills(job):
    used = compile_job(job)
    assert not used.double_precision
    assert used.shared <= SHARED_LIMIT[job.target]
    if job.target.startswith("sm_"):
        assert used.spills == 0 and used.registers <= 255
