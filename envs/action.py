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

THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL | re.IGNORECASE)
THOUGHT_START = re.compile("<think>", re.IGNORECASE)
THOUGHT_END = re.compile("</think>", re.IGNORECASE)
OPENING = re.compile("<action>", re.IGNORECASE)
CLOSING = re.compile("</action>", re.IGNORECASE)


class NoAction(Exception):
    """A turn without exactly one action; the message says what is wrong."""


def spoken(turn: str) -> str:
    """A turn without its thoughts."""
    text = THOUGHT.sub(" ", turn)
    text = THOUGHT_END.split(text)[-1]
    return THOUGHT_START.split(text)[0]


def parse_action(turn: str) -> str:
    """The action's text, stripped and not empty. Takes any text; raises NoAction."""
    text = spoken(turn)
    openings = list(OPENING.finditer(text))
    if len(openings) > 1:
        raise NoAction("there is more than one <action>")
    if openings:
        closing = CLOSING.search(text, openings[0].end())
        if not closing:
            raise NoAction("<action> is not closed by </action>")
        text = text[openings[0].end() : closing.start()]
    elif CLOSING.search(text):
        raise NoAction("</action> closes nothing")
    if not text.strip():
        raise NoAction("the action is empty" if openings else "there is no <action>")
    return text.strip()
