"""A shopper that follows fixed rules and sees what a policy sees: the instruction and the pages in "text" mode.

It searches for the words of the instruction, opens the affordable products in the order of the results, and buys the
first of which title, options and features hold every word; it looks at the features only while a word is missing. It
does not know which words name options or attributes, nor anything else of the goal. This earns the full reward where
instructions and products use the same words, as in the embedded shop; people put the same thing in other words.
"""

from __future__ import annotations

import re

from envs.webshop.nouns import STOP_WORDS

SEPARATOR = " [SEP] "
LIMIT = re.compile(r",? and price lower than ([\d.]+) dollars$")
AMOUNT = re.compile(r"\$([\d.]+)")
WORD = re.compile(r"\w+")
# Words of a request that describe nothing: how one asks, and what kinds of options are called.
ASKING = frozenset("am buy find get like looking me must need please show want".split())
HEADINGS = frozenset("color flavor model pack scent size width".split())
IGNORED = STOP_WORDS | ASKING | HEADINGS


class Expert:
    """Plays one episode: `act` takes the observations in order. Make a new one for each episode."""

    def __init__(self) -> None:
        self.query: list[str] = []
        self.limit = float("inf")
        self.opened: set[str] = set()
        self.known: set[str] = set()  # words found on the pages of the present product
        self.chosen: set[str] = set()

    def act(self, observation: str) -> str:
        """The next action, such as "search[red cap]" or "click[buy now]"."""
        strings = observation.partition("\nAvailable actions:")[0].split(SEPARATOR)
        if strings[0] == "WebShop":
            self._read(strings[2])
            return self._search()
        if strings[3].startswith("Page "):
            return self._open(strings)
        if strings[-1] == "Buy Now":
            return self._inspect(strings)
        self.known.update(words(" ".join(strings[4:])))
        return "click[< prev]" if self._complete() else self._search()

    def _read(self, instruction: str) -> None:
        limit = LIMIT.search(instruction)
        if limit:
            self.limit, instruction = float(limit[1]), instruction[: limit.start()]
        self.query = [word for word in words(instruction) if word not in IGNORED]

    def _search(self) -> str:
        return f"search[{' '.join(self.query)}]"

    def _complete(self) -> bool:
        return self.known.issuperset(self.query)

    def _open(self, strings: list[str]) -> str:
        """The first affordable product of a results page that was not opened yet, else the next page."""
        listed = strings[strings.index("Next >") + 1 :]
        for asin, price in zip(listed[::3], listed[2::3]):
            if asin not in self.opened and dearest(price) <= self.limit:
                self.opened.add(asin)
                self.known, self.chosen = set(), set()
                return f"click[{asin.lower()}]"
        return "click[next >]"

    def _inspect(self, strings: list[str]) -> str:
        price = next(i for i, text in enumerate(strings) if text.startswith("Price: "))
        values = [text for text in strings[4 : price - 1] if words(text) and set(words(text)) <= set(self.query)]
        self.known.update(words(strings[price - 1]), *map(words, values))
        if not self._complete():
            return "click[features]"
        for value in values:
            if value not in self.chosen:
                self.chosen.add(value)
                return f"click[{value}]"
        return "click[buy now]"


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def dearest(price: str) -> float:
    """The highest amount of a price text such as "$5.0 to $9.5"."""
    return max(map(float, AMOUNT.findall(price)))
