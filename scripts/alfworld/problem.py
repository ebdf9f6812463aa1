"""A game as a PDDL problem of ALFWorld's domain; `envs.alfworld.pddl` has the form.

Source: goal formulas and predicates as in ALFWorld's game files (MIT licence, envs/alfworld/data/ATTRIBUTION.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.alfworld.household import ABILITIES, FIXTURES, LAMP, OPENABLE, fits, listed
from scripts.alfworld.rooms import Room

# ability, appliance and resulting state of the types that prepare a thing
PREPARED = {
    "pick_clean_then_place_in_recep": ("cleanable", "SinkBasin", "isClean"),
    "pick_heat_then_place_in_recep": ("heatable", "Microwave", "isHot"),
    "pick_cool_then_place_in_recep": ("coolable", "Fridge", "isCool"),
}
DECLARED_BY_RULES = ("KnifeType", "ButterKnifeType", "SinkBasinType", "MicrowaveType", "FridgeType")


@dataclass(frozen=True)
class Game:
    """`things` are (name, kind, receptacle's name). `thing` and `target` are the kinds that the task is about, and
    `sentence` tells it."""

    type: str
    thing: str
    target: str
    sentence: str
    room: Room
    things: tuple[tuple[str, str, str], ...]


def problem_text(game: Game) -> str:
    """The PDDL problem; all doors are closed, and the agent is in the middle of the room."""
    furniture, things = game.room.furniture, game.things
    kinds, receptacle_kinds = sorted({kind for _, kind, _ in things}), sorted(game.room.kinds())
    places = {name: f"loc_bar_{place}" for name, _, place in furniture}
    types = {f"{kind}Type": "otype" for kind in kinds} | {f"{kind}Type": "rtype" for kind in receptacle_kinds}
    types |= {name: "otype" if "Knife" in name else "rtype" for name in DECLARED_BY_RULES}
    objects = {"agent1": "agent", "loc_bar_0": "location"} | dict.fromkeys(places.values(), "location") | types
    objects |= {name: "receptacle" for name in places} | {name: "object" for name, _, _ in things}
    facts = ["= (total-cost) 0", "atLocation agent1 loc_bar_0"]
    for name, kind, _ in furniture:
        facts += [f"receptacleType {name} {kind}Type", f"receptacleAtLocation {name} {places[name]}"]
        facts += [f"openable {name}"] * (kind in OPENABLE.split())
    for name, kind, place in things:
        facts += [f"objectType {name} {kind}Type", f"inReceptacle {name} {place}"]
        facts += [f"objectAtLocation {name} {places[place]}"]
        facts += [f"pickupable {name}"] * (kind not in (LAMP, *FIXTURES))
        facts += [f"{ability} {name}" for ability, able in ABILITIES.items() if kind in listed(able)]
    facts += [f"canContain {outer}Type {kind}Type" for outer in receptacle_kinds for kind in kinds if fits(kind, outer)]
    declared = "\n".join(f"{name} - {type}" for name, type in objects.items())
    stated = "\n".join(f"({fact})" for fact in facts)
    name = f"{game.type}-{game.room.scene}"
    return (
        f"(define (problem {name})\n(:domain alfred)\n(:objects\n{declared})\n(:init\n{stated})\n"
        f"(:goal {goal_text(game)}))\n"
    )


def goal_text(game: Game) -> str:
    """The goal formula; without the lamp's, they are quantified as in ALFWorld's own."""
    thing, target = f"{game.thing}Type", f"{game.target}Type"
    if game.type == "look_at_obj_in_light":
        return (
            "(and (exists (?l - object ?r - receptacle ?a - agent ?p - location) (and "
            f"(objectType ?l {target}) (toggleable ?l) (isToggled ?l) (receptacleAtLocation ?r ?p) (atLocation ?a ?p) "
            f"(inReceptacle ?l ?r))) (exists (?o - object ?a - agent) (and (objectType ?o {thing}) (holds ?a ?o))))"
        )
    lies = f"(objectType {{0}} {thing}) (receptacleType ?r {target}) (inReceptacle {{0}} ?r)"
    if game.type == "pick_two_obj_and_place":
        second = f"(exists (?b - object) (and (not (= ?a ?b)) {lies.format('?b')}))"
        return f"(exists (?r - receptacle) (exists (?a - object) (and {lies.format('?a')} {second})))"
    if game.type in PREPARED:
        ability, _, state = PREPARED[game.type]
        lies = f"({ability} {{0}}) ({state} {{0}}) {lies}"
    return f"(exists (?r - receptacle) (exists (?o - object) (and {lies.format('?o')})))"
