"""ALFWorld's files: the official layout, and files that are broken or hostile."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from envs import load_suite
from envs.alfworld.game import Game
from envs.alfworld.games import open_game
from prover_mini.errors import UserError
from tests.test_alfworld import GAMES, problem_text

GOOD = json.loads(GAMES[0].read_text())
GRAMMAR, PROBLEM = GOOD["grammar"], GOOD["pddl_problem"]
BEFORE_GOAL = PROBLEM[: PROBLEM.index("(:goal")]
HOSTILE = {
    "field": {"pddl_problem": None},
    "cut": {"pddl_problem": PROBLEM[:9000]},
    "unknown object": {"pddl_problem": PROBLEM.replace("(:init", "(:init (opened Nowhere)")},
    "code": {"grammar": GRAMMAR.replace("{o.name}", "{__import__('os').abort()}", 1)},
    "code in the task": {"grammar": GRAMMAR.replace("Your task is to:", "{exit}")},
    "no task": {"grammar": ""},
    "unparsable goal": {"pddl_problem": BEFORE_GOAL + "(:goal (exists (?x) (inReceptacle ?x))))"},
    "unknown word": {"pddl_problem": BEFORE_GOAL + "(:goal (isSparkling ?x)))"},
    "unknown predicate": {"pddl_problem": BEFORE_GOAL + "(:goal (and (and) (isSparkling agent1))))"},
    "no goal": {"pddl_problem": BEFORE_GOAL + ")"},
    "deep": {"pddl_problem": "(" * 100_000},
    "huge and empty": {"pddl_problem": BEFORE_GOAL + "(:goal (forall (?a ?b ?c ?d ?e - object) (and))))"},
    "huge": {
        "pddl_problem": BEFORE_GOAL
        + "(:goal (forall (?a ?b ?c ?d ?e ?f - object) (or (isHot ?a) (isHot ?b) (isCool ?f)))))"
    },
    "no start": {"pddl_problem": PROBLEM.replace("(atLocation", "(examined", 1)},
}


def write_game(path: Path, **changes) -> Path:
    path.mkdir(parents=True)
    (path / "game.tw-pddl").write_text(json.dumps({**GOOD, **changes}))
    return path / "game.tw-pddl"


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_a_bad_file_is_one_line(tmp_path, changes):
    path = write_game(tmp_path / "train" / "pick-A-None-B-1" / "trial_1", **changes)
    with pytest.raises(UserError) as raised:
        open_game(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value) and len(str(raised.value)) < 500
    with pytest.raises(UserError, match="game.tw-pddl"):
        load_suite("alfworld", SimpleNamespace(data=str(tmp_path), admissible=True)).tasks("train")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"solvable": 1}'])
def test_what_is_no_game_file(tmp_path, content):
    (tmp_path / "game.tw-pddl").write_bytes(content)
    with pytest.raises(UserError, match="game.tw-pddl"):
        open_game(tmp_path / "game.tw-pddl")


def test_broken_problems_raise_nothing_else(tmp_path):
    rng, path = random.Random(0), write_game(tmp_path / "g")
    text = problem_text()
    for _ in range(400):
        start, cut = rng.randrange(len(text)), rng.choice([1, 1, 5, 40])
        broken = text[:start] + rng.choice(["", "(", ")", "?o ", " - ", ";", "é"]) + text[start + cut :]
        path.write_text(json.dumps({**GOOD, "pddl_problem": broken}))
        try:
            Game(open_game(path)).play("go to table 1")
        except UserError:
            pass


def test_official_layout(tmp_path, capsys):
    for name in ("b-Two-None-X-1/trial_2", "a-One-None-X-1/trial_1", "a-movable-X-1/t", "a-OneSliced-None-X-1/t"):
        write_game(tmp_path / "train" / name)
    write_game(tmp_path / "train" / "a-Hard-None-X-1" / "t", solvable=False)
    write_game(tmp_path / "train" / "a-Bad-None-X-1" / "t", pddl_problem="(")
    write_game(tmp_path / "valid_unseen" / "c-One-None-X-9" / "t")
    suite = load_suite("alfworld", SimpleNamespace(data=str(tmp_path), admissible=True))
    ids = [task.id for task in suite.tasks("train")]
    assert ids == ["train/a-One-None-X-1/trial_1", "train/b-Two-None-X-1/trial_2"]
    assert [task.kind for task in suite.tasks("train")] == ["a", "b"]
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "left out 1 of 4 games" in error and "a-Bad" in error
    (unseen,) = suite.tasks("test")
    assert unseen.split == "test" and suite.max_turns == 50
    assert "Your task is to: " in suite.make_env().reset(unseen)
    with pytest.raises(UserError, match="valid_seen"):
        suite.tasks("seen")
    with pytest.raises(UserError, match="split"):
        suite.tasks("dev")


def test_data_without_games(tmp_path):
    for data in (str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(UserError, match="--data"):
            load_suite("alfworld", SimpleNamespace(data=data, admissible=True))
