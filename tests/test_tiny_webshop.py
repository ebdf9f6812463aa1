"""The embedded WebShop policy: what ships, its words on every page, the other shops and careless shopper it learned
from, and where it starts on the test goals."""

import random
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs import load_suite
from envs.webshop import WebShop
from envs.webshop.expert import Expert
from prover_mini.chat import Chat
from prover_mini.config import parse
from prover_mini.engine import Engine
from prover_mini.evaluate import make_panel
from prover_mini.model import ASSETS
from prover_mini.rollout import Player
from scripts.build_webshop import SEED
from scripts.tiny import tokenizer as tokenizers
from scripts.tiny.demonstration import Demonstration
from scripts.tiny.webshop import demonstrations, recipe, shops, vocabulary

TINY = ASSETS / "webshop"
EPISODES = 120
pytestmark = pytest.mark.usefixtures("cache_home")


@pytest.fixture(scope="module")
def suite(cache_home) -> WebShop:
    return load_suite("webshop", parse(["--env", "webshop"])[0])


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


@cache
def model():
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False, split_special_tokens=True)


@pytest.fixture(scope="module")
def careless() -> list[Demonstration]:
    with shops.other_shop(recipe.FIRST_SEED) as shop:
        return list(demonstrations.demonstrate(shop, tokenizer(), demonstrations.Noise(), EPISODES, seed=3))


def turns(demo: Demonstration) -> list[str]:
    said = [token for token, own in zip(demo.ids, demo.said) if own]
    return tokenizer().decode(said).split("<|im_end|>")[:-1]


# what ships ----------------------------------------------------------------------------------------------------------


def test_a_small_model_with_tied_embeddings():
    files = [path for path in TINY.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 4 << 20
    assert model().lm_head.weight is model().model.embed_tokens.weight
    assert model().config.vocab_size == len(tokenizer())
    assert model().config.eos_token_id == tokenizer().eos_token_id


def test_shipped_tokenizer_is_the_one_that_the_recipe_builds():
    built = tokenizers.build(recipe.RECIPE.words())
    assert built.get_vocab() == tokenizer().get_vocab()
    assert built.chat_template == tokenizer().chat_template


# words ---------------------------------------------------------------------------------------------------------------


def test_what_a_policy_copies_is_one_token_everywhere():
    assert len(set(vocabulary.things())) == len(vocabulary.things()) == 1200 + 60 + 60 + 39
    for text in vocabulary.things():
        assert len(encode(text)) == 1, text
        assert encode(f"click[{text}]")[1:-1] == encode(text) == encode(f"Next > [SEP]{text} [SEP] $19.99")[-2:-1]
    for button in vocabulary.BUTTONS:
        assert len(encode(f"click[{button}]")) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(vocabulary.words()), st.text(max_size=8))).map("".join))
def test_any_text_comes_back_exactly(text):
    assert tokenizer().decode(encode(text), skip_special_tokens=False) == text


def test_every_page_of_the_expert_is_made_of_words(suite):
    """No page of the embedded shop falls apart into bytes, and none is cut."""
    alphabet = {token for token in range(len(tokenizer())) if len(tokenizer().decode([token])) == 1}
    whole = {encode(text)[0] for text in vocabulary.words() if len(text) == 1}
    config, _ = parse(["--env", "webshop"])
    for task in suite.tasks("test")[::10]:
        env, expert = suite.make_env(), Expert()
        observation = env.reset(task)
        for _ in range(config.max_turns):
            ids = encode(observation)
            assert len(ids) <= config.max_observation_tokens and not (set(ids) & alphabet) - whole
            step = env.step(expert.act(observation))
            if step.done:
                break
            observation = step.observation


# other shops ---------------------------------------------------------------------------------------------------------


def test_other_shops_deal_the_same_asins_to_other_products(suite):
    own = suite.shop.catalogue
    for seed in (recipe.FIRST_SEED, recipe.FIRST_SEED + 1):
        files = shops.renamed(seed)
        assert {product["asin"] for product in files["items_shuffle.json"]} == set(own.rows)
        same = [p for p in files["items_shuffle.json"] if own.product(own.rows[p["asin"]]).title == p["name"]]
        assert len(same) <= 3  # by chance
        assert set(files["items_human_ins.json"]) == set(files["items_ins_v2.json"]) == set(own.rows)
        assert all(entry["asin"] == asin for asin, some in files["items_human_ins.json"].items() for entry in some)
    with pytest.raises(ValueError, match="the embedded shop itself"):
        shops.renamed(SEED)
    assert SEED not in range(recipe.FIRST_SEED, recipe.FIRST_SEED + recipe.SHOPS)


def test_no_demonstration_asks_what_a_test_goal_asks(suite, careless):
    asked = {task.data.instruction for task in suite.tasks("test")}
    assert demonstrations.test_instructions() == asked
    with shops.other_shop(recipe.FIRST_SEED) as shop:
        shop.all_tasks = [*suite.tasks("test"), *suite.tasks("dev")[:5]]
        played = list(demonstrations.demonstrate(shop, tokenizer(), demonstrations.NONE, 5, seed=0))
    texts = [tokenizer().decode(demo.ids) for demo in [*careless, *played]]
    assert len(texts) == EPISODES + 5
    assert not [text for text in texts if text.partition("Instruction: [SEP] ")[2].partition(" [SEP]")[0] in asked]


# careless shopper ----------------------------------------------------------------------------------------------------


def test_without_noise_it_is_the_expert(suite):
    for task in suite.tasks("dev")[:60]:
        env, expert = suite.make_env(), Expert()
        shopper = demonstrations.Shopper(task.data.query, demonstrations.NONE, random.Random(0))
        observation = env.reset(task)
        for _ in range(suite.max_turns):
            action = expert.act(observation)
            assert shopper.act(observation) == action
            step = env.step(action)
            if step.done:
                break
            observation = step.observation


def test_mistakes_fail_and_the_shopper_says_only_what_it_has_read(careless):
    assert 0.2 < sum(demo.success for demo in careless) / len(careless) < 0.7
    things = {encode(text)[0] for text in vocabulary.things()}
    for demo in careless:
        said = turns(demo)
        assert said[0].startswith("search[ ") and len(said) <= demonstrations.MAX_TURNS
        assert said[-1] == "click[buy now]" or len(said) == demonstrations.MAX_TURNS
        for at, (token, own) in enumerate(zip(demo.ids, demo.said)):
            assert not (own and token in things) or token in demo.ids[:at]


@pytest.mark.parametrize("mistake", ["drop", "dear", "blind", "settle", "forget"])
def test_every_mistake_costs_success(suite, mistake):
    noise = demonstrations.Noise(**{name: (0.0, 0.0) for name in vars(demonstrations.NONE)} | {mistake: (0.9, 1.0)})
    tasks, won = suite.tasks("dev")[:150], []
    for chances in (demonstrations.NONE, noise):
        rng = random.Random(0)
        won.append(0)
        for task in tasks:
            env, shopper = suite.make_env(), demonstrations.Shopper(task.data.query, chances, rng)
            step, observation = None, env.reset(task)
            for _ in range(demonstrations.MAX_TURNS):
                step = env.step(shopper.act(observation))
                assert step.valid
                if step.done:
                    break
                observation = step.observation
            won[-1] += step.reward
    assert won[1] < won[0] - 0.04 * len(tasks)


# where it starts -----------------------------------------------------------------------------------------------------


def test_start_on_test_goals(suite):
    config, _ = parse(["--env", "webshop"])
    tasks = make_panel(suite, "test", 120).tasks
    engine = Engine(model(), 120, config.max_context_tokens)
    player = Player(engine, Chat(tokenizer(), suite.instructions, config.max_observation_tokens), suite, config)
    played = player.evaluate(tasks, 1.0)
    assert 0.2 <= sum(t.reward for t in played) / len(played) <= 0.5
    acted = [turn for t in played for turn in t.turns]
    assert sum(turn.valid for turn in acted) / len(acted) > 0.7
    opened = [next(turn for turn in t.turns if "Next >" in turn.observation) for t in played if len(t.turns) > 1]
    assert sum(turn.valid for turn in opened) / len(opened) > 0.9  # what it gets wrong are decisions, not asins
