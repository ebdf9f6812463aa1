"""The embedded ALFWorld policies: what ships, their tokenizer on what the environment says, the fallible player that
they learned from and its games, and where they start on test games."""

import json
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs import load_suite
from envs.alfworld import embedded
from envs.alfworld.expert import NAME, Expert, kind, play, read_goal
from prover_mini.chat import Chat
from prover_mini.config import parse
from prover_mini.engine import Engine
from prover_mini.evaluate import make_panel
from prover_mini.model import ASSETS
from prover_mini.rollout import Player
from scripts import train_tiny_policy
from scripts.tiny import model as shapes
from scripts.tiny import tokenizer as tokenizers
from scripts.tiny.alfworld import demonstrations, recipe, vocabulary
from scripts.tiny.alfworld.demonstrations import Noise, demonstrate
from scripts.tiny.alfworld.games import SIZE, training_games
from scripts.tiny.recipe import DENSE

ROOT = Path(__file__).parent.parent
POLICIES = ("alfworld", "alfworld-rare")
FAULTLESS = Noise(skip=0, astray=0, slip=0, wander=0)
MARKERS = ["mug 2", "<action>", "<|im_end|>", ", a "]
PIVOTS = ("clean", "heat", "cool")


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained(ASSETS / "alfworld")


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False, split_special_tokens=True)


@cache
def suite():
    return embedded(SIZE, admissible=False)


@cache
def demos(noise: Noise, episodes: int = 60):
    return list(demonstrate(tokenizer(), noise, episodes, seed=3))


def furniture(observation: str) -> Counter:
    return Counter(map(kind, Expert(observation).receptacles))


def commands(demo) -> list[str]:
    """What the player said, turn by turn, without the tags."""
    turns = tokenizer().decode([token for token, own in zip(demo.ids, demo.said) if own]).split("<|im_end|>")
    assert turns.pop() == "" and all(re.fullmatch("<action>[^<]+</action>", turn) for turn in turns)
    return [turn[8:-9] for turn in turns]


# what ships ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_a_small_model_and_the_tokenizer_that_the_recipe_builds(name):
    files = [path for path in (ASSETS / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 2 << 20
    model, shipped = AutoModelForCausalLM.from_pretrained(ASSETS / name), AutoTokenizer.from_pretrained(ASSETS / name)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.vocab_size == len(shipped) and model.config.eos_token_id == shipped.eos_token_id
    built = tokenizers.build(recipe.RECIPE.words())
    assert built.backend_tokenizer.to_str() == shipped.backend_tokenizer.to_str()
    assert built.chat_template == shipped.chat_template
    assert train_tiny_policy.RECIPES[name][0] == recipe.__name__


# tokenizer -----------------------------------------------------------------------------------------------------------


def test_instances_are_single_tokens_wherever_they_stand():
    assert all(len(encode(name)) == 1 for name in [*vocabulary.kinds(), *vocabulary.counts()])
    for task in random.Random(0).sample(suite().tasks("train") + suite().tasks("test"), 40):
        env, turns = suite().make_env(), play(suite().make_env(), task, demonstrations.MAX_TURNS)
        actions = [f"<action>{command}</action>" for command, _ in turns]
        for text in [env.reset(task), *actions, *(step.observation for _, step in turns)]:
            pieces, names = [tokenizer().decode([token]) for token in encode(text)], NAME.findall(text)
            assert [piece for piece in pieces if NAME.fullmatch(piece)] == names
            assert len(pieces) <= 2 * len(names) + 5  # names, what stands between them, the kinds of the task


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(MARKERS), st.text(max_size=8))).map("".join))
def test_any_text_comes_back_exactly(text):
    assert tokenizer().decode(encode(text), skip_special_tokens=False) == text
    assert not set(encode(text)) & set(tokenizer().all_special_ids)


def test_the_environment_is_never_cut():
    for task in random.Random(0).sample(suite().tasks("train") + suite().tasks("test"), 200):
        assert len(encode(suite().make_env().reset(task))) < demonstrations.MAX_OBSERVATION


# games and player ----------------------------------------------------------------------------------------------------


def test_no_game_is_learned_from_that_is_a_test_game():
    games = list(islice(training_games(seed=1), 300))
    assert len({game.kind for game in games}) == 6 and len({game.id for game in games}) == len(games)
    env = suite().make_env()
    learned = {frozenset(furniture(env.reset(game)).items()) for game in games}
    tested = {frozenset(furniture(env.reset(task)).items()) for task in suite().tasks("test")}
    assert len(learned) > 100 and not learned & tested  # different furniture, so different games
    assert games == list(islice(training_games(seed=1), 300)) != list(islice(training_games(seed=2), 300))


def test_without_noise_it_is_the_expert():
    tasks = islice(training_games(seed=3), 60)
    for demo, task in zip(demos(FAULTLESS), tasks, strict=True):
        turns = play(suite().make_env(), task, demonstrations.MAX_TURNS)
        assert commands(demo) == [command for command, _ in turns]
        assert demo.success == (turns[-1][1].reward == 1)


def test_each_mistake_is_made_as_often_as_told():
    skipped, strayed, other = defaultdict(list), [], []
    noise = Noise(skip=0.5, astray=0.3, slip=0, wander=0)
    for demo, task in zip(demos(noise, 300), training_games(seed=3)):
        goal = read_goal(suite().make_env().reset(task))
        said = commands(demo)
        taken = [command for command in said if command.startswith("take")]
        assert all(kind(command[5:]) == goal.thing for command in taken)
        moves = [command for command in said if command.startswith("move")]
        if goal.preparation and moves:
            before = said[: said.index(moves[0])]
            skipped[goal.preparation].append(not any(c.startswith(goal.preparation) for c in before))
        elif moves and not goal.light:
            strayed.append(kind(moves[0].partition(" to ")[2]) != goal.place)
    share = [skip for found in skipped.values() for skip in found]
    assert skipped.keys() == set(PIVOTS) and 0.4 < sum(share) / len(share) < 0.6
    assert 0.2 < sum(strayed) / len(strayed) < 0.4
    for demo, task in zip(demos(Noise(skip=0, astray=0, slip=1, wander=0), 60), training_games(seed=3)):
        goal = read_goal(suite().make_env().reset(task))
        other += [kind(command[5:]) != goal.thing for command in commands(demo) if command.startswith("take")]
    assert sum(other) > len(other) / 2  # where something else lies there, too


def test_how_often_the_players_of_the_recipes_succeed():
    usual, rare = (demos(r.demonstrations.args[0], 300) for r in (recipe.RECIPE, recipe.RARE))
    assert 0.2 < sum(demo.success for demo in usual) / len(usual) < 0.5
    assert 0.05 < sum(demo.success for demo in rare) / len(rare) < 0.2


# recipe --------------------------------------------------------------------------------------------------------------


def test_instances_start_near_their_kind_and_no_other():
    torch.manual_seed(0)
    model = shapes.make_model(len(tokenizer()), 0, 1, DENSE)
    before = model.model.embed_tokens.weight.detach().clone()
    pairs = [(encode(name)[0], encode(kind)[0]) for name, kind in vocabulary.kinds().items()]
    shapes.start_near_kinds(model, dict(pairs))
    after = model.model.embed_tokens.weight.detach()
    near = torch.stack([torch.cosine_similarity(after[token], after, dim=-1) for token, _ in pairs])
    for (token, parent), row in zip(pairs, near):
        siblings = {t for t, k in pairs if k == parent} | {parent}
        others = [i for i in range(len(after)) if i not in siblings]
        assert 0.4 < row[parent] < 0.95 and row[parent] > row[others].max()
    rest = [i for i in range(len(after)) if i not in dict(pairs)]
    assert torch.equal(after[rest], before[rest])


# where they start ----------------------------------------------------------------------------------------------------


@cache
def played(model: str):
    config, _ = parse(["--env", "alfworld", "--model", model])
    games = load_suite("alfworld", config)
    tasks = random.Random(0).sample(games.tasks("test"), 96)
    name = "alfworld" + model.removeprefix("tiny")
    policy = AutoModelForCausalLM.from_pretrained(ASSETS / name, dtype=torch.float32).eval()
    chat = Chat(tokenizer(), games.instructions, config.max_observation_tokens)
    return Player(Engine(policy, 96, config.max_context_tokens), chat, games, config).evaluate(tasks, 1.0)


@pytest.mark.parametrize("model, least, most", [("tiny", 0.2, 0.5), ("tiny-rare", 0.02, 0.18)])
def test_start_on_test_games(model, least, most):
    trajectories = played(model)
    assert least <= sum(t.reward for t in trajectories) / len(trajectories) <= most
    assert sum(turn.valid for t in trajectories for turn in t.turns) > 0.8 * sum(len(t.turns) for t in trajectories)
    for t in trajectories:  # what it does with a thing is done with one that it was shown
        for turn in t.turns:
            before = tokenizer().decode(t.ids[: turn.start])
            assert all(name in before for name in NAME.findall(turn.action)) or not turn.valid


def test_the_rare_one_seldom_prepares_a_thing_in_hand():
    def share(model):
        done = [
            any(turn.action.startswith(f"<action>{verb}") for turn in t.turns for verb in PIVOTS)
            for t in played(model)
            if any(f"pick_{verb}" in t.task.kind for verb in PIVOTS)
        ]
        return sum(done) / len(done)

    assert share("tiny-rare") < 0.25 < share("tiny")


# the command ---------------------------------------------------------------------------------------------------------


def test_two_ranks_train_it_and_play_one_panel(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    flags = "--env alfworld --steps 1 --groups-per-step 4 --group-size 4 --continuations 2 --eval-tasks 9".split()
    command = [*launcher, *flags, "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = (json.loads((tmp_path / f"run/eval/step_{n:06d}.json").read_text()) for n in (0, 1))
    panel = make_panel(suite(), "test", 9)
    assert before["panel"] == after["panel"] == panel.digest
    assert before["tasks"].keys() == after["tasks"].keys() == {task.id for task in panel.tasks}
    assert before["errors"] == after["errors"] == 0
