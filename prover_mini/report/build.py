"""Data, style and program as one HTML file.

Everything that came from an environment, a judge or a model reaches the page as data: JSON in which `<` is escaped, so
that no text can close its element, and packed groups in base64. The program shows it through `textContent` alone. A
content security policy allows this style and this program, by their hashes, and nothing else: no request leaves the
page, and no handler or script that a text might smuggle in would run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path

from prover_mini.errors import UserError
from prover_mini.files import write_text
from prover_mini.report.collect import collect, curves
from prover_mini.report.keep import keep

PAGE = Path(__file__).parent / "page"
STYLE = ("report.css", "credit.css")
PROGRAM = ("dom.js", "charts.js", "curves.js", "tables.js", "trajectory.js", "group.js", "groups.js", "main.js")


def write_report(paths: list[Path], out: Path, max_mb: float) -> dict:
    """Writes the page about some runs; returns its data.

    `max_mb`: megabytes that the trajectories of all runs may take together; see keep.py. Raises UserError for a
    directory that holds no run.
    """
    if not 0 <= max_mb <= 1000:
        raise UserError(f"--max-mb {max_mb}: must be between 0 and 1000")
    collected = [collect(path) for path in paths]
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"--out {out}: must be a file in a directory that exists")
    window = max(1, round(max(len(rows) for _, rows, _ in collected) / 10))
    packed: list[str] = []
    for run, rows, groups in collected:
        texts, where = keep(groups, int(max_mb * 1e6 / len(paths)))
        kept = [g for g in groups if (g.step, g.index) in where]
        run["curves"] = curves(rows, window)
        for line in run["groups"]:
            place = where.get((line["step"], line["index"]))
            line["packed"] = None if place is None else len(packed) + place
        run["kept"] = {
            "steps": len(rows),
            "groups": len(kept),
            "of_groups": len(groups),
            "trajectories": sum(len(g.records) for g in kept),
            "of_trajectories": sum(len(g.records) for g in groups),
        }
        packed += texts
    data = {"runs": [run for run, _, _ in collected]}
    write_text(out, render(data, packed))
    return data


def render(data: dict, packed: list[str]) -> str:
    style = "\n".join((PAGE / name).read_text() for name in STYLE)
    program = '"use strict";\n' + "\n".join((PAGE / name).read_text() for name in PROGRAM)
    parts = {
        "title": html.escape("prover-mini · " + ", ".join(run["name"] for run in data["runs"])),
        "policy": f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(program)}'; "
        "base-uri 'none'; form-action 'none'",
        "style": style,
        "program": program,
        "data": embedded(data),
        "packed": embedded(packed),
    }
    template = (PAGE / "report.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embedded(value) -> str:
    """JSON for a script element of a data type: no text in it can end the element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
