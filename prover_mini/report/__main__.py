"""The command line of the report."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from prover_mini.errors import UserError
from prover_mini.report.build import write_report


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; 2 with one line on stderr for input that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m prover_mini.report", description="One HTML file about some runs.")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", type=Path, help="run directory, such as runs/searchqa-prover-001"
    )
    parser.add_argument("--out", type=Path, help="file to write (default: report.html in the first run's directory)")
    parser.add_argument("--max-mb", type=float, default=24, help="size that the trajectories may take (default: 24)")
    options = parser.parse_args(arguments)
    out = options.out or options.runs[0] / "report.html"
    start = time.perf_counter()
    try:
        report = write_report(options.runs, out, options.max_mb)
    except (UserError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"{out}  {out.stat().st_size / 1e6:.1f} MB, {time.perf_counter() - start:.1f} s")
    for run in report["runs"]:
        kept, total = run["kept"]["trajectories"], run["kept"]["of_trajectories"]
        print(f"  {run['name']}: {run['kept']['steps']} steps, {kept} of {total} trajectories")
    return 0


if __name__ == "__main__":
    sys.exit(main())
