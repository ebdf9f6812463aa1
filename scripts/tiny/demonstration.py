"""Episodes that a scripted player plays in an environment, as token ids that a policy can imitate."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from envs.base import Env, Task
from prover_mini.chat import Chat
from prover_mini.trajectory import Trajectory

Actor = Callable[[str], Generator[str, str, None]]


@dataclass(frozen=True)
class Demonstration:
    """Token ids, whether the player said each of them, and whether it succeeded."""

    ids: list[int]
    said: list[bool]
    success: bool
    kind: str


def record(chat: Chat, env: Env, task: Task, actor: Actor, max_turns: int) -> Demonstration:
    """Plays one episode. `actor` takes the first observation; then it yields actions and is sent their answers."""
    trajectory = Trajectory(task, 0, 0)
    observation = env.reset(task)
    trajectory.observe(chat.prompt(observation))
    actions = actor(observation)
    action = next(actions)
    while True:
        trajectory.open_turn(observation, None)
        for token in [*chat.encode(action), chat.end]:
            trajectory.act(token, 0.0)
        trajectory.close_turn(action, True)
        step = env.step(action)
        if step.done or len(trajectory.turns) == max_turns:
            said = [turn >= 0 for turn in trajectory.turn_ids]
            return Demonstration(trajectory.ids, said, step.reward > 0, task.kind)
        observation = step.observation
        trajectory.observe(chat.answer(observation, ended=True))
        action = actions.send(observation)
