"""Recordings of the reference WebShop, replayed: `python -m tests.replay webshop DIR`.

DIR holds a catalogue in the official formats and what the reference made of it: prices, goals, episodes with pages in
both observation modes, rewards with their parts, and rankings. Everything is compared for equality; scores of
rankings within 1e-4. Nouns are taken from the recorded lists; how far the default tagger agrees is printed.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

from envs.analysis import english
from envs.webshop.catalogue import Catalogue, open_catalogue
from envs.webshop.goals import Goal, draw_goals
from envs.webshop.nouns import content_words
from envs.webshop.pages import MODES, render
from envs.webshop.reward import Reward, name_score, purchase_reward, type_reward
from envs.webshop.shop import Ignored, Shop, State
from prover_mini.errors import UserError
from tests.replay.report import Report

RECORDED_SCORE_ERROR = 1e-4


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay webshop", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args(arguments).directory
    catalogue = open_catalogue(directory)
    reports = replay(directory, catalogue)
    for report in reports:
        report.show()
    failures = sum(len(report.failed) for report in reports)
    print(f"{sum(report.cases for report in reports)} records, {failures} mismatches")
    counts, rows = agreement(directory, catalogue)
    print("default nouns agree:", ", ".join(f"{name} {count} of {rows}" for name, count in counts.items()))
    return 1 if failures else 0


def replay(directory: Path, catalogue: Catalogue) -> list[Report]:
    """One report per file. Raises UserError where the directory is not in the layout of the recordings."""
    meta, nouns = read(directory / "meta.json"), recorded_nouns(directory)
    seed = meta["seed"]
    prices, human = draw_goals(catalogue, True, seed)
    _, generated = draw_goals(catalogue, False, seed)
    goals = {"human": human, "synthetic": generated, "attrs": human}
    shops = {name: Shop(catalogue, prices, nouns, show_attributes=name == "attrs") for name in goals}

    drawn = Report("prices.json")
    found = {asin: float(prices[row]) for asin, row in catalogue.rows.items()}
    expected = read(directory / "prices.json")
    drawn.case("products", {"asins": (tuple(found), tuple(expected))})
    for asin, price in expected.items():
        drawn.case(asin, {"price": (repr(found.get(asin)), repr(price))})
    return [
        drawn,
        replay_goals(directory / "goals_human.jsonl.gz", human, meta["goals"]["human"]),
        replay_goals(directory / "goals_synthetic.jsonl.gz", generated, meta["goals"]["synthetic"]),
        replay_episodes(directory / "episodes.jsonl.gz", shops, goals),
        replay_rewards(directory / "rewards.jsonl.gz", catalogue, goals, nouns),
        replay_rankings(directory / "retrieval.jsonl.gz", catalogue),
        replay_analysis(directory / "analysis.jsonl.gz", catalogue),
    ]


def replay_goals(path: Path, goals: list[Goal], count: int) -> Report:
    report = Report(path.name)
    report.case("all", {"count": (len(goals), count)})
    for row in read_lines(path):
        goal = goals[row["index"]]
        options = row["goal_options"]
        expected = {
            "asin": row["asin"],
            "category": row["category"],
            "query": row["query"],
            "name": row["name"],
            "product_category": row["product_category"],
            "instruction": row["instruction_text"],
            "attributes": tuple(row["attributes"]),
            "price_limit": row["price_upper"],
            "options": tuple(options.items()) if isinstance(options, dict) else tuple(options),
            "weight": row["weight"],
        }
        values = {name: (repr(getattr(goal, name)), repr(value)) for name, value in expected.items()}
        values["price_limit"] = (goal.price_limit, row["price_upper"])
        values["weight"] = (goal.weight, row["weight"])
        report.case(f"goal {row['index']}", values)
    return report


def replay_episodes(path: Path, shops: dict[str, Shop], goals: dict[str, list[Goal]]) -> Report:
    """Plays the recorded actions; each step is one record. Where the reference throws, the page must stay."""
    report = Report(path.name)
    for episode in read_lines(path):
        shop, goal = shops[episode["config"]], goals[episode["config"]][episode["goal_index"]]
        state, name = State(), f"{episode['kind']} episode {episode['id']} step "
        for step in episode["steps"]:
            values = {}
            if step["action"] is not None:
                state, reward, done = play(shop, state, goal, step["action"])
                if "raises" not in step:
                    values = {"reward": (repr(reward), repr(step["reward"])), "done": (done, step["done"])}
            values |= page_values(shop, state, goal, step)
            if "bought" in step:
                values |= bought_values(shop, state, step["bought"])
            report.case(name + str(step["step"]), values)
    return report


def play(shop: Shop, state: State, goal: Goal, action: str) -> tuple[State, float | int, bool]:
    """State, reward and done as the reference reports them: the integer 0 for an ignored action."""
    try:
        state = shop.act(state, goal, action)
    except Ignored:
        return state, 0, False
    done = state.page == "done"
    return state, state.reward.total if done else 0.0, done


def page_values(shop: Shop, state: State, goal: Goal, step: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    available = {"has_search_bar": state.page == "index", "clickables": list(shop.clickables(state))}
    return {
        "page": (shop.believed_page(state), step["page"]),
        "text": from_difference(render(shop, state, goal, MODES[0]), step["obs"]),
        "text_rich": from_difference(render(shop, state, goal, MODES[1]), step["obs_rich"]),
        "available": from_difference(str(available), str(step["available_actions"])),
    }


def from_difference(got: str, expected: str) -> tuple[str, str]:
    """Both texts from shortly before their first difference, so that a report shows it."""
    if got == expected:
        return got, expected
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(got, expected)))
    start = max(same - 30, 0)
    return repr(got[start:]), repr(expected[start:])


def bought_values(shop: Shop, state: State, bought: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        "asin": (shop.catalogue.product(state.row).asin, bought["asin"]),
        "options": (dict(state.options), bought["options"]),
        "price": (repr(float(shop.prices[state.row])), repr(bought["price"])),
    } | info_values(state.reward, bought["info"])


def info_values(reward: Reward, info: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    values = {name: (repr(getattr(reward, name)), repr(value)) for name, value in info.items()}
    return values | {"has options": (reward.r_option is not None, "r_option" in info)}


def replay_rewards(path: Path, catalogue: Catalogue, goals: dict[str, list[Goal]], nouns: Any) -> Report:
    report = Report(path.name)
    for row in read_lines(path):
        goal, product = goals[row["goals"]][row["goal_index"]], catalogue.product(catalogue.rows[row["asin"]])
        reward = purchase_reward(goal, product, row["price"], row["options"].values(), nouns)
        values = {"reward": (repr(reward.total), repr(row["reward"]))} | info_values(reward, row["info"])
        report.case(f"{row['kind']} {row['id']}", values)
    return report


def replay_rankings(path: Path, catalogue: Catalogue) -> Report:
    report = Report(path.name)
    for row in read_lines(path):
        terms = english(row["query"])
        hits = catalogue.index.search(terms, len(row["hits"]) or 1)
        asins = [catalogue.product(hit).asin for hit, _ in hits]
        scores = all(abs(score - hit[1]) <= RECORDED_SCORE_ERROR for (_, score), hit in zip(hits, row["hits"]))
        values = {
            "tokens": (tuple(terms), tuple(row["tokens"])),
            "ranking": (tuple(asins), tuple(asin for asin, _ in row["hits"])),
            "scores": (scores, True),
        }
        report.case(f"{row['kind']} query {row['id']}", values)
    return report


def replay_analysis(path: Path, catalogue: Catalogue) -> Report:
    """Index terms: of texts, and of the products as the search engine reads them."""
    report = Report(path.name)
    for row in read_lines(path):
        name = row.get("asin") or row["text"]
        text = catalogue.product(catalogue.rows[row["asin"]]).search_text if row["kind"] == "doc" else row["text"]
        report.case(f"{row['kind']} {name}", {"tokens": (tuple(english(text)), tuple(row["tokens"]))})
    return report


def agreement(directory: Path, catalogue: Catalogue) -> tuple[Counter[str], int]:
    """How often the default tagger gives the r_type and the title score of the recorded nouns, of how many."""
    seed = read(directory / "meta.json")["seed"]
    goals = {name: draw_goals(catalogue, name == "human", seed)[1] for name in ("human", "synthetic")}
    same, rows = Counter(), read_lines(directory / "rewards.jsonl.gz")
    for row in rows:
        goal, info = goals[row["goals"]][row["goal_index"]], row["info"]
        score = name_score(goal.name, catalogue.product(catalogue.rows[row["asin"]]).title, content_words)
        same["r_type"] += type_reward(info["query_match"] or info["category_match"], score) == info["r_type"]
        same["title score"] += score == info["title_score"]
    return same, len(rows)


def recorded_nouns(directory: Path) -> Any:
    return {row["name"]: row["nouns"] for row in read_lines(directory / "nouns.jsonl.gz")}.__getitem__


def read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def read_lines(path: Path) -> list[Any]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
