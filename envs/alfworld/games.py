"""Official ALFWorld game files.

    {train,valid_seen,valid_unseen}/<type>-<object>-<..>-<receptacle or lamp>-<scene>/trial_<id>/game.tw-pddl

A game file is a JSON object; the fields read are `pddl_problem`, `solvable`, and from `grammar` the sentence that
tells the task. The grammar is never evaluated, though the original does so: a file whose grammar has more than names
to evaluate is refused.

Source: json_2.1.1 data of https://github.com/alfworld/alfworld and its reader's rules for what is skipped.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from envs.alfworld.pddl import PDDLError, parse_problem
from envs.alfworld.world import World
from envs.base import Task
from prover_mini.errors import UserError

FOLDERS = {"train": "train", "seen": "valid_seen", "test": "valid_unseen"}  # by the names that splits have here
UNSUPPORTED = ("movable", "Sliced")
MANY = 100  # games, from which on reading them is worth a progress bar

STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
TASK_RULE = re.compile(rf'"task"\s*:\s*\[\s*\{{\s*"rhs"\s*:\s*({STRING.pattern})')
EXPRESSION = re.compile(r"\{([^{}|]*)")
HARMLESS = re.compile(r"(?!.*__)(#\w+\(\w*\)#|[\w .+'/-]*)\s*")


def load_tasks(root: Path, split: str) -> list[Task]:
    """The solvable games of a split, sorted by id. Broken ones are left out and reported on stderr, once.

    Raises UserError where the folder is missing, holds no game, or no game that can be read.
    """
    folder = root / FOLDERS[split]
    paths = sorted(path for path in folder.rglob("game.tw-pddl") if is_supported(path.relative_to(root)))
    if not paths:
        raise UserError(f"{folder}: holds no game.tw-pddl; the split {split!r} needs ALFWorld's json_2.1.1 files there")
    console = Console(stderr=True)
    tasks, problems = [], []
    for path in track(paths, f"reading {folder}", console=console, transient=True, disable=len(paths) < MANY):
        try:
            if open_game(path) is not None:
                name = path.parent.relative_to(root).as_posix()
                tasks.append(Task(name, split, path.parent.parent.name.partition("-")[0], path))
        except UserError as problem:
            problems.append(problem)
    if not tasks:
        raise problems[0] if problems else UserError(f"{folder}: none of its {len(paths)} games is solvable")
    if problems:
        print(f"{folder}: left out {len(problems)} of {len(paths)} games; {problems[0]}", file=sys.stderr)
    return sorted(tasks, key=lambda task: task.id)


def is_supported(path: Path) -> bool:
    return not any(word in path.as_posix() for word in UNSUPPORTED)


def open_game(path: Path) -> World | None:
    """The world of a game file; None if the game is unsolvable. Raises UserError for what is not a game file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not a JSON file: {error}") from None
    try:
        if not isinstance(data, dict):
            raise PDDLError("not a JSON object")
        if not field(data, "solvable", bool):
            return None
        task = read_task(field(data, "grammar", str))
        return World(parse_problem(field(data, "pddl_problem", str)), task)
    except PDDLError as problem:
        raise UserError(f"{path}: is not an ALFWorld game: {one_line(problem)}") from None


def field(data: dict[str, Any], name: str, kind: type) -> Any:
    if not isinstance(data.get(name), kind):
        raise PDDLError(f"the field {name} is missing or of the wrong type")
    return data[name]


def read_task(grammar: str) -> str:
    """The sentence of the rule "task", such as "Your task is to: put a mug in desk.". Raises PDDLError."""
    for literal in STRING.findall(grammar):
        for expression in EXPRESSION.findall(literal):
            if not HARMLESS.fullmatch(expression):
                raise PDDLError(f"its grammar holds code: {expression[:60]}")
    found = TASK_RULE.search(grammar)
    try:
        task = json.loads(found[1]) if found else ""
    except ValueError:
        task = ""
    if not task.strip() or any(symbol in task for symbol in "{}[]#"):
        raise PDDLError("its grammar has no plain text for the task")
    return task


def one_line(problem: PDDLError) -> str:
    text = " ".join(str(problem).split())
    return text if len(text) < 200 else f"{text[:200]} .."
