"""The embedded policy: what ships, its tokenizer on any text, the false worlds and fallible searcher it learned from,
that its recipe repeats itself, and where it starts on real questions."""

import hashlib
import json
import random
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs import searchqa
from envs.searchqa import world
from prover_mini.chat import Chat
from prover_mini.config import parse
from prover_mini.engine import Engine
from prover_mini.model import ASSETS
from prover_mini.rollout import Player
from scripts.tiny import imitation
from scripts.tiny import model as shapes
from scripts.tiny import tokenizer as tokenizers
from scripts.tiny.demonstration import Demonstration
from scripts.tiny.recipe import DENSE, HYBRID
from scripts.tiny.searchqa import counterfactual as false_worlds
from scripts.tiny.searchqa import demonstrations, vocabulary
from scripts.tiny.searchqa import recipe as searchqa_recipe

TINY = ASSETS / "searchqa"
MARKERS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<search>", "</answer>", "Paris", "Costa Rica", "\n", "."]


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


@cache
def model():
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()


def encode(text: str, split: bool = False) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False, split_special_tokens=split)


@cache
def demos(noise: demonstrations.Noise, seed: int = 3) -> list[Demonstration]:
    names = {encode(name)[0] for name in vocabulary.names()}
    mix = dict.fromkeys(["1-hop", "2-hop", "3-hop", "4-hop"], 1 / 4)
    false_world = false_worlds.counterfactual(seed)
    return list(demonstrations.demonstrate(false_world, tokenizer(), names, noise, mix, 60, seed))


# what ships ----------------------------------------------------------------------------------------------------------


def test_a_small_hybrid_with_tied_embeddings():
    files = [path for path in TINY.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 4 << 20
    assert type(model()).__name__ == "Qwen3_5ForCausalLM"
    assert {"linear_attention", "full_attention"} == set(model().config.layer_types)
    assert model().lm_head.weight is model().model.embed_tokens.weight
    assert model().config.vocab_size == len(tokenizer())
    assert model().config.eos_token_id == tokenizer().eos_token_id


def test_shipped_tokenizer_is_the_one_that_the_recipe_builds():
    built = tokenizers.build(vocabulary.words())
    assert built.get_vocab() == tokenizer().get_vocab()
    assert built.chat_template == tokenizer().chat_template


# tokenizer -----------------------------------------------------------------------------------------------------------


def test_names_and_tags_are_single_tokens():
    for text in [*vocabulary.names(), *vocabulary.TAGS]:
        assert len(encode(text)) == 1, text
    assert tokenizer().convert_ids_to_tokens(tokenizer().eos_token_id) == "<|im_end|>"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(MARKERS), st.text(max_size=8))).map("".join), st.booleans())
def test_any_text_comes_back_exactly(text, split):
    assert tokenizer().decode(encode(text, split), skip_special_tokens=False) == text


def test_the_first_word_repeats():
    first = tokenizer().decode([0])
    assert len(encode(first * 3)) == 3 and tokenizer().decode(encode(first * 3)) == first * 3


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(MARKERS), st.text(max_size=8))).map("".join))
def test_text_from_outside_never_makes_a_special_token(text):
    assert not set(encode(text, split=True)) & set(tokenizer().all_special_ids)


def test_chat_is_of_the_qwen_kind_and_drops_the_instructions():
    chat = Chat(tokenizer(), "Long instructions for other models.", 64)
    prompt = tokenizer().decode(chat.prompt("Question: What is the capital of France?"))
    assert prompt == "<|im_start|>user\nQuestion: What is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    answer = tokenizer().decode(chat.answer("x", ended=True))
    assert answer == "\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


# false worlds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_no_fact_of_a_counterfactual_world_is_true(seed):
    truth, made = world.real_world().tables, false_worlds.counterfactual(seed).tables
    for relation in made:
        assert not {s for s, value in made[relation].items() if truth[relation].get(s) == value}, relation
    real = {(country, name) for country, names in world.facts()["borders"].items() for name in names}
    assert len(real) > 500
    for relation in ("borders", "only border"):
        pairs = {(c, n) for c, names in made[relation].items() for n in names.replace(" and ", ", ").split(", ")}
        assert not pairs & real
    passages = {p["contents"] for p in world.passages()}
    assert not passages & {p["contents"] for p in false_worlds.counterfactual(seed).passages()}


def test_counterfactual_worlds_use_every_name_and_differ():
    one, other = (false_worlds.counterfactual(seed) for seed in (0, 1))
    assert one == false_worlds.counterfactual(0) != other
    truth = world.real_world().tables
    for relation, table in one.tables.items():
        if relation != "borders":
            assert sorted(table.values()) == sorted(truth[relation].values()) or relation in ("country", "only border")
    assert sorted(one.tables["country"]) == sorted(truth["country"])
    assert all(one.tables["country"][capital] == country for country, capital in one.tables["capital"].items())


# fallible searcher ---------------------------------------------------------------------------------------------------

FAULTLESS = demonstrations.Noise(skip=(0, 0), stray=0, retry=1, early=0, slip=0)


def test_a_faultless_searcher_always_succeeds_by_the_shortest_way_within_the_preset_limits():
    config, _ = parse(["--env", "searchqa"])
    for demo in demos(FAULTLESS):
        assert demo.success
        searches = tokenizer().decode(demo.ids).count("<search>")
        assert searches == int(demo.kind[0]) and searches + 1 <= config.max_turns
        assert len(demo.ids) <= config.max_context_tokens


def test_mistakes_fail_and_the_searcher_says_only_what_it_has_read():
    played = demos(demonstrations.Noise())
    assert 0.2 < sum(demo.success for demo in played) / len(played) < 0.8
    names = {encode(name)[0] for name in vocabulary.names()}
    for demo in played:
        assert tokenizer().decode(demo.ids).count("<search>") < demonstrations.MAX_TURNS
        for at, (token, said) in enumerate(zip(demo.ids, demo.said)):
            assert not (said and token in names) or token in demo.ids[:at]


def test_what_the_searcher_says_are_whole_actions():
    for demo in demos(demonstrations.Noise()):
        said = [token for token, own in zip(demo.ids, demo.said) if own]
        turns = tokenizer().decode(said).split("<|im_end|>")
        assert turns.pop() == "" and turns[-1].startswith("<answer>") and turns[-1].endswith("</answer>")
        assert all(turn.startswith("<search>") and turn.endswith("</search>") for turn in turns[:-1])


def test_demonstrations_are_those_on_record():
    names = {encode(name)[0] for name in vocabulary.names()}
    false_world, mix = false_worlds.counterfactual(0), world.parse_mix(searchqa_recipe.MIX)
    played = demonstrations.demonstrate(false_world, tokenizer(), names, demonstrations.Noise(), mix, 100, 0)
    text = json.dumps([demo.ids for demo in played])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "3864ca52f1fc487c"  # when the shipped policy was made


# recipe --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [HYBRID, DENSE])
def test_attention_starts_as_copying(layers):
    torch.manual_seed(0)
    attention = shapes.make_model(100, 0, 1, layers).model.layers[-1].self_attn
    value, output = attention.v_proj.weight, attention.o_proj.weight
    for head in range(shapes.HEADS):
        rows = slice(*(shapes.HEAD_DIM * (head * shapes.KV_HEADS // shapes.HEADS + i) for i in (0, 1)))
        columns = slice(head * shapes.HEAD_DIM, (head + 1) * shapes.HEAD_DIM)
        torch.testing.assert_close(output[:, columns] @ value[rows], value[rows].T @ value[rows])


def test_the_recipe_repeats_itself_and_learns():
    def train():
        torch.manual_seed(0)
        policy = shapes.make_model(len(tokenizer()), 0, 1)
        before = imitation.imitation_loss(policy, demos(FAULTLESS)[:12]).item()
        imitation.imitate(policy, demos(FAULTLESS)[:12], steps=6, batch=12, lr=3e-3)
        return policy, before

    (one, before), (other, _) = train(), train()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
    assert imitation.imitation_loss(one, demos(FAULTLESS)[:12]).item() < before - 0.2


def test_loss_counts_the_searchers_own_tokens_only():
    demo = demos(FAULTLESS)[0]
    logprobs = model()(torch.tensor([demo.ids])).logits[0].double().log_softmax(-1)
    own = [logprobs[t - 1, demo.ids[t]] for t in range(len(demo.ids)) if demo.said[t]]
    padded = Demonstration([*demo.ids, *range(9)], [*demo.said, *[False] * 9], True, "")
    for episodes in ([demo], [demo, padded]):
        loss = imitation.imitation_loss(model(), episodes).item()
        assert loss == pytest.approx(-sum(own).item() / len(own), rel=1e-4)


@pytest.mark.parametrize("layers", [HYBRID, DENSE])
def test_sharpening_multiplies_the_logits(layers):
    torch.manual_seed(0)
    policy = shapes.make_model(50, 0, 1, layers).eval()
    ids = torch.arange(12)[None]
    before = policy(ids).logits
    shapes.sharpen(policy, 1.3)
    torch.testing.assert_close(policy(ids).logits, before * 1.3)


# where it starts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature, least, most", [(1.0, 0.25, 0.45), (0.0, 0.30, 0.70)])
def test_start_on_real_test_questions(temperature, least, most):
    config, _ = parse(["--env", "searchqa"])
    suite = searchqa.load(config)
    tasks = random.Random(0).sample(suite.tasks("test"), 200)
    engine = Engine(model(), 100, config.max_context_tokens)
    player = Player(engine, Chat(tokenizer(), suite.instructions, config.max_observation_tokens), suite, config)
    played = player.evaluate(tasks, temperature)
    assert least <= sum(t.reward for t in played) / len(played) <= most
    turns = [turn for t in played for turn in t.turns]
    assert sum(turn.valid for turn in turns) / len(turns) > 0.98
    read = [t.turns[-1].action[8:-9] in tokenizer().decode(t.ids[: t.turns[-1].start]) for t in played]
    assert sum(read) / len(read) > 0.85  # what it gets wrong are decisions, not names
