"""WebShop against recordings of the reference; exact snapshots, fixed goals, no crash on any input."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import load_suite
from envs.webshop import WebShop, catalogue, files
from envs.webshop.env import WebShopEnv
from envs.webshop.files import read_array, read_products
from envs.webshop.goals import split_of
from envs.webshop.nouns import content_words
from envs.webshop.shop import Ignored, parse_command
from prover_mini.errors import UserError
from tests.replay import webshop as recordings

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "tests" / "data" / "webshop"
pytestmark = pytest.mark.usefixtures("cache_home")


@pytest.fixture(scope="module")
def data(tmp_path_factory, cache_home) -> Path:
    directory = tmp_path_factory.mktemp("webshop")
    for path in RECORDED.iterdir():
        if path.name.endswith(".json.gz"):
            (directory / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        else:
            shutil.copy(path, directory)
    return directory


@pytest.fixture(scope="module")
def suite(data) -> WebShop:
    return WebShop(data)


@pytest.fixture
def products(data) -> list[dict]:
    return json.loads((data / "items_shuffle.json").read_text())


def playing(suite: WebShop, index: int = 0, **options) -> WebShopEnv:
    env = WebShopEnv(suite.shop, **options)
    env.reset(suite.all_tasks[index])
    return env


def test_recordings_of_the_reference(data):
    reports = recordings.replay(data, catalogue.open_catalogue(data))
    assert [report.failed for report in reports] == [[]] * len(reports)
    assert sum(report.cases for report in reports) > 1000


def test_the_replay_notices_a_changed_page_reward_and_rank(data, tmp_path):
    directory = shutil.copytree(data, tmp_path / "changed")
    changes = {"episodes": '"obs": "WebShop', "rewards": '"r_type": 1.0', "retrieval": '"hits": [["B0'}
    for name, text in changes.items():
        path = directory / f"{name}.jsonl.gz"
        lines = gzip.decompress(path.read_bytes()).decode()
        assert text in lines
        path.write_bytes(gzip.compress(lines.replace(text, text[:-1] + "8", 1).encode()))
    failed = {r.file: len(r.failed) for r in recordings.replay(directory, catalogue.open_catalogue(directory))}
    assert {name for name, count in failed.items() if count} == {f"{name}.jsonl.gz" for name in changes}


def test_default_nouns_agree_with_the_tagger(data):
    same, rows = recordings.agreement(data, catalogue.open_catalogue(data))
    assert same["r_type"] >= 0.97 * rows and same["title score"] >= 0.85 * rows
    assert content_words("K-Lite's 2 Plant-based Bags® for the 4.5 oz USB-C") == "k lite plant bags ® oz usb c".split()


@settings(deadline=None)
@given(st.text(alphabet="search[]click \nx]", max_size=30))
def test_commands_are_read_as_the_pattern_says(text):
    match = re.match(r"(.+)\[(.+)\]", text)
    expected = (match[1], match[2].lower()) if match and match[1] in ("search", "click") else None
    try:
        assert parse_command(text) == expected
    except Ignored:
        assert expected is None


TURNS = {
    "search[red shoes]": True,
    " <action> Search [ red\nshoes ] </action> ok": True,
    "<think>I could <action>click[x]</action></think><ACTION>search[red]</ACTION>": True,
    "it is open</think><action>search[usb [2 pack]]</action>": True,
    "<think>never closed <action>search[red]</action>": False,
    "<action>search[red]</action><action>search[blue]</action>": False,
    "<action>search[red] click[buy now]</action>": False,
    "<action>search[red]": False,
    "search[red]</action>": False,
    "I say search[red]": False,
    "<action>search[ ]</action>": False,
    "<action></action>": False,
    "<action>click[search]</action>": False,
    "<action>click[buy now]</action>": False,
    "search[<a> red]": False,
    "search[" + " ".join(f"w{i}" for i in range(1025)) + "]": False,
    "": False,
}


@pytest.mark.parametrize("turn", TURNS)
def test_turns(suite, turn):
    env = playing(suite)
    before = env.snapshot()
    step = env.step(turn)
    assert step.valid is TURNS[turn] and not step.done and step.reward == 0
    assert step.observation.startswith("Invalid action: ") is not step.valid
    assert (env.snapshot() == before) is not step.valid


def test_case_and_blanks_of_a_name_do_not_matter(suite):
    env = playing(suite)
    assert env.step("search[jacket]").valid
    pages = {env.step(turn).observation for turn in ("click[Next >]", "click[< prev]", "click[ next  > ]")}
    assert len(pages) == 2 and env.state.number == 2


def test_an_episode_ends_with_success_or_with_its_finer_score(data):
    """The actions of recorded purchases; success is reward 1, and the score is the reference's reward."""
    suite = WebShop(data, seed=20261, nouns=recordings.recorded_nouns(data))
    env, seen = suite.make_env(), Counter()
    for episode in recordings.read_lines(data / "episodes.jsonl.gz"):
        last = episode["steps"][-1]
        if episode["config"] != "human" or not last.get("bought") or episode["kind"] == "invalid":
            continue
        env.reset(suite.all_tasks[episode["goal_index"]])
        steps = [env.step(f"<action>{step['action']}</action>") for step in episode["steps"][1:]]
        assert steps[-1].done and steps[-1].score == last["reward"]
        assert steps[-1].reward == (last["reward"] == 1) and not any(step.reward for step in steps[:-1])
        assert not env.step("search[more]").valid and env.step("search[more]").done
        seen[steps[-1].reward] += 1
    assert seen[0] >= 2 and seen[1] >= 2


def test_available_actions_all_work_and_states_are_exact(suite):
    """Random walks over the actions offered; from each state every action gives the same in another environment."""
    draws = random.Random(3)
    env, other = playing(suite), suite.make_env()
    kinds = Counter()
    for index in range(12):
        env.reset(suite.all_tasks[index])
        for _ in range(10):
            state, goal = env.snapshot(), env.task.data
            hash(state[1])
            actions = env.available_actions()
            for action in actions:
                other.restore(state)
                step = other.step(action.replace("[words]", f"[{goal.query}]"))
                assert step.valid, action
            assert env.snapshot() == state
            first = env.step(draws.choice(actions).replace("[words]", f"[{goal.query}]"))
            after, page = env.snapshot(), env.page()
            env.restore(state)
            assert env.available_actions() == actions
            env.restore(after)
            kinds[after[1].page] += 1
            assert env.page() == page and (first.done or env.page() in first.observation + "\n")
            if first.done:
                break
    assert set(kinds) == {"index", "search_results", "item_page", "item_sub_page", "done"}


def test_rich_pages_and_plain_observations(suite):
    plain = playing(suite, admissible=False, mode="text_rich")
    observation = plain.step("search[jacket]").observation
    assert observation == plain.page() and "[button] Back to Search [button_]" in observation


def test_any_text_is_answered(suite):
    draws = random.Random(0)
    parts = "<action> </action> <think> </think> search[ click[ ] [ buy now back to search < prev next > \ud800 日"
    parts = [*parts.split(" "), " ", *map(chr, range(256))]
    env = playing(suite, admissible=False)
    valid = 0
    for n in range(100_000):
        if n % 4 == 0:
            text = draws.randbytes(draws.randrange(40)).decode("utf-8", "surrogateescape")
        else:
            text = "".join(draws.choices(parts, k=draws.randrange(12)))
            text = f"<action>{draws.choice(('search', 'click'))}[{text}]</action>" if n % 10 == 1 else text
        step = env.step(text)
        valid += step.valid
        if step.done or n % 100 == 0:
            env.reset(suite.all_tasks[n % len(suite.all_tasks)])
    assert 0 < valid < 50_000


@pytest.mark.parametrize("text", ["[" * 50_000, "<think>" * 20_000, "<action>" * 20_000, "click[" * 20_000 + "]"])
def test_long_hostile_texts_get_a_short_answer(suite, text):
    step = playing(suite).step(text)
    assert not step.valid and len(step.observation) < 400


def test_splits_of_the_full_and_of_small_data(suite):
    counts = Counter(split_of(i, 12_087) for i in range(12_087))
    assert counts == {"test": 500, "dev": 1000, "train": 10_587}
    assert split_of(499, 3000) == "test" and split_of(500, 3000) == "dev" and split_of(1500, 3000) == "train"
    ids = {split: [task.id for task in suite.tasks(split)] for split in ("test", "dev", "train")}
    assert ids["test"] + ids["dev"] + ids["train"] == sorted({task.id for task in suite.all_tasks})
    assert len(ids["test"]) == 17 and len(ids["train"]) == 53
    with pytest.raises(UserError, match="'valid'"):
        suite.tasks("valid")


def test_goals_are_the_same_in_every_process(data, suite):
    random.seed(5)
    here = digest(WebShop(data))
    code = f"from tests.test_webshop import *; print(digest(WebShop(Path({str(data)!r}))))"
    there = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert here == digest(suite) == there.stdout.split()[-1]
    assert here != digest(WebShop(data, seed=1))


def digest(suite: WebShop) -> str:
    prices = [float(price) for price in suite.shop.prices]
    return hashlib.sha256(repr((suite.all_tasks, [t.data for t in suite.all_tasks], prices)).encode()).hexdigest()


def test_people_s_goals_only_where_there_are_some(data, tmp_path):
    for name in ("items_shuffle", "items_ins_v2"):
        shutil.copy(data / f"{name}.json", tmp_path / f"{name}_1000.json")
    suite = load_suite("webshop", SimpleNamespace(data=str(tmp_path), page_mode="text", admissible=True))
    assert len(suite.all_tasks) == 366 and isinstance(suite.all_tasks[0].data.options, tuple)
    with pytest.raises(UserError, match="items_human_ins.json"):
        WebShop(tmp_path, human=True)


def test_the_cache_is_used(data, suite, monkeypatch):
    monkeypatch.setattr(catalogue, "_build", None)
    assert digest(WebShop(data)) == digest(suite)


@settings(deadline=None, max_examples=30)
@given(st.recursive(st.none() | st.floats(allow_nan=False) | st.text(max_size=9), lambda v: st.lists(v, max_size=4)))
def test_arrays_are_decoded_as_a_whole_would_be(value):
    values = [value, {"a": value}, 12]
    for separators in ((",", ":"), (" ,\n", ": ")):
        text = json.dumps(values, separators=separators).encode()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "CHUNK", 3)
            assert list(read_array(Path("x"), io.BytesIO(text))) == values
            for end in range(0, len(text), 7):
                with pytest.raises(UserError, match="^x is cut or no JSON array of products"):
                    list(read_array(Path("x"), io.BytesIO(text[:end])))


BAD_ARRAYS = [b"", b"{}", b"hello", b"[1 2]", b"[1,]", b"[" * 100_000, b'["\xff"]', b"[1", b'[{"a": NaN1}]', b"[,1]"]


@pytest.mark.parametrize("text", BAD_ARRAYS, ids=range(len(BAD_ARRAYS)))
def test_bad_arrays_give_one_line(text):
    with pytest.raises(UserError, match="^items.json is cut") as error:
        list(read_array(Path("items.json"), io.BytesIO(text)))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_broken_products_are_skipped_and_counted(products):
    def kept(rows) -> tuple[list[str], Counter]:
        skipped = Counter()
        found = read_products(Path("x"), io.BytesIO(json.dumps(rows).encode()), {}, skipped)
        return [product.asin for product in found], skipped

    good, second = products[0], products[1]
    names = ("name", "category", "small_description", "asin")
    broken = [good | {name: value} for name in names for value in (None, 3, {})]
    broken += [{k: v for k, v in good.items() if k != key} for key in ("name", "query", "full_description", "asin")]
    broken += [good | {"pricing": "$1.2.3"}, good | {"pricing": "$" + "9" * 400}, good | {"customization_options": 3}]
    broken += [good | {"customization_options": {"size": [value]}} for value in (None, {}, {"value": 3}, 4)]
    broken += [None, 3, "text", [good]]
    assert kept([*broken, good, second]) == (
        [good["asin"], second["asin"]],
        Counter({"missing or malformed fields": len(broken)}),
    )
    choices = {str(group): [{"value": str(value)} for value in range(10)] for group in range(7)}
    odd = {
        "no valid asin": {"asin": "B07D4GUA2S0"},
        "texts too long": {"name": "long " * 2_000_000},
        "too many combinations of options": {"customization_options": choices},
    }
    assert kept([*(good | fields for fields in odd.values()), good]) == ([good["asin"]], Counter(dict.fromkeys(odd, 1)))


def test_a_bad_data_set_is_one_clear_line(data, tmp_path, capsys):
    def opened(**changed: str) -> WebShop:
        for name in ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"):
            (tmp_path / name).write_text(changed.get(name.split(".")[0], (data / name).read_text()))
        return WebShop(tmp_path)

    whole = (data / "items_shuffle.json").read_text()
    for changed, name in (
        ({"items_shuffle": whole[: len(whole) // 2]}, "items_shuffle.json"),
        ({"items_shuffle": "[]"}, "items_shuffle.json"),
        ({"items_shuffle": '[{"asin": "x"}]'}, "items_shuffle.json"),
        ({"items_ins_v2": '{"a": '}, "items_ins_v2.json"),
        ({"items_ins_v2": "[]"}, "items_ins_v2.json"),
        ({"items_human_ins": "[" * 100_000}, "items_human_ins.json"),
        ({"items_human_ins": '{"B07MA4VBGX": [{"instruction": 1}]}'}, "items_human_ins.json"),
    ):
        with pytest.raises(UserError) as error:
            opened(**changed)
        assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)
    assert not list((Path(os.environ["XDG_CACHE_HOME"]) / "prover-mini").glob(".building-*"))
    capsys.readouterr()
    assert len(opened().all_tasks) == 106
    assert "skipped 3 of 153 products: asin seen before (1), no valid asin (2)" in capsys.readouterr().err
    for missing in (tmp_path / "nothing", tmp_path.parent):
        with pytest.raises(UserError, match=str(missing)):
            WebShop(missing)
