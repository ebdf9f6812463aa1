"""The words of the embedded WebShop policy.

A word begins with its blank, so it is the same token in a request, on a page and in an action, where the environment
drops the blank: "click[ red]". A kind of thing is one word, and so is an asin. What stands between the words is cut
into as few pieces as the pages allow; clicks on buttons are whole pieces.
"""

from __future__ import annotations

from envs.webshop.catalogue import RESULTS
from envs.webshop.goals import PRICE_STEPS
from envs.webshop.shop import PER_PAGE
from scripts.build_webshop import BRANDS, DEPARTMENTS, GROUPS, OPENINGS, PRICES, SERIES
from scripts.tiny.tokenizer import ROLES
from scripts.tiny.webshop.shops import asins

ATTRIBUTES = frozenset(word for department in DEPARTMENTS.values() for word in department.attributes)
VALUES = frozenset(value for values in GROUPS.values() for value in values)
KINDS = tuple(kind for department in DEPARTMENTS.values() for kind in department.kinds)
BUTTONS = ("features", "< prev", "next >", "back to search", "buy now")

REQUEST = ["WebShop [SEP] Instruction: [SEP]", "Instruction: [SEP]", " [SEP] Search", ",", " and", " in"]
REQUEST += [" that should be", ", and it must be"]
RESULTS_PAGE = [" (Total results:", ") [SEP] Next > [SEP]", ") [SEP] < Prev [SEP] Next > [SEP]"]
ITEM_PAGE = [" [SEP] Back to Search [SEP] < Prev [SEP]", " [SEP]"]
BELOW_PRICE = " [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
FORM = ". Give exactly one <action>search[words]</action> or <action>click[name]</action>."
INVALID = ["Invalid action: there is nothing called '", f"' to click on this page{FORM}"]
INVALID += ["Invalid action: it must be search[words] or click[name]" + FORM]


def things() -> list[str]:
    """What a policy copies: asins, kinds, attributes and option values."""
    return [f" {name}" for name in (*asins(), *KINDS, *sorted(ATTRIBUTES), *sorted(VALUES))]


def amounts() -> list[str]:
    """Prices in each of their surroundings, and limits."""
    prices = [f"${price:.2f}" for price in PRICES]
    shown = [text for price in prices for text in (f" [SEP] {price} [SEP]", f" [SEP] {price}")]
    shown += [f" [SEP] Price: {price}{BELOW_PRICE}" for price in prices]
    highest = sum(step <= max(PRICES) for step in PRICE_STEPS) + 4
    return [*shown, *(f", and price lower than {limit:.2f} dollars" for limit in PRICE_STEPS[:highest])]


def frame() -> list[str]:
    """What the pages and actions are made of besides."""
    names = [text for brand in BRANDS for text in (f" [SEP] {brand}", f" {brand}")]
    names += [f" {word}" for word in (*SERIES, *GROUPS, *OPENINGS)]
    pages = [f" [SEP] Back to Search [SEP] Page {number}" for number in range(1, RESULTS // PER_PAGE + 2)]
    counts = [f" {count}" for count in range(RESULTS + 1)]
    actions = ["search[", "click[", "]", *(f"click[{button}]" for button in BUTTONS)]
    return [*names, *REQUEST, *pages, *counts, *RESULTS_PAGE, *ITEM_PAGE, *INVALID, *actions, *ROLES]


def words() -> list[str]:
    return [*things(), *amounts(), *frame()]
