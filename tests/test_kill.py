"""The small version of the kill test: every run that SIGKILL ends resumes to exactly what it would have been."""

import subprocess
import sys

from benchmarks.kill_test import ROOT


def test_killed_runs_resume_bit_for_bit():
    command = [sys.executable, "-m", "benchmarks.kill_test", "--runs", "4", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 killed runs resumed to the undisturbed run, bit for bit" in done.stdout
