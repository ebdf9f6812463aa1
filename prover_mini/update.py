"""The policy update: token advantages, log-probs of the policy tokens, clipped loss, one optimizer step.

    loss = (1 / Z) sum over policy tokens of the clipped surrogate (kernels/grpo_loss.py)

Z is one number for the whole optimizer step (policy tokens, or trajectories), summed over ranks before the first
micro-batch, so the gradient does not depend on how trajectories are cut into micro-batches or spread over ranks.
The transformer runs on padded, length-sorted micro-batches; the LM head runs on policy tokens only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from kernels.grpo_loss import grpo_loss
from kernels.segment_advantage import segment_advantage
from prover_mini import distributed
from prover_mini.balance import shared
from prover_mini.config import Config
from prover_mini.credit import Credit, batch
from prover_mini.errors import SharedError, UserError, first_line
from prover_mini.importance import importance_weight
from prover_mini.parallel import Replicate, Shard
from prover_mini.trajectory import OFF_POLICY, Group, Trajectory


def token_advantages(trajectories: list[Trajectory], credit: Credit, device="cpu") -> list[torch.Tensor]:
    """The advantage stream of each trajectory, one value per token, float32; 0 on tokens that carry no loss."""
    lengths = [len(t.ids) for t in trajectories]
    offsets_B1 = torch.tensor([0, *lengths], device=device).cumsum(0)
    turn_ids_T = torch.tensor([turn for t in trajectories for turn in t.turn_ids], dtype=torch.int32, device=device)
    advantage_B, credit_BN = credit.advantage_B.float().to(device), credit.credit_BN.float().to(device)
    return list(segment_advantage(advantage_B, credit_BN, offsets_B1, turn_ids_T).cpu().split(lengths))


@dataclass
class Row:
    """A trajectory as the loss sees it: only its policy tokens, each predicted at position `before` = its own - 1."""

    ids: torch.Tensor
    before: torch.Tensor
    targets: torch.Tensor
    advantage: torch.Tensor
    sampler_logprob: torch.Tensor
    old_logprob: torch.Tensor | None = None

    @staticmethod
    def of(trajectory: Trajectory, advantage: torch.Tensor) -> Row:
        ids = torch.tensor(trajectory.ids)
        at = torch.tensor(trajectory.turn_ids).ne(OFF_POLICY).nonzero()[:, 0]
        logprobs = torch.tensor(trajectory.logprobs, dtype=torch.float32)
        return Row(ids, at - 1, ids[at], advantage[at], logprobs[at])


class Learner:
    """Trains the weights: owns their optimizer and the schedule.

    The optimizer works on the weights' float32 masters: steps of a usual size are below the resolution of bfloat16 and
    would be lost in it one by one.

    Args:
        weights: `Replicate` or `Shard` of a model.
        engine: the rollout engine on the same weights; its states die in the function that changes them.
        reference: the weights of the starting policy, for the KL; None when `kl_coef` is 0.
    """

    def __init__(self, weights: Replicate | Shard, engine, config: Config, reference: Replicate | Shard | None = None):
        self.weights, self.engine, self.config, self.reference = weights, engine, config, reference
        self.optimizer = torch.optim.AdamW(
            weights.masters, lr=config.lr, betas=(0.9, config.adam_beta2), weight_decay=config.weight_decay
        )
        self.device = engine.device

    def update(self, groups: list[Group], credit: Credit, step: int) -> dict[str, float]:
        """Trains on this rank's groups; returns metrics of the whole step, equal on every rank.

        `update/applied` is 0 if an optimizer step was skipped because its loss or gradient was not finite.
        """
        trajectories = batch(groups)
        rows = self._rows(groups, credit)
        cut = self.config.minibatches / self.config.groups_per_step  # consecutive groups, which ranks share evenly
        part_of = {id(t): int(g.index * cut) for g in groups for t in g.trajectories}
        with self._training():
            if self.config.minibatches > 1:
                self._remember_old_logprobs(rows)
            sums = [
                self._optimizer_step([row for row, t in zip(rows, trajectories) if part_of[id(t)] == part], step)
                for part in range(self.config.minibatches)
            ]
        for row, t in zip(rows, trajectories):
            t.trainer_logprobs = row.old_logprob
        return metrics(sums)

    def gradient(self, groups: list[Group], credit: Credit) -> torch.Tensor:
        """What one optimizer step on all these groups would follow: flat, float32, summed over ranks, before it is
        scaled down to `max_grad_norm`; of shards, this rank's. The weights stay. Needs `minibatches` 1."""
        with self._training():
            return self._gradient(self._rows(groups, credit))[0]

    @contextmanager
    def _training(self) -> Iterator[None]:
        self.weights.scatter()
        self.weights.model.train()
        yield
        self.weights.model.eval()
        self.weights.gather()
        if self.reference:
            self.reference.scatter()

    def _rows(self, groups: list[Group], credit: Credit) -> list[Row]:
        trajectories = batch(groups)
        return [Row.of(t, a) for t, a in zip(trajectories, token_advantages(trajectories, credit, self.device))]

    def _optimizer_step(self, rows: list[Row], step: int) -> dict[str, float]:
        """One step of AdamW on the gradient summed over all ranks, or none if it is not finite."""
        gradient, sums = self._gradient(rows)
        norm = self.weights.norm(gradient)
        applied = math.isfinite(norm) and math.isfinite(sums["loss"])
        if applied and sums["denominator"]:
            self._apply(gradient.mul_(min(1.0, self.config.max_grad_norm / (norm + 1e-6))), step)
        return {**sums, "grad_norm": norm, "applied": float(applied)}

    def _gradient(self, rows: list[Row]) -> tuple[torch.Tensor, dict[str, float]]:
        """The flat gradient of the loss, and the sums behind the metrics, over all ranks."""
        c = self.config
        sizes = torch.tensor([sum(len(r.targets) for r in rows), len(rows)], dtype=torch.float64)
        tokens, trajectories = distributed.sum_(sizes).tolist()
        denominator = {
            "token_mean": tokens,
            "seq_mean_token_mean": trajectories,
            "constant": trajectories * c.max_turns * c.max_turn_tokens,
        }[c.aggregation]
        learning = [r for r in rows if len(r.targets) and (c.kl_coef or r.advantage.any())]
        with shared(learning) as mine:
            sums = self._passes(mine, max(denominator, 1.0), c.micro_batch)
            repeated = not all(distributed.gather(sums is not None))
            if repeated:
                sums = self._repeat(mine, max(denominator, 1.0))
        gradient = self.weights.gradient()
        values = torch.tensor([sums[name] for name in SUMS], dtype=torch.float64)
        reduced = dict(zip(SUMS, distributed.sum_(values).tolist()))
        largest_gap = max(distributed.gather(sums["mismatch_max"]))
        reduced |= {"denominator": denominator, "mismatch_max": largest_gap, "out_of_memory": float(repeated)}
        return gradient, reduced

    def _passes(self, rows: list[Row], denominator: float, size: int) -> Counter[str] | None:
        """Forward and backward passes over rows, `size` at a time; the sums behind the metrics. None if memory ran out.

        Raises UserError for that where weights are sharded: the other ranks wait for this one inside their passes.
        """
        chunks = micro_batches(rows, size)
        idle = self.weights.passes(len(chunks)) - len(chunks)
        total: Counter[str] = Counter(mismatch_max=0.0)
        try:
            for chunk in chunks:
                loss, stats = self._loss(chunk, denominator)
                loss.backward()
                largest_gap = max(total.pop("mismatch_max"), stats.pop("mismatch_max"))
                total.update({"loss": loss.item(), "mismatch_max": largest_gap, **stats})
            for _ in range(idle):
                (self._loss([idle_row()], 1.0)[0] * 0.0).backward()
            return total
        except torch.OutOfMemoryError as error:
            if self.weights.sharded:
                raise UserError(out_of_memory(size, error)) from None
            return None

    def _repeat(self, rows: list[Row], denominator: float) -> Counter[str]:
        """The same passes anew on all ranks, once, with half the micro-batch, after one of them had no memory left."""
        self.weights.discard()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        size = max(self.config.micro_batch // 2, 1)
        sums = self._passes(rows, denominator, size)
        if not all(distributed.gather(sums is not None)):
            raise SharedError(out_of_memory(size))
        return sums

    @torch.no_grad()
    def _apply(self, gradient: torch.Tensor, step: int) -> None:
        """The only place where weights change; cached engine states of the old weights die here."""
        offset = 0
        for master in self.weights.masters:
            master.grad = gradient[offset : offset + master.numel()].view_as(master)
            offset += master.numel()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.weights.publish()
        self.engine.weights_changed()

    def _loss(self, rows: list[Row], denominator: float) -> tuple[torch.Tensor, dict[str, float]]:
        """Summed loss of one micro-batch over the step's denominator, and sums for the metrics."""
        c = self.config
        out = self._logprobs(self.weights, rows, entropy=True)
        sampler_T = torch.cat([r.sampler_logprob for r in rows]).to(self.device)
        if c.minibatches == 1:
            remember(out.logprob_N.detach(), rows)
        old_T = torch.cat([r.old_logprob for r in rows]).to(self.device)
        advantage_T = torch.cat([r.advantage for r in rows]).to(self.device)
        cu_seqlens_B1 = torch.tensor([0, *(len(r.targets) for r in rows)], device=self.device).cumsum(0)
        mask_T = torch.ones_like(advantage_T, dtype=torch.bool)
        reference_T = weight_T = None
        if c.kl_coef:
            with torch.no_grad():
                reference_T = self._logprobs(self.reference, rows).logprob_N
        if c.importance_cap:
            weight_T = importance_weight(old_T, sampler_T, mask_T, cu_seqlens_B1, high=c.importance_cap)
        loss, stats = grpo_loss(
            out.logprob_N, old_T, advantage_T, cu_seqlens_B1, mask_T,
            denominator=denominator, clip_low=c.clip_low, clip_high=c.clip_high, dual_clip=c.dual_clip or None,
            level=c.loss_level, aggregation=c.aggregation,
            ref_logprob_T=reference_T, kl_coef=c.kl_coef, kl=c.kl_estimator, kl_max=math.inf, weight_T=weight_T,
        )  # fmt: skip
        gap_T = (old_T - sampler_T).double()
        sums = {
            "trained": stats.tokens, "clipped": stats.clipped_low + stats.clipped_high, "kl": stats.kl_sum,
            "entropy": out.entropy_N.detach().sum(), "mismatch": (gap_T.exp() - gap_T - 1).sum(),
            "mismatch_max": gap_T.abs().max(),
        }  # fmt: skip
        sums = {name: value.item() for name, value in sums.items()}
        return loss, sums

    def _logprobs(self, weights: Replicate | Shard, rows: list[Row], entropy: bool = False):
        """Log-probs (and entropies) of the policy tokens of all rows, packed [T]."""
        longest = max(len(r.ids) for r in rows)
        ids_BT = torch.zeros(len(rows), longest, dtype=torch.long)
        for b, row in enumerate(rows):
            ids_BT[b, : len(row.ids)] = row.ids
        at_N = torch.cat([row.before + b * longest for b, row in enumerate(rows)])
        targets_N = torch.cat([row.targets for row in rows])
        inputs = (x.to(self.device) for x in (ids_BT, at_N, targets_N))
        return weights.logprobs(*inputs, self.config.temperature, entropy=entropy)

    @torch.no_grad()
    def _remember_old_logprobs(self, rows: list[Row]) -> None:
        """Log-probs under the weights that sampled, as the trainer computes them: the ratio's denominator."""
        chunks = micro_batches([r for r in rows if len(r.targets)], self.config.micro_batch)
        idle = self.weights.passes(len(chunks)) - len(chunks)
        for chunk in chunks:
            remember(self._logprobs(self.weights, chunk).logprob_N, chunk)
        for _ in range(idle):
            self._logprobs(self.weights, [idle_row()])


def out_of_memory(size: int, error: Exception | None = None) -> str:
    reason = f" ({first_line(error)})" if error else ""
    return f"the update ran out of memory with {size} trajectories at a time{reason}: lower --micro-batch or --slots"


def idle_row() -> Row:
    """What a rank without a micro-batch sends through the model while the others, whose weights it holds, have one."""
    zero = torch.zeros(1)
    return Row(torch.zeros(2, dtype=torch.long), *torch.zeros(2, 1, dtype=torch.long), zero, zero, zero)


def remember(logprob_T: torch.Tensor, rows: list[Row]) -> None:
    """Gives each row its part of the packed log-probs."""
    for row, part in zip(rows, logprob_T.split([len(r.targets) for r in rows])):
        row.old_logprob = part


SUMS = ("loss", "trained", "clipped", "kl", "entropy", "mismatch")


def metrics(sums: list[dict[str, float]]) -> dict[str, float]:
    """The optimizer steps of one training step as metrics; means are over the tokens that were trained on."""
    total: Counter[str] = Counter()
    for part in sums:
        total.update(part)
    trained = max(total["trained"], 1.0)
    return {
        "loss/policy": total["loss"] / len(sums),
        "grad_norm": total["grad_norm"] / len(sums),
        "clip_frac": total["clipped"] / trained,
        "kl": total["kl"] / trained,
        "entropy": total["entropy"] / trained,
        "mismatch_kl": total["mismatch"] / trained,
        "mismatch_max": max(part["mismatch_max"] for part in sums),
        "tokens/train": total["trained"],
        "update/applied": float(total["applied"] == len(sums)),
        "update/out_of_memory": total["out_of_memory"],
    }


def micro_batches(rows: list[Row], size: int) -> list[list[Row]]:
    """Rows of similar length together, at most `size` of them."""
    ordered = sorted(rows, key=lambda r: len(r.ids))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def learning_rate(config: Config, step: int) -> float:
    """The rate of update `step` (from 1): linear warm-up, then the schedule down to 0 at the last step."""
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    progress = (step - 1 - config.warmup_steps) / max(config.steps - config.warmup_steps, 1)
    scale = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
    }[config.lr_schedule]
    return config.lr * scale
