"""ALFWorld: recorded games of the original engine, its odd rules, goals against brute force, turns of a policy."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envs.alfworld.env import AlfworldEnv
from envs.alfworld.game import Game
from envs.alfworld.games import open_game
from envs.alfworld.goal import compile_goal
from envs.alfworld.pddl import parse_problem
from envs.alfworld.world import World
from envs.base import Task
from tests.replay import alfworld as recordings

DATA = Path(__file__).parent / "data" / "alfworld"
GAMES = sorted(DATA.rglob("game.tw-pddl"))

OBJECTS = """
    agent1 - agent
    table_bar_1 shelf_bar_1 shelf_bar_2 sink_bar_1_bar_sinkbasin fridge_bar_1 microwave_bar_1 - receptacle
    apple_bar_1 apple_bar_2 plate_bar_1 knife_bar_1 lamp_bar_1 - object  loc1 loc2 loc3 hall - location
    TableType ShelfType SinkBasinType FridgeType MicrowaveType - rtype  AppleType PlateType KnifeType LampType - otype
"""
FACTS = """
    (receptacleType table_bar_1 TableType) (receptacleType shelf_bar_1 ShelfType)
    (receptacleType shelf_bar_2 ShelfType) (receptacleType sink_bar_1_bar_sinkbasin SinkBasinType)
    (receptacleType fridge_bar_1 FridgeType) (receptacleType microwave_bar_1 MicrowaveType)
    (openable fridge_bar_1) (openable microwave_bar_1)
    (objectType apple_bar_1 AppleType) (objectType apple_bar_2 AppleType) (objectType plate_bar_1 PlateType)
    (objectType knife_bar_1 KnifeType) (objectType lamp_bar_1 LampType)
    (receptacleAtLocation table_bar_1 loc1) (receptacleAtLocation shelf_bar_1 loc1)
    (receptacleAtLocation sink_bar_1_bar_sinkbasin loc2) (receptacleAtLocation microwave_bar_1 loc2)
    (receptacleAtLocation fridge_bar_1 loc3)
    (canContain TableType AppleType) (canContain ShelfType AppleType) (canContain TableType PlateType)
    (canContain FridgeType AppleType) (canContain TableType KnifeType)
    (pickupable apple_bar_1) (pickupable apple_bar_2) (pickupable plate_bar_1) (pickupable knife_bar_1)
    (cleanable apple_bar_1) (coolable apple_bar_1) (heatable apple_bar_1) (sliceable apple_bar_1)
    (toggleable lamp_bar_1)
    (isReceptacleObject plate_bar_1) (inReceptacle plate_bar_1 table_bar_1) (objectAtLocation plate_bar_1 loc1)
    (inReceptacle apple_bar_1 table_bar_1) (objectAtLocation apple_bar_1 loc1)
    (inReceptacle knife_bar_1 table_bar_1) (objectAtLocation knife_bar_1 loc1)
    (inReceptacle lamp_bar_1 fridge_bar_1) (objectAtLocation lamp_bar_1 loc3)
    (inReceptacle apple_bar_2 fridge_bar_1) (objectAtLocation apple_bar_2 loc3)
"""
COLD_APPLE = """(exists (?o - object ?r - receptacle)
    (and (objectType ?o AppleType) (receptacleType ?r FridgeType) (isCool ?o) (inReceptacle ?o ?r)))"""


def problem_text(more: str = "(atLocation agent1 hall)", goal: str = COLD_APPLE) -> str:
    return f"(define (problem p) (:domain alfred) (:objects {OBJECTS}) (:init {FACTS} {more}) (:goal {goal}))"


def game(more: str = "(atLocation agent1 hall)", goal: str = COLD_APPLE) -> Game:
    return Game(World(parse_problem(problem_text(more, goal)), "Your task is to: cool an apple."))


def play(running: Game, *commands: str) -> str:
    """The answer to the last command; all must be admissible."""
    for command in commands:
        answer, admissible = running.play(command)
        assert admissible, f"{command!r} is not among {running.admissible()}"
    return answer


def env_of(running: Game, **options) -> AlfworldEnv:
    env = AlfworldEnv(lambda data: running.world, **options)
    env.reset(Task("t", "test", "kind", None))
    return env


# recorded games


def test_recorded_games_replay_exactly():
    compared = list(recordings.replay(DATA))
    assert len(compared) == 359
    for record, got in compared:
        assert {name: record[name] for name in recordings.COMPARED} == got


@pytest.mark.parametrize("name, value", [("observation", "x"), ("admissible_commands", ["look"]), ("score", 1)])
def test_replay_reports_a_difference(tmp_path, capsys, name, value):
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    lines = gzip.decompress((DATA / "traces.jsonl.gz").read_bytes()).splitlines()
    changed = json.dumps({**json.loads(lines[1]), name: value}).encode()
    (tmp_path / "traces.jsonl.gz").write_bytes(gzip.compress(b"\n".join([lines[0], changed, *lines[2:]])))
    assert recordings.main([str(tmp_path)]) == 1
    assert "359 records, 1 mismatches" in capsys.readouterr().out
    assert recordings.main([str(DATA)]) == 0


# the rules


def test_a_receptacle_without_a_place_only_counts_for_numbers():
    running = game()
    assert "shelf 2" in running.intro() and "shelf 1" not in running.intro()
    assert "go to shelf 2" in running.commands() and "go to shelf 1" not in running.commands()


def test_a_plate_shows_what_always_lay_in_it():
    running = game("(atLocation agent1 loc1) (inReceptacleObject apple_bar_1 plate_bar_1)")
    play(running, "take apple 2 from table 1", "move apple 2 to shelf 2")
    answer = play(running, "take plate 1 from table 1", "examine plate 1")
    assert answer == "This is a normal plate 1. In it, you see a apple 2."


def test_initial_qualities_count_for_texts_and_goal():
    running = game("(atLocation agent1 loc1) (isCool apple_bar_1) (isSliced apple_bar_1)")
    play(running, "take apple 2 from table 1")
    assert play(running, "examine apple 2") == "This is a cool sliced apple 2."
    play(running, "go to fridge 1", "open fridge 1")
    assert not running.won
    play(running, "move apple 2 to fridge 1")
    assert running.won


def test_starting_at_a_receptacle_faces_it():
    intro = game("(atLocation agent1 loc1)").intro()
    assert "\n\nYou are facing the shelf 2, and table 1. Next to it, you see nothing.\n\nYour task" in intro
    assert play(game(), "look").endswith("you see nothing.")


def test_a_thing_in_two_receptacles_stays_at_the_other_place():
    more = "(atLocation agent1 loc1) (inReceptacle apple_bar_1 fridge_bar_1) (objectAtLocation apple_bar_1 loc3)"
    running = game(more)
    play(running, "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "move apple 2 to fridge 1")
    play(running, "go to table 1", "take knife 1 from table 1")
    assert "slice apple 2 with knife 1" in running.commands()
    play(running, "move knife 1 to table 1", "take apple 2 from table 1", "go to fridge 1", "move apple 2 to fridge 1")
    play(running, "go to table 1", "take knife 1 from table 1")
    assert "slice apple 2 with knife 1" not in running.commands()


def test_look_lists_each_receptacle_that_a_thing_was_taken_from():
    running = game("(atLocation agent1 loc1) (inReceptacle apple_bar_1 shelf_bar_1)")
    play(running, "take apple 2 from table 1", "move apple 2 to shelf 2", "take apple 2 from shelf 2")
    play(running, "go to sinkbasin 1", "clean apple 2 with sinkbasin 1", "go to table 1")
    assert play(running, "look").endswith("Next to it, you see nothing.")  # it is held: at no place
    play(running, "move apple 2 to table 1")
    assert play(running, "look").endswith("Next to it, you see a apple 2.")  # the shelf's pair


def test_commands_match_exactly_after_stripping():
    running = game()
    assert running.play("\u3000 help\xa0\n")[0].startswith("Available commands:\n")
    assert running.play("help")[0].endswith("sharp object\n")
    for command in ("Look", "look.", "go  to table 1", "", "go to hall", "put apple 2 in/on table 1"):
        assert running.play(command) == ("Nothing happens.", False)


def test_doors_matter_for_taking_and_putting_only():
    running = game("(atLocation agent1 loc1)")
    play(running, "take apple 2 from table 1", "go to fridge 1", "cool apple 2 with fridge 1", "use lamp 1")
    assert "move apple 2 to fridge 1" not in running.commands() and "take apple 1" not in str(running.commands())
    assert play(running, "examine apple 2") == "This is a cold apple 2."
    opened = play(running, "open fridge 1")
    assert opened == "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1, and a lamp 1."


def test_heat_and_cold_end_each_other():
    running = game("(atLocation agent1 loc1)")
    play(running, "take apple 2 from table 1", "go to fridge 1", "cool apple 2 with fridge 1")
    play(running, "go to sinkbasin 1", "heat apple 2 with microwave 1")
    assert play(running, "examine apple 2") == "This is a hot apple 2." and not running.state.cool
    play(running, "clean apple 2 with sinkbasin 1")
    assert play(running, "examine apple 2") == "This is a hot and clean apple 2."
    play(running, "go to fridge 1", "cool apple 2 with fridge 1")
    assert play(running, "examine apple 2") == "This is a cool and clean apple 2."


# goals


def holds(formula, problem, state, bound):
    """A goal's meaning, word for word."""
    head, *parts = formula
    if head in ("and", "or"):
        return (all if head == "and" else any)(holds(part, problem, state, bound) for part in parts)
    if head == "not":
        return not holds(parts[0], problem, state, bound)
    if head in ("exists", "forall"):
        names, kinds = parts[0][::3], parts[0][2::3]
        choices = itertools.product(*[problem.of_type(kind) for kind in kinds])
        cases = (holds(parts[1], problem, state, bound | dict(zip(names, choice))) for choice in choices)
        return (any if head == "exists" else all)(cases)
    things = tuple(bound.get(word, word) for word in parts)
    changing = {
        "opened": lambda: things[0] in state.opened,
        "iscool": lambda: things[0] in state.cool,
        "inreceptacle": lambda: things[0] in state.inside[things[1]],
        "holds": lambda: state.held == things[1],
        "=": lambda: things[0] == things[1],
    }
    return changing[head]() if head in changing else things in problem.facts[head]


ATOMS = st.sampled_from(
    "(objectType ?o AppleType)|(isCool ?o)|(inReceptacle ?o ?r)|(opened ?r)|(receptacleType ?r FridgeType)|"
    "(holds agent1 ?o)|(= ?o apple_bar_1)|(openable ?r)|(cleanable ?o)".split("|")
)
FORMULAS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: f"(and {' '.join(parts)})"),
        st.lists(inner, max_size=3).map(lambda parts: f"(or {' '.join(parts)})"),
        inner.map(lambda part: f"(not {part})"),
        st.tuples(st.sampled_from(["exists", "forall"]), inner).map(lambda t: f"({t[0]} (?o - object) {t[1]})"),
    ),
    max_leaves=6,
)
FINAL = "(forall (?r - receptacle) (exists (?o - object) {}))", "(exists (?o - object ?r - receptacle) {})"


@settings(max_examples=200, deadline=None)
@given(formula=FORMULAS, outer=st.sampled_from(FINAL), seed=st.integers(0, 1000))
@example("(not (exists (?o - object) (and (objectType ?o AppleType))))", FINAL[0], 0)  # an inner ?o hides the outer
def test_goals_mean_what_they_say(formula, outer, seed):
    problem = parse_problem(problem_text("(atLocation agent1 loc1) (isCool apple_bar_2)", outer.format(formula)))
    goal, rng = compile_goal(problem), random.Random(seed)
    running = game("(atLocation agent1 loc1) (isCool apple_bar_2)")
    for _ in range(12):
        assert goal.test(running.state) == holds(problem.goal, problem, running.state, {})
        running.play(rng.choice(running.admissible()))


def test_a_goal_is_only_tested_after_actions_that_can_decide_it():
    assert game().world.goal.verbs == {"take", "move", "cool", "heat"}


# the environment


@pytest.mark.parametrize(
    "turn, valid",
    [
        ("<action>go to table 1</action>", True),
        ("<think>\n<action>look</action></think> well <ACTION> Go To  Table 1\n</ACTION>", True),
        ("go to table 1", True),
        ("the template opened this</think>go to table 1", True),
        ("<action>look</action><action>go to table 1</action>", False),
        ("<action>go to table 1", False),
        ("<think><action>go to table 1</action>", False),
        ("<action></action>", False),
        ("", False),
        ("<action>go to mars</action>", False),
    ],
)
def test_turns(turn, valid):
    step = env_of(game()).step(turn)
    assert step.valid == valid and not step.done and step.reward == 0
    assert step.observation.startswith("You arrive at table 1." if valid else ("Nothing happens.", "Invalid action: "))
    assert "\n\nAdmissible commands: " in step.observation


@pytest.mark.parametrize("words", ["put {} in/on {}", "put {} in {}", "put {} on {}", "move {} to {}"])
def test_the_old_wording_of_move(words):
    env = env_of(game("(atLocation agent1 loc1)"), admissible=False)
    env.step("take apple 2 from table 1")
    step = env.step(f"<action>{words.format('apple 2', 'shelf 2')}</action>")
    assert step.valid and step.observation == "You move the apple 2 to the shelf 2."


def test_reward_ends_the_episode():
    env = env_of(game("(atLocation agent1 loc1)"))
    script = ("take apple 2 from table 1", "go to fridge 1", "open fridge 1", "cool apple 2 with fridge 1")
    assert [env.step(command).reward for command in script] == [0, 0, 0, 0]
    won = env.step("move apple 2 to fridge 1")
    assert (won.reward, won.score, won.done, won.valid) == (1, 1, True, True)
    assert env.step("look").done and not env.step("look").valid


def test_a_game_that_is_won_from_the_start_ends_with_its_first_answer():
    env = env_of(game(goal="(not (opened fridge_bar_1))"))
    step = env.step("fly away")
    assert step.done and step.reward == 1 and not step.valid


@pytest.mark.parametrize("path", GAMES, ids=lambda path: path.parent.parent.name)
def test_restored_states_continue_identically(path):
    world, rng = open_game(path), random.Random(1)
    env, other = (AlfworldEnv(lambda data: world) for _ in range(2))
    env.reset(Task("t", "test", "kind", None))
    played = []
    while len(played) < 60 and not env.over:
        state, turn = env.snapshot(), f"<action>{rng.choice(env.game.admissible())}</action>"
        played.append((state, turn, env.step(turn)))
    for start, (state, _, _) in enumerate(played):
        other.restore(state)
        assert other.snapshot() == state
        for _, turn, step in played[start:]:
            assert other.step(turn) == step


def test_no_text_raises():
    rng = random.Random(0)
    pieces = ["<action>", "</action>", "<think>", "</think>", "put ", " in/on ", " to ", "go to ", "take ", "\n"]
    env = env_of(game())
    letters = [chr(code) for code in (*range(256), 0x3000, 0x2028, 0xD800, 0x1F600, 0x130)] + pieces
    for n in range(100_000):
        if n % 2:
            text = "".join(rng.choices(letters, k=rng.randrange(12)))
        else:
            text = rng.randbytes(rng.randrange(40)).decode(rng.choice(["latin-1", "utf-16-le"]), "ignore")
        step = env.step(text)
        assert not step.done and step.observation
