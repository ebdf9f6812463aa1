"""Recorded ALFWorld games, replayed: `python -m tests.replay alfworld DIR`.

DIR holds game folders and traces.jsonl(.gz), one step a line, the steps of a trace in order from step 0, the reset:

    {"game": folder, "trace": name, "step": 0, "action": null or text, "observation": text,
     "admissible_commands": [..], "won": bool, "score": null or 0 or 1, "done": bool}

Observation, commands with their order, won, score and done must be equal; nothing else is in a record.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from envs.alfworld.game import Game
from envs.alfworld.games import open_game
from prover_mini.errors import UserError

SHOWN = 5
COMPARED = ("observation", "admissible_commands", "won", "score", "done")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay alfworld", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args(arguments).directory
    records, differences = 0, []
    for record, got in replay(directory):
        records += 1
        wrong = [name for name in COMPARED if got[name] != record.get(name, "nothing recorded")]
        if wrong:
            differences.append((record, got, wrong))
    for record, got, wrong in differences[:SHOWN]:
        print(f"    {record['game']} {record['trace']} step {record['step']}: {record['action']!r}")
        for name in wrong:
            print(f"        {name}: got {got[name]!r}\n        {' ' * len(name)}  expected {record.get(name)!r}")
    print(f"{records} records, {len(differences)} mismatches")
    return 1 if differences or not records else 0


def replay(directory: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every record with what this engine gives. Raises UserError for a directory of another layout."""
    open_world = cache(open_game)
    game = None
    for line, record in read_traces(directory):
        try:
            if record["step"] == 0:
                game = Game(open_world(directory / record["game"] / "game.tw-pddl"))
                observation, score = game.intro(), None
            else:
                observation, score = game.play(record["action"])[0], int(game.won)
        except (KeyError, TypeError, AttributeError):
            raise UserError(f"{directory}: line {line} of the traces isn't a record of a playable game") from None
        done = game.won and record["step"] > 0
        values = (observation, game.admissible(), game.won, score, done)
        yield record, dict(zip(COMPARED, values))


def read_traces(directory: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    paths = [path for name in ("traces.jsonl.gz", "traces.jsonl") if (path := directory / name).is_file()]
    if not paths:
        raise UserError(f"{directory}: holds no traces.jsonl.gz or traces.jsonl; give a directory of recordings")
    opener = gzip.open if paths[0].suffix == ".gz" else open
    try:
        with opener(paths[0], "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                yield number, json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{paths[0]}: cannot be read: {error}") from None
