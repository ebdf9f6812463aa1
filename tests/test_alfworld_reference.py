"""The engine against the original ALFWorld, step by step, on newly drawn games; `tests/requirements-alfworld.txt` says
how to install that. Skipped where it is not installed: it plays about 13 steps a second."""

import random
from itertools import islice

import pytest

from envs.alfworld.env import AlfworldEnv
from envs.alfworld.expert import Expert
from envs.alfworld.game import Game
from envs.alfworld.games import open_game
from envs.base import Task
from scripts.alfworld import games
from scripts.build_alfworld import reference_texts, write_official

textworld = pytest.importorskip("textworld", reason="textworld, the original's engine, is not installed")
original = pytest.importorskip(
    "alfworld.agents.environment.alfred_tw_env", reason="alfworld, the original, is not installed"
)

UNUSED = 10_000  # numbers of games from here on are in no suite
PLAYS = {"random": 150, "wandering expert": 90}  # most steps; over the 12 games more than 2,000 steps
WRONG = ("", "Look", " look ", "put apple 1 in/on fridge 1", "go to moon 1", "take mug 1 from", "open", "help\u2003")


def start(path):
    infos = textworld.EnvInfos(won=True, admissible_commands=True, score=True)
    return textworld.start(str(path), infos, wrappers=[original.AlfredDemangler(shuffle=False), original.AlfredInfos])


def seen(state, played):
    return state.feedback, state["admissible_commands"], bool(state["won"]), state["score"] if played else None


def commands(play, intro, rng, admissible, answer):
    """What is played: anything possible with some nonsense, or the expert's way with detours. `admissible` and `answer`
    tell the present commands and the last text of the engine under test."""
    expert = Expert(intro)
    while True:
        if play == "random":
            yield rng.choice(WRONG) if rng.random() < 0.1 else rng.choice(admissible())
            continue
        command = expert.command() if rng.random() < 0.7 else rng.choice(admissible())
        yield command
        expert.observe(command, answer())


@pytest.mark.parametrize("play", PLAYS)
@pytest.mark.parametrize("size", ["small", "full"])
@pytest.mark.parametrize("type", games.TEMPLATES)
def test_every_step_equals_the_original(tmp_path, record_property, size, type, play):
    (game,) = islice(games.candidates(size, "test", type, UNUSED), 1)
    write_official(tmp_path, "new/trial_0", game, *reference_texts())
    path = tmp_path / "new" / "trial_0" / "game.tw-pddl"
    theirs, ours, rng = start(path), Game(open_game(path)), random.Random(f"{size} {type} {play}")
    text = ours.intro()
    assert (text, ours.admissible(), ours.won, None) == seen(theirs.reset(), played=False)
    intro = AlfworldEnv(open_game, admissible=False).reset(Task("", "", type, path))
    steps = 0
    for command in islice(commands(play, intro, rng, ours.admissible, lambda: text), PLAYS[play]):
        text = ours.play(command)[0]
        state, _, done = theirs.step(command)
        steps += 1
        got = (text, ours.admissible(), ours.won, int(ours.won))
        assert got == seen(state, played=True), (steps, command)
        assert done == ours.won
        if done:
            break
    record_property("steps", steps)
    print(f"{steps} steps equal")
