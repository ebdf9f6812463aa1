"""WebShop as a game: find the product that an instruction asks for, choose its options, buy it.

    <action>search[words]</action>   from any page
    <action>click[name]</action>     a button, product or option of the page

An observation is the page exactly as the reference shows it, then what can be done there. The reference ignores an
action that it can't understand; here such a turn is answered with what was wrong, and the page stays. Case, and blanks
around a name, do not matter; brackets in a query are read as blanks.
"""

from __future__ import annotations

import re

from envs.action import parse_action
from envs.base import Env, Step, Task
from envs.webshop.pages import render
from envs.webshop.shop import Ignored, Shop, State, parse_command

INSTRUCTIONS = (
    "You are shopping online. Find the product that the instruction asks for, with its attributes and below its price, "
    "choose the options it names, then buy it. End every turn with exactly one action:\n"
    "<action>search[words]</action> to search the shop,\n"
    "<action>click[name]</action> to click a button, a product or an option of the page.\n"
    "click[buy now] ends the episode."
)
COMMAND = re.compile(r"(search|click)\s*\[(.*)\]", re.DOTALL | re.IGNORECASE)
ANOTHER = re.compile(r"\]\s*(search|click)\s*\[", re.IGNORECASE)


class WebShopEnv(Env):
    """Args: mode: "text" or "text_rich"; admissible: whether observations end with the available actions."""

    def __init__(self, shop: Shop, mode: str = "text", admissible: bool = True):
        self.shop = shop
        self.mode = mode
        self.admissible = admissible
        self.task: Task | None = None
        self.state = State()

    def reset(self, task: Task) -> str:
        self.task, self.state = task, State()
        return self._observe(self.page())

    def step(self, action: str) -> Step:
        if self.state.page == "done":
            return Step("The episode is over.", done=True, valid=False)
        try:
            self.state = self.shop.act(self.state, self.task.data, self._read(action))
        except Ignored as error:
            form = "Give exactly one <action>search[words]</action> or <action>click[name]</action>."
            return Step(self._observe(f"Invalid action: {error}. {form}"), valid=False)
        if self.state.page == "done":
            total = self.state.reward.total
            return Step("", reward=float(total == 1), done=True, score=total)
        return Step(self._observe(self.page()))

    def snapshot(self) -> tuple[Task | None, State]:
        return self.task, self.state

    def restore(self, state: tuple[Task | None, State]) -> None:
        self.task, self.state = state

    def page(self) -> str:
        """The present page exactly as the reference shows it."""
        return render(self.shop, self.state, self.task.data, self.mode)

    def available_actions(self) -> list[str]:
        """Actions with an effect here. Names that the rules of a command cannot express are left out."""
        clicks = [f"click[{name}]" for name in self.shop.clickables(self.state) if name and _can_click(name)]
        return ["search[words]", *clicks] if self.state.page == "index" else clicks

    def _observe(self, text: str) -> str:
        if not self.admissible:
            return text
        return "\n".join([text.rstrip("\n"), "Available actions:", *self.available_actions()])

    def _read(self, turn: str) -> str:
        """The command that a turn means, in the exact form of the rules. Raises Ignored."""
        action = parse_action(turn)
        if action.problem:
            raise Ignored(action.problem)
        match = COMMAND.fullmatch(action.text)
        if not match or not match[2].strip():
            raise Ignored("it must be search[words] or click[name]")
        if ANOTHER.search(match[2]):
            raise Ignored("there is more than one action")
        name, argument = match[1].lower(), match[2].lower()
        if name == "search":
            argument = argument.replace("[", " ").replace("]", " ")
        if name == "search" or argument not in self.shop.clickables(self.state):
            argument = " ".join(argument.split()) or " "  # a query of brackets alone finds nothing
        return f"{name}[{argument}]"


def _can_click(name: str) -> bool:
    """Whether click[name] is read as a click on it."""
    try:
        return name != "search" and parse_command(f"click[{name}]") == ("click", name)
    except Ignored:
        return False
