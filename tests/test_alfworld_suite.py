"""The embedded ALFWorld games: all six types, rooms apart by split, each won by the expert; and their generator."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from itertools import islice
from types import SimpleNamespace

import pytest

from envs import load_suite
from envs.alfworld import embedded
from envs.alfworld.embedded import DATA, SIZES, open_embedded
from envs.alfworld.env import AlfworldEnv
from envs.alfworld.expert import Expert, Goal, kind, play, read_goal
from envs.alfworld.games import open_game
from envs.base import Task
from prover_mini.errors import UserError
from scripts import build_alfworld
from scripts.alfworld import games
from tests.test_alfworld import GAMES

SPLITS = ("train", "seen", "test")
LEAST = {"train": 300, "seen": 60, "test": 60}
RECEPTACLES = {"small": (7, 9), "full": (12, 28)}
TURNS = {"small": 16, "full": 50}
TYPES = {
    "pick_and_place_simple", "look_at_obj_in_light", "pick_clean_then_place_in_recep", "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep", "pick_two_obj_and_place",
}  # fmt: skip
ROOM_OF_SCENE = {0: "kitchen", 2: "living room", 3: "bedroom", 4: "bathroom"}  # by hundreds, as in ALFRED


def scene(task):
    return int(task.id.split("/")[1].rpartition("-")[2])


def furniture(task):
    """The receptacles that a policy is shown, counted by kind."""
    return frozenset(Counter(map(kind, Expert(intro(task)).receptacles)).items())


def intro(task):
    return AlfworldEnv(open_embedded, admissible=False).reset(task)


def means(goal, world, state):
    """Whether the state is what the task's sentence asks for."""
    kinds = {thing: word.removesuffix("type") for thing, word in world.kinds.items()}
    if goal.light:
        here = [thing for receptacle in world.here.get(state.place, ()) for thing in state.inside[receptacle]]
        lit = any(kinds[thing] == goal.place and thing in state.toggled for thing in here)
        return lit and kinds.get(state.held) == goal.thing
    ready = {"": set(kinds), "clean": state.clean, "heat": state.hot, "cool": state.cool}[goal.preparation]
    return any(
        sum(kinds[thing] == goal.thing and thing in ready for thing in inside) >= goal.count
        for receptacle, inside in state.inside.items()
        if kinds[receptacle] == goal.place
    )


# the games


@pytest.mark.parametrize("size", SIZES)
def test_splits(size):
    suite, known = embedded(size), set()
    for split in SPLITS:
        tasks = suite.tasks(split)
        counts = Counter(task.kind for task in tasks)
        assert len(tasks) >= LEAST[split] and counts.keys() == TYPES and len(set(counts.values())) == 1
        assert [task.id for task in tasks] == sorted({task.id for task in tasks})
        assert {ROOM_OF_SCENE[scene(task) // 100 % 10] for task in tasks} == set(ROOM_OF_SCENE.values())
        assert all(task.split == split and task.id.split("/")[1].startswith(f"{task.kind}-") for task in tasks)
        problems = {task.data.problem for task in tasks}
        assert len(problems) == len(tasks) and not problems & known
        known |= problems


@pytest.mark.parametrize("size", SIZES)
def test_rooms(size):
    suite = embedded(size)
    samples = {split: {scene(task): task for task in suite.tasks(split)} for split in SPLITS}
    scenes = {split: {n: furniture(task) for n, task in rooms.items()} for split, rooms in samples.items()}
    assert scenes["seen"].items() <= scenes["train"].items()
    assert not scenes["test"].keys() & scenes["train"].keys()
    assert not set(scenes["test"].values()) & set(scenes["train"].values())


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("size", SIZES)
def test_the_expert_wins_every_game(size, split):
    suite = embedded(size, admissible=False)
    env, (fewest, most) = suite.make_env(), RECEPTACLES[size]
    for task in suite.tasks(split):
        expert = Expert(env.reset(task))
        assert fewest <= len(expert.receptacles) <= most
        assert not env.game.won and not means(expert.goal, env.game.world, env.game.state)
        for turn in range(TURNS[size]):
            command = expert.command()
            step = env.step(f"<action>{command}</action>")
            assert step.done == means(expert.goal, env.game.world, env.game.state), (task.id, command)
            assert step.valid or size == "full" and command.startswith("go to stoveburner"), (task.id, command)
            if step.done:
                break
            expert.observe(command, step.observation)
        assert step.reward == 1, task.id


def test_the_suite_of_a_configuration():
    for model, size in (("tiny", "small"), ("some/checkpoint", "full")):
        suite = load_suite("alfworld", SimpleNamespace(data="", embedded=model == "tiny", admissible=True))
        assert suite.tasks("test") == embedded(size).tasks("test")
    assert "\n\nAdmissible commands: " in suite.make_env().reset(suite.tasks("test")[0])
    with pytest.raises(UserError, match="small, full"):
        embedded("large")
    with pytest.raises(UserError, match="split"):
        suite.tasks("dev")


# the generator


@pytest.mark.parametrize("size, split, number", [("small", "seen", 40), ("small", "test", 40), ("full", "seen", 12)])
def test_the_generator_makes_the_files(size, split, number):
    with gzip.open(DATA / f"{size}-{split}.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in islice(lines, number)]
    made = [{"id": id, **games.embedded(game)._asdict()} for id, game in islice(games.games(size, split), number)]
    assert made == rows


def test_official_files_hold_the_same_games(tmp_path, monkeypatch):
    monkeypatch.setattr(build_alfworld, "DATA", tmp_path)
    monkeypatch.setattr(games, "GAMES", {size: dict.fromkeys(SPLITS, 1) for size in SIZES})
    build_alfworld.main(["--official", str(tmp_path)])
    for size in SIZES:
        official = load_suite("alfworld", SimpleNamespace(data=str(tmp_path / size), admissible=True))
        ours = embedded(size)
        for split in SPLITS:
            known = {task.id: task for task in ours.tasks(split)}
            tasks = official.tasks(split)
            assert {task.kind for task in tasks} == TYPES
            for task in tasks:
                assert walk(official, task) == walk(ours, known[task.id])
                assert official.open_world(task.data).names == ours.open_world(known[task.id].data).names
                facts = json.loads((task.data.parent / "traj_data.json").read_text())
                assert (facts["task_type"], facts["scene"]["scene_num"]) == (task.kind, scene(task))
                assert f"{facts['turk_annotations']['anns'][0]['task_desc']}.\n" in intro(known[task.id]) + "\n"


def walk(suite, task):
    """A random walk of 30 commands, then what the expert does from the start: all texts, rewards and commands."""
    env, rng = suite.make_env(), random.Random(task.id)
    seen = [env.reset(task)]
    for _ in range(30):
        command = rng.choice(env.game.admissible())
        seen += [command, env.step(command)]
    return seen + play(env, task, TURNS["full"])


# the expert


@pytest.mark.parametrize(
    "sentence, goal",
    [
        ("put a mug in coffeemachine.", Goal("mug", "coffeemachine", "", 1, False)),
        ("put some mug on coffeemachine.", Goal("mug", "coffeemachine", "", 1, False)),
        ("put a clean mug in coffeemachine.", Goal("mug", "coffeemachine", "clean", 1, False)),
        ("clean some plate and put it in shelf.", Goal("plate", "shelf", "clean", 1, False)),
        ("put a hot egg in fridge.", Goal("egg", "fridge", "heat", 1, False)),
        ("cool some egg and put it in sinkbasin.", Goal("egg", "sinkbasin", "cool", 1, False)),
        ("put two cd in safe.", Goal("cd", "safe", "", 2, False)),
        ("find two cd and put them in safe.", Goal("cd", "safe", "", 2, False)),
        ("look at book under the desklamp.", Goal("book", "desklamp", "", 1, True)),
        ("examine the book with the desklamp.", Goal("book", "desklamp", "", 1, True)),
    ],
)
def test_goals_are_read(sentence, goal):
    text = f"-= Welcome to TextWorld, ALFRED! =-\n\nYou see.\n\nYour task is to: {sentence}"
    assert read_goal(text) == read_goal(f"{text}\n\nAdmissible commands: look") == goal


def test_a_free_wording_is_refused():
    with pytest.raises(ValueError, match="rinse it"):
        read_goal("Your task is to: take a plate, rinse it and put it back.")


@pytest.mark.parametrize("path", GAMES, ids=lambda path: path.parent.parent.name)
def test_the_expert_wins_the_recorded_games(path):
    assert play(AlfworldEnv(open_game), Task("t", "test", "kind", path), 50)[-1][1].reward == 1


def test_the_expert_does_not_read_the_admissible_commands():
    for size in SIZES:
        with_commands, without = embedded(size), embedded(size, admissible=False)
        for task in with_commands.tasks("test")[::12]:
            turns = [play(suite.make_env(), task, TURNS[size]) for suite in (with_commands, without)]
            assert [command for command, _ in turns[0]] == [command for command, _ in turns[1]]
