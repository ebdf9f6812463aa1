"""Which rank plays what, by expected cost in tokens. Nothing here looks at a clock: a run's split is a function of its
history, so that it repeats, and a resumed run splits as the uninterrupted one would.

Groups are played whole. The one with the most expected tokens goes first, each to the rank with the least so far: at
worst 4/3 of the best split (LPT). Expected are the tokens that trajectories of the task's kind had up to now.

Continuations are cheapest on the rank that holds the state they start from. When all ranks know theirs, the rank with
most to sample gives a place to the one with least, as long as that lowers the larger of the two, the prefix that the
other has to compute anew included. Draws belong to the place, so who plays it changes nothing beyond rounding.

Trajectories that carry a loss are known before the update, and so is their length: the same rule evens them out, and
the gradient is their sum, whoever computes which part.

Source: R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from envs.base import Task
from prover_mini import distributed
from prover_mini.rollout import Player
from prover_mini.trajectory import OFF_POLICY, Group, Trajectory, Turn

NEWS = 0.2  # weight of a step's mean in the running mean
FREE_ROWS = {"cpu": 0, "cuda": 64}  # a GPU decodes so many rows in the time of one: to give them away gains nothing

Place = tuple[Trajectory, int, str]  # (trajectory, turn, name of the branch): where continuations start


class Balance:
    """Spreads the groups of a step. `tokens`: kind of task -> running mean of tokens per trajectory."""

    def __init__(self, tokens: dict[str, float] | None = None):
        self.tokens = dict(tokens or {})

    def mine(self, tasks: list[tuple[int, Task]], minibatches: int = 1) -> list[tuple[int, Task]]:
        """This rank's part of a step's (place, task), longest first. Each minibatch, a run of consecutive places, is
        spread on its own."""
        unknown = sum(self.tokens.values()) / len(self.tokens) if self.tokens else 1.0
        parts: dict[int, list[tuple[float, int, Task]]] = {}
        for place, task in tasks:
            expected = self.tokens.get(task.kind, unknown)
            parts.setdefault(place * minibatches // len(tasks), []).append((expected, place, task))
        loads, mine = [0.0] * distributed.world(), []
        for part in parts.values():
            part.sort(key=lambda entry: (-entry[0], entry[1]))
            in_part = [0.0] * len(loads)
            for expected, place, task in part:
                rank = min(range(len(loads)), key=lambda r: (in_part[r], loads[r], r))
                in_part[rank] += expected
                loads[rank] += expected
                if rank == distributed.rank():
                    mine.append((place, task))
        return mine

    def learn(self, groups: list[Group]) -> None:
        """Takes in the lengths of a step's trajectories, of all ranks."""
        tokens, counts = Counter(), Counter()
        for group in groups:
            tokens[group.task.kind] += sum(len(t.ids) for t in group.healthy)
            counts[group.task.kind] += len(group.healthy)
        everywhere = distributed.gather((tokens, counts))
        tokens, counts = (sum(parts, Counter()) for parts in zip(*everywhere))
        for kind in counts:
            mean = tokens[kind] / counts[kind]
            self.tokens[kind] = mean if kind not in self.tokens else (1 - NEWS) * self.tokens[kind] + NEWS * mean


class Outcome(NamedTuple):
    """What a continuation came to: its reward, whether an error ended it, and the tokens that it sampled."""

    reward: float
    error: bool
    sampled: int


class Load(NamedTuple):
    """What it costs to continue from one place: `rows` continuations, `tokens` of all of them together, and `prefix`
    more tokens on a rank that does not hold the state."""

    rows: int
    tokens: int
    prefix: int


def continuations(player: Player, places: list[Place], numbers: range) -> tuple[list[list[Outcome]], int]:
    """What came of the continuations from each of this rank's places, wherever they were played, and how many places
    were given away. All ranks call it together."""
    if distributed.world() == 1:
        return play(player, places, numbers), 0
    loads = distributed.gather([load(place, len(numbers)) for place in places])
    moves = transfers(loads, FREE_ROWS.get(player.engine.device.type, 0))
    rank = distributed.rank()
    parcels = {place: packed(places[place]) for owner, place, _ in moves if owner == rank}
    parcels = {place: parcel for place, parcel in parcels.items() if parcel}
    staying = [place for place in range(len(places)) if place not in parcels]
    sent = distributed.gather(parcels) if moves else []
    taken = [(owner, place) for owner, place, receiver in moves if receiver == rank and place in sent[owner]]
    foreign = [pickle.loads(sent[owner][place]) for owner, place in taken]
    outcomes = play(player, [places[place] for place in staying] + foreign, numbers)
    found = dict(zip(staying, outcomes))
    if moves:
        for answers in distributed.gather(dict(zip(taken, outcomes[len(staying) :]))):
            found |= {place: answer for (owner, place), answer in answers.items() if owner == rank}
    return [found[place] for place in range(len(places))], len(parcels)


@contextmanager
def shared(rows: list[Any]) -> Iterator[list[Any]]:
    """The rows of trajectories (update.py) that this rank works on: its own, but for those that even out the tokens.

    All ranks call it together. At the end, an `old_logprob` that another rank has put into a row is here too.
    """
    loads = distributed.gather([Load(1, len(row.ids), 0) for row in rows])
    moves = transfers(loads, 0)
    if not moves:
        yield rows
        return
    rank = distributed.rank()
    given = [place for owner, place, _ in moves if owner == rank]
    sent = distributed.gather({place: on_cpu(rows[place]) for place in given})
    taken = {(owner, place): sent[owner][place] for owner, place, receiver in moves if receiver == rank}
    yield [row for place, row in enumerate(rows) if place not in given] + list(taken.values())
    known = {where: row.old_logprob.cpu() for where, row in taken.items() if row.old_logprob is not None}
    for answers in distributed.gather(known):
        for (owner, place), logprobs in answers.items():
            if owner == rank:
                rows[place].old_logprob = logprobs


def on_cpu(row: Any) -> Any:
    """A GPU of one rank is not that of another."""
    return row if row.old_logprob is None else replace(row, old_logprob=row.old_logprob.cpu())


def play(player: Player, places: list[Place], numbers: range) -> list[list[Outcome]]:
    results = player.continuations(places, numbers)
    return [
        [Outcome(t.reward, bool(t.error), sampled_after(t, trajectory.turns[turn].start)) for t in branches]
        for (trajectory, turn, _), branches in zip(places, results)
    ]


def sampled_after(trajectory: Trajectory, start: int) -> int:
    return sum(turn != OFF_POLICY for turn in trajectory.turn_ids[start:])


def load(place: Place, rows: int) -> Load:
    """Expects continuations to be as long as what the trajectory itself did from there on."""
    trajectory, turn, _ = place
    start = trajectory.turns[turn].start
    return Load(rows, rows * (len(trajectory.ids) - start), start)


def transfers(loads: list[list[Load]], free_rows: int) -> list[tuple[int, int, int]]:
    """(owner, place, receiver) of every place that is better played by another rank; `loads` of each rank's places."""
    tokens = [sum(entry.tokens for entry in own) for own in loads]
    rows = [sum(entry.rows for entry in own) for own in loads]
    left = [list(range(len(own))) for own in loads]
    moves = []
    while True:
        giver = max(range(len(loads)), key=lambda r: (tokens[r], -r))
        taker = min(range(len(loads)), key=lambda r: (tokens[r], r))
        if not left[giver] or rows[giver] <= free_rows:
            return moves

        def larger(place: int) -> int:
            entry = loads[giver][place]
            return max(tokens[giver] - entry.tokens, tokens[taker] + entry.tokens + entry.prefix)

        place = min(left[giver], key=lambda p: (larger(p), p))
        if larger(place) >= tokens[giver]:
            return moves
        entry = loads[giver][place]
        tokens[giver] -= entry.tokens
        tokens[taker] += entry.tokens + entry.prefix
        rows[giver] -= entry.rows
        rows[taker] += entry.rows
        left[giver].remove(place)
        moves.append((giver, place, taker))


def packed(place: Place) -> bytes | None:
    """A place as bytes, with nothing but what continuing from it takes; None where the environment's state cannot leave
    its process."""
    trajectory, turn, branch = place
    here = trajectory.turns[turn]
    turns = [Turn(t.start, "", end=t.end) for t in trajectory.turns[:turn]]
    turns.append(Turn(here.start, here.observation, here.env_state))
    try:
        return pickle.dumps((replace(trajectory.before(turn, trajectory.seed, ""), turns=turns), turn, branch))
    except Exception:  # what an environment's own objects raise has no common kind
        return None
