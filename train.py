"""Train an LLM agent with GRPO and ProVer.

    torchrun --nproc-per-node 2 train.py --env searchqa                 the embedded policy, minutes on two CPU cores
    torchrun --nproc-per-node 8 train.py --env searchqa --model Qwen/Qwen3-1.7B --data nq.jsonl --corpus wiki.jsonl
    python train.py --help                                              every field in one sentence

A step is the algorithm, top to bottom: rollout -> propose -> verify -> credit -> update.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from statistics import fmean

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models: more threads per rank only wait for each other

from envs import load_suite
from prover_mini import checkpoint, distributed, interrupt, parallel, plan
from prover_mini.balance import Balance
from prover_mini.chat import Chat
from prover_mini.config import Config, parse
from prover_mini.credit import METHODS, eligible
from prover_mini.engine import Engine, self_check
from prover_mini.errors import SharedError, UserError
from prover_mini.evaluate import evaluate, make_panel
from prover_mini.files import read_metrics
from prover_mini.judge import JUDGES, FailureWatch
from prover_mini.metrics import step_metrics, step_sums
from prover_mini.model import paths, policy_path
from prover_mini.records import records
from prover_mini.rollout import Player
from prover_mini.run import Run, open_run
from prover_mini.schedule import tasks_of_step
from prover_mini.trajectory import Group, Segment
from prover_mini.update import Learner
from prover_mini.verify import Verification, verify


def train(config: Config, given: dict) -> None:
    device = distributed.start(config.device, config.rank_timeout)
    run_dir, config = open_run(config, given)
    found = checkpoint.latest(run_dir) if config.resume else None
    done = found[1]["step"] if found else 0
    if done >= config.steps:
        raise UserError(f"{run_dir}: this run is finished (step {done} of {config.steps}); raise --steps to go on")

    suite = distributed.first(lambda: load_suite(config.env, config))  # rank 0 builds what is cached on disk
    tasks, panel = suite.tasks("train"), make_panel(suite, "test", config.eval_tasks)
    weights, tokenizer = parallel.load(str(found[0] / "model") if found else policy_path(config), config, device)
    reference = parallel.load(policy_path(config), config, device, trained=False)[0] if config.kl_coef else None
    engine = Engine(weights.model, config.slots, config.max_context_tokens)
    self_check(engine)
    chat = Chat(tokenizer, suite.instructions, config.max_observation_tokens)
    learner = Learner(weights, engine, config, reference)
    balance = Balance(found[1].get("tokens_by_kind") if found else None)
    if found:
        checkpoint.restore_optimizer(*found, learner)
    budgets = recorded_budgets(config) if config.budget_run else {}

    player = Player(engine, chat, suite, config)
    judge, method = JUDGES[config.judge](config, player), METHODS[config.credit]
    measures_budget = config.budget_matched and not config.budget_run
    proposes, verifies = method.proposes or measures_budget, method.verifies or measures_budget
    if proposes:
        distributed.first(judge.prepare)
    watch = FailureWatch(config, run_dir)
    run = Run(run_dir, config, done)  # the first to write anything
    player.report = run.episodes
    successes = []
    run.say(f"{parallel.describe(weights)}; {paths(weights.model, device)}")

    if done == 0:
        with run.phase("eval"):
            run.evaluation(0, evaluate(player, panel, config.eval_temperature))
        run.take_times()

    for step in range(done + 1, config.steps + 1):
        with run.phase("rollout", step):
            mine = balance.mine(tasks_of_step(tasks, step, config), config.minibatches)
            groups = player.rollouts(mine, step, [config.group_size] * len(mine), keep_states=verifies)
            candidates = [g for g in groups if eligible(g, config.max_successes)]

        with run.phase("judge"):
            answers = judge.propose(candidates, step) if proposes else []
            segments = [answer for answer in answers if isinstance(answer, Segment)]
            run.judged(step, judge.take_records())

        with run.phase("verify"):
            verification = verify(player, segments, config) if verifies else Verification()

        extra_tokens = 0
        if config.budget_matched:
            with run.phase("rollout"):
                extra_tokens = spend_budget(player, candidates, step, verification.sampled, budgets.get(step), config)
            answers, segments, verification = [], [], Verification()

        credit = method.credit(groups, segments, verification.verdicts, config)

        with run.phase("train"):
            update = learner.update(groups, credit, step)

        evaluation = None
        if step % config.eval_every == 0 or step == config.steps:
            with run.phase("eval"):
                evaluation = evaluate(player, panel, config.eval_temperature)

        sums = step_sums(groups, candidates, answers, judge.take_usage(), verification, extra_tokens, config)
        row = step_metrics(step, sums, update, run.take_times())
        trajectories = records(groups, credit, segments, verification.verdicts, chat, config.record_groups)
        run.log(row, trajectories, evaluation)
        run.check(row, groups, credit)
        watch.check(row)
        balance.learn(groups)

        groups = candidates = answers = segments = verification = credit = None  # with the states that they hold

        stop = interrupt.asked() and step < config.steps
        successes.append(row["success_rate"])
        with run.phase("save"):
            if stop or step % config.save_every == 0 or step == config.steps:
                kept = config.keep_checkpoints
                checkpoint.save(run_dir, step, learner, tokenizer, kept, fmean(successes), balance.tokens)
                successes = []
        if stop:
            return run.stopped(step)

    run.summary()


def spend_budget(
    player: Player, candidates: list[Group], step: int, measured: int, recorded: int | None, config: Config
) -> int:
    """Control: extra rollouts of the eligible groups for as many tokens as ProVer's continuations take.

    The budget is what this step's own continuations sampled (`measured`; their outcomes are discarded), or, with
    `budget_run`, what that run `recorded` for this step, over all ranks. Returns the tokens that were sampled.
    """
    if recorded is not None:
        everywhere = sum(distributed.gather(len(candidates)))
        measured = recorded * len(candidates) / max(everywhere, 1)
    if not candidates:
        return 0
    trajectories = [t for g in candidates for t in g.trajectories]
    per_trajectory = sum(t.policy_tokens for t in trajectories) / len(trajectories)
    extra, each = round(measured / max(per_trajectory, 1)), len(candidates)
    copies = [extra // each + (i < extra % each) for i in range(each)]
    before = player.sampled
    more = player.rollouts([(g.index, g.task) for g in candidates], step, copies, first_sample=config.group_size)
    for group, addition in zip(candidates, more):
        group.trajectories += addition.trajectories
    return player.sampled - before


def recorded_budgets(config: Config) -> dict[int, int]:
    """step -> tokens of its continuations in the run `budget_run`. Raises UserError where it lacks a step."""
    path = Path(config.budget_run) / "metrics.jsonl"
    budgets = {row["step"]: row["tokens/continuation"] for row in read_metrics(path) if "tokens/continuation" in row}
    if missing := set(range(1, config.steps + 1)) - set(budgets):
        lacks = f"its metrics.jsonl has no continuation tokens of step {min(missing)}"
        raise UserError(f"--budget-run {config.budget_run}: {lacks}")
    return budgets


def main() -> int:
    """Runs the command line. One line on stderr and 2 for input that cannot be used, 3 where another rank is gone."""
    try:
        config, given = parse()
        if config.plan:
            plan.show(config)
            return 0
        with interrupt.deferred():
            train(config, given)
        return 0
    except (UserError, OSError, FloatingPointError) as error:  # a full disk, a policy that diverged
        if os.environ.get("RANK", "0") != "0":
            time.sleep(10)  # where rank 0 has the same error, torchrun ends this rank before it repeats the line
            if isinstance(error, SharedError):
                return 2
        print(f"train.py: {error}", file=sys.stderr, flush=True)
        return 2
    except RuntimeError as error:
        if not (lost := distributed.lost(error)):
            raise
        print(f"train.py: {lost}", file=sys.stderr, flush=True)
        return 3
    except KeyboardInterrupt:
        print("train.py: interrupted; --run-dir with --resume goes on from the newest checkpoint", file=sys.stderr)
        return 130
    finally:
        distributed.stop()


if __name__ == "__main__":
    sys.exit(main())
