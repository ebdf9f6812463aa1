"""Goals: a PDDL formula over a world becomes a test of its states.

    F = (predicate a ..) | (= a b) | (not F) | (and F ..) | (or F ..) | (imply F F)
      | (exists (?x - type ..) F) | (forall (?x - type ..) F)

Quantifiers are unrolled over the declared objects. What no action changes is decided at once, which leaves a few
dozen tests of facts that can change.

Source: goal descriptions of PDDL 2.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from envs.alfworld.pddl import PREDICATES, PDDLError, Problem, typed_list
from envs.alfworld.state import State

Test = Callable[[State], bool]
MOST_PARTS = 30_000  # of an unrolled goal; official ones stay below 3,000

# every predicate that actions change: the verbs that do, and its test given its arguments
CHANGING: dict[str, tuple[str, Callable[..., Test]]] = {
    "atlocation": ("go", lambda agent, place: lambda state: state.place == place),
    "holds": ("take move", lambda agent, thing: lambda state: state.held == thing),
    "inreceptacle": ("take move", lambda thing, receptacle: lambda state: thing in state.inside[receptacle]),
    "isclean": ("clean", lambda thing: lambda state: thing in state.clean),
    "iscool": ("cool heat", lambda thing: lambda state: thing in state.cool),
    "ishot": ("cool heat", lambda thing: lambda state: thing in state.hot),
    "issliced": ("slice", lambda thing: lambda state: thing in state.sliced),
    "istoggled": ("use", lambda thing: lambda state: thing in state.toggled),
    "objectatlocation": ("take move", lambda thing, place: lambda state: (thing, place) in state.at),
    "opened": ("open close", lambda receptacle: lambda state: receptacle in state.opened),
}
UNCHANGING = PREDICATES.keys() - CHANGING.keys()
UNTRACKED = {"checked", "examined", "holdsany", "ison"}  # they change too, but neither texts nor official goals ask


@dataclass(frozen=True)
class Goal:
    """`test` tells whether a state is a win; only actions with one of `verbs` can change that."""

    test: Test
    verbs: frozenset[str]


def compile_goal(problem: Problem) -> Goal:
    """Raises PDDLError for a formula that is malformed, too large, or about something the problem doesn't have."""
    grounder = Grounder(problem)
    result = grounder.ground(grounder.prepare(problem.goal, frozenset()), {})
    return Goal(result if callable(result) else lambda state: result, frozenset(grounder.verbs))


class Grounder:
    def __init__(self, problem: Problem):
        self.types = problem.types
        self.facts = {predicate: set(facts) for predicate, facts in problem.facts.items()}
        self.domains = {kind: problem.of_type(kind) for kind in set(problem.types.values())}
        self.parts = 0
        self.verbs: set[str] = set()
        self.fitting = cache(self._fitting)  # of this grounder, so that it goes away with it

    def prepare(self, formula: Any, scope: frozenset[str]) -> tuple:
        """The formula, checked: conjunctions with their unchanging atoms first, which decide soonest; implications as
        disjunctions; quantifiers as (word, [(variable, type), ..], body). `scope` are the variables bound around it."""
        if not isinstance(formula, tuple) or not formula or not isinstance(formula[0], str):
            raise PDDLError("the goal has something else where a formula should be")
        head, *parts = formula
        if head in ("and", "or"):
            ready = [self.prepare(part, scope) for part in parts]
            return head, *sorted(ready, key=lambda part: part[0] not in UNCHANGING)
        if head == "not" and len(parts) == 1:
            return head, self.prepare(parts[0], scope)
        if head == "imply" and len(parts) == 2:
            return "or", ("not", self.prepare(parts[0], scope)), self.prepare(parts[1], scope)
        if head in ("exists", "forall") and len(parts) == 2 and isinstance(parts[0], tuple):
            variables = list(typed_list(parts[0]))
            return head, variables, self.prepare(parts[1], scope.union(name for name, _ in variables))
        for word in parts:
            if word not in scope and word not in self.types:
                raise PDDLError(f"the goal speaks of {word}, which is not declared")
        if head == "=" and len(parts) == 2:
            return formula
        if head not in PREDICATES and head not in self.facts or head in UNTRACKED:
            raise PDDLError(f"the goal uses {head}, which this game doesn't know")
        if head in PREDICATES and len(parts) != len(PREDICATES[head]):
            raise PDDLError(f"the goal gives {head} {len(parts)} arguments")
        return formula

    def ground(self, formula: tuple, bound: dict[str, str]) -> bool | Test:
        """True, False, or the test that decides. `bound` maps the variables in scope to objects."""
        head, *parts = formula
        if head in ("and", "or"):
            return junction(head == "and", (self.ground(part, bound) for part in parts))
        if head == "not":
            return negation(self.ground(parts[0], bound))
        if head in ("exists", "forall"):
            names = {name for name, _ in parts[0]}
            outer = {name: thing for name, thing in bound.items() if name not in names}  # the same name hides it
            return self.quantify(head == "forall", parts[0], parts[1], outer)
        return self.atom(head, parts, bound)

    def quantify(
        self, every: bool, variables: list[tuple[str, str]], body: tuple, bound: dict[str, str]
    ) -> bool | Test:
        self.count()
        if not variables:
            return self.ground(body, bound)
        (name, kind), *rest = variables
        things = self.domains.get(kind, []) if every else self.candidates(name, kind, body, bound)
        cases = (self.quantify(every, rest, body, bound | {name: thing}) for thing in things)
        return junction(every, cases)

    def candidates(self, name: str, kind: str, body: tuple, bound: dict[str, str]) -> list[str]:
        """The objects that a variable may stand for without refuting an unchanging conjunct of the body."""
        things = self.domains.get(kind, [])
        conjuncts = body[1:] if body[0] == "and" else ()
        for predicate, *words in itertools.takewhile(lambda part: part[0] in UNCHANGING, conjuncts):
            if name in words:
                known = tuple([bound.get(word) if word[0] == "?" else word for word in words])
                fitting = self.fitting(predicate, words.index(name), known)
                things = [thing for thing in things if thing in fitting]
        return things

    def _fitting(self, predicate: str, position: int, known: tuple[str | None, ...]) -> set[str]:
        """What stands at a position of the facts that agree with the known arguments; None agrees with all."""
        facts = self.facts.get(predicate, ())
        return {fact[position] for fact in facts if all(k in (None, argument) for k, argument in zip(known, fact))}

    def count(self) -> None:
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise PDDLError("the goal is too large")

    def atom(self, predicate: str, words: Iterable[str], bound: dict[str, str]) -> bool | Test:
        self.count()
        arguments = tuple([bound.get(word, word) for word in words])
        if predicate == "=":
            return arguments[0] == arguments[1]
        if predicate not in CHANGING:
            return arguments in self.facts.get(predicate, ())
        if PREDICATES[predicate] != tuple([self.types[argument] for argument in arguments]):
            return False
        verbs, make_test = CHANGING[predicate]
        self.verbs.update(verbs.split())
        return make_test(*arguments)


def negation(result: bool | Test) -> bool | Test:
    return (lambda state: not result(state)) if callable(result) else not result


def junction(every: bool, results: Iterable[bool | Test]) -> bool | Test:
    """The conjunction (`every`) or disjunction of results; stops at the first that decides it."""
    tests = []
    for result in results:
        if callable(result):
            tests.append(result)
        elif result != every:
            return result
    if len(tests) < 2:
        return tests[0] if tests else every

    def test(state: State) -> bool:
        for part in tests:
            if part(state) != every:
                return not every
        return every

    return test
