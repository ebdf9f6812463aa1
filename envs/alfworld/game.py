"""A running ALFWorld game: the original's answer to every raw command.

A command is stripped at both ends and then must equal an admissible one, letter by letter; all else is answered with
"Nothing happens." The game is over with the first answer after which its goal holds.
"""

from __future__ import annotations

from envs.alfworld.state import State
from envs.alfworld.text import NOTHING_HAPPENS, feedback, intro
from envs.alfworld.world import Action, World


class Game:
    """`won` tells whether the goal holds. Without a state it starts at the beginning of its world."""

    def __init__(self, world: World, state: State | None = None):
        self.world = world
        self.state = state or world.start
        self.won = world.goal.test(self.state)
        self._commands: dict[str, Action] | None = None

    def intro(self) -> str:
        """The first observation, with the task."""
        return intro(self.world, self.world.start)

    def commands(self) -> dict[str, Action]:
        """The admissible commands with their actions; not to be changed."""
        if self._commands is None:
            self._commands = self.world.commands(self.state)
        return self._commands

    def admissible(self) -> list[str]:
        """The admissible commands, in alphabetical order."""
        return sorted(self.commands())

    def play(self, command: str) -> tuple[str, bool]:
        """The answer, and whether the command was admissible."""
        action = self.commands().get(command.strip())
        if action is None:
            return NOTHING_HAPPENS, False
        state = self.world.apply(self.state, action)
        if state is not self.state:
            self.state, self._commands = state, None
            if action[0] in self.world.goal.verbs:
                self.won = self.world.goal.test(state)
        return feedback(self.world, state, action), True
