"""One step as records (rollouts/*.jsonl), one per trajectory: what a viewer needs to show where credit went.

Every turn has `credit`, what the method added to the trajectory's `advantage` there; every policy token of the turn was
trained with their sum. In some groups of a step (`record_groups`) the turns also hold

    context     text of the masked tokens before the turn, chat template included
    tokens      the turn's policy tokens, text of each; "" where a character goes on in the next token
    logprobs    the sampler's log-prob of each, 4 decimals
    gaps        the trainer's log-prob minus the sampler's, 2 digits; null for a trajectory that the loss left out
"""

from __future__ import annotations

from prover_mini import distributed
from prover_mini.chat import Chat
from prover_mini.credit import Credit, batch
from prover_mini.files import finite
from prover_mini.trajectory import Group, Segment, Trajectory, Verdict


def records(
    groups: list[Group], credit: Credit, segments: list[Segment], verdicts: list[Verdict], chat: Chat, detailed: int
) -> list[dict]:
    """The records of all ranks, in group order; `detailed` groups of the step, over all ranks, hold their tokens."""
    rows = {id(t): row for row, t in enumerate(batch(groups))}
    proposed = {id(s.trajectory): segment_record(s, None) for s in segments}
    proposed |= {id(v.segment.trajectory): segment_record(v.segment, v) for v in verdicts}
    chosen = detailed_groups(groups, segments, detailed)
    mine = []
    for g in groups:
        for t in g.trajectories:
            row = rows.get(id(t))
            turns = [turn_record(turn) for turn in t.turns]
            for n, turn in enumerate(turns):
                turn["credit"] = None if row is None else credit.credit_BN[row, n].item()
            if g.index in chosen:
                for turn, tokens in zip(turns, token_records(t, chat)):
                    turn |= tokens
            mine.append({
                "task_id": g.task.id,
                "kind": g.task.kind,
                "group": g.index,
                "sample": t.sample,
                "reward": t.reward,
                "success": t.success,
                "score": t.score,
                "truncated": t.truncated,
                "error": t.error or None,
                "turns": turns,
                "advantage": None if row is None else credit.advantage_B[row].item(),
                "segment": proposed.get(id(t)),
            })  # fmt: skip
    return sorted((r for part in distributed.gather(mine) for r in part), key=lambda r: (r["group"], r["sample"]))


def turn_record(turn) -> dict:
    return {
        "observation": turn.observation,
        "action": turn.action,
        "valid": turn.valid,
        "token_span": [turn.start, turn.end],
    }


def segment_record(segment: Segment, verdict: Verdict | None) -> dict:
    """A proposed segment; its outcome fields are null where it was not verified."""
    return {
        "first_turn": segment.first_turn,
        "last_turn": segment.last_turn,
        "reason": segment.reason,
        "pre": verdict.pre if verdict else None,
        "post": verdict.post if verdict else None,
        "delta": verdict.delta if verdict else None,
        "accepted": verdict.accepted if verdict else None,
    }


def detailed_groups(groups: list[Group], segments: list[Segment], limit: int) -> set[int]:
    """Indices of the `limit` groups of the whole step that are recorded by token: those with a segment come first."""
    holders = {id(s.trajectory) for s in segments}
    mine = [(not any(id(t) in holders for t in g.trajectories), g.index) for g in groups]
    return {index for _, index in sorted(x for part in distributed.gather(mine) for x in part)[:limit]}


def token_records(trajectory: Trajectory, chat: Chat) -> list[dict]:
    """The token fields of each turn."""
    t, end, trained = trajectory, 0, 0
    trainer = None if t.trainer_logprobs is None else t.trainer_logprobs.tolist()
    out = []
    for turn in t.turns:
        ids, sampler = t.ids[turn.start : turn.end], t.logprobs[turn.start : turn.end]
        gaps = None
        if trainer is not None:
            gaps = [finite(float(f"{a - b:.1e}")) for a, b in zip(trainer[trained:], sampler)]
        out.append({
            "context": chat.tokenizer.decode(t.ids[end : turn.start]),
            "tokens": chat.pieces(ids),
            "logprobs": [finite(round(x, 4) + 0.0) for x in sampler],
            "gaps": gaps,
        })  # fmt: skip
        end, trained = turn.end, trained + len(ids)
    return out
