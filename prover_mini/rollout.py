"""Playing many episodes at once: rollouts, continuations and evaluations are one loop.

Every episode starts from an `Origin`: a token prefix and an environment state, at the beginning of a task or at a turn
boundary of an earlier trajectory. Copies of an origin share its prefix: it is consumed once, then forked. A slot that
finishes is given to the next waiting copy. The loop alternates two batched moves of the engine: one token for every
deciding row, and the pending chunks (prompt, or last token + observation) of rows whose turn has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from envs.base import Env, Step, Suite, Task
from prover_mini.chat import Chat
from prover_mini.config import Config
from prover_mini.engine import Engine
from prover_mini.errors import UserError
from prover_mini.seeds import derive, uniforms
from prover_mini.trajectory import Group, Trajectory
from prover_mini.workers import Failure, Workers


@dataclass
class Origin:
    """A place to play from, `copies` times.

    `spawn(k)` makes the k-th trajectory, whose ids are the prefix; `observation` is what the policy sees there;
    `env_state` restores the environment; `engine_state` is the engine's state after the prefix, if it was kept.
    """

    spawn: Callable[[int], Trajectory]
    copies: int
    observation: str
    env_state: Any
    engine_state: Any = None
    error: str = ""
    results: list[Trajectory] = field(default_factory=list)


@dataclass
class Episode:
    trajectory: Trajectory
    env: Env
    observation: str
    marks: list = field(default_factory=list)


class Player:
    """Plays episodes of one suite with one engine.

    `sampled` counts policy tokens, `prefix_computed` the prefix tokens forwarded for continuations; both only grow.
    `state_bytes` is the memory of the states that trajectories of the present step hold.
    """

    def __init__(self, engine: Engine, chat: Chat, suite: Suite, config: Config):
        self.engine, self.chat, self.suite, self.config = engine, chat, suite, config
        self.workers = Workers(suite.workers, config.env_timeout)
        self.report: Callable[[str, int, int], None] = lambda label, done, total: None
        self.sampled = self.prefix_computed = self.state_bytes = 0
        needed = len(chat.prompt("")) + config.max_observation_tokens + config.max_turn_tokens
        if needed > engine.max_tokens:
            raise UserError(
                f"--max-context-tokens {engine.max_tokens}: a prompt with the longest observation and a turn take "
                f"{needed}; raise it, or lower --max-observation-tokens or --max-turn-tokens"
            )

    # what is played ------------------------------------------------------------------------------------------------

    def rollouts(
        self,
        tasks: list[tuple[int, Task]],
        step: int,
        copies: list[int],
        first_sample: int = 0,
        keep_states: bool = False,
    ) -> list[Group]:
        """Groups of fresh trajectories: `copies[i]` of tasks[i] = (index in the step, task), numbered from
        `first_sample`. `keep_states` keeps the engine's states at the turn boundaries of successes."""

        def seed_of(index: int, task: Task, k: int) -> int:
            return derive(self.config.seed, step, index, task.id, first_sample + k)

        origins = self._beginnings(
            [(task, n, partial(seed_of, index, task)) for (index, task), n in zip(tasks, copies)], first_sample
        )
        self.state_bytes = 0
        self.play(origins, self.config.temperature, keep_states, label="rollout")
        return [Group(index, task, o.results) for (index, task), o in zip(tasks, origins)]

    def continuations(self, places: list[tuple[Trajectory, int, str]], numbers: range) -> list[list[Trajectory]]:
        """Continuations from before turn `turn` for each (trajectory, turn, branch name), never trained on.

        What number k of a place draws does not depend on the other numbers: range(2) and range(2, 8) are range(8).
        """
        self._recompute_states([(trajectory, turn) for trajectory, turn, _ in places])
        origins = []
        for trajectory, turn, branch in places:
            here = trajectory.turns[turn]

            def spawn(k, trajectory=trajectory, turn=turn, branch=branch):
                seed = derive(trajectory.seed, turn, branch, numbers[k])
                return trajectory.before(turn, seed, f"{branch} {numbers[k]}")

            origins.append(Origin(spawn, len(numbers), here.observation, here.env_state, here.engine_state))
        self.play(origins, self.config.temperature, label="verify")
        return [origin.results for origin in origins]

    def _recompute_states(self, places: list[tuple[Trajectory, int]]) -> None:
        """Engine states that were not kept: one pass over each trajectory, with a stop at each place that needs one."""
        stops: dict[int, tuple[Trajectory, set[int]]] = {}
        for trajectory, turn in places:
            if trajectory.turns[turn].engine_state is None:
                stops.setdefault(id(trajectory), (trajectory, set()))[1].add(turn)
        missing = [(trajectory, sorted(turns)) for trajectory, turns in stops.values()]
        for start in range(0, len(missing), self.engine.slots):
            passes = missing[start : start + self.engine.slots]
            self.engine.clear(list(range(len(passes))))
            marks: list[list] = [[] for _ in passes]
            for stop in range(max(len(turns) for _, turns in passes)):
                rows = [row for row, (_, turns) in enumerate(passes) if stop < len(turns)]
                ends = [passes[row][0].turns[passes[row][1][stop]].start for row in rows]
                chunks = [passes[row][0].ids[self.engine.lengths[row] : end] for row, end in zip(rows, ends)]
                self.engine.extend(rows, chunks)
                self.prefix_computed += sum(map(len, chunks))
                for row, mark in zip(rows, self.engine.mark(rows)):
                    marks[row].append(mark)
            for row, (trajectory, turns) in enumerate(passes):
                for turn, state in zip(turns, self.engine.seal(row, marks[row])):
                    trajectory.turns[turn].engine_state = state

    def evaluate(self, tasks: list[Task], temperature: float) -> list[Trajectory]:
        """Every task once; the draws depend on the task alone, so evaluations of one run are paired."""
        origins = self._beginnings(
            [(task, 1, lambda k, task=task: derive(self.config.seed, "evaluation", task.id)) for task in tasks]
        )
        self.play(origins, temperature, label="evaluate")
        return [origin.results[0] for origin in origins]

    def _beginnings(
        self, games: list[tuple[Task, int, Callable[[int], int]]], first_sample: int = 0
    ) -> list[Origin]:
        """The start of each (task, copies, seed of the k-th copy)."""
        begun = self.workers.run([partial(self._begin, task) for task, _, _ in games])
        return [self._beginning(*game, first_sample, answer) for game, answer in zip(games, begun)]

    def _begin(self, task: Task) -> tuple[str, Any]:
        env = self.suite.make_env()
        return env.reset(task), env.snapshot()

    def _beginning(
        self,
        task: Task,
        copies: int,
        seed_of: Callable[[int], int],
        first_sample: int,
        begun: tuple[str, Any] | Failure,
    ) -> Origin:
        error = begun.reason if isinstance(begun, Failure) else ""
        observation, state = ("", None) if error else begun
        prompt = self.chat.prompt(observation)

        def spawn(k: int) -> Trajectory:
            trajectory = Trajectory(task, first_sample + k, seed_of(k))
            trajectory.observe(prompt)
            return trajectory

        return Origin(spawn, copies, observation, state, error=error)

    # how it is played ----------------------------------------------------------------------------------------------

    def play(self, origins: list[Origin], temperature: float, keep_states: bool = False, label: str = "") -> None:
        """Plays every copy of every origin to its end; `Origin.results` has them. `report` is called after every move,
        and may raise to end the play, which leaves the results as they are."""
        free = list(range(self.engine.slots))[::-1]
        waiting = deque((origin, k) for origin in origins for k in range(origin.copies))
        total = len(waiting)
        pending: dict[int, Episode] = {}  # rows with a chunk to consume before they can decide
        deciding: dict[int, Episode] = {}  # rows in the middle of a turn
        while waiting or pending or deciding:
            if len(pending) + min(len(waiting), len(free)) >= max(len(deciding), 1):
                self._admit(waiting, free, pending)
                self._consume(pending, deciding, free, keep_states)
            else:
                ended = self._sample(deciding, temperature)
                self._act(ended, deciding, pending, free)
            self.report(label, total - len(waiting) - len(pending) - len(deciding), total)

    def _admit(self, waiting: deque, free: list[int], pending: dict[int, Episode]) -> None:
        """Gives free slots to waiting copies; a prefix that copies share is consumed by the first of them."""
        consumers: dict[int, Origin] = {}
        admitted: list[tuple[Origin, int]] = []
        while waiting and free:
            starting = [waiting.popleft() for _ in range(min(len(waiting), len(free)))]
            envs = self.workers.run([partial(self._env_at, origin) for origin, _ in starting])
            for (origin, k), env in zip(starting, envs):
                trajectory = origin.spawn(k)
                origin.results.append(trajectory)
                if isinstance(env, Failure):
                    trajectory.error = env.reason
                    continue
                row = free.pop()
                pending[row] = Episode(trajectory, env, origin.observation)
                if origin.engine_state is None and all(origin is not other for other in consumers.values()):
                    consumers[row] = origin
                else:
                    admitted.append((origin, row))
        if consumers:
            self.engine.clear(list(consumers))
            self.engine.extend(list(consumers), [pending[row].trajectory.ids for row in consumers])
        for row, origin in consumers.items():
            if origin.copies > 1:
                origin.engine_state = self.engine.snapshot(row)
        restored = [(origin.engine_state, row) for origin, row in admitted]
        if restored:
            self.engine.restore(*map(list, zip(*restored)))

    def _env_at(self, origin: Origin) -> Env | Failure:
        if origin.error:
            return Failure(origin.error)
        env = self.suite.make_env()
        env.restore(origin.env_state)
        return env

    def _consume(
        self, pending: dict[int, Episode], deciding: dict[int, Episode], free: list[int], keep_states: bool
    ) -> None:
        """Feeds the engine what it has not seen of each pending trajectory, and opens the next turn there."""
        chunks = {row: e.trajectory.ids[self.engine.lengths[row] :] for row, e in pending.items()}
        rows = [row for row, chunk in chunks.items() if chunk]
        if rows:
            self.engine.extend(rows, [chunks[row] for row in rows])
        kept = list(pending) if keep_states and self.state_bytes < self.config.state_cache_mb << 20 else []
        marks = dict(zip(kept, self.engine.mark(kept))) if kept else {}
        snapshots = self.workers.run([episode.env.snapshot for episode in pending.values()])
        for (row, episode), snapshot in zip(pending.items(), snapshots):
            if isinstance(snapshot, Failure):
                episode.trajectory.error = snapshot.reason
                self._release(row, episode)
                free.append(row)
                continue
            episode.trajectory.open_turn(episode.observation, snapshot)
            episode.marks.append(marks.get(row))
            self.state_bytes += marks[row].nbytes if row in marks else 0
            deciding[row] = episode
        pending.clear()

    def _sample(self, deciding: dict[int, Episode], temperature: float) -> list[int]:
        """One token for every deciding row; returns the rows whose turn has ended."""
        rows = list(deciding)
        trajectories = [deciding[row].trajectory for row in rows]
        draws = uniforms(
            np.array([t.seed for t in trajectories], dtype=np.int64),
            np.array([len(t.ids) for t in trajectories], dtype=np.int64),
        )
        tokens, logprobs = self.engine.sample(rows, draws, temperature)
        ended, going, inputs = [], [], []
        for row, trajectory, token, logprob in zip(rows, trajectories, tokens, logprobs):
            trajectory.act(token, logprob)
            if (
                token == self.chat.end
                or len(trajectory.ids) - trajectory.turns[-1].start >= self.config.max_turn_tokens
            ):
                ended.append(row)
            else:
                going.append(row)
                inputs.append(token)
        self.sampled += len(rows)
        if going:
            self.engine.decode(going, inputs)
        return ended

    def _act(self, ended: list[int], deciding: dict, pending: dict, free: list[int]) -> None:
        """Plays the finished turns in their environments; the rows go on to the next turn or are released."""
        episodes = [deciding.pop(row) for row in ended]
        actions = [self.chat.text(e.trajectory.ids[e.trajectory.turns[-1].start :]) for e in episodes]
        steps = self.workers.run([partial(e.env.step, action) for e, action in zip(episodes, actions)])
        for row, episode, action, step in zip(ended, episodes, actions, steps):
            trajectory = episode.trajectory
            trajectory.close_turn(action, isinstance(step, Step) and step.valid)
            if isinstance(step, Failure):
                trajectory.error = step.reason
            elif not isinstance(step, Step):
                trajectory.error = f"step returned {type(step).__name__}, not a Step"
            elif step.done:
                trajectory.reward, trajectory.score = step.reward, step.score
            elif self._continue(trajectory, step.observation):
                episode.observation = step.observation
                pending[row] = episode
                continue
            else:
                trajectory.truncated, trajectory.score = True, step.score
            self._release(row, episode)
            free.append(row)

    def _continue(self, trajectory: Trajectory, observation: str) -> bool:
        """Appends the observation, unless the turn or context limit ends the episode here."""
        if len(trajectory.turns) >= self.config.max_turns:
            return False
        answer = self.chat.answer(observation, ended=trajectory.ids[-1] == self.chat.end)
        if len(trajectory.ids) + len(answer) + self.config.max_turn_tokens > self.engine.max_tokens:
            return False
        trajectory.observe(answer)
        return True

    def _release(self, row: int, episode: Episode) -> None:
        """Keeps the turn states of a success, which may become a reference; drops all others."""
        trajectory = episode.trajectory
        marked = [(turn, mark) for turn, mark in zip(trajectory.turns[-len(episode.marks) :], episode.marks) if mark]
        if marked and trajectory.success:
            states = self.engine.seal(row, [mark for _, mark in marked])
            self.state_bytes += states[0].nbytes - states[0].mark.nbytes  # their K/V is one copy
            for (turn, _), state in zip(marked, states):
                turn.engine_state = state
        else:
            self.state_bytes -= sum(mark.nbytes for _, mark in marked)
