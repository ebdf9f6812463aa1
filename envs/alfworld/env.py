"""ALFWorld for a policy: one command a turn, in `<action>command</action>`.

Case and spaces don't matter, and `put X in/on Y`, the wording before ALFWorld 0.4, is `move X to Y`. An inadmissible
command is answered with "Nothing happens.", a turn without exactly one action with what is wrong about it; both are
invalid. Reward and score are 1 when the goal is reached, which ends the episode.

Source: arXiv:2010.03768; see `envs.action` for the form of a turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from envs.action import parse_action
from envs.alfworld.game import Game
from envs.alfworld.state import State
from envs.alfworld.world import World
from envs.base import Env, Step, Task

INSTRUCTIONS = (
    "You are in a room of a house and solve a task with text commands. "
    "Furniture holds objects; you can carry one object at a time. End every turn with exactly one command:\n"
    "<action>command</action>\n"
    "Commands are: go to X, open X, close X, take O from X, move O to X, examine X, use O, clean O with X, heat O with "
    "X, cool O with X, slice O with K, look, inventory, help. Use the names that the room shows, numbers included, as "
    "in <action>take apple 1 from fridge 1</action>."
)
PUT = re.compile(r"put (.+) (?:in/on|in|on|into|onto) (.+)")


class AlfworldEnv(Env):
    """`open_world` makes the world of a task's data. With `admissible`, observations end with the commands that are
    possible now."""

    def __init__(self, open_world: Callable[[Any], World], admissible: bool = True):
        self.open_world = open_world
        self.admissible = admissible
        self.task: Task | None = None
        self.game: Game | None = None
        self.over = False

    def reset(self, task: Task) -> str:
        """Raises UserError for a task whose game file is gone or broken."""
        self.task, self.game, self.over = task, Game(self.open_world(task.data)), False
        return self._observation(self.game.intro())

    def step(self, action: str) -> Step:
        if self.over:
            return Step("The episode is over.", done=True, valid=False)
        parsed = parse_action(action)
        if parsed.problem:
            text, valid = f"Invalid action: {parsed.problem}. Give exactly one <action>command</action>.", False
        else:
            text, valid = self.game.play(plain_command(parsed.text))
        self.over = self.game.won
        reward = float(self.over)
        return Step(self._observation(text), reward, self.over, valid, score=reward)

    def _observation(self, text: str) -> str:
        return f"{text}\n\nAdmissible commands: {', '.join(self.game.admissible())}" if self.admissible else text

    def snapshot(self) -> tuple[Task | None, World | None, State | None, bool]:
        return self.task, self.game and self.game.world, self.game and self.game.state, self.over

    def restore(self, state: tuple[Task | None, World | None, State | None, bool]) -> None:
        self.task, world, at, self.over = state
        self.game = Game(world, at) if world else None


def plain_command(text: str) -> str:
    """A command in the original's letters, spaces and wording."""
    command = " ".join(text.lower().split())
    old = PUT.fullmatch(command)
    return f"move {old[1]} to {old[2]}" if old else command
