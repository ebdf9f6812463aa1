"""Shopping goals, price limits and splits: a pure function of the files and one seed.

WebShop draws prices and limits from the process's global generator, which nothing has seeded, before it shuffles the
goals with a fixed seed; so the limits of "goal 17" differ between two processes. Here one generator of our own makes
the same draws in the same order, from a seed that is part of the data set:

    prices   per product with two amounts: uniform(first, second)
    limits   per goal source: the larger of sample(c, 2), c = the first 4 of 10, 20, .. 990 above the price;
             with fewer than 2 there is no draw, no sentence about the price and the limit 1,000,000
    order    shuffled with seed 233, as the reference does: goal 17 is the same goal as there

Human goals come from instructions that people wrote; generated ones from a template, one for each combination of a
product's options. Splits are cut from the shuffled list: test 0-499, dev 500-1499, train the rest. A list of fewer
than 3,000 keeps the proportions of 3,000: a sixth, a third, a half.

Source: web_agent_site/engine/goal.py of WebShop (Yao et al., 2022).
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.webshop.catalogue import Catalogue
from envs.webshop.files import Product, read_object
from prover_mini.errors import UserError

SEED = 233  # the seed that WebShop shuffles with; here it also draws prices and limits
SHUFFLE_SEED = 233
PRICE_STEPS = [10.0 * i for i in range(1, 100)]
NO_LIMIT = 1_000_000
TEST_END, DEV_END, FULL = 500, 1500, 3000

Option = str | tuple[str, str]  # a value (human goals) or a group's name and value (generated goals)


@dataclass(frozen=True)
class Goal:
    """What to buy. `name`, `query`, `category` and `product_category` describe the product it was made from."""

    asin: str
    category: str
    query: str
    name: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    price_limit: float
    options: tuple[Option, ...]
    weight: float = 1.0


@dataclass(frozen=True)
class Source:
    """One instruction before its price limit is drawn, and the options of each goal that it gives."""

    product: Product
    price: float
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[Option, ...], ...]


def draw_goals(catalogue: Catalogue, human: bool, seed: int = SEED) -> tuple[np.ndarray, list[Goal]]:
    """Prices, (N,) float64 by row of the catalogue, and the shuffled goals. Raises UserError."""
    draws = random.Random(seed)
    prices = draw_prices(catalogue, draws)
    goals = []
    for source in human_sources(catalogue, prices) if human else generated_sources(catalogue, prices):
        limit, sentence = draw_limit(source.price, draws)
        goals += [make_goal(source, options, limit, sentence, human) for options in source.options]
    if not human:
        goals = weighted(goals)
    random.Random(SHUFFLE_SEED).shuffle(goals)
    return prices, goals


def draw_prices(catalogue: Catalogue, draws: random.Random) -> np.ndarray:
    prices = catalogue.amounts[:, 0].copy()
    for row in np.flatnonzero(~np.isnan(catalogue.amounts[:, 1])):
        first, second = map(float, catalogue.amounts[row])
        prices[row] = draws.uniform(first, second)
    return prices


def draw_limit(price: float, draws: random.Random) -> tuple[float, str]:
    """A price limit and the words that state it."""
    steps = [step for step in PRICE_STEPS if step > price][:4]
    if len(steps) < 2:
        return NO_LIMIT, ""
    limit = max(draws.sample(steps, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def human_sources(catalogue: Catalogue, prices: np.ndarray) -> Iterator[Source]:
    path = catalogue.files.human
    if path is None:
        raise UserError(f"{catalogue.files.products.parent}: needs items_human_ins.json for human goals")
    written = read_object(path)
    for row in sorted(catalogue.rows[asin] for asin in written if asin in catalogue.rows):
        product = catalogue.product(row)
        try:
            instructions = [_human(entry) for entry in written[product.asin]]
        except (KeyError, TypeError, AttributeError):
            raise UserError(f"{path}: the instructions of {product.asin} are malformed") from None
        for text, attributes, options in instructions:
            if attributes:
                yield Source(product, float(prices[row]), text.strip("."), attributes, (options,))


def _human(entry: dict[str, Any]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    parts = entry["instruction"], entry["instruction_attributes"], entry["instruction_options"]
    if not isinstance(parts[0], str) or not all(isinstance(text, str) for part in parts[1:] for text in part):
        raise TypeError("must be texts")
    return parts[0], tuple(parts[1]), tuple(parts[2])


def generated_sources(catalogue: Catalogue, prices: np.ndarray) -> Iterator[Source]:
    for row in range(len(catalogue)):
        product = catalogue.product(row)
        if product.instruction and product.instruction_attributes:
            groups = [[(name, value) for value in values] for name, values in sorted(product.options)]
            combinations = tuple(itertools.product(*groups))
            attributes = product.instruction_attributes
            yield Source(product, float(prices[row]), product.instruction, attributes, combinations)


def make_goal(source: Source, options: tuple[Option, ...], limit: float, sentence: str, human: bool) -> Goal:
    product, words = source.product, ""
    if options and not human:
        words = " with " + ", and ".join(f"{name}: {value}" for name, value in options)
    return Goal(
        product.asin,
        product.category,
        product.query,
        product.title,
        product.product_category,
        source.instruction + words + sentence,
        source.attributes,
        limit,
        options,
    )


def weighted(goals: list[Goal]) -> list[Goal]:
    """Generated goals with their sampling weight: the mean over attributes of 1 / goals with that attribute."""
    counts = Counter(attribute for goal in goals for attribute in goal.attributes)
    return [
        dataclasses.replace(goal, weight=sum(1 / counts[a] for a in goal.attributes) / len(goal.attributes))
        for goal in goals
    ]


def split_of(index: int, count: int) -> str:
    """The split of place `index` in a shuffled list of `count` goals."""
    test_end, dev_end = min(TEST_END, count // 6), min(DEV_END, count // 2)
    return "test" if index < test_end else "dev" if index < dev_end else "train"
