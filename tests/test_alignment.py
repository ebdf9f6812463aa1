"""Gradient alignment: its statistics against explicit vectors, its gradients against those of training steps."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from prover_mini import alignment, parallel
from prover_mini.alignment import Geometry, Measured, check, measure, results, sketch, table
from prover_mini.credit import METHODS, eligible
from prover_mini.engine import Engine
from prover_mini.errors import UserError
from prover_mini.judge import JUDGES
from prover_mini.parallel import Replicate, Shard
from prover_mini.rollout import Player
from prover_mini.schedule import tasks_of_step
from prover_mini.update import Learner
from prover_mini.verify import verify
from tests.test_parallel import on_ranks
from tests.toys import ToySuite, toy_chat, toy_config, toy_model, toy_tokenizer


def vectors(n: int, size: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Batches with a common direction, and credit that has some of it too."""
    generator = torch.Generator().manual_seed(n)
    common = torch.randn(size, generator=generator)
    plain = common + 2 * torch.randn(n, size, generator=generator)
    return plain, 0.5 * common + torch.randn(n, size, generator=generator)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a.double() @ b.double() / (a.double().norm() * b.double().norm()))


def others(plain: torch.Tensor, *without: int) -> torch.Tensor:
    return torch.stack([g for j, g in enumerate(plain) if j not in without]).mean(0)


def test_changes_are_those_of_explicit_vectors():
    plain, added = vectors(7)
    geometry = Geometry(list(plain), {"other": list(torch.zeros_like(plain)), "credit": list(added)})
    for batches in (list(range(7)), [0, 2, 3, 6]):
        some, credit = plain[batches], added[batches]
        base = [cosine(g, others(some, i)) for i, g in enumerate(some)]
        assert geometry.base(batches) == pytest.approx(np.mean(base))
        for weight in (1.0, 4.0):
            changes = [
                cosine(g + weight * c, others(some, i)) - cosine(g, others(some, i))
                for i, (g, c) in enumerate(zip(some, credit))
            ]
            assert geometry.change(batches, "credit", weight) == pytest.approx(np.mean(changes))
        pairs = [
            cosine(some[i] + some[k], others(some, i, k)) - cosine(some[i], others(some, i, k))
            for i in range(len(some))
            for k in range(len(some))
            if i != k
        ]
        assert geometry.doubled(batches) == pytest.approx(np.mean(pairs))
    assert geometry.change(list(range(7)), "other", 4.0) == 0
    shares = [4 * c.norm() / g.norm() for g, c in zip(plain, added)]
    assert geometry.share("credit", 4.0) == pytest.approx(float(np.mean(shares)))


def test_methods_are_paired_with_random_segments():
    plain, added = vectors(6)
    other = added.flip(0)
    geometry = Geometry(list(plain), {"credit": list(added), "random": list(other), "same": list(other)})
    counts = {name: Counter(tokens=600) for name in ("", *geometry.names)}
    lines = results(Measured(counts=counts), geometry, [1.0, 4.0])
    rows = {(row["method"], row.get("weight")): row for row in lines}

    def ahead(weight: float, *without: int) -> float:
        left = [i for i in range(6) if i not in without]
        references = {i: others(plain, i, *without) for i in left}
        pairs = [[plain[i] + weight * credit[i] for credit in (added, other)] for i in left]
        return float(np.mean([cosine(a, references[i]) - cosine(b, references[i]) for i, (a, b) in zip(left, pairs)]))

    for weight in (1.0, 4.0):
        without_one = np.array([ahead(weight, i) for i in range(6)])
        error = np.sqrt(5 * without_one.var())  # jackknife
        assert rows["credit", weight]["over_random"] == pytest.approx((ahead(weight), error))
        assert rows["same", weight]["over_random"] == (0, 0) and rows["random", weight]["over_random"] is None
    head, *texts = table(lines)
    assert texts[3][head.index("over random")] == f"{ahead(4.0):+.3f} ± {error:.3f}"
    alone = results(Measured(counts=counts), Geometry(list(plain), {"credit": list(added)}), [1.0])
    assert alone[-1]["over_random"] is None and table(alone)[-1][head.index("over random")] == "-"


def test_the_standard_error_of_a_mean_is_the_usual_one():
    """The jackknife of a mean is exactly s / sqrt(n)."""
    plain, added = vectors(6)
    geometry = Geometry(list(plain), {"credit": list(added)})
    x = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])
    value, error = geometry.with_error(lambda batches: float(x[batches].mean()))
    assert (value, error) == pytest.approx((x.mean(), x.std(ddof=1) / np.sqrt(6)))


def test_sketches_keep_inner_products(monkeypatch):
    monkeypatch.setattr(alignment, "CHUNK", 7000)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(50000, generator=generator)
    b = a + torch.randn(50000, generator=generator)
    assert torch.equal(sketch(a, 50000), a)
    small = [sketch(x, 4096) for x in (a, b)]
    assert [len(s) for s in small] == [4096, 4096]
    assert cosine(*small) == pytest.approx(cosine(a, b), abs=5 / 4096**0.5)
    assert torch.allclose(sketch(a + 3 * b, 4096), small[0] + 3 * small[1], atol=1e-3)


@pytest.fixture
def toys(monkeypatch) -> ToySuite:
    suite = ToySuite(turns=3, needed=2, tasks=12)
    monkeypatch.setattr(alignment, "load_suite", lambda name, config: suite)
    monkeypatch.setattr(parallel, "load", lambda *arguments: (Replicate(toy_model()), toy_tokenizer()))
    return suite


MIXED = toy_config(slots=32, max_successes=5, temperature=2.0)  # hot enough for mixed outcomes


class Probe(Learner):
    """Keeps the gradient that training would apply, and leaves the weights alone."""

    def _apply(self, gradient, step):
        self.applied = gradient


def test_gradients_are_those_of_training_steps(toys):
    """G_i + w C_i of every method is what a training step with that credit weight would follow."""
    base = toy_config(slots=32, max_grad_norm=1e9, max_successes=5, temperature=2.0)
    methods = {
        "prover": base,
        "k2": replace(base, continuations=2),
        "random": replace(base, judge="random"),
        "believed": replace(base, credit="judge_reward", judge="random"),
    }
    said = []
    measured = measure(base, methods, 4, said.append)
    assert len(said) == len(measured.plain) == 4
    engine = Engine(toy_model(), base.slots, base.max_context_tokens)
    player, learner = Player(engine, toy_chat(), toys, base), Probe(Replicate(engine.model), engine, base)
    moved = 0
    for step in (1, 4):
        mine = tasks_of_step(toys.tasks("train"), step, base)
        groups = player.rollouts(mine, step, [8] * len(mine), keep_states=True)
        candidates = [g for g in groups if eligible(g, 5)]
        for name, config in methods.items():
            config = replace(config, credit_weight=2.0)
            segments = [a for a in JUDGES[config.judge](config).propose(candidates, step) if a]
            verdicts = verify(player, segments, config).verdicts if METHODS[config.credit].verifies else []
            learner.update(groups, METHODS[config.credit].credit(groups, segments, verdicts, config), step)
            expected = measured.plain[step - 1] + 2.0 * measured.added[name][step - 1]
            assert (learner.applied - expected).norm() < 1e-5 * expected.norm()
            moved += measured.added[name][step - 1].norm() > 0
    assert moved >= 6


def test_counts_are_those_of_a_method_on_its_own(toys):
    base = MIXED
    methods = {"prover": base, "again": replace(base, shrinkage=1.0), "random": replace(base, judge="random")}
    together = measure(base, methods, 4, lambda text: None)
    for name in ("again", "random"):
        alone = measure(base, {name: methods[name]}, 4, lambda text: None)
        assert alone.counts[name] == together.counts[name] and alone.counts[""] == together.counts[""]
        assert all(torch.equal(a, b) for a, b in zip(alone.added[name], together.added[name]))
    assert together.counts["prover"] == together.counts["again"]
    assert together.counts["prover"]["tokens"] > 0 < together.counts["prover"]["verified"]
    rows = results(together, Geometry(together.plain, together.added), [1.0, 4.0])
    assert [(row["method"], row.get("weight")) for row in rows[2:]] == [(m, w) for m in methods for w in (1.0, 4.0)]
    assert rows[1]["tokens"] == 2 * rows[0]["tokens"] == 2 * together.counts[""]["tokens"] / 4
    assert rows[2]["tokens"] == rows[0]["tokens"] * (1 + rows[2]["extra_tokens"])
    lines = table(rows)
    assert len(lines) == 1 + len(rows) and len({len(line) for line in lines}) == 1


def ranks_measure(rank: int, world: int, path) -> None:
    rows = {}
    for make in (Replicate, Shard):
        parallel.load = lambda *arguments, make=make: (gathered(make(toy_model())), toy_tokenizer())
        rows[make.__name__] = measured_rows()
    torch.save(rows, f"{path}/{rank}.pt")


def measured_rows() -> list[dict]:
    measured = measure(MIXED, {"prover": MIXED}, 4, lambda text: None)
    return results(measured, Geometry(measured.plain, measured.added), [2.0])


def gathered(weights):
    weights.gather()
    return weights


def test_two_ranks_whole_or_in_shards_measure_what_one_does(toys, tmp_path):
    alone = measured_rows()
    on_ranks(2, tmp_path / "meet", ranks_measure, tmp_path)
    for rank in range(2):
        for rows in torch.load(tmp_path / f"{rank}.pt").values():
            for row, expected in zip(rows, alone, strict=True):
                assert row == {k: v if isinstance(v, str) else pytest.approx(v, abs=1e-5) for k, v in expected.items()}


def test_only_credit_may_differ():
    base = toy_config()
    check(base, {"k2": replace(base, continuations=2, judge="random", sequential=0.2)})
    with pytest.raises(UserError, match="--group-size"):
        check(base, {"larger": replace(base, group_size=16)})
    with pytest.raises(UserError, match="--kl-coef"):
        check(replace(base, kl_coef=0.1), {})
    with pytest.raises(UserError, match="k2: --credit grpo adds nothing"):
        check(replace(base, credit="grpo"), {"k2": replace(base, credit="grpo", continuations=2)})
