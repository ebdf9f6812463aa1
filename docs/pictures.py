"""Pictures of a run's report, for the README: python -m docs.pictures runs/NAME

Needs Chromium, and pngquant for files of a third of the size. The group that is shown is the accepted segment with the
largest delta, of equals the earliest, among those whose tokens were recorded.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from prover_mini.report.build import write_report
from prover_mini.report.collect import collect
from tests.chromium import Browser

DOCS = Path(__file__).parent


def best_group(path: Path) -> tuple[str, int]:
    """The address of the group in the report, and the first turn of its segment."""
    candidates = [
        (s["delta"], g.step, g.index, s["first_turn"])
        for g in collect(path)[2]
        for s in g.segments
        if s["accepted"] and "tokens" in g.records[0]["turns"][0]
    ]
    delta, step, index, turn = max(candidates, key=lambda c: (c[0], -c[1], -c[2]))
    return f"#run=0&step={step}&group={index}", turn


def main(path: Path) -> None:
    page = path / "report.html"
    write_report([path], page, 24)
    address, turn = best_group(path)
    with Browser() as browser:
        browser.resize(1280, 880, scale=1.5)
        browser.open(page)
        browser.wait("document.querySelector('.trajectory') && document.querySelector('.plot svg')")
        browser.screenshot(DOCS / "report-curves.png")
        browser.resize(1280, 1000, scale=1.5)
        browser.open(page, address)
        browser.wait("document.querySelector('.item[aria-current]')")
        browser.value("document.documentElement.style.setProperty('scroll-behavior', 'auto')")
        browser.value("document.getElementById('group').scrollIntoView()")
        browser.wait("Math.abs(document.getElementById('group').getBoundingClientRect().top - 16) < 1")
        browser.hover(f".turn.pivotal[data-turn='{turn}'] .token:nth-last-child(2)", scroll=False)
        browser.screenshot(DOCS / "report-credit.png")
        browser.resize(390, 844, dark=True, scale=2)
        browser.open(page, address)
        browser.wait("document.querySelector('.trajectory')")
        browser.value("document.querySelector('.matrix').scrollIntoView({ behavior: 'instant' })")
        browser.screenshot(DOCS / "report-phone.png")
    if shutil.which("pngquant"):
        pictures = sorted(map(str, DOCS.glob("report-*.png")))
        subprocess.run(["pngquant", "--force", "--ext", ".png", "--strip", *pictures], check=True, timeout=60)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
