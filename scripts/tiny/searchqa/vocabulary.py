"""The words of the embedded SearchQA policy. The names hold no blank around them, the fragments hold them all: a name
is the same token in a question, a passage, a query and an answer."""

from __future__ import annotations

import re

from envs.searchqa import env, world
from scripts.tiny.tokenizer import ROLES

TAGS = ["<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>"]
FRAME = ["Question: ", "<information>\n1. ", "\n</information>", "Nothing found.", *ROLES]
TOPK = 3
# Turns that the environment calls invalid, each in its own way: its whole replies are tokens.
INVALID_TURNS = ["", "<search>a", "<answer>a", "<search></search>", "<answer></answer>", "<search>a</search>" * 2]


def names() -> list[str]:
    """Everything a fact of the world can be about or say: countries, cities, currencies, numbers, time zones..."""
    tables = world.real_world().tables
    subjects = {subject for table in tables.values() for subject in table}
    values = {value for relation, table in tables.items() if relation != "borders" for value in table.values()}
    return sorted(subjects | values)


def fragments() -> list[str]:
    """What stands around the names in passages, queries and questions."""
    templates = [*world.PASSAGES.values(), *world.QUERIES.values(), *world.INVERSE_QUERIES.values()]
    templates += [*world.ASKED.values(), *world.DESCRIBED.values(), world.COMPARED]
    parts = {part for template in templates for part in re.split(r"\{[so]\}", template)}
    return sorted(parts - {""} | {", ", " and "})


def frame() -> list[str]:
    """The turns around them: tags, numbering of passages, replies to invalid actions."""
    ends = {f"{part}\n{rank}. " for part in (".", "") for rank in range(2, TOPK + 1)} | {".\n</information>"}
    game = env.SearchQAEnv(None, TOPK)
    replies = {game.step(turn).observation for turn in INVALID_TURNS}
    return sorted({*TAGS, *FRAME, *ends, *replies})


def words() -> list[str]:
    return [*names(), *fragments(), *frame()]
