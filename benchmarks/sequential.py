"""What verification in rounds saves, and what it decides otherwise.

    python -m benchmarks.sequential [--batches 30] [flags of train.py]

At the starting policy: batches as training steps draw them, the judge's segments, verified with K from each side at
once, in rounds with several tolerances (the first of the same continuations), and with K others. How often rounds
decide as K did is to be read beside how often K others do: that is the noise of the decision itself.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

os.environ["OMP_NUM_THREADS"] = "1"

from envs import load_suite
from prover_mini import distributed
from prover_mini.chat import Chat
from prover_mini.config import parse
from prover_mini.credit import eligible, shrunk_delta
from prover_mini.engine import Engine
from prover_mini.judge import JUDGES
from prover_mini.model import load_policy, policy_path
from prover_mini.rollout import Player
from prover_mini.schedule import tasks_of_step
from prover_mini.stopping import null_rate
from prover_mini.trajectory import Segment, Verdict
from prover_mini.verify import verify

TOLERANCES = (0.1, 0.15, 0.2, 0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--batches", type=int, default=30)
    args, flags = parser.parse_known_args()
    config, _ = parse(flags)
    suite = load_suite(config.env, config)
    device = distributed.start(config.device, config.rank_timeout)
    model, tokenizer = load_policy(policy_path(config), config.dtype, device)
    engine = Engine(model, config.slots, config.max_context_tokens)
    player = Player(engine, Chat(tokenizer, suite.instructions, config.max_observation_tokens), suite, config)
    judge = JUDGES[config.judge](config, player)
    designs = {"K at once": config} | {f"rounds, {t:g}": replace(config, sequential=t) for t in TOLERANCES}
    verdicts: dict[str, list[Verdict]] = {name: [] for name in [*designs, "K others"]}
    tokens = dict.fromkeys(designs, 0)
    k, rollout_tokens = config.continuations, 0
    for step in range(1, args.batches + 1):
        tasks = tasks_of_step(suite.tasks("train"), step, config)
        groups = player.rollouts(tasks, step, [config.group_size] * len(tasks), keep_states=True)
        rollout_tokens += sum(t.policy_tokens for g in groups for t in g.trajectories)
        candidates = [g for g in groups if eligible(g, config.max_successes)]
        segments = [answer for answer in judge.propose(candidates, step) if isinstance(answer, Segment)]
        for name, design in designs.items():
            verification = verify(player, segments, design)
            verdicts[name] += verification.verdicts
            tokens[name] += verification.sampled
        more = verify(player, segments, replace(config, continuations=2 * k)).verdicts
        verdicts["K others"] += [replace(v, pre=v.pre[k:], post=v.post[k:]) for v in more]

    whole = verdicts["K at once"]
    segments = f"{len(whole)} segments in {args.batches} batches"
    print(f"{config.env}, {config.model}, judge {config.judge}, K = {k}: {segments}")
    print(f"{'verification':14}{'tokens':>9}{'saved':>8}{'of rollouts':>13}{'decides as K':>14}", end="")
    print(f"{'accepted':>10}{'chance':>8}{'mean credit':>13}{'shrunk':>8}")
    for name, mine in verdicts.items():
        same = sum(a.accepted == b.accepted for a, b in zip(mine, whole, strict=True)) / len(whole)
        accepted = [v for v in mine if v.accepted]
        spent = tokens.get(name, tokens["K at once"])
        chance = sum(null_rate(v, designs.get(name, config)) for v in mine) / len(mine)
        credit, shrunk = (sum(shrunk_delta(v, s) for v in accepted) / len(mine) for s in (0.0, 1.0))
        saved = 1 - spent / tokens["K at once"]
        print(f"{name:14}{spent:9,}{saved:8.1%}{spent / rollout_tokens:13.1%}{same:14.3f}", end="")
        print(f"{len(accepted) / len(mine):10.3f}{chance:8.3f}{credit:13.3f}{shrunk:8.3f}")


if __name__ == "__main__":
    main()
