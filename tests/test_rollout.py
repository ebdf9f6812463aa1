"""Rollouts, continuations and verification on a game whose value function can be computed exactly."""

import itertools
import math
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch

from prover_mini.engine import Engine
from prover_mini.errors import UserError
from prover_mini.rollout import Player
from prover_mini.trajectory import OFF_POLICY, Segment
from prover_mini.verify import verify
from prover_mini.workers import Failure, Workers
from tests.toys import WORDS, ToyEnv, ToySuite, toy_chat, toy_config, toy_model

HITS, ALPHABET = {"a", "b"}, {"a", "b", "c", "d"}


def player(slots=16, suite=None, model=None, **fields) -> Player:
    config = toy_config(slots=slots, **fields)
    return Player(
        Engine(model or toy_model(), slots, config.max_context_tokens), toy_chat(), suite or ToySuite(), config
    )


def play(p: Player, step=1, copies=4, keep_states=False):
    tasks = list(enumerate(p.suite.tasks("train")))
    return p.rollouts(tasks, step, [copies] * len(tasks), keep_states=keep_states)


def signature(t):
    return t.ids, t.turn_ids, t.reward, [(turn.action, turn.valid, turn.start, turn.end) for turn in t.turns]


def test_a_trajectory_records_what_was_sampled_and_nothing_else():
    p = player()
    for t in (t for g in play(p) for t in g.trajectories):
        assert len(t.ids) == len(t.turn_ids) == len(t.logprobs)
        for n, turn in enumerate(t.turns):
            assert t.turn_ids[turn.start : turn.end] == [n] * (turn.end - turn.start)
            assert turn.action == p.chat.text(t.ids[turn.start : turn.end])
        inside = {i for turn in t.turns for i in range(turn.start, turn.end)}
        assert all((turn_id == OFF_POLICY) == (i not in inside) for i, turn_id in enumerate(t.turn_ids))
        assert t.policy_tokens == len(inside)
        assert t.reward == float(sum(first_letter(turn.action) in HITS for turn in t.turns) >= 2)


def first_letter(action: str) -> str | None:
    return next((word for word in action.split() if word in ALPHABET), None)


def test_recorded_logprobs_are_those_of_the_model():
    p = player(temperature=0.7)
    for t in (t for g in play(p, copies=2) for t in g.trajectories):
        with torch.no_grad():
            logits = p.engine.model(torch.tensor([t.ids])).logits[0, :-1] / 0.7
        expected = logits.log_softmax(-1).gather(1, torch.tensor(t.ids[1:])[:, None])[:, 0]
        for position, turn in enumerate(t.turn_ids[1:]):
            if turn != OFF_POLICY:
                assert t.logprobs[position + 1] == pytest.approx(expected[position].item(), abs=1e-5)


def test_trajectories_do_not_depend_on_slots_or_company():
    """Few slots force refills and forks at other moments; the draws belong to the trajectory."""
    wide, narrow = play(player(slots=64)), play(player(slots=3))
    assert [signature(t) for g in wide for t in g.trajectories] == [
        signature(t) for g in narrow for t in g.trajectories
    ]
    assert len({tuple(t.ids) for g in wide for t in g.trajectories}) > 12  # samples differ inside and across groups


def test_steps_draw_anew_and_extra_samples_continue_the_count():
    p = player()
    first, second = play(p, step=1), play(p, step=2)
    assert [t.ids for g in first for t in g.trajectories] != [t.ids for g in second for t in g.trajectories]
    task = p.suite.tasks("train")[0]
    (all_six,) = p.rollouts([(0, task)], 1, [6])
    (extra,) = p.rollouts([(0, task)], 1, [2], first_sample=4)
    assert [t.sample for t in extra.trajectories] == [4, 5]
    assert [signature(t) for t in extra.trajectories] == [signature(t) for t in all_six.trajectories[4:]]


@pytest.mark.parametrize("architecture", ["hybrid", "qwen3", "qwen2"])
def test_states_kept_and_recomputed_give_the_same_continuations(architecture):
    """From every turn boundary: forks of kept states against one fresh pass over the prefix."""
    kept, fresh = (
        player(suite=ToySuite(needed=0), model=toy_model(architecture), state_cache_mb=mb, continuations=3)
        for mb in (64, 0)
    )
    results = []
    for p in (kept, fresh):
        groups = play(p, keep_states=True)
        places = [(t, n, "x") for g in groups for t in g.successes for n in range(len(t.turns))]
        assert places
        assert all((t.turns[n].engine_state is not None) == (p is kept) for t, n, _ in places)
        results.append([[signature(t) for t in branches] for branches in p.continuations(places, range(3))])
    assert results[0] == results[1]
    assert kept.prefix_computed == 0 < fresh.prefix_computed


def test_a_continuation_starts_exactly_where_the_trajectory_was():
    p = player(continuations=2)
    groups = play(p, keep_states=True)
    for t in (t for g in groups for t in g.successes):
        before = signature(t)
        for n in range(len(t.turns)):
            for branch in p.continuations([(t, n, "x")], range(2))[0]:
                cut = t.turns[n].start
                assert branch.ids[:cut] == t.ids[:cut] and branch.turn_ids[:cut] == t.turn_ids[:cut]
                assert [x.action for x in branch.turns[:n]] == [x.action for x in t.turns[:n]]
                assert len(branch.turns) == p.suite.turns
        assert signature(t) == before


def test_turn_and_context_limits_end_an_episode_as_a_failure():
    for g in play(player(max_turns=2)):
        assert all(t.truncated and t.reward == 0 and len(t.turns) == 2 for t in g.trajectories)
    tight = play(player(suite=ToySuite(turns=50), max_turns=50))
    assert all(t.truncated and len(t.ids) <= 96 and len(t.turns) < 50 for g in tight for t in g.trajectories)


def test_a_broken_environment_costs_only_its_own_episodes():
    broken = play(player(suite=ToySuite(kind="broken")))
    assert all(t.error == "RuntimeError: this task is broken" and not t.turns for g in broken for t in g.trajectories)
    fragile = [t for g in play(player(suite=ToySuite(kind="fragile"))) for t in g.trajectories]
    sound = [t for g in play(player()) for t in g.trajectories]
    hurt = [t for t in fragile if t.error]
    assert hurt and all(first_letter(t.turns[-1].action) == "d" for t in hurt)
    assert [signature(a) for a, b in zip(fragile, sound) if not a.error] == [
        signature(b) for a, b in zip(fragile, sound) if not a.error
    ]


def test_evaluations_are_paired_and_greedy_is_greedy():
    p = player()
    tasks = p.suite.tasks("train")
    once, again = p.evaluate(tasks, 1.0), p.evaluate(tasks, 1.0)
    assert [signature(t) for t in once] == [signature(t) for t in again]
    greedy = p.evaluate(tasks, 0.0)
    assert len({tuple(t.ids) for t in greedy}) == 1  # the toy's tasks look the same
    with torch.no_grad():
        logits = p.engine.model(torch.tensor([greedy[0].ids])).logits[0]
    for position, turn in enumerate(greedy[0].turn_ids[1:]):
        assert turn == OFF_POLICY or logits[position].argmax() == greedy[0].ids[position + 1]


def value(p: Player, ids: list[int], hits: int, played: int) -> float:
    """Exact success probability by enumerating every turn the policy can take (two tokens, or one and the end)."""
    suite, chat = p.suite, p.chat
    if played == suite.turns:
        return float(hits >= suite.needed)
    total = 0.0
    with torch.no_grad():
        first = p.engine.model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
        pairs = torch.tensor([[*ids, a] for a in range(len(WORDS))])
        second = p.engine.model(pairs).logits[:, -1].double().softmax(-1)
    outcomes: dict[tuple, float] = {}
    for a, b in itertools.product(range(len(WORDS)), repeat=2):
        if a == chat.end:
            if b == 0:
                outcomes[(a,)] = first[a].item()
        else:
            outcomes[(a, b)] = (first[a] * second[a, b]).item()
    best = sorted(outcomes.items(), key=lambda item: -item[1])
    for said, probability in best:
        letter = first_letter(chat.text(list(said)))
        now = hits + (letter in HITS)
        left = suite.turns - played - 1
        if now >= suite.needed or now + left < suite.needed:
            total += probability * float(now >= suite.needed)
        else:
            seen = chat.answer("hit" if letter in HITS else "miss", ended=said[-1] == chat.end)
            total += probability * value(p, [*ids, *said, *seen], now, played + 1)
    return total


def test_delta_estimates_the_difference_of_exact_values():
    """Unbiased: the mean of many continuations against the enumerated value on both sides of a segment."""
    p = player(suite=ToySuite(turns=2, needed=1), continuations=1500, slots=256)
    groups = play(p, copies=16, keep_states=True)
    reference = next(
        g.reference for g in groups if g.reference and not first_letter(g.reference.turns[0].action) in HITS
    )
    verification = verify(p, [Segment(reference, 0, 0)], p.config)
    (verdict,) = verification.verdicts
    before = value(p, reference.ids[: reference.turns[0].start], 0, 0)
    after = value(p, reference.ids[: reference.turns[1].start], 0, 1)
    for rewards, exact in ((verdict.pre, before), (verdict.post, after)):
        assert len(rewards) == 1500
        assert abs(np.mean(rewards) - exact) < 4.5 * math.sqrt(exact * (1 - exact) / 1500)
    assert verdict.delta == pytest.approx(np.mean(verdict.post) - np.mean(verdict.pre))
    assert verification.sampled > 0 and verification.computed == 0
    assert verification.reused == 1500 * (reference.turns[0].start + reference.turns[1].start)


def test_both_sides_of_a_verdict_draw_independently():
    p = player(continuations=8)
    reference = next(g.reference for g in play(p, keep_states=True) if g.reference)
    here, there = p.continuations([(reference, 1, "before"), (reference, 1, "after")], range(8))
    assert [t.ids for t in here] != [t.ids for t in there]


def test_errors_on_one_side_leave_no_verdict():
    p = player(suite=ToySuite(turns=3, needed=0, kind="fragile"), continuations=4)
    reference = next(g.reference for g in play(p, keep_states=True) if g.reference)
    reference.turns[1].env_state = "not a state"
    original = p.suite.make_env

    def make_env():
        env = original()
        restore = env.restore

        def breaking(state):
            restore((0, 0, True))
            if state == "not a state":
                env.step = lambda action: 1 / 0

        env.restore = breaking
        return env

    p.suite.make_env = make_env
    assert verify(p, [Segment(reference, 0, 0)], p.config).verdicts == []


class Faulty(ToyEnv):
    """Breaks in one of its methods, in the games of one task, from the second turn on (`reset`: at once)."""

    def __init__(self, suite, where):
        super().__init__(suite.turns, suite.needed)
        self.task_id, self.where, self.closing = "", where, suite.closing

    def fail(self, here: str) -> bool:
        """Raises, hangs, or answers True for an answer of the wrong type."""
        if here != self.where.removeprefix("hangs in ").removeprefix("wrong ") or self.task_id != "toy-02":
            return False
        if self.where.startswith("hangs"):
            self.closing.wait()
        if not self.where.startswith("wrong"):
            raise RuntimeError(f"no {here}")
        return True

    def reset(self, task):
        self.task_id = task.id
        self.fail("reset")
        return super().reset(task)

    def step(self, action):
        return None if self.played and self.fail("step") else super().step(action)

    def snapshot(self):
        if self.played:
            self.fail("snapshot")
        return self.task_id, super().snapshot()

    def restore(self, state):
        self.task_id, state = state
        self.fail("restore")
        super().restore(state)


@pytest.fixture
def faulty():
    """faulty(where) makes a suite; hanging calls end with the test."""
    suite = ToySuite()
    suite.closing = threading.Event()

    def make(where: str) -> ToySuite:
        suite.make_env = lambda: Faulty(suite, where)
        suite.workers = 4 if where.startswith("hangs") else 1
        return suite

    yield make
    suite.closing.set()


@pytest.mark.parametrize(
    "where, reason",
    [
        *[(name, f"RuntimeError: no {name}") for name in ("reset", "step", "snapshot", "restore")],
        *[(f"hangs in {name}", "no answer in 2 seconds") for name in ("reset", "step", "snapshot", "restore")],
        ("wrong step", "step returned NoneType, not a Step"),
    ],
)
def test_an_environment_that_raises_or_hangs_costs_its_own_episodes_only(faulty, where, reason):
    p = player(suite=faulty(where), slots=5)
    p.workers.seconds = 2
    groups = play(p)
    assert [{t.error for t in g.trajectories} for g in groups] == [{reason} if i == 2 else {""} for i in range(6)]
    sound = play(player())
    for g, expected in zip(groups, sound):
        if g.index != 2:
            assert [signature(t) for t in g.trajectories] == [signature(t) for t in expected.trajectories]
    assert [len(g.trajectories) for g in groups] == [4] * 6 and groups[2].healthy == []


def test_workers_answer_in_order_and_never_more_than_so_many_at_once():
    running, most, lock = 0, 0, threading.Lock()

    def call(i: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002 * (i % 3))
        with lock:
            running -= 1
        return i

    assert Workers(3, 60).run([partial(call, i) for i in range(20)]) == list(range(20))
    assert most == 3
    assert Workers(3, 60).run([]) == []


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_meant_for_the_user_is_raised(count):
    def refuse():
        raise UserError("the file is gone")

    with pytest.raises(UserError, match="the file is gone"):
        Workers(count, 60).run([refuse, int])
    assert Workers(count, 60).run([lambda: 1 / 0, int]) == [Failure("ZeroDivisionError: division by zero"), 0]


def test_workers_step_environments_in_parallel_with_the_same_result():
    suite = ToySuite()
    suite.workers = 4
    assert [signature(t) for g in play(player(suite=suite)) for t in g.trajectories] == [
        signature(t) for g in play(player()) for t in g.trajectories
    ]


def test_place_and_task_decide_the_draws_not_the_company():
    p = player(continuations=4)
    first, second = p.suite.tasks("train")[:2]
    both = p.rollouts([(0, first), (1, second)], 1, [8, 8], keep_states=True)
    (alone,) = p.rollouts([(1, second)], 1, [8])
    assert [signature(t) for t in both[1].trajectories] == [signature(t) for t in alone.trajectories]
    (again,) = p.rollouts([(1, first)], 1, [8], keep_states=True)  # one task twice in a step
    assert [t.ids for t in again.trajectories] != [t.ids for t in both[0].trajectories]
    here, there = p.continuations([(g.trajectories[0], 0, "before") for g in (both[0], again)], range(4))
    assert [t.ids for t in here] != [t.ids for t in there]


def test_a_context_too_small_for_a_prompt_and_a_turn_is_refused():
    prompt = len(toy_chat().prompt(""))
    player(max_context_tokens=prompt + 10)
    with pytest.raises(UserError, match="--max-context-tokens"):
        player(max_context_tokens=prompt + 9)
