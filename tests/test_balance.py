"""Who plays what: close to the best split, a function of history, and nothing that is sampled depends on it."""

import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import load_suite
from envs.base import Task
from prover_mini import distributed
from prover_mini.balance import Balance, Load, packed, shared, transfers
from prover_mini.config import parse
from prover_mini.engine import Engine
from prover_mini.rollout import Player
from prover_mini.trajectory import Group, Segment, Trajectory
from prover_mini.update import Row
from prover_mini.verify import verify
from tests.ranks import on_ranks
from tests.toys import ToySuite, toy_chat, toy_config, toy_model


def split(balance: Balance, tasks: list, ranks: int, minibatches: int = 1) -> list[list]:
    """What each of the ranks would take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "world", lambda: ranks)
        parts = []
        for rank in range(ranks):
            patch.setattr(distributed, "rank", lambda rank=rank: rank)
            parts.append(balance.mine(tasks, minibatches))
        return parts


def tasks_of(kinds: list[str]) -> list[tuple[int, Task]]:
    return [(place, Task(f"t{place}", "train", kind, None)) for place, kind in enumerate(kinds)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(1, 3))
def test_groups_are_spread_within_four_thirds_of_the_best_split(costs, ranks):
    tasks = tasks_of([str(cost) for cost in costs])
    parts = split(Balance({str(cost): float(cost) for cost in costs}), tasks, ranks)
    assert sorted(place for part in parts for place, _ in part) == list(range(len(costs)))
    loads = [sum(costs[place] for place, _ in part) for part in parts]
    best = min(
        max(sum(cost for cost, owner in zip(costs, owners) if owner == rank) for rank in range(ranks))
        for owners in itertools.product(range(ranks), repeat=len(costs))
    )
    assert max(loads) <= (4 / 3 - 1 / (3 * ranks)) * best + 1e-9
    assert all([costs[p] for p, _ in part] == sorted((costs[p] for p, _ in part), reverse=True) for part in parts)


def test_every_minibatch_is_spread_on_its_own():
    tasks = tasks_of(["long", "long", "long", "long", "short", "short", "short", "short"])
    parts = split(Balance({"long": 50.0, "short": 5.0}), tasks, 2, minibatches=2)
    for minibatch in (range(4), range(4, 8)):
        assert [sum(place in minibatch for place, _ in part) for part in parts] == [2, 2]


def test_what_is_expected_is_learned_from_healthy_trajectories():
    balance, (task,) = Balance(), [task for _, task in tasks_of(["maze"])]

    def group(*lengths: int, error: int = 0) -> Group:
        good = [Trajectory(task, k, 0, ids=[0] * n) for k, n in enumerate(lengths)]
        return Group(0, task, good + [Trajectory(task, 9, 0, ids=[0] * error, error="lost")] * bool(error))

    balance.learn([group(10, 30, error=1000)])
    assert balance.tokens == {"maze": 20.0}
    balance.learn([group(40)])
    assert balance.tokens == {"maze": 24.0}
    balance.learn([group(error=5)])
    assert balance.tokens == Balance(balance.tokens).tokens == {"maze": 24.0}


LOAD = st.builds(Load, st.just(8), st.integers(1, 90), st.integers(0, 40))
LOADS = st.lists(st.lists(LOAD, max_size=5), min_size=2, max_size=4)


@settings(max_examples=100, deadline=None)
@given(LOADS)
def test_places_move_only_where_that_lowers_the_longest_work(loads):
    moves = transfers(loads, 0)
    assert len({(owner, place) for owner, place, _ in moves}) == len(moves)
    tokens = [sum(entry.tokens for entry in own) for own in loads]
    before = max(tokens)
    for owner, place, receiver in moves:
        assert owner != receiver
        worse = max(tokens[owner], tokens[receiver])
        tokens[owner] -= loads[owner][place].tokens
        tokens[receiver] += loads[owner][place].tokens + loads[owner][place].prefix
        assert max(tokens[owner], tokens[receiver]) < worse
    assert max(tokens) <= before


def test_a_move_must_pay_for_its_prefix_and_for_rows_that_are_free():
    assert transfers([[Load(8, 100, 50), Load(8, 100, 50)], []], 0) == [(0, 0, 1)]
    assert transfers([[Load(8, 100, 100), Load(8, 100, 100)], []], 0) == []
    assert transfers([[Load(8, 100, 50), Load(8, 100, 50)], []], 16) == []


@pytest.mark.parametrize("env, actions", [
    ("searchqa", ["<search>France</search>", "nonsense", "<answer>Paris</answer>"]),
    ("alfworld", ["<action>look</action>", "<action>inventory</action>", "<action>go to bed 1</action>"]),
    ("webshop", ["<action>search[red shirt]</action>", "<action>click[back to search]</action>"]),
])  # fmt: skip
def test_states_of_every_environment_can_leave_their_process(env, actions):
    suite = load_suite(env, parse(["--env", env, "--model", "any"])[0])
    task, here = suite.tasks("train")[0], suite.make_env()
    here.reset(task)
    for action in actions:
        there = suite.make_env()
        there.restore(pickle.loads(pickle.dumps(here.snapshot())))
        assert here.step(action) == there.step(action)


def test_a_state_that_cannot_leave_stays():
    trajectory = Trajectory(Task("t", "train", "toy", None), 0, 0)
    trajectory.observe([1, 2])
    trajectory.open_turn("what", lambda: None)
    assert packed((trajectory, 0, "before")) is None


def played() -> tuple[Player, list[Segment], list[list[Segment]]]:
    """All segments in the order of one process, and each rank's when rank 0 has nearly all of them."""
    config = toy_config(continuations=6, slots=32)
    player = Player(Engine(toy_model(), 32, config.max_context_tokens), toy_chat(), ToySuite(needed=1), config)
    groups = player.rollouts(list(enumerate(player.suite.tasks("train"))), 1, [4] * 6, keep_states=True)
    segments = [Segment(g.reference, 0, 0) for g in groups if g.reference]
    return player, segments, [segments[:-1], segments[-1:]]


def unevenly(rank: int, world: int, path) -> None:
    player, _, parts = played()
    verification = verify(player, parts[rank], player.config)
    rows = [Row(torch.arange(9), *[torch.arange(3)] * 4) for _ in range(0 if rank else 7)]
    with shared(rows) as mine:
        for row in mine:
            row.old_logprob = torch.full((3,), float(rank))
        counts = len(mine)
    marks = [row.old_logprob.tolist() for row in rows]
    verdicts = [(v.pre, v.post) for v in verification.verdicts]
    torch.save((verdicts, verification.moved, verification.sampled, counts, marks), path / f"{rank}.pt")


def test_who_plays_a_continuation_or_trains_a_row_does_not_change_it(tmp_path):
    on_ranks(2, tmp_path / "meet", unevenly, tmp_path)
    ours, moved, sampled, many, marks = torch.load(tmp_path / "0.pt")
    theirs, none, rest, few, no_rows = torch.load(tmp_path / "1.pt")
    player, segments, _ = played()
    alone = verify(player, segments, player.config)
    assert ours + theirs == [(v.pre, v.post) for v in alone.verdicts]
    assert moved >= 2 and none == 0 and alone.moved == 0
    assert sampled + rest == alone.sampled  # counted where the segment belongs
    assert (many, few) == (4, 3) and no_rows == []
    assert sorted(marks) == [[0.0] * 3] * 4 + [[1.0] * 3] * 3
