"""What forks save: verification and rollouts against the same work without them.

    python -m benchmarks.verify_cost [--model DIR] [--turns 8] [--continuations 8] [--segments 16]

Every episode is a SearchQA conversation of exactly `turns` turns (an answer does not end it), so the amounts of work
are comparable. For each segment, K continuations are sampled from both of its boundaries, to the end:

    forks     the engine restores the boundary states that the rollout kept
    (a)       the engine consumes the whole prefix of every continuation (no reuse)
    (b)       transformers' `generate` on left-padded prompts, the whole conversation again at every turn

Printed: real tokens that went through the model (padding not counted) and CPU seconds; then rollout tokens sampled
per CPU second, engine against `generate`. One thread; figures are ratios within one run on one machine.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, replace

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from envs import load_suite
from envs.base import Env, Step, Suite, Task
from prover_mini.chat import Chat
from prover_mini.config import Config, parse
from prover_mini.engine import Engine
from prover_mini.model import load_policy, policy_path
from prover_mini.rollout import Origin, Player
from prover_mini.trajectory import Segment, Trajectory
from prover_mini.verify import verify


class Marathon(Env):
    """Plays on after an answer, until `turns` turns are over; always a success."""

    def __init__(self, inner: Env, turns: int):
        self.inner, self.turns, self.played = inner, turns, 0

    def reset(self, task: Task) -> str:
        self.played = 0
        return self.inner.reset(task)

    def step(self, action: str) -> Step:
        start = self.inner.snapshot()
        step = self.inner.step(action)
        self.inner.restore(start)
        self.played += 1
        done = self.played == self.turns
        return Step(step.observation or "Go on.", float(done), done)

    def snapshot(self):
        return self.inner.snapshot(), self.played

    def restore(self, state) -> None:
        inner, self.played = state
        self.inner.restore(inner)


class MarathonSuite(Suite):
    def __init__(self, inner: Suite, turns: int):
        self.inner, self.turns = inner, turns
        self.name, self.instructions, self.max_turns = inner.name, inner.instructions, turns

    def tasks(self, split: str) -> list[Task]:
        return self.inner.tasks(split)

    def make_env(self) -> Marathon:
        return Marathon(self.inner.make_env(), self.turns)


@dataclass
class Cost:
    """Real tokens through the model, sampled tokens, CPU seconds."""

    forwarded: int = 0
    sampled: int = 0
    seconds: float = 0.0


class Generate:
    """Multi-turn sampling by transformers' `generate`, as an agent loop without an engine does it."""

    def __init__(self, model, chat: Chat, suite: Suite, config: Config):
        self.model, self.chat, self.suite, self.config = model, chat, suite, config

    def play(self, starts: list[tuple[list[int], object]], batch: int) -> Cost:
        """Plays every (token prefix, environment state) to its end, at most `batch` conversations at a time."""
        cost, clock = Cost(), time.process_time()
        for i in range(0, len(starts), batch):
            self._play_batch(starts[i : i + batch], cost)
        cost.seconds = time.process_time() - clock
        return cost

    def _play_batch(self, starts: list[tuple[list[int], object]], cost: Cost) -> None:
        conversations = []
        for ids, state in starts:
            env = self.suite.make_env()
            env.restore(state)
            conversations.append((list(ids), env))
        while conversations:
            longest = max(len(ids) for ids, _ in conversations)
            pads = [longest - len(ids) for ids, _ in conversations]
            ids_BT = torch.tensor([[0] * pad + ids for pad, (ids, _) in zip(pads, conversations)])
            mask_BT = torch.tensor([[0] * pad + [1] * len(ids) for pad, (ids, _) in zip(pads, conversations)])
            out_BT = self.model.generate(
                input_ids=ids_BT, attention_mask=mask_BT, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                max_new_tokens=self.config.max_turn_tokens, eos_token_id=self.chat.end, pad_token_id=0,
            )  # fmt: skip
            going = []
            for (ids, env), row in zip(conversations, out_BT[:, longest:].tolist()):
                said = row[: row.index(self.chat.end) + 1] if self.chat.end in row else row
                cost.forwarded += len(ids) + len(said) - 1
                cost.sampled += len(said)
                step = env.step(self.chat.text(said))
                if not step.done:
                    ids += [*said, *self.chat.answer(step.observation, ended=said[-1] == self.chat.end)]
                    going.append((ids, env))
            conversations = going


def measured(player: Player, work) -> tuple[Cost, object]:
    """Runs `work()`; what the engine did meanwhile."""
    forwarded, sampled, clock = player.engine.tokens_forwarded, player.sampled, time.process_time()
    result = work()
    return Cost(
        player.engine.tokens_forwarded - forwarded, player.sampled - sampled, time.process_time() - clock
    ), result


def without_reuse(player: Player, boundaries: list[tuple[Trajectory, int]]) -> None:
    """The engine's continuations, each with a prefix of its own."""
    origins = []
    for trajectory, turn in boundaries:
        here = trajectory.turns[turn]
        for k in range(player.config.continuations):
            origins.append(
                Origin(
                    lambda _, t=trajectory, n=turn, k=k: t.before(n, k, "alone"), 1, here.observation, here.env_state
                )
            )
    player.play(origins, 1.0, label="alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--continuations", type=int, default=8)
    parser.add_argument("--segments", type=int, default=16)
    parser.add_argument("--slots", type=int, default=128)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    config, _ = parse(["--env", "searchqa", "--model", args.model])
    config = replace(
        config, max_turns=args.turns, continuations=args.continuations, slots=args.slots, max_context_tokens=1024
    )
    suite = MarathonSuite(load_suite("searchqa", config), args.turns)
    model, tokenizer = load_policy(policy_path(config), "float32", torch.device("cpu"))
    chat = Chat(tokenizer, suite.instructions, config.max_observation_tokens)
    player = Player(Engine(model, config.slots, config.max_context_tokens), chat, suite, config)
    generate = Generate(model, chat, suite, config)
    tasks = list(enumerate(suite.tasks("train")[: args.segments]))

    rollout, groups = measured(player, lambda: player.rollouts(tasks, 1, [8] * len(tasks), keep_states=True))
    references = [g.reference for g in groups]
    segments = [Segment(t, first := i % (args.turns - 1), first) for i, t in enumerate(references)]
    boundaries = [(s.trajectory, turn) for s in segments for turn in (s.first_turn, s.last_turn + 1)]

    forks, _ = measured(player, lambda: verify(player, segments, config))
    alone, _ = measured(player, lambda: without_reuse(player, boundaries))
    starts = [
        (t.ids[: t.turns[n].start], t.turns[n].env_state) for t, n in boundaries for _ in range(args.continuations)
    ]
    theirs = generate.play(starts, args.slots)
    beginnings = [(t.ids[: t.turns[0].start], t.turns[0].env_state) for g in groups for t in g.trajectories]
    their_rollout = generate.play(beginnings, args.slots)

    size = sum(p.numel() for p in model.parameters())
    print(f"{args.turns} turns, K = {args.continuations}, {len(segments)} segments, {size:,} parameters")
    print(f"{'verification':34}{'tokens forwarded':>18}{'CPU-s':>9}{'tokens':>9}{'time':>8}")
    for name, cost in (("forks", forks), ("(a) engine, no prefix reuse", alone), ("(b) generate, left padded", theirs)):
        ratio = f"{cost.forwarded / forks.forwarded:8.2f}x{cost.seconds / forks.seconds:7.2f}x"
        print(f"{name:34}{cost.forwarded:18,}{cost.seconds:9.2f}{ratio}")
    speed, their_speed = rollout.sampled / rollout.seconds, their_rollout.sampled / their_rollout.seconds
    rates = f"{'engine':>9}{speed:9,.0f}{'generate':>12}{their_speed:8,.0f}{speed / their_speed:8.2f}x"
    print(f"{'rollout, sampled tokens per CPU-s':34}{rates}")


if __name__ == "__main__":
    main()
