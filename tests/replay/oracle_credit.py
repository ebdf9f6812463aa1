"""Outcome advantages against verl, verl-agent and TRL; ProVer's groups, segments and token streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from envs.base import Task
from kernels import segment_advantage
from prover_mini.config import Config
from prover_mini.credit import METHODS, eligible, group_advantage, rloo_advantage, segment_error
from prover_mini.trajectory import Group, Segment, Trajectory, Turn, Verdict
from tests.replay.report import Report


TASK = Task("t", "q", "", None)


def replay_outcome(data: Any, arrays: dict[str, np.ndarray], report: Report) -> None:
    functions = {
        "grpo_std": lambda rewards: group_advantage(rewards, True),
        "grpo_nostd": group_advantage,
        "rloo": rloo_advantage,
        "verl_agent_grpo_std": lambda rewards: group_advantage(rewards, True),
        "verl_agent_rloo": rloo_advantage,
    }
    for case in data["cases"]:
        for name, expected in case["expected"].items():
            if name not in functions:
                report.not_built[name] += 1
                continue
            got = _by_group(case["uid"], case["reward"], functions[name])
            report.case(f"{case['kind']} {name}", {"advantage": (got, expected)})
        if case.get("trl"):
            rewards, size = case["trl"]["rewards"], case["trl"]["group_size"]
            uids = [i // size for i in range(len(rewards))]
            got = _by_group(uids, rewards, group_advantage)
            report.case(f"{case['kind']} trl none", {"advantage": (got, case["trl"]["none"])})
            got = _by_group(uids, rewards, lambda rewards: group_advantage(rewards, True, eps=1e-4))
            report.case(f"{case['kind']} trl group", {"advantage": (got, case["trl"]["group"])})
            report.other_definition["TRL's scale batch divides by the std of all groups together"] += 1


def _by_group(uids: list, rewards: list[float], function: Any) -> list[float]:
    result = np.zeros(len(rewards))
    for uid in dict.fromkeys(uids):
        rows = [i for i, other in enumerate(uids) if other == uid]
        result[rows] = function([rewards[i] for i in rows])
    return result.tolist()


def replay_prover(data: Any, arrays: dict[str, np.ndarray], report: Report) -> None:
    for n, case in enumerate(data["segment_validation"]):
        trajectory = _trajectory(0, 1.0, case["horizon"], set(case["invalid_turns"]))
        reason = segment_error(trajectory, *case["segment"], max_turns=4)
        values = {"reason": (reason, case["reason"]), "ok": (not reason, bool(case["ok"]))}
        report.case(f"segment validation {n}", values)
    for case in data["cases"]:
        groups = [_group(n, group) for n, group in enumerate(case["groups"])]
        verdicts = [_verdict(group, proposal) for group, proposal in zip(groups, case["proposals"])]
        for group, verdict, expected in zip(groups, verdicts, case["expected"]["groups"]):
            reference = group.reference if group.mixed else None
            found = {
                "successes": len(group.successes),
                "mixed": group.mixed,
                "eligible_1to3": eligible(group, 3),
                "reference": None if reference is None else reference.sample,
                "delta": verdict.delta if verdict else None,
                "bonus_at_lambda_1": max(verdict.delta, 0.0) if verdict else 0.0,
            }
            values = {name: (value, expected[name]) for name, value in found.items()}
            report.case(f"{case['id']} group", values)
        _replay_streams(case, groups, verdicts, report)


def _replay_streams(case: dict, groups: list[Group], verdicts: list[Verdict | None], report: Report) -> None:
    turn_ids = [ids for group in case["groups"] for ids in group["turn_ids"]]
    cu_seqlens_B1 = torch.tensor(np.cumsum([0] + [len(ids) for ids in turn_ids]))
    turn_ids_T = torch.tensor([turn for ids in turn_ids for turn in ids])
    for key, streams in case["expected"]["advantages"].items():
        if isinstance(streams, str):
            streams = case["expected"]["advantages"][streams.removeprefix("=")]
        rule, norm, weight = (part.split("=")[1] for part in key.split("/"))
        if norm not in ("none", "std", "std_bonus_scaled"):
            report.not_built[f"norm {norm}"] += 1
            continue
        config = Config(
            credit="prover",
            credit_weight=float(weight),
            advantage_std=norm != "none",
            credit_std=norm == "std_bonus_scaled",
        )
        rows = max(len(group.trajectories) for group in groups)
        limit = 3 if rule == "1to3" else rows - 1
        accepted = [v for group, v in zip(groups, verdicts) if v is not None and eligible(group, limit)]
        credit = METHODS["prover"].credit(groups, [v.segment for v in accepted], accepted, config)
        stream_T = segment_advantage(credit.advantage_B, credit.credit_BN, cu_seqlens_B1, turn_ids_T)
        expected_T = np.concatenate([np.asarray(stream, dtype=np.float64) for stream in streams])
        report.case(f"{case['id']} {key}", {"stream": (stream_T.numpy(), expected_T)})


def _trajectory(sample: int, reward: float, horizon: int, invalid: set[int] = frozenset()) -> Trajectory:
    turns = [Turn(n, "", end=n + 1, valid=n not in invalid) for n in range(horizon)]
    return Trajectory(TASK, sample, seed=0, turns=turns, reward=reward)


def _group(index: int, stored: dict) -> Group:
    rows = zip(stored["rewards"], stored["horizons"])
    trajectories = [_trajectory(i, float(reward), horizon) for i, (reward, horizon) in enumerate(rows)]
    return Group(index, TASK, trajectories)


def _verdict(group: Group, proposal: dict | None) -> Verdict | None:
    if proposal is None or group.reference is None:
        return None
    first, last = proposal["segment"]
    pre, post = (list(map(float, proposal[side])) for side in ("pre", "post"))
    return Verdict(Segment(group.reference, first, last), pre, post)
