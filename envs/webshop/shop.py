"""The shop as a state machine: pages, buttons and what an action does. States are immutable, so a snapshot is free.

    search[words]     from every page -> results, 10 products a page
    click[name]       a button, product or option value of the present page, its exact lower-cased text

    index -> search_results -> item_page -> item_sub_page (description, features, reviews, attributes) | done

The reference finds out where it is from its own address line, which holds the query and the options as well. A query
with the name of a page in it therefore changes what "< prev" does; `address` and `believed_page` keep this.

Source: web_agent_site/envs/web_agent_text_env.py of WebShop (Yao et al., 2022; MIT licence).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from envs.webshop.catalogue import Catalogue, NoSearch
from envs.webshop.goals import Goal
from envs.webshop.nouns import NounTagger, content_words
from envs.webshop.reward import Reward, purchase_reward

PAGE_NAMES = ("search_results", "item_page", "item_sub_page", "done")
SUB_PAGES = ("description", "features", "reviews", "attributes")
PER_PAGE = 10
START, BACK, NEXT, PREVIOUS, BUY = "search", "back to search", "next >", "< prev", "buy now"


class State(NamedTuple):
    """`hits`: rows of all results. `row`: the product shown, -1 if none. `options`: (group, value), in the order of
    the first choice. `visited`: rows of products seen since the last start. `sub_page`: one of SUB_PAGES."""

    page: str = "index"
    words: tuple[str, ...] = ()
    hits: tuple[int, ...] = ()
    number: int = 1
    row: int = -1
    options: tuple[tuple[str, str], ...] = ()
    visited: frozenset[int] = frozenset()
    sub_page: str = ""
    reward: Reward | None = None


class Ignored(Exception):
    """An action without effect; the message says why."""


def parse_command(text: str) -> tuple[str, str]:
    """("search" or "click", its lower-cased argument). Raises Ignored.

    What the pattern (.+)\\[(.+)\\] matches from the start, but in linear time: the last bracket of the first line
    opens, so an argument that holds one gives a wrong name, and text behind the last closing bracket is ignored.
    """
    line = text.partition("\n")[0]
    closing = line.rfind("]")
    opening = line.rfind("[", 1, max(closing - 1, 0))
    name = line[:opening] if opening > 0 else ""
    if name not in ("search", "click"):
        raise Ignored("there is no search[...] or click[...]")
    return name, line[opening + 1 : closing].lower()


class Shop:
    """The rules over one catalogue with its prices, (N,) by row. Read-only, shared by all episodes."""

    def __init__(
        self,
        catalogue: Catalogue,
        prices: Sequence[float],
        nouns: NounTagger = content_words,
        show_attributes: bool = False,
    ):
        self.catalogue = catalogue
        self.prices = prices
        self.nouns = nouns
        self.show_attributes = show_attributes

    def act(self, state: State, goal: Goal, action: str) -> State:
        """The state after an action. Raises Ignored, also where the reference would fail."""
        name, argument = parse_command(action)
        if name == "search":
            return self._search(state, tuple(argument.split(" ")))
        names = self.clickables(state)
        if argument == START or argument not in names:
            raise Ignored(f"there is nothing called {argument[:80]!r} to click on this page")
        return self._click(state, goal, argument, names[argument])

    def clickables(self, state: State) -> dict[str, Callable[[], State] | None]:
        """What can be clicked by its lower-cased text, in page order: for options and products the state after the
        click, for buttons None, as their name alone decides. Of two equal texts the later meaning counts."""
        if state.page == "done":
            return {}
        names: dict[str, Callable[[], State] | None] = dict.fromkeys(self.buttons(state))
        if state.page == "search_results":
            for row in shown(state):
                names[self.catalogue.product(row).asin.lower()] = lambda row=row: _open(state, row)
        elif state.page == "item_page":
            for group, values in self.catalogue.product(state.row).options:
                for value in values:
                    names[value] = lambda group=group, value=value: _choose(state, group, value)
        return names

    def buttons(self, state: State) -> tuple[str, ...]:
        if state.page == "index":
            return (START,)
        if state.page == "search_results":
            return (BACK, PREVIOUS, NEXT) if state.number > 1 else (BACK, NEXT)
        if state.page == "item_page":
            sub_pages = SUB_PAGES if self.show_attributes else SUB_PAGES[:-1]
            return (BACK, PREVIOUS, *sub_pages, BUY)
        return () if state.page == "done" else (BACK, PREVIOUS)

    def address(self, state: State) -> str:
        """The end of the reference's address line, as far as it is ever looked at."""
        asin = self.catalogue.product(state.row).asin if state.row >= 0 else ""
        query, options = "+".join(state.words), json.dumps(dict(state.options))
        parts = {
            "index": (),
            "search_results": ("search_results", query, str(state.number)),
            "item_page": ("item_page", asin, query, str(state.number), options),
            "item_sub_page": ("item_sub_page", asin, query, str(state.number), state.sub_page, options),
            "done": ("done", asin, options),
        }
        return "/".join(parts[state.page])

    def believed_page(self, state: State) -> str:
        """The page that the reference takes the address for."""
        address = self.address(state)
        return next((name for name in PAGE_NAMES if name in address), "index")

    def _search(self, state: State, words: tuple[str, ...]) -> State:
        try:
            hits = self.catalogue.search(words)
        except NoSearch as error:
            raise Ignored(str(error)) from None
        return State("search_results", words, hits, visited=state.visited)

    def _click(self, state: State, goal: Goal, name: str, follow: Callable[[], State] | None) -> State:
        """The name decides before the meaning: an option called "features" acts as the button."""
        if name == BUY and state.row >= 0:
            return state._replace(page="done", reward=self._buy(state, goal))
        if name == BACK:
            return State()
        if name in (NEXT, PREVIOUS):
            moved = self._turn(state, name, self.believed_page(state))
            if moved:
                return moved
        if name in SUB_PAGES and state.row >= 0:
            return state._replace(page="item_sub_page", sub_page=name)
        if follow is None:
            raise Ignored(f"{name!r} leads nowhere")
        return follow()

    def _turn(self, state: State, name: str, believed: str) -> State | None:
        results = State("search_results", state.words, state.hits, state.number, visited=state.visited)
        if believed == "search_results":
            return results._replace(number=state.number + (1 if name == NEXT else -1))
        if name == PREVIOUS and believed == "item_sub_page":
            return state._replace(page="item_page", sub_page="")
        return results if name == PREVIOUS and believed == "item_page" else None

    def _buy(self, state: State, goal: Goal) -> Reward:
        product, chosen = self.catalogue.product(state.row), dict(state.options).values()
        return purchase_reward(goal, product, float(self.prices[state.row]), chosen, self.nouns)


def shown(state: State) -> tuple[int, ...]:
    """Rows of the products on a results page; page 0, which an odd query can lead to, is empty."""
    first = (state.number - 1) * PER_PAGE
    return state.hits[first : first + PER_PAGE] if first >= 0 else ()


def _open(state: State, row: int) -> State:
    return state._replace(page="item_page", row=row, visited=state.visited | {row})


def _choose(state: State, group: str, value: str) -> State:
    return state._replace(options=tuple((dict(state.options) | {group: value}).items()))
