"""The one <action> of a turn: the form in which a policy plays ALFWorld and WebShop.

A turn may hold any text around exactly one <action>...</action>, with the tags in any case, or be nothing but the
action. What stands inside <think> never counts, nor does what comes before a lone `</think>` (the template may have
opened it) or after a `<think>` that is never closed.

verl-agent's parser of the same form takes the first of two actions, and demands a <think> block and a text without
Han characters; none of this holds here.

Source: the action format of verl-agent (Feng et al., arXiv:2505.10978).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

THOUGHT = re.compile("<(/?)think>", re.IGNORECASE)
OPENING = re.compile("<action>", re.IGNORECASE)
CLOSING = re.compile("</action>", re.IGNORECASE)


@dataclass(frozen=True)
class Action:
    """`text`: what the one action says, stripped. `problem`: what is wrong instead, else empty."""

    text: str
    problem: str = ""


def parse_action(turn: str) -> Action:
    """The one action of a turn. Takes any text."""
    text = spoken(turn)
    openings = list(OPENING.finditer(text))
    if len(openings) > 1:
        return Action("", "there is more than one <action>")
    if openings:
        closing = CLOSING.search(text, openings[0].end())
        if not closing:
            return Action("", "<action> is not closed by </action>")
        text = text[openings[0].end() : closing.start()]
    elif CLOSING.search(text):
        return Action("", "</action> closes nothing")
    if not text.strip():
        return Action("", "<action> is empty" if openings else "there is no <action>")
    return Action(text.strip())


def spoken(turn: str) -> str:
    """A turn without its thoughts."""
    first, *rest = THOUGHT.split(turn)
    kept, thinking = [first], False
    for slash, text in zip(rest[::2], rest[1::2]):
        if slash and not thinking:
            kept.clear()
        thinking = not slash
        if not thinking:
            kept.append(text)
    return " ".join(kept)
