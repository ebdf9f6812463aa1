"""Gradient alignment: what a credit method adds to an update at a fixed policy, for the tokens that it costs.

Learning curves of few seeds hardly separate credit methods. At a fixed policy they can be compared on the same
rollouts: of n batches, each drawn as a training step draws it, batch i has the GRPO gradient G_i, a method's credit
adds w C_i, and

    change = mean_i [ cos(G_i + w C_i, R_i) - cos(G_i, R_i) ],     R_i = mean_(j != i) G_j

C_i is the gradient of what the method adds to GRPO's advantages: at ratio 1 the gradient is linear in them. R_i is the
other batches' estimate of the policy gradient, so credit that is biased shows as a loss, and only the paired change
means something: R_i is noisy, which scales all cosines down. Beside it stands what twice the rollouts give, averaged
over the partners k of i: cos(G_i + G_k, R_ik) - cos(G_i, R_ik), R_ik without both; it must come out positive, or there
are too few batches to resolve anything. The share of it that a method reaches, for the tokens that it costs, does not
depend on the noise of the reference.

Where one of the methods is called `random`, each of the others is compared with it too, batch by batch: what they
share of the reference's noise cancels.

Standard errors are jackknife ones over batches (Efron, 1981), which count the noise of the reference too. All of this
needs inner products alone, so gradients of large models are kept as count sketches: each coordinate is added to one of
`SKETCH` buckets with a random sign, which changes a cosine by about 1 / sqrt(SKETCH) (Charikar, Chen, Farach-Colton,
2002). Gradients of at most `SKETCH` coordinates are kept whole.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from envs import load_suite
from prover_mini import distributed, parallel
from prover_mini.chat import Chat
from prover_mini.config import Config, dashed
from prover_mini.credit import METHODS, Credit, eligible
from prover_mini.engine import Engine, self_check
from prover_mini.errors import UserError
from prover_mini.judge import JUDGES
from prover_mini.model import policy_path
from prover_mini.rollout import Player
from prover_mini.schedule import tasks_of_step
from prover_mini.stopping import null_rate
from prover_mini.trajectory import Group, Segment
from prover_mini.update import Learner
from prover_mini.verify import Verification, verify

CONTROL = "random"
SKETCH = 1 << 20
CHUNK = 1 << 24  # coordinates that are sketched at once

# what a method of an alignment may change; its rollouts and its loss are those of all
JUDGE = tuple(f.name for f in dataclasses.fields(Config) if f.name.startswith("judge"))
PROPOSAL = ("max_segment_turns", "max_successes", *JUDGE)
VERIFICATION = ("continuations", "sequential", "share_boundaries")
CREDIT = (*PROPOSAL, *VERIFICATION, "credit", "credit_weight", "credit_std", "shrinkage")


@dataclass
class Measured:
    """Gradients of the batches [n, D], as far as this rank has them alone, and what drawing them took; per method its
    C_i [n, D] and its counts over all ranks."""

    plain: list[torch.Tensor] = field(default_factory=list)
    added: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    counts: dict[str, Counter] = field(default_factory=dict)  # "" holds the rollouts' own


def measure(
    base: Config, methods: dict[str, Config], batches: int, say: Callable[[str], None], policy: str = ""
) -> Measured:
    """Draws the batches and their gradients.

    Args:
        base: environment, policy, batch size and loss. Batch i is what step i of its run would draw.
        methods: configurations that differ from `base` in what is credited, and how.
        policy: a directory with the weights, instead of those with which a run of `base` would start.

    Raises UserError for configurations that cannot be compared so.
    """
    check(base, methods)
    device = distributed.start(base.device, base.rank_timeout)
    suite = distributed.first(lambda: load_suite(base.env, base))
    weights, tokenizer = parallel.load(policy or policy_path(base), base, device)
    engine = Engine(weights.model, base.slots, base.max_context_tokens)
    self_check(engine)
    player = Player(engine, Chat(tokenizer, suite.instructions, base.max_observation_tokens), suite, base)
    learner = Learner(weights, engine, base)

    def gradient(groups: list[Group], credit: Credit) -> torch.Tensor:
        return sketch(weights.own(learner.gradient(groups, credit)))

    judges = {name: JUDGES[config.judge](config, player) for name, config in methods.items()}
    for name, config in methods.items():
        if METHODS[config.credit].proposes:
            distributed.first(judges[name].prepare)
    tasks, out = suite.tasks("train"), Measured()

    for step in range(1, batches + 1):
        mine = tasks_of_step(tasks, step, base)[distributed.rank() :: distributed.world()]
        keep = any(METHODS[config.credit].verifies for config in methods.values())
        groups = player.rollouts(mine, step, [base.group_size] * len(mine), keep_states=keep)
        outcome = METHODS["grpo"].credit(groups, [], [], base)
        out.plain.append(gradient(groups, outcome))
        trajectories = [t for g in groups for t in g.healthy]
        rollout = Counter(
            tokens=sum(t.policy_tokens for t in trajectories),
            trajectories=len(trajectories),
            successes=sum(t.success for t in trajectories),
            mixed=sum(g.mixed for g in groups),
        )
        add(out.counts, "", rollout)
        evidence: dict[tuple, tuple] = {}  # methods that differ in credit alone have one and the same
        for name, config in methods.items():
            segments, verification, counts = evidence_of(config, judges[name], player, groups, step, evidence)
            credit = METHODS[config.credit].credit(groups, segments, verification.verdicts, config)
            bonus = Credit(credit.advantage_B - outcome.advantage_B, credit.credit_BN - outcome.credit_BN)
            out.added.setdefault(name, []).append(gradient(groups, bonus))
            add(out.counts, name, counts)
        total = out.counts[""]
        say(
            f"batch {step}/{batches}  success {total['successes'] / max(total['trajectories'], 1):.3f}  "
            f"groups with mixed outcomes {total['mixed'] / step:.1f} of {base.groups_per_step}"
        )
    return out


def evidence_of(config: Config, judge, player: Player, groups: list[Group], step: int, known: dict[tuple, tuple]):
    """(segments, verification, counts) that the method rests on, from `known` where another method has asked for it."""
    method = METHODS[config.credit]
    asked = tuple(getattr(config, name) for name in PROPOSAL) if method.proposes else ()
    sampled = tuple(getattr(config, name) for name in VERIFICATION) if method.verifies else ()
    if (asked, sampled) in known:
        return known[asked, sampled]
    candidates = [g for g in groups if eligible(g, config.max_successes)]
    if (asked, ()) in known:
        segments, _, counts = known[asked, ()]
    else:
        answers = judge.propose(candidates, step) if method.proposes else []
        segments = [answer for answer in answers if isinstance(answer, Segment)]
        usage = judge.take_usage()
        counts = Counter(
            eligible=len(candidates), proposed=len(segments), failed=sum(usage.failures.values()), calls=usage.calls,
            judge_tokens=usage.prompt_tokens + usage.reply_tokens,
        )  # fmt: skip
        known[asked, ()] = segments, Verification(), counts
    if method.verifies:
        verification = verify(player, segments, config)
        verdicts = verification.verdicts
        counts = counts + Counter(
            tokens=verification.sampled, verified=len(verdicts), accepted=sum(v.accepted for v in verdicts),
            null=sum(null_rate(v, config) for v in verdicts),
        )  # fmt: skip
        known[asked, sampled] = segments, verification, counts
    return known[asked, sampled]


def check(base: Config, methods: dict[str, Config]) -> None:
    if base.kl_coef or base.minibatches > 1:
        raise UserError("--alignment compares what credit adds to one gradient: use --kl-coef 0 and --minibatches 1")
    for name, config in methods.items():
        if config.credit == "grpo":
            shown = "an alignment always shows GRPO, and GRPO with twice the rollouts"
            raise UserError(f"method {name}: --credit grpo adds nothing; {shown}")
        for f in dataclasses.fields(Config):
            if f.name not in CREDIT and getattr(config, f.name) != getattr(base, f.name):
                more = f"--{dashed(f.name)} changes more"
                raise UserError(f"method {name}: an alignment compares credit on common rollouts, and {more}")


def add(counts: dict[str, Counter], name: str, new: Counter) -> None:
    """Adds the counts of all ranks."""
    for part in distributed.gather(new):
        counts.setdefault(name, Counter()).update(part)


def sketch(gradient: torch.Tensor, size: int = SKETCH) -> torch.Tensor:
    """[D] -> [min(D, size)] on the CPU, with nearly the same inner products; buckets and signs are always the same."""
    if len(gradient) <= size:
        return gradient.cpu()
    generator = torch.Generator(gradient.device).manual_seed(0)
    out = torch.zeros(size, device=gradient.device)
    for chunk in gradient.split(CHUNK):
        draws = torch.randint(2 * size, chunk.shape, generator=generator, device=chunk.device)
        out.index_add_(0, draws // 2, chunk * (draws % 2 * 2 - 1))
    return out.cpu()


class Geometry:
    """The statistics above, from the inner products of all gradients, for any subset of the batches. All ranks have to
    make one together: each has a part of the gradients."""

    def __init__(self, plain: list[torch.Tensor], added: dict[str, list[torch.Tensor]]):
        G_nD = torch.stack(plain).double()
        self.n, self.names = len(plain), list(added)
        self.GG_nn = distributed.sum_(G_nD @ G_nD.T).numpy()
        self.CG_nn, self.CC_n = {}, {}
        for name in self.names:
            C_nD = torch.stack(added[name]).double()
            self.CG_nn[name] = distributed.sum_(C_nD @ G_nD.T).numpy()
            self.CC_n[name] = distributed.sum_(C_nD.square().sum(1)).numpy()

    def cosines(self, batches: list[int], method: str = "", weight: float = 0.0) -> np.ndarray:
        """cos(G_i + weight C_i, R_i) for each i of `batches`, R_i being the mean of the others."""
        GG_nn = self.GG_nn[np.ix_(batches, batches)]
        own_n, all_n = np.diag(GG_nn), GG_nn.sum(1)
        product_n, square_n = all_n - own_n, own_n
        if method:
            CG_nn = self.CG_nn[method][np.ix_(batches, batches)]
            product_n = product_n + weight * (CG_nn.sum(1) - np.diag(CG_nn))
            square_n = own_n + 2 * weight * np.diag(CG_nn) + weight**2 * self.CC_n[method][batches]
        return ratio(product_n, square_n * (GG_nn.sum() - 2 * all_n + own_n))

    def base(self, batches: list[int]) -> float:
        """Mean cosine of GRPO's own gradient."""
        return float(self.cosines(batches).mean())

    def change(self, batches: list[int], method: str, weight: float) -> float:
        return float((self.cosines(batches, method, weight) - self.cosines(batches)).mean())

    def doubled(self, batches: list[int]) -> float:
        """Mean change of the cosine by a second batch, over all ordered pairs."""
        GG_nn = self.GG_nn[np.ix_(batches, batches)]
        own_n1, all_n1 = np.diag(GG_nn)[:, None], GG_nn.sum(1)[:, None]
        both_nn = own_n1 + own_n1.T + 2 * GG_nn
        reference_nn = GG_nn.sum() - 2 * (all_n1 + all_n1.T) + both_nn
        two_nn = ratio(all_n1 + all_n1.T - both_nn, both_nn * reference_nn)
        one_nn = ratio(all_n1 - own_n1 - GG_nn, own_n1 * reference_nn)
        return float((two_nn - one_nn)[~np.eye(len(batches), dtype=bool)].mean())

    def products(self) -> dict[str, list]:
        """All of it as plain numbers of seven digits, from which a reader can compute other weights."""
        short = np.vectorize(lambda x: float(f"{x:.7g}"))
        added = {n: {"CG": short(self.CG_nn[n]).tolist(), "CC": short(self.CC_n[n]).tolist()} for n in self.names}
        return {"GG": short(self.GG_nn).tolist(), "added": added}

    def share(self, method: str, weight: float) -> float:
        """Mean of |weight C_i| / |G_i|."""
        return float(weight * np.sqrt(ratio(self.CC_n[method], np.diag(self.GG_nn) ** 2)).mean())

    def with_error(self, statistic: Callable[[list[int]], float]) -> tuple[float, float]:
        """(value on all batches, its jackknife standard error)."""
        everything = list(range(self.n))
        values = np.array([statistic([i for i in everything if i != gone]) for gone in everything])
        error = np.sqrt((self.n - 1) / self.n * ((values - values.mean()) ** 2).sum())
        return statistic(everything), float(error)


def ratio(product: np.ndarray, square: np.ndarray) -> np.ndarray:
    """product / sqrt(square), 0 where there is no direction."""
    return np.where(square > 0, product / np.sqrt(np.where(square > 0, square, 1.0)), 0.0)


def results(measured: Measured, geometry: Geometry, weights: list[float]) -> list[dict]:
    """One row per method and weight, after GRPO's own and that of twice the rollouts; counts are per batch."""
    n = geometry.n
    rollout = measured.counts[""]["tokens"] / n
    cosine, error = geometry.with_error(geometry.base)
    rows = [{"method": "grpo", "cosine": cosine, "error": error, "tokens": rollout, "extra_tokens": 0.0}]
    doubled, error = geometry.with_error(geometry.doubled)
    twice = {"method": "grpo, twice the groups", "change": doubled, "error": error, "of_doubled": 1.0}
    rows.append(twice | {"tokens": 2 * rollout, "extra_tokens": 1.0})
    for name in geometry.names:
        counts = measured.counts[name]
        for weight in weights:
            change, error = geometry.with_error(lambda batches: geometry.change(batches, name, weight))
            over = None
            if CONTROL in geometry.names and name != CONTROL:
                over = geometry.with_error(
                    lambda batches: geometry.change(batches, name, weight) - geometry.change(batches, CONTROL, weight)
                )
            verified = counts["verified"]
            rows.append(
                {
                    "method": name,
                    "weight": weight,
                    "change": change,
                    "error": error,
                    "of_doubled": change / doubled if doubled > 0 else None,
                    "over_random": over,
                    "share": geometry.share(name, weight),
                    "tokens": rollout + counts["tokens"] / n,
                    "extra_tokens": counts["tokens"] / n / max(rollout, 1),
                    "judge_tokens": counts["judge_tokens"] / n,
                    "judge_failures": counts["failed"] / n,
                    "eligible": counts["eligible"] / n,
                    "proposed": counts["proposed"] / n,
                    "verified": verified / n,
                    "acceptance": counts["accepted"] / verified if verified else None,
                    "chance": counts["null"] / verified if verified else None,
                }
            )
    return rows


def table(rows: list[dict]) -> list[list[str]]:
    """The rows as text, header first."""

    def number(row: dict, name: str, form: str) -> str:
        return form.format(row[name]) if row.get(name) is not None else "-"

    head = [
        "credit", "weight", "cosine", "change", "of twice", "over random", "of the norm", "tokens", "extra",
        "judge tokens", "proposed of eligible", "acceptance", "chance",
    ]  # fmt: skip
    lines = [head]
    for row in rows:
        over = row.get("over_random")
        lines.append(
            [
                row["method"],
                number(row, "weight", "{:g}"),
                number(row, "cosine", "{:.3f}"),
                number(row, "change", "{:+.3f}") + number(row, "error", " ± {:.3f}") if "change" in row else "-",
                number(row, "of_doubled", "{:+.0%}"),
                f"{over[0]:+.3f} ± {over[1]:.3f}" if over else "-",
                number(row, "share", "{:.0%}"),
                number(row, "tokens", "{:.0f}"),
                number(row, "extra_tokens", "{:+.1%}"),
                number(row, "judge_tokens", "{:.0f}"),
                f"{row['proposed']:.1f} / {row['eligible']:.1f}" if "eligible" in row else "-",
                number(row, "acceptance", "{:.2f}"),
                number(row, "chance", "{:.2f}"),
            ]
        )
    return lines
