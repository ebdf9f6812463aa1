"""One step as numbers (metrics.jsonl), over all ranks."""

from __future__ import annotations

from collections import Counter

from prover_mini import distributed
from prover_mini.config import Config
from prover_mini.judge import Answer, Usage
from prover_mini.judge.base import FAILURES
from prover_mini.stopping import null_rate
from prover_mini.summary import PHASES
from prover_mini.trajectory import Group, Segment
from prover_mini.verify import Verification


def step_sums(
    groups: list[Group],
    candidates: list[Group],
    answers: list[Answer],
    usage: Usage,
    verification: Verification,
    extra_tokens: int,
    config: Config,
) -> Counter:
    """This rank's counts of one step; counts of ranks add up.

    `candidates` are the eligible groups. What `budget_matched` added to them, hard tasks all, is left out of the rates,
    so that these mean the same in every run; only its tokens are counted, as `extra_tokens`.
    """
    trajectories = [t for g in groups for t in g.trajectories[: config.group_size]]
    healthy = [t for t in trajectories if not t.error]
    turns = [turn for t in healthy for turn in t.turns]
    accepted = [v for v in verification.verdicts if v.accepted]
    return Counter(
        trajectories=len(trajectories),
        healthy=len(healthy),
        reward=sum(t.reward for t in healthy),
        successes=sum(t.success for t in healthy),
        score=sum(t.score for t in healthy),
        truncated=sum(t.truncated for t in healthy),
        turns=len(turns),
        invalid=sum(not turn.valid for turn in turns),
        groups=len(groups),
        equal=sum(len({t.reward for t in g.healthy}) < 2 for g in groups),
        rollout_tokens=sum(t.policy_tokens for t in trajectories),
        extra_tokens=extra_tokens,
        continuation_tokens=verification.sampled,
        reused=verification.reused,
        computed=verification.computed,
        moved=verification.moved,
        eligible=len(candidates),
        proposed=sum(isinstance(a, Segment) for a in answers),
        judge_calls=usage.calls,
        **{FAILURES + reason.replace(" ", "_"): n for reason, n in usage.failures.items()},
        judge_prompt=usage.prompt_tokens,
        judge_reply=usage.reply_tokens,
        verified=len(verification.verdicts),
        accepted=len(accepted),
        delta=sum(v.delta for v in verification.verdicts),
        null=sum(null_rate(v, config) for v in verification.verdicts),
        bonus_tokens=sum(
            turn.end - turn.start
            for v in accepted
            for turn in v.segment.trajectory.turns[v.segment.first_turn : v.segment.last_turn + 1]
        ),
    )


def step_metrics(step: int, sums: Counter, update: dict[str, float], times: dict[str, float]) -> dict:
    """The metrics line of one step from this rank's counts, equal on every rank.

    The time of a phase is the slowest rank's; waiting for it is part of the next phase that ranks share. CPU seconds
    are those of all ranks, without evaluations. Ratios of counts that may be 0 are 0 then. Evaluation fields are filled
    by the caller where there was one.
    """
    s: Counter = Counter()
    for part in distributed.gather(sums):
        s.update(part)

    def per(value: str, unit: str) -> float:
        return s[value] / s[unit] if s[unit] else 0.0

    clocks = distributed.gather(times)
    phases = {f"time/{name}": max(clock.get(name, 0.0) for clock in clocks) for name in PHASES}
    return {
        "step": step,
        "reward/mean": per("reward", "healthy"),
        "success_rate": per("successes", "healthy"),
        "score/mean": per("score", "healthy"),
        "frac_zero_std": per("equal", "groups"),
        **update,
        "turns/mean": per("turns", "healthy"),
        "tokens/rollout": s["rollout_tokens"],
        "tokens/extra_rollout": s["extra_tokens"],
        "tokens/continuation": s["continuation_tokens"],
        "env/error_rate": 1 - s["healthy"] / s["trajectories"],
        "env/truncated_rate": per("truncated", "healthy"),
        "env/invalid_action_rate": per("invalid", "turns"),
        "judge/calls": s["judge_calls"],
        "judge/failures": sum(n for name, n in s.items() if name.startswith(FAILURES)),
        **{name: n for name, n in sorted(s.items()) if name.startswith(FAILURES)},
        "judge/prompt_tokens": s["judge_prompt"],
        "judge/reply_tokens": s["judge_reply"],
        "prover/eligible": s["eligible"],
        "prover/proposed": s["proposed"],
        "prover/verified": s["verified"],
        "prover/accepted": s["accepted"],
        "prover/null_rate": per("null", "verified"),
        "prover/delta_mean": per("delta", "verified"),
        "prover/bonus_tokens": s["bonus_tokens"],
        "prover/prefix_tokens_reused": s["reused"],
        "prover/prefix_tokens_computed": s["computed"],
        "prover/boundaries_moved": s["moved"],
        **phases,
        "time/total": max(sum(clock.get(name, 0.0) for name in PHASES) for clock in clocks),
        "time/idle": sum(clock.get("idle", 0.0) for clock in clocks) / len(clocks),
        "time/cpu": sum(clock.get("cpu", 0.0) for clock in clocks),
        "eval/success_rate": None,
        "eval/n": None,
        "eval/ci95": None,
    }
