"""Actions of a turn against verl-agent's parsers: what counts as an action, and what it says.

Compared are the texts on whose meaning both designs can agree; `envs/action.py` and `envs/searchqa/env.py` say where
and why ours reads a turn differently. Those are listed apart, by reason.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from envs import action
from envs.searchqa import env as searchqa
from tests.replay.report import Report

THOUGHT = re.compile("<think>.*?</think>", re.DOTALL | re.IGNORECASE)
ONE_ACTION = re.compile("[^<]*<action>([^<]*[^<\\s][^<]*)</action>[^<]*", re.IGNORECASE)
HAN = re.compile("[\u4e00-\u9fff]")


def replay(data: Any, arrays: dict[str, np.ndarray], report: Report) -> None:
    for n, record in enumerate(data["search"]):
        if reason := search_differs(record["text"]):
            report.other_definition[f"search: {reason}"] += 1
            continue
        parsed = searchqa.parse_action(record["text"])
        valid = parsed.kind != "invalid"
        values = {"valid": (int(valid), record["valid"])}
        if valid:
            values["action"] = (f"<{parsed.kind}>{parsed.text}</{parsed.kind}>", record["action"])
        report.case(f"search {n}", values)
    for suite in ("alfworld", "webshop"):
        for n, record in enumerate(data[suite]):
            if reason := action_differs(record["text"]):
                report.other_definition[f"{suite}: {reason}"] += 1
                continue
            parsed = action.parse_action(record["text"])
            values = {
                "action": (parsed.text.lower(), record["action"]),
                "valid": (int(not parsed.problem), record["valid"]),
            }
            report.case(f"{suite} {n}", values)


def search_differs(text: str) -> str:
    """Why verl-agent's reading of a search turn is another one, or ""."""
    if any(re.search("</?(search|answer)>", thought, re.IGNORECASE) for thought in THOUGHT.findall(text)):
        return "a tag inside <think> counts there"
    opening = re.search("<(search|answer)>", text, re.IGNORECASE)
    closing = re.search("</(search|answer)>", text, re.IGNORECASE)
    if opening and closing and closing.start() < opening.start():
        return "a stray closing tag before the action spoils it there"
    if re.search("<(search|answer)>\\s*</", text, re.IGNORECASE):
        return "an empty action is valid there"
    return ""


def action_differs(text: str) -> str:
    """Why verl-agent's reading of an <action> turn is another one, or ""."""
    if "<think>" not in text or "</think>" not in text:
        return "a thought is demanded there"
    if HAN.search(text):
        return "Han characters are invalid there"
    spoken = THOUGHT.sub(" ", text)
    if "think>" in spoken.lower() or not ONE_ACTION.fullmatch(spoken):
        return "only one well-formed, non-empty <action> outside thoughts is an action here"
    return ""
