"""Profiles the kernels: `pytest --bench`, or `python -m benchmarks.kernels [--skip-compile]`.

With a GPU: times, rates, share of the floor and peak memory (benchmarks/kernels_gpu.py). Without one: the CPU path of
`linear_logprob` against materialised logits, as ratios within one run. Always: registers, spills and shared memory of
every shipped configuration, compiled ahead of time. Tables are printed and written to benchmarks/results/, named after
the device, as Markdown and CSV.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
ROWS, HIDDEN, VOCABULARY = 1024, 1024, 248_320


class Report:
    """Prints tables as they come and keeps them for the files."""

    def __init__(self, device: str):
        self.name = "kernels_" + "_".join(device.lower().split())
        versions = f"Python {platform.python_version()}, torch {torch.__version__}, triton {triton_version()}"
        self.header = f"{device}; {versions}"
        self.markdown, self.rows = [f"# Kernels on {self.header}", ""], []
        print(self.header)

    def line(self, text: str) -> None:
        print(text)
        self.markdown += [text, ""]

    def table(self, title: str, rows: list[dict]) -> None:
        """`rows` share their keys, which become the columns."""
        columns = list(rows[0])
        cells = [columns, *([str(row[c]) for c in columns] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths)) + " |" for line in cells]
        lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
        print(f"\n{title}", *lines, sep="\n", flush=True)
        self.markdown += [f"## {title}", "", *lines, ""]
        self.rows += [{"device": self.header, "table": title.split(":")[0], **row} for row in rows]

    def save(self) -> None:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self.name}.md").write_text("\n".join(self.markdown))
        with open(RESULTS / f"{self.name}.csv", "w", newline="") as file:
            columns = dict.fromkeys(key for row in self.rows for key in row)
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(self.rows)
        print(f"\nwritten: {RESULTS / self.name}.md and .csv")


def triton_version() -> str:
    try:
        import triton
    except ImportError:
        return "not installed"
    return triton.__version__


def status_mib(field: str) -> float:
    """A memory figure of this process from /proc, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measure(path: str) -> None:
    """Prints CPU seconds and memory beyond inputs and gradients of one forward and backward pass, as JSON."""
    from kernels import linear_logprob

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden_ND = torch.randn(ROWS, HIDDEN).requires_grad_()
    weight_VD = torch.randn(VOCABULARY, HIDDEN).div_(HIDDEN**0.5).requires_grad_()
    ids_N = torch.randint(0, VOCABULARY, (ROWS,))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, start = status_mib("VmRSS"), time.process_time()
    if path == "chunked":
        logprob_N = linear_logprob(hidden_ND, weight_VD, ids_N).logprob_N
    else:
        logprob_N = (hidden_ND @ weight_VD.T).log_softmax(1).gather(1, ids_N[:, None])[:, 0]
    logprob_N.sum().backward()
    seconds = time.process_time() - start
    gradients = (hidden_ND.nbytes + weight_VD.nbytes) / 2**20
    print(json.dumps({"seconds": seconds, "mib": status_mib("VmHWM") - before - gradients}))


def cpu(report: Report, rounds: int = 2) -> None:
    """Each path in processes of its own, in turn; of the rounds the fastest counts."""
    results: dict[str, dict] = {}
    for path in ("materialised", "chunked") * rounds:
        command = [sys.executable, "-m", "benchmarks.kernels", "--measure", path]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        result = json.loads(done.stdout)
        results[path] = min(result, results.get(path, result), key=lambda r: r["seconds"])
    base = results["materialised"]
    rows = [
        {
            "path": {"materialised": "log_softmax + gather", "chunked": "linear_logprob"}[path],
            "CPU seconds": f"{r['seconds']:.1f}",
            "time ratio": f"{r['seconds'] / base['seconds']:.2f}",
            "extra MiB": f"{r['mib']:.0f}",
            "memory ratio": f"{r['mib'] / base['mib']:.3f}",
        }
        for path, r in results.items()
    ]
    report.table(f"CPU, forward and backward: N {ROWS}, D {HIDDEN}, V {VOCABULARY:,}, float32, one thread", rows)


def compile_table(report: Report) -> int:
    """Prints the resources of every shipped configuration; returns how many break a limit."""
    from tests.aot import SHARED_LIMIT, compile_job, jobs

    rows, bad = [], 0
    todo = list(jobs())
    for i, job in enumerate(todo):
        if sys.stderr.isatty():
            print(f"\rcompiling {i + 1} of {len(todo)}", end="", file=sys.stderr, flush=True)
        used = compile_job(job)
        within = used.shared <= SHARED_LIMIT[job.target] and not used.double_precision
        fine = within and (used.spills == 0 or job.target.startswith("gfx"))
        bad += not fine
        rows.append(
            {
                "target": job.target,
                "kernel": job.name,
                "configuration": job.label,
                "registers": used.registers,
                "spills": used.spills,
                "shared bytes": used.shared,
                "f64": "yes" if used.double_precision else "no",
                "ok": "yes" if fine else "NO",
            }
        )
    report.table(f"Ahead-of-time compilation: {len(rows)} configurations, {bad} not ok", rows)
    return bad


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skip-compile", action="store_true", help="leave the compile table out")
    parser.add_argument("--measure", choices=("chunked", "materialised"), help=argparse.SUPPRESS)
    options = parser.parse_args([] if arguments is None else arguments)
    if options.measure:
        measure(options.measure)
        return 0
    on_gpu = torch.cuda.is_available()
    report = Report(torch.cuda.get_device_name() if on_gpu else "CPU")
    if on_gpu:
        from benchmarks.kernels_gpu import gpu

        gpu(report)
    else:
        report.line("No GPU was there: CPU paths and compile-time resources only.")
        cpu(report)
    bad = 0 if options.skip_compile else compile_table(report)
    report.save()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
