"""The embedded shop: made by its generator, every goal can be reached, every decision matters, the expert wins."""

import gzip
import hashlib
import json
import shutil
import statistics
from collections import Counter
from types import SimpleNamespace

import pytest

from envs import load_suite
from envs.analysis import english
from envs.webshop import EMBEDDED, WebShop
from envs.webshop.expert import IGNORED, Expert, words
from envs.webshop.files import read_object
from envs.webshop.nouns import content_words
from envs.webshop.reward import alike, has_attribute, purchase_reward, reduce_colour
from envs.webshop.shop import State
from prover_mini.errors import UserError
from scripts import build_webshop

PANEL = "3d1614bf14cfd64a"
SPLITS = {"test": 500, "dev": 1000, "train": 2100}
LONGEST_PAGE = 120  # words, without the separators
pytestmark = pytest.mark.usefixtures("cache_home")


@pytest.fixture(scope="module")
def suite(cache_home) -> WebShop:
    return load_suite("webshop", SimpleNamespace(data="", page_mode="text", admissible=True))


def facts(suite: WebShop) -> list[tuple]:
    return [(task.id, task.split, task.kind, task.data) for task in suite.all_tasks]


def bought(suite: WebShop, goal, row: int, options: bool = True) -> float:
    """The reward for a product with as many of the wanted options as it offers."""
    product = suite.shop.catalogue.product(row)
    offered = {value for _, values in product.options for value in values}
    chosen = [value for value in goal.options if value in offered] if options else []
    return purchase_reward(goal, product, float(suite.shop.prices[row]), chosen, content_words).total


def vocabulary() -> list[str]:
    """Every word that a product is made of, once for each list it stands in."""
    departments = build_webshop.DEPARTMENTS.values()
    lists = [build_webshop.BRANDS, build_webshop.SERIES, *build_webshop.GROUPS.values()]
    lists += [department.attributes for department in departments]
    lists.append([word for department in departments for kind in department.kinds for word in kind.split()])
    return [word.lower() for entries in lists for word in dict.fromkeys(entries)]


def test_the_generator_makes_the_committed_files():
    made = build_webshop.catalogue(build_webshop.SEED)
    assert sorted(path.name for path in EMBEDDED.iterdir()) == sorted(f"{name}.gz" for name in made)
    for name, content in made.items():
        assert json.loads(gzip.decompress((EMBEDDED / f"{name}.gz").read_bytes())) == content
    assert sum(path.stat().st_size for path in EMBEDDED.iterdir()) < 300_000


def test_another_seed_makes_another_shop_of_the_same_words(tmp_path):
    build_webshop.write(tmp_path, seed=1)
    made, own = (
        {product["asin"]: product["name"] for product in json.loads(gzip.decompress(path.read_bytes()))}
        for path in (directory / "items_shuffle.json.gz" for directory in (tmp_path, EMBEDDED))
    )
    assert len(made) == len(own) and not set(made) & set(own) and len(set(made.values()) & set(own.values())) < 30
    assert {word.lower() for name in made.values() for word in name.split()} <= set(vocabulary())


def test_size_and_splits(suite):
    assert len(suite.shop.catalogue) == 1200 and not suite.shop.catalogue.skipped
    assert {split: len(suite.tasks(split)) for split in SPLITS} == SPLITS
    assert len({task.id for task in suite.all_tasks}) == sum(SPLITS.values())
    assert len({task.data for task in suite.all_tasks}) == sum(SPLITS.values())
    assert {task.kind for task in suite.tasks("test")} == set(build_webshop.DEPARTMENTS)


def test_the_panel_never_changes(suite):
    panel = "\n".join(f"{task.id} {task.data.instruction}" for task in suite.tasks("test"))
    assert hashlib.blake2b(panel.encode(), digest_size=8).hexdigest() == PANEL


def test_packed_and_plain_files_are_the_same_shop(suite, tmp_path):
    for path in EMBEDDED.iterdir():
        (tmp_path / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    assert facts(WebShop(tmp_path)) == facts(suite)


@pytest.mark.parametrize("damage", [lambda data: data[:-500], lambda data: b"[" + data, lambda data: data[:200] + data])
def test_a_damaged_archive_is_named(damage, tmp_path):
    for path in EMBEDDED.iterdir():
        shutil.copy(path, tmp_path)
    broken = tmp_path / "items_shuffle.json.gz"
    broken.write_bytes(damage(broken.read_bytes()))
    with pytest.raises(UserError, match="items_shuffle.json.gz is cut or no JSON array"):
        WebShop(tmp_path)
    with pytest.raises(UserError, match="cannot be read as JSON"):
        read_object(broken)


def test_no_word_stands_for_two_things():
    stems = Counter(stem for word in vocabulary() for stem in english(word))
    assert not [stem for stem, count in stems.items() if count > 1]
    assert stems.total() == len(vocabulary())  # none is a stop word, none falls apart
    assert not IGNORED & set(vocabulary())


def test_values_and_attributes_are_never_taken_for_another(suite):
    for values in build_webshop.GROUPS.values():
        reduced = [reduce_colour(value) for value in values]
        assert not [(a, b) for a in reduced for b in reduced if a != b and alike(a, b)]
        assert len(set(reduced)) == len(values)
    attributes = [word for department in build_webshop.DEPARTMENTS.values() for word in department.attributes]
    for row in range(0, len(suite.shop.catalogue), 10):
        product = suite.shop.catalogue.product(row)
        assert {word for word in attributes if has_attribute(product, word)} == set(product.attributes)
        assert len(set(product.attributes)) == 3


def test_every_goal_can_be_reached(suite):
    shop = suite.shop
    for task in suite.all_tasks:
        row = shop.catalogue.rows[task.data.asin]
        state = State("item_page", row=row)
        for value in task.data.options:
            state = shop.act(state, task.data, f"click[{value}]")
        assert len(state.options) == len(task.data.options)
        assert shop.act(state, task.data, "click[buy now]").reward.total == 1


def test_search_choice_and_options_matter(suite):
    """Shares of the panel that are won by skipping a part of the work."""
    catalogue, won, fitting = suite.shop.catalogue, Counter(), []
    panel = suite.tasks("test")[::2]
    for task in panel:
        goal = task.data
        query = Expert().act(suite.make_env().reset(task)).removeprefix("search[").removesuffix("]")
        hits, kind = (catalogue.search(tuple(text.split())) for text in (query, goal.query))
        affordable, of_kind = (
            next(row for row in rows if suite.shop.prices[row] <= goal.price_limit) for rows in (hits, kind)
        )
        won["any product of the kind"] += bought(suite, goal, of_kind) == 1
        won["the first hit"] += bought(suite, goal, hits[0]) == 1
        won["the first affordable hit"] += bought(suite, goal, affordable) == 1
        won["no options"] += bought(suite, goal, affordable, options=False) == 1
        fitting.append(sum(bought(suite, goal, row) == 1 for row in catalogue.search(("<q>", goal.query))))
    share = {name: count / len(panel) for name, count in won.items()}
    assert share["no options"] == 0
    assert share["any product of the kind"] < 0.25
    assert 0.7 < share["the first hit"] < share["the first affordable hit"] < 0.9
    assert min(fitting) >= 1 and statistics.mean(fitting) < 20 / 5


def test_other_kinds_of_things_are_no_way_around(suite):
    catalogue = suite.shop.catalogue
    pairs = [(task.data, row) for task in suite.tasks("test")[:40] for row in range(0, len(catalogue), 15)]
    others = [(goal, row) for goal, row in pairs if catalogue.product(row).query != goal.query]
    assert sum(bought(suite, goal, row) == 1 for goal, row in others) <= len(others) / 200


def play(suite: WebShop, task, env) -> tuple[float, int]:
    """Reward and turns of the expert, whose actions must all be valid and whose pages must be short."""
    expert, observation = Expert(), env.reset(task)
    for turn in range(1, suite.max_turns + 1):
        page = observation.partition("\nAvailable actions:")[0]
        assert len(page.replace("[SEP]", "").split()) < LONGEST_PAGE
        step = env.step(f"<action>{expert.act(observation)}</action>")
        assert step.valid
        if step.done:
            return step.reward, turn
        observation = step.observation
    return 0.0, suite.max_turns


def test_the_expert_wins(suite):
    rewards, turns = zip(*(play(suite, task, suite.make_env()) for task in suite.tasks("test")))
    assert statistics.mean(rewards) >= 0.97
    assert 5 < statistics.mean(turns) < 8
    assert all(reward == 1 for reward, count in zip(rewards, turns) if count < suite.max_turns)


def test_the_expert_needs_no_list_of_actions(suite):
    bare = WebShop(EMBEDDED, admissible=False)
    for task in suite.tasks("dev")[:50]:
        assert play(bare, task, bare.make_env()) == play(suite, task, suite.make_env())


def test_the_expert_buys_for_generated_instructions():
    generated = WebShop(EMBEDDED, human=False)
    results = [play(generated, task, generated.make_env()) for task in generated.tasks("test")[:100]]
    assert statistics.mean(reward for reward, _ in results) >= 0.95


def test_words():
    assert words("Navy, x-large (2)") == ["navy", "x", "large", "2"]
