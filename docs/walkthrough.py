"""Plays the step that docs/walkthrough.md tells, and writes its outputs and excerpts of code into that file.

    python -m docs.walkthrough            writes them anew
    python -m docs.walkthrough --check    says whether the file is up to date; exit 1 if not

A block to fill is a comment and the fence that follows it: `<!-- output: NAME -->`, from the function NAME here, or
`<!-- code: FILE NAME -->`, the function, method or class NAME of that file without its docstring.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from envs import load_suite
from prover_mini.chat import Chat
from prover_mini.config import parse
from prover_mini.credit import METHODS, batch, eligible, outcome_credit
from prover_mini.engine import Engine
from prover_mini.judge import JUDGES
from prover_mini.model import load_policy, policy_path
from prover_mini.parallel import Replicate
from prover_mini.rollout import Player
from prover_mini.stopping import null_rate
from prover_mini.trajectory import Trajectory
from prover_mini.update import Learner, token_advantages
from prover_mini.verify import verify
from train import tasks_of_step

ROOT = Path(__file__).parent.parent
TEXT = ROOT / "docs" / "walkthrough.md"
BLOCK = re.compile(r"(<!-- (output|code): (.+?) -->\n```\w*\n)(.*?)(```)", re.DOTALL)


@cache
def step() -> SimpleNamespace:
    """Step 1 of `python train.py --env searchqa`, as train.py does it, with everything kept."""
    torch.set_num_threads(1)
    config, _ = parse(["--env", "searchqa"])
    model, tokenizer = load_policy(policy_path(config), config.dtype, torch.device("cpu"))
    suite = load_suite(config.env, config)
    engine = Engine(model, config.slots, config.max_context_tokens)
    chat = Chat(tokenizer, suite.instructions, config.max_observation_tokens)
    player, learner = Player(engine, chat, suite, config), Learner(Replicate(model), engine, config)
    tasks = tasks_of_step(suite.tasks("train"), 1, config)
    groups = player.rollouts(tasks, 1, [config.group_size] * len(tasks), keep_states=True)
    candidates = [g for g in groups if eligible(g, config.max_successes)]
    answers = JUDGES[config.judge](config).propose(candidates, 1)
    branches: list[list[Trajectory]] = []
    play = player.continuations
    player.continuations = lambda *places: branches.extend(play(*places)) or branches
    verification = verify(player, [answer for answer in answers if answer], config)
    verdict = max(verification.verdicts, key=lambda v: (v.delta, -len(v.segment.trajectory.turns)))
    n = [v.segment for v in verification.verdicts].index(verdict.segment)
    group = next(g for g in groups if verdict.segment.trajectory in g.trajectories)
    credit = METHODS["prover"].credit(groups, [], verification.verdicts, config)
    plain = outcome_credit(groups, config)
    streams = [token_advantages(batch(groups), table) for table in (plain, credit)]
    return SimpleNamespace(
        config=config, chat=chat, groups=groups, candidates=candidates, verification=verification, group=group,
        verdict=verdict, before=branches[2 * n], after=branches[2 * n + 1], row=batch(groups).index(group.reference),
        credit=credit, streams=streams, metrics=learner.update(groups, credit, 1),
    )  # fmt: skip


def lines(*rows: str) -> str:
    return "".join(f"{row.rstrip()}\n" for row in rows)


def result(trajectory: Trajectory) -> str:
    return "success" if trajectory.success else "failure"


def actions(trajectory: Trajectory, first: int = 0) -> str:
    return "  ".join(turn.action for turn in trajectory.turns[first:])


def step_counts() -> str:
    s = step()
    return lines(
        f"{len(s.groups)} groups of {s.config.group_size}",
        "successes per group  " + " ".join(str(len(g.successes)) for g in s.groups),
        f"eligible             {len(s.candidates)}, those with 1 to {s.config.max_successes} successes",
        f"policy tokens        {sum(t.policy_tokens for g in s.groups for t in g.trajectories)}",
    )


def group() -> str:
    s = step()
    rows = [f"{t.sample}  {result(t)}  {actions(t)}" for t in s.group.trajectories]
    return lines(s.group.trajectories[0].turns[0].observation, "", *rows)


def tokens() -> str:
    """The reference as the trainer sees it: runs of tokens with one turn id."""
    s = step()
    rows, at = ["positions  turn  tokens"], 0
    for turn, run in groupby(s.group.reference.turn_ids):
        n = len(list(run))
        text = s.chat.tokenizer.decode(s.group.reference.ids[at : at + n])
        rows.append(f"{at:4} {at + n - 1:4}  {turn:4}  {text!r}")
        at += n
    return lines(*rows)


def proposal() -> str:
    segment = step().verdict.segment
    turn = segment.trajectory.turns[segment.first_turn]
    return lines(
        f"turns {segment.first_turn} to {segment.last_turn} of sample {segment.trajectory.sample}: {segment.reason}",
        f"  it saw      {turn.observation!r}",
        f"  it did      {turn.action}",
        f"  it got      {segment.trajectory.turns[segment.last_turn + 1].observation!r}",
    )


def boundaries() -> str:
    segment = step().verdict.segment
    places = {"before": segment.first_turn, "after": segment.last_turn + 1}
    turns = {name: segment.trajectory.turns[n] for name, n in places.items()}
    return lines(
        *(
            f"{name:6}  {turn.start:3} tokens of context, {turn.engine_state.nbytes / 1024:5.1f} KiB of engine state"
            for name, turn in turns.items()
        )
    )


def continuations() -> str:
    s = step()
    segment, rows = s.verdict.segment, []
    for name, branches, first in (("before", s.before, segment.first_turn), ("after", s.after, segment.last_turn + 1)):
        rows += [name, *(f"  {result(t)}  {actions(t, first)}" for t in branches)]
    v = s.verdict
    return lines(
        *rows,
        "",
        f"delta = {sum(v.post):.0f}/{len(v.post)} - {sum(v.pre):.0f}/{len(v.pre)} = {v.delta:.3f}",
        f"a segment without any effect would be accepted with chance {null_rate(v, s.config):.2f}",
    )


def tables() -> str:
    s = step()
    turns = len(s.group.reference.turns)
    return lines(
        f"advantage_B[{s.row}]        {s.credit.advantage_B[s.row]:+.3f}",
        f"credit_BN[{s.row}, :{turns}]     " + "  ".join(f"{x:+.3f}" for x in s.credit.credit_BN[s.row, :turns]),
    )


def stream() -> str:
    s = step()
    before, after = (stream[s.row].tolist() for stream in s.streams)
    rows, at = ["turn  tokens  GRPO    ProVer"], 0
    for turn, run in groupby(s.group.reference.turn_ids):
        n = len(list(run))
        assert len(set(before[at : at + n])) == len(set(after[at : at + n])) == 1
        rows.append(f"{turn:4}  {n:6}  {before[at]:+.3f}  {after[at]:+.3f}")
        at += n
    return lines(*rows)


def update() -> str:
    m = step().metrics
    return lines(
        f"policy tokens with an advantage          {m['tokens/train']:.0f}",
        f"loss                                     {m['loss/policy']:+.4f}",
        f"gradient norm before scaling             {m['grad_norm']:.3f}",
        f"share of clipped ratios                  {m['clip_frac']:.3f}",
        f"largest |trainer - sampler| log-prob     {'below 1e-4' if m['mismatch_max'] < 1e-4 else m['mismatch_max']}",
    )


OUTPUTS: dict[str, Callable[[], str]] = {
    f.__name__: f
    for f in (step_counts, group, tokens, proposal, boundaries, continuations, tables, stream, update)
}


def source(file: str, name: str) -> str:
    """The lines of a function, method (`Class.method`) or class, without its docstring."""
    text = (ROOT / file).read_text()
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        node = next(n for n in node.body if getattr(n, "name", "") == part)
    first, last, rows = node.lineno, node.end_lineno, text.splitlines()
    docstring = node.body[0] if ast.get_docstring(node) is not None else None
    gone = range(docstring.lineno, docstring.end_lineno + 1) if docstring else ()
    kept = [rows[n - 1] for n in range(first, last + 1) if n not in gone]
    indent = len(kept[0]) - len(kept[0].lstrip())
    return lines(*(row[indent:] for row in kept))


def filled(text: str) -> str:
    """The text with every block made anew."""

    def fill(block: re.Match) -> str:
        opening, kind, name, _, fence = block.groups()
        return opening + (OUTPUTS[name]() if kind == "output" else source(*name.split())) + fence

    return BLOCK.sub(fill, text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.walkthrough", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is out of date")
    check, old = parser.parse_args().check, TEXT.read_text()
    new = filled(old)
    if check:
        print(f"{TEXT.name} is {'up to date' if new == old else 'out of date: python -m docs.walkthrough'}")
        return int(new != old)
    TEXT.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
