"""ALFWorld's rules: which commands a state admits, and what each does.

A `World` is one game's unchanging part. Rules worth knowing, as the original plays them:
- Names count down along the sorted PDDL names ("apple 3", "apple 2", ..): every name in a fact counts, a receptacle
  without a place included, though that one is never listed or reached.
- A place may have several receptacles, and `go to` one of the present place is not offered.
- Doors only matter for taking and putting: heating, cooling and `use` work through them. `use` switches on, never off.
- Only what is held can be examined, apart from receptacles.
- Taking a thing out of a receptacle ends its being at the present place and marks the pair as taken; putting begins
  and unmarks. A thing in two receptacles of different places so stays at the other place, where it can be sliced.
- What lies in a thing that is a receptacle itself (a plate) never changes.

Source: the alfred.pddl domain of ALFWorld 0.4 (MIT licence), arXiv:2010.03768, as TextWorld 1.7 runs it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from envs.alfworld.goal import compile_goal
from envs.alfworld.pddl import PDDLError, Problem
from envs.alfworld.state import State

Action = tuple[str, str, str]  # verb, thing or receptacle it is about, receptacle or tool ("" where there is none)

STANDING: dict[str, Action] = {command: (command, "", "") for command in ("help", "inventory", "look")}
KNIVES = {"knifetype", "butterknifetype"}
PREPARATIONS = (("clean", "sinkbasintype"), ("heat", "microwavetype"), ("cool", "fridgetype"))


class World:
    """Attributes:
    names: "apple 1" for every PDDL name in a fact.
    task: the sentence that tells the goal.
    here: receptacles of each place that has some, sorted.
    openable, toggleable, containers: receptacles with a door; things with a switch; things that hold things.
    contents: what lies in each of `containers`, sorted; it never changes.
    start: the initial state.
    anywhere: commands that need nothing at hand, for each place that the agent can be at.
    goal: the test of the goal, and the verbs that it depends on.
    """

    def __init__(self, problem: Problem, task: str):
        """Raises PDDLError for a problem that is no ALFWorld game."""
        self.problem, self.task = problem, task
        self.names = number_names(problem.mentioned())
        self.kinds = dict(problem.read("objecttype") + problem.read("receptacletype"))
        self.places = {receptacle: place for receptacle, place in problem.read("receptacleatlocation")}
        self.receptacles = sorted(self.places)
        self.here = group((place, receptacle) for receptacle, place in self.places.items())
        self.fits = set(problem.read("cancontain"))
        self.openable = things(problem, "openable")
        self.pickupable = things(problem, "pickupable")
        self.sliceable = sorted(things(problem, "sliceable"))
        self.toggleable = things(problem, "toggleable")
        self.containers = things(problem, "isreceptacleobject")
        self.contents = group((outer, inner) for inner, outer in problem.read("inreceptacleobject"))
        self.preparable = {verb: things(problem, f"{verb}able") for verb, _ in PREPARATIONS}
        self.start = initial_state(problem)
        self.goal = compile_goal(problem)
        go = {receptacle: f"go to {self.names[receptacle]}" for receptacle in self.receptacles}
        self.anywhere = {
            here: STANDING | {go[r]: ("go", r, "") for r in self.receptacles if self.places[r] != here}
            for here in {self.start.place, *self.places.values()}
        }

    def __reduce__(self) -> tuple:
        """The goal's test consists of functions, which cannot leave a process; what made them can."""
        return World, (self.problem, self.task)

    def commands(self, state: State) -> dict[str, Action]:
        """The admissible commands, with the actions that they stand for."""
        names, held = self.names, state.held
        found = dict(self.anywhere[state.place])
        if held:
            found[f"examine {names[held]}"] = ("examine", held, "")
            if self.kinds.get(held) in KNIVES:
                for thing in self.sliceable:
                    if (thing, state.place) in state.at:
                        found[f"slice {names[thing]} with {names[held]}"] = ("slice", thing, held)
        for receptacle in self.here.get(state.place, ()):
            name = names[receptacle]
            found[f"examine {name}"] = ("inspect", receptacle, "")
            reachable = True
            if receptacle in self.openable:
                reachable = receptacle in state.opened
                verb = "close" if reachable else "open"
                found[f"{verb} {name}"] = (verb, receptacle, "")
            for thing in state.inside[receptacle]:
                if reachable and not held and thing in self.pickupable:
                    found[f"take {names[thing]} from {name}"] = ("take", thing, receptacle)
                if thing in self.toggleable:
                    found[f"use {names[thing]}"] = ("use", thing, receptacle)
            if held:
                self._offer_held(found, held, receptacle, reachable)
        return found

    def _offer_held(self, found: dict[str, Action], held: str, receptacle: str, reachable: bool) -> None:
        """Adds what can be done with the held thing at a receptacle of the present place."""
        kind, thing, name = self.kinds.get(receptacle), self.names[held], self.names[receptacle]
        if reachable and (kind, self.kinds.get(held)) in self.fits:
            found[f"move {thing} to {name}"] = ("move", held, receptacle)
        for verb, appliance in PREPARATIONS:
            if kind == appliance and held in self.preparable[verb]:
                found[f"{verb} {thing} with {name}"] = (verb, held, receptacle)

    def apply(self, state: State, action: Action) -> State:
        """The state after an action that `commands` offered."""
        verb, thing, other = action
        effect = EFFECTS.get(verb)
        return effect(self, state, thing, other) if effect else state


def _go(world: World, state: State, receptacle: str, _: str) -> State:
    return state._replace(place=world.places[receptacle])


def _take(world: World, state: State, thing: str, receptacle: str) -> State:
    left = tuple([other for other in state.inside[receptacle] if other != thing])
    return state._replace(
        held=thing,
        inside={**state.inside, receptacle: left},
        at=state.at - {(thing, state.place)},
        taken=state.taken | {(thing, receptacle)},
    )


def _move(world: World, state: State, thing: str, receptacle: str) -> State:
    return state._replace(
        held=None,
        inside={**state.inside, receptacle: tuple(sorted({*state.inside[receptacle], thing}))},
        at=state.at | {(thing, state.place)},
        taken=state.taken - {(thing, receptacle)},
    )


EFFECTS: dict[str, Callable[[World, State, str, str], State]] = {
    "go": _go,
    "take": _take,
    "move": _move,
    "open": lambda world, state, receptacle, _: state._replace(opened=state.opened | {receptacle}),
    "close": lambda world, state, receptacle, _: state._replace(opened=state.opened - {receptacle}),
    "use": lambda world, state, thing, _: state._replace(toggled=state.toggled | {thing}),
    "slice": lambda world, state, thing, _: state._replace(sliced=state.sliced | {thing}),
    "clean": lambda world, state, thing, _: state._replace(clean=state.clean | {thing}),
    "heat": lambda world, state, thing, _: state._replace(hot=state.hot | {thing}, cool=state.cool - {thing}),
    "cool": lambda world, state, thing, _: state._replace(cool=state.cool | {thing}, hot=state.hot - {thing}),
}


def initial_state(problem: Problem) -> State:
    places, held = problem.read("atlocation"), problem.read("holds")
    if len(places) != 1:
        raise PDDLError(f"the agent starts at {len(places)} places, not at one")
    inside = group((receptacle, thing) for thing, receptacle in problem.read("inreceptacle"))
    return State(
        place=places[0][1],
        held=held[0][1] if held else None,
        inside={receptacle: inside.get(receptacle, ()) for receptacle in problem.of_type("receptacle")},
        at=frozenset(problem.read("objectatlocation")),
        taken=frozenset(),
        opened=things(problem, "opened"),
        clean=things(problem, "isclean"),
        hot=things(problem, "ishot"),
        cool=things(problem, "iscool"),
        toggled=things(problem, "istoggled"),
        sliced=things(problem, "issliced"),
    )


def things(problem: Problem, predicate: str) -> frozenset[str]:
    """What a predicate of one argument holds for."""
    return frozenset([thing for (thing,) in problem.read(predicate)])


def group(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """The second elements of pairs by their first, sorted."""
    found = defaultdict(set)
    for first, second in pairs:
        found[first].add(second)
    return {first: tuple(sorted(seconds)) for first, seconds in found.items()}


def number_names(mentioned: list[str]) -> dict[str, str]:
    """ "apple_bar_1.." -> "apple 2": numbers count down along the sorted PDDL names. Others keep their name."""
    words = {}
    for name in mentioned:
        word, bar, _ = name.partition("_bar_")
        if bar:
            words[name] = word + ("basin" if "basin" in name else "")
    left = Counter(words.values())
    names = {name: name for name in mentioned}
    for name, word in words.items():
        names[name] = f"{word} {left[word]}"
        left[word] -= 1
    return names
