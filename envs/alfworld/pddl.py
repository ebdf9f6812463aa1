"""PDDL problems of ALFWorld: declared objects, facts of the initial state, and the goal formula.

    (define (problem NAME) (:domain alfred)
      (:objects apple_bar_1 cup_bar_2 - object  ...)
      (:init (inReceptacle apple_bar_1 fridge_bar_1) (= (total-cost) 0) ...)
      (:goal (exists (?o - object) (and ...))))

Names are lower-cased, as the language is case-insensitive. Only the problem is read: the rules of the domain are
Python, in `world`.

Source: PDDL 2.2 (Edelkamp and Hoffmann, 2004); the predicates are those of ALFWorld's domain, arXiv:2010.03768.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMMENT = re.compile(";[^\n]*")
DEEPEST = 60  # nesting of official problems is below 10

PREDICATES = {
    "atlocation": ("agent", "location"),
    "cancontain": ("rtype", "otype"),
    "cleanable": ("object",),
    "coolable": ("object",),
    "heatable": ("object",),
    "holds": ("agent", "object"),
    "inreceptacle": ("object", "receptacle"),
    "inreceptacleobject": ("object", "object"),
    "isclean": ("object",),
    "iscool": ("object",),
    "ishot": ("object",),
    "isreceptacleobject": ("object",),
    "issliced": ("object",),
    "istoggled": ("object",),
    "objectatlocation": ("object", "location"),
    "objecttype": ("object", "otype"),
    "openable": ("receptacle",),
    "opened": ("receptacle",),
    "pickupable": ("object",),
    "receptacleatlocation": ("receptacle", "location"),
    "receptacletype": ("receptacle", "rtype"),
    "sliceable": ("object",),
    "toggleable": ("object",),
}
"""The predicates that the game reads, with the types of their arguments."""


class PDDLError(ValueError):
    """What is wrong with a problem, in a few words."""


@dataclass(frozen=True)
class Problem:
    """`types` maps every declared object to its type. `facts` maps a predicate to the argument tuples of its facts.
    `goal` is the formula as nested tuples of words."""

    types: dict[str, str]
    facts: dict[str, list[tuple[str, ...]]]
    goal: tuple

    def read(self, predicate: str) -> list[tuple[str, ...]]:
        """The facts of one of PREDICATES; ill-typed ones can't match any rule or text, so they are left out."""
        expected = PREDICATES[predicate]
        return [fact for fact in self.facts.get(predicate, ()) if tuple([self.types[x] for x in fact]) == expected]

    def of_type(self, name: str) -> list[str]:
        return sorted(thing for thing, kind in self.types.items() if kind == name)

    def mentioned(self) -> list[str]:
        """Everything that stands in a fact, sorted."""
        return sorted({thing for facts in self.facts.values() for fact in facts for thing in fact})


def parse_problem(text: str) -> Problem:
    """Raises PDDLError."""
    define = parse_expression(text)
    if not isinstance(define, tuple) or define[:1] != ("define",):
        raise PDDLError("the problem doesn't begin with (define")
    sections = {part[0]: part[1:] for part in define[1:] if isinstance(part, tuple) and part}
    for name in (":objects", ":init", ":goal"):
        if name not in sections:
            raise PDDLError(f"the problem has no {name}")
    if len(sections[":goal"]) != 1 or not isinstance(sections[":goal"][0], tuple):
        raise PDDLError(":goal is not one formula")
    types = dict(typed_list(sections[":objects"]))
    return Problem(types, read_facts(sections[":init"], types), sections[":goal"][0])


def parse_expression(text: str) -> Any:
    """The first s-expression of a text, as nested tuples of lower-case words."""
    stack: list[list] = [[]]
    for token in COMMENT.sub("", text).lower().replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
            if len(stack) > DEEPEST:
                raise PDDLError(f"brackets are nested deeper than {DEEPEST}")
        elif token == ")":
            if len(stack) == 1:
                raise PDDLError("a bracket is closed that was not opened")
            done = tuple(stack.pop())
            stack[-1].append(done)
            if len(stack) == 1:
                return done
        else:
            stack[-1].append(token)
    raise PDDLError("the problem is cut off: brackets are not closed" if len(stack) > 1 else "the problem is empty")


def typed_list(words: tuple) -> Iterator[tuple[str, str]]:
    """(name, type) for each name of `a b - type1 c - type2`."""
    names: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if not isinstance(word, str):
            raise PDDLError("a bracket stands in a list of typed names")
        if word == "-":
            if position + 1 == len(words) or not isinstance(words[position + 1], str):
                raise PDDLError("a type is missing after -")
            yield from ((name, words[position + 1]) for name in names)
            names = []
            position += 1
        else:
            names.append(word)
        position += 1
    if names:
        raise PDDLError(f"{names[0]} has no type")


def read_facts(init: tuple, types: dict[str, str]) -> dict[str, list[tuple[str, ...]]]:
    """Facts by predicate; costs and distances, `(= ...)`, are left out."""
    facts = defaultdict(list)
    for fact in init:
        if not isinstance(fact, tuple) or not fact or not isinstance(fact[0], str):
            raise PDDLError(":init holds something that isn't a fact")
        predicate, *arguments = fact
        if predicate == "=":
            continue
        for argument in arguments:
            if not isinstance(argument, str) or argument not in types:
                raise PDDLError(f"({predicate} ...) speaks of {argument}, which :objects doesn't declare")
        facts[predicate].append(tuple(arguments))
    return facts
