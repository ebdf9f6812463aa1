"""Credit: from rewards and verified segments to a per-trajectory advantage [B] and a per-turn credit [B, N].

    GRPO      A_i = R_i - mean_j R_j                                (`advantage_std`: divided by std + 1e-6, ddof 1)
    ProVer    token of turn t of trajectory i gets  A_i + C[i, t],  C[i, l..r] = lambda * delta  where delta > 0

Every method of this family fills these two tables and nothing else; the kernel `segment_advantage` turns them into the
token stream. A method is one function with an entry in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kernels.segment_advantage import credit_table
from prover_mini.config import Config
from prover_mini.trajectory import Group, Segment, Trajectory, Verdict

STD_EPS = 1e-6


def group_advantage(rewards: list[float], divide_by_std: bool = False, eps: float = STD_EPS) -> list[float]:
    """GRPO's outcome advantage of one group, in float64; `eps` is the floor under std (verl 1e-6, TRL 1e-4).

    A group of one has no baseline: mean 0 and std 1 are used, as verl does (the trainer leaves such groups out).
    Source: Shao et al., DeepSeekMath, 2024; without the division: Liu et al., Dr. GRPO, 2025.
    """
    r = np.asarray(rewards, dtype=np.float64)
    mean, std = (r.mean(), r.std(ddof=1)) if len(r) > 1 else (0.0, 1.0)
    return ((r - mean) / (std + eps) if divide_by_std else r - mean).tolist()


def rloo_advantage(rewards: list[float]) -> list[float]:
    """Leave-one-out: R_i minus the mean of the others; a group of one keeps its reward. Ahmadian et al., 2024."""
    r = np.asarray(rewards, dtype=np.float64)
    return (r - (r.sum() - r) / max(len(r) - 1, 1)).tolist() if len(r) > 1 else r.tolist()


def eligible(group: Group, max_successes: int) -> bool:
    """Mixed outcomes with at most `max_successes` successes: the groups in which a segment is sought."""
    return group.mixed and len(group.successes) <= max_successes


def segment_error(trajectory: Trajectory, first_turn: int, last_turn: int, max_turns: int) -> str:
    """Why turns first..last may not be credited: "" when they may, else bounds, length, terminal or invalid action."""
    horizon = len(trajectory.turns)
    if not 0 <= first_turn <= last_turn < horizon:
        return "bounds"
    if last_turn - first_turn + 1 > max_turns:
        return "length"
    if last_turn == horizon - 1:
        return "terminal"
    if not all(turn.valid for turn in trajectory.turns[first_turn : last_turn + 1]):
        return "invalid action"
    return ""


def valid_segments(trajectory: Trajectory, max_turns: int) -> list[tuple[int, int]]:
    """All (first, last) that may be credited."""
    horizon = len(trajectory.turns)
    return [
        (first, last)
        for first in range(horizon)
        for last in range(first, min(first + max_turns, horizon))
        if not segment_error(trajectory, first, last, max_turns)
    ]


def first_creditable(trajectory: Trajectory, spans: list[tuple[int, int]], max_turns: int) -> tuple[int, int] | None:
    """The first (first, last) of `spans` that may be credited."""
    return next((span for span in spans if not segment_error(trajectory, *span, max_turns)), None)


@dataclass(frozen=True)
class Credit:
    """Rows in the order of `batch(groups)`: advantage_B [B] and credit_BN [B, longest horizon], float64."""

    advantage_B: torch.Tensor
    credit_BN: torch.Tensor


def batch(groups: list[Group]) -> list[Trajectory]:
    """The trajectories that are trained on: healthy ones with at least one healthy companion."""
    return [t for g in groups for t in g.healthy if len(g.healthy) > 1]


def outcome_credit(groups: list[Group], config: Config) -> Credit:
    """GRPO alone: the group advantage; turn credit only where the invalid-action penalty is switched on."""
    rows = batch(groups)
    advantages = [
        a
        for g in groups
        if len(g.healthy) > 1
        for a in group_advantage([t.reward for t in g.healthy], config.advantage_std)
    ]
    horizon = max((len(t.turns) for t in rows), default=1)
    credit_BN = torch.zeros(len(rows), max(horizon, 1), dtype=torch.float64)
    for row, trajectory in enumerate(rows):
        for n, turn in enumerate(trajectory.turns):
            credit_BN[row, n] -= 0.0 if turn.valid else config.invalid_penalty
    return Credit(torch.tensor(advantages, dtype=torch.float64), credit_BN)


def add_bonuses(credit: Credit, groups: list[Group], bonuses: list[tuple[Segment, float]], config: Config) -> None:
    """Adds each bonus to the turns of its segment; `credit_std` divides it like the group's advantages."""
    rows = {id(t): row for row, t in enumerate(batch(groups))}
    group_of = {id(t): g for g in groups for t in g.trajectories}
    values = [bonus for _, bonus in bonuses]
    if config.credit_std:
        spreads = [np.std([t.reward for t in group_of[id(s.trajectory)].healthy], ddof=1) for s, _ in bonuses]
        values = [bonus / (float(std) + STD_EPS) for bonus, std in zip(values, spreads)]
    segments = [segment for segment, _ in bonuses]
    credit.credit_BN.add_(
        credit_table(
            [rows[id(s.trajectory)] for s in segments],
            [s.first_turn for s in segments],
            [s.last_turn for s in segments],
            values,
            *credit.credit_BN.shape,
            dtype=credit.credit_BN.dtype,
        )
    )


def grpo(groups: list[Group], segments: list[Segment], verdicts: list[Verdict], config: Config) -> Credit:
    """No credit beyond the outcome."""
    return outcome_credit(groups, config)


def prover(groups: list[Group], segments: list[Segment], verdicts: list[Verdict], config: Config) -> Credit:
    """The method: lambda * delta on the turns of each segment whose verification raised the success rate."""
    credit = outcome_credit(groups, config)
    bonuses = [(v.segment, config.credit_weight * shrunk_delta(v, config.shrinkage)) for v in verdicts if v.accepted]
    add_bonuses(credit, groups, bonuses, config)
    return credit


def shrunk_delta(verdict: Verdict, shrinkage: float) -> float:
    """delta * max(0, 1 - shrinkage * V / delta^2), V the variance of delta; 0 shrinks nothing.

    Small deltas, which chance makes as often as effects do, vanish, large ones stay almost whole. V is estimated with
    one success and one failure more on each side, so that K equal outcomes are not taken for certainty.
    Sources: the positive-part estimator of James and Stein, 1961 (shrinkage 1); V: Agresti and Caffo, 2000.
    """
    if not shrinkage:
        return verdict.delta
    variance = 0.0
    for side in (verdict.pre, verdict.post):
        p = (sum(side) + 1) / (len(side) + 2)
        variance += p * (1 - p) / (len(side) + 2)
    return verdict.delta * max(0.0, 1.0 - shrinkage * variance / verdict.delta**2) if verdict.delta else 0.0


def judge_reward(groups: list[Group], segments: list[Segment], verdicts: list[Verdict], config: Config) -> Credit:
    """Control: the judge's word is believed; every proposed segment earns the fixed `judge_bonus`."""
    credit = outcome_credit(groups, config)
    add_bonuses(credit, groups, [(s, config.credit_weight * config.judge_bonus) for s in segments], config)
    return credit


@dataclass(frozen=True)
class Method:
    """A credit method and the evidence it needs: the judge's segments, and their verification."""

    credit: Callable[[list[Group], list[Segment], list[Verdict], Config], Credit]
    proposes: bool
    verifies: bool


METHODS = {
    "grpo": Method(grpo, proposes=False, verifies=False),
    "prover": Method(prover, proposes=True, verifies=True),
    "judge_reward": Method(judge_reward, proposes=True, verifies=False),
}
