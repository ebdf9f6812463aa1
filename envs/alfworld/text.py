"""What ALFWorld says: the texts of actions and places.

Source: the alfred.twl2 grammar of ALFWorld 0.4 (MIT licence). Every noun gets the article "a".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envs.alfworld.state import State
from envs.alfworld.world import Action, World

NOTHING_HAPPENS = "Nothing happens."
HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def intro(world: World, state: State) -> str:
    """The first observation, with the task."""
    scene = look(world, state) if state.place in world.here else middle(world, world.receptacles)
    return f"-= Welcome to TextWorld, ALFRED! =-\n\n{scene}\n\n{world.task}"


def feedback(world: World, state: State, action: Action) -> str:
    """The answer to an action; `state` is the one after it."""
    verb, thing, other = action
    if verb == "look":
        return look(world, state)
    if verb == "inventory":
        return f"You are carrying: a {world.names[state.held]}." if state.held else "You are not carrying anything."
    if verb == "help":
        return HELP
    name = world.names[thing]
    if verb == "go":
        return f"You arrive at {name}. {inspect(world, state, thing)}"
    if verb == "open":
        return f"You open the {name}. {inspect(world, state, thing)}"
    if verb == "close":
        return f"You close the {name}."
    if verb == "inspect":
        return inspect(world, state, thing)
    if verb == "examine":
        return examine(world, state, thing)
    if verb == "take":
        return f"You pick up the {name} from the {world.names[other]}."
    if verb == "move":
        return f"You move the {name} to the {world.names[other]}."
    if verb == "use":
        return f"You turn on the {name}."
    if verb == "slice":
        return f"You sliced the {name} with the {world.names[other]}."
    return f"You {verb} the {name} using the {world.names[other]}."


def look(world: World, state: State) -> str:
    receptacles = world.here.get(state.place)
    if not receptacles:
        return middle(world, [])  # only the first observation lists what is elsewhere
    missed = sorted(
        (thing, receptacle)
        for thing, receptacle in state.taken
        if receptacle in receptacles and (thing, state.place) in state.at
    )
    beside = a_list(world, [thing for thing, _ in missed])
    facing = enumeration([world.names[receptacle] for receptacle in receptacles])
    return f"You are facing the {facing}. Next to it, you see {beside}."


def middle(world: World, seen: Iterable[str]) -> str:
    return f"You are in the middle of a room. Looking quickly around you, you see {a_list(world, seen)}."


def inspect(world: World, state: State, receptacle: str) -> str:
    name = world.names[receptacle]
    if receptacle not in world.openable:
        return f"On the {name}, you see {a_list(world, state.inside[receptacle])}."
    if receptacle not in state.opened:
        return f"The {name} is closed."
    return f"The {name} is open. In it, you see {a_list(world, state.inside[receptacle])}."


def examine(world: World, state: State, thing: str) -> str:
    name = world.names[thing]
    if thing in world.containers:
        return f"This is a normal {name}. In it, you see {a_list(world, world.contents.get(thing, ()))}."
    quality = qualities(thing in state.hot, thing in state.cool, thing in state.clean, thing in state.sliced)
    if quality:
        return f"This is a {quality} {name}."
    if thing in world.toggleable and thing in state.toggled:
        return f"This {name} is on."
    if thing in world.sliceable and thing in state.sliced:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."


def qualities(hot: bool, cool: bool, clean: bool, sliced: bool) -> str:
    """The first description that applies: heat before cold, and "cold" only where nothing else is to be said."""
    if clean and (hot or cool):
        words = "hot and clean" if hot else "cool and clean"
    elif hot or clean:
        words = "hot" if hot else "clean"
    elif cool:
        words = "cool" if sliced else "cold"
    else:
        return ""
    return f"{words} sliced" if sliced else words


def a_list(world: World, things: Iterable[str]) -> str:
    return enumeration([f"a {world.names[thing]}" for thing in things]) or "nothing"


def enumeration(words: Sequence[str]) -> str:
    """ "x", "x, and y", "x, y, and z"."""
    return ", and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
