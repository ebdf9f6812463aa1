"""Pages as text, in the two observation modes of WebShop.

    text        all visible strings, stripped, joined with " [SEP] "
    text_rich   one string a line: [button] X [button_] for what can be clicked, [clicked button] X [clicked button_]
                for a chosen option or a product seen before; "You have clicked X." on top for each chosen option

A string of white space alone vanishes if it holds a newline and counts as one blank otherwise, as the reference's
parser of its own HTML has it; other strings keep their inner white space, and `text_rich` also the outer one.

Source: web_agent_site/templates of WebShop (Yao et al., 2022; MIT licence), whose button and heading words these are.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from envs.webshop.files import Product
from envs.webshop.goals import Goal
from envs.webshop.shop import BACK, BUY, NEXT, PREVIOUS, START, SUB_PAGES, Shop, State, shown

MODES = ("text", "text_rich")
LABELS = {name: name.capitalize() for name in (START, *SUB_PAGES)} | {
    BACK: "Back to Search", NEXT: "Next >", PREVIOUS: "< Prev", BUY: "Buy Now",
}  # fmt: skip
BLANKS = " \n\t\f\r"
SCRIPT_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&'"}
PLAIN, BUTTON, PRODUCT, OPTION = "plain", "button", "product", "option"


class String(NamedTuple):
    """A visible string. `marked`: a product seen before or an option that shows as chosen."""

    text: str
    style: str = PLAIN
    marked: bool = False


def render(shop: Shop, state: State, goal: Goal, mode: str) -> str:
    """The page of a state as the reference shows it, in "text" or "text_rich"."""
    strings = visible(strings_of(shop, state, goal))
    return as_text(strings) if mode == "text" else as_rich_text(strings)


def strings_of(shop: Shop, state: State, goal: Goal) -> list[String]:
    if state.page == "index":
        return [*map(String, ("WebShop", "Instruction: ", goal.instruction)), button(START)]
    if state.page == "done":
        return done_strings(shop.catalogue.product(state.row), state)
    head = [String("Instruction:"), String(goal.instruction)]
    if state.page == "search_results":
        return head + results_strings(shop, state)
    product = shop.catalogue.product(state.row)
    if state.page == "item_page":
        return head + item_strings(shop, state, product)
    return head + [button(BACK), button(PREVIOUS), *sub_page_strings(product, state.sub_page)]


def button(name: str) -> String:
    return String(LABELS[name], BUTTON)


def results_strings(shop: Shop, state: State) -> list[String]:
    back, *turns = map(button, shop.buttons(state))
    strings = [back, String(f"Page {state.number} (Total results: {len(state.hits)})"), *turns]
    for row in shown(state):
        product = shop.catalogue.product(row)
        strings += [
            String(product.asin, PRODUCT, row in state.visited),
            String(product.title),
            String(product.price_text),
        ]
    return strings


def item_strings(shop: Shop, state: State, product: Product) -> list[String]:
    back, previous, *others = map(button, shop.buttons(state))
    address = shop.address(state)
    strings = [back, previous]
    for name, values in product.options:
        strings.append(String(name))
        strings += [String(value, OPTION, f'"{value}"' in address) for value in values]
    facts = (product.title, f"Price: {product.price_text}", "Rating: N.A.")
    return strings + [*map(String, facts), *others]


def sub_page_strings(product: Product, sub_page: str) -> list[String]:
    if sub_page == "description":
        return [String(product.description)]
    listed = {"features": product.bullets, "attributes": product.attributes, "reviews": ()}[sub_page]
    texts = [f" {text}" for text in listed]
    if sub_page == "attributes":
        texts += [product.category, product.query, product.product_category]
    return list(map(String, texts))


def done_strings(product: Product, state: State) -> list[String]:
    """The last page: what was bought and the reward. The reference tells nothing of the goal here."""
    options = json.dumps(dict(state.options), sort_keys=True).translate(SCRIPT_ESCAPES)
    texts = ["Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"]
    texts += ["Purchased", "asin", product.asin, "options", options]
    for heading in ("attrs", "category", "query", "product category"):
        texts += [heading, "None"]
    texts += ["Target", "asin", "options", "attrs", "price upper", "instuction text"]
    texts += ["category", "product category", "query", "Goal ", "None"]
    texts += ["Reward", "Your score (min 0.0, max 1.0)", str(state.reward.total), "Reward Details ", "None"]
    return [String(text) for text in texts]


def visible(strings: list[String]) -> list[String]:
    """The strings that the reference's HTML parser leaves."""
    kept = []
    for string in strings:
        if not string.text.strip(BLANKS):
            if not string.text or "\n" in string.text:
                continue
            string = string._replace(text=" ")
        kept.append(string)
    return kept


def as_text(strings: list[String]) -> str:
    return " [SEP] ".join(string.text.strip() for string in strings)


def as_rich_text(strings: list[String]) -> str:
    chosen, lines = [], []
    for text, style, marked in strings:
        if style == PLAIN:
            lines.append(text)
            continue
        indent, name = {BUTTON: "", PRODUCT: "\n", OPTION: "  "}[style], "clicked button" if marked else "button"
        lines.append(f"{indent}[{name}] {text} [{name}_]")
        if marked and style == OPTION:
            chosen.append(f"You have clicked {text}.")
    return "\n".join([*reversed(chosen), *lines, ""])
