"""Replicated and sharded training on 1, 2 and 4 processes against plain training in one; checkpoints between them."""

import dataclasses
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from prover_mini import checkpoint, distributed, parallel, update
from prover_mini.balance import shared
from prover_mini.credit import METHODS
from prover_mini.engine import Engine, self_check
from prover_mini.errors import UserError
from prover_mini.model import load_policy
from prover_mini.parallel import Replicate, Shard
from prover_mini.rollout import Player
from prover_mini.trajectory import Group
from prover_mini.update import Learner
from tests.hub import hub_checkpoint
from tests.ranks import on_ranks
from tests.toys import ToySuite, toy_chat, toy_config, toy_model, toy_tokenizer

CPU = torch.device("cpu")
PLAIN = toy_config(micro_batch=3, max_grad_norm=0.01, lr=1e-3, groups_per_step=4)
SECOND = dataclasses.replace(PLAIN, minibatches=2, kl_coef=0.1, aggregation="seq_mean_token_mean")


class Probe(Learner):
    """Keeps the gradients that were applied."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.applied = []

    def _apply(self, gradient, step):
        self.applied.append(gradient.clone())
        super()._apply(gradient, step)


def probe(make, config) -> Probe:
    """A learner on toy weights, gathered; `make` is Replicate or Shard."""
    model = toy_model()
    if config.activation_checkpointing:
        model.activation_checkpointing_enable()
    weights = make(model)
    reference = make(toy_model(seed=9).requires_grad_(False)) if config.kl_coef else None
    weights.gather()
    engine = Engine(model, 4, 96)
    self_check(engine)
    return Probe(weights, engine, config, reference)


def whole(learner, pieces) -> dict[str, torch.Tensor]:
    """name -> the whole parameter's tensor, from the pieces [in the order of `parts`] that all ranks hold."""
    mine = [(p.name, p.first_row, piece.clone()) for p, piece in zip(learner.weights.parts, pieces) if p.written]
    found = {}
    for name, first_row, piece in sorted((p for rank in distributed.gather(mine) for p in rank), key=lambda p: p[:2]):
        assert first_row == len(found.get(name, ())) or not len(piece)
        found[name] = torch.cat([found[name], piece]) if name in found else piece
    return found


def trained(make, config, groups) -> tuple[list[dict], list[dict], dict, Probe]:
    """(metrics, applied gradients, weights afterwards, learner) of two updates on this rank's groups."""
    learner = probe(make, config)
    credit = METHODS["grpo"].credit(groups, [], [], config)
    metrics = [learner.update(groups, credit, step) for step in (1, 2)]
    sizes = [master.numel() for master in learner.weights.masters]
    gradients = [
        whole(learner, [part.view_as(m) for part, m in zip(flat.split(sizes), learner.weights.masters)])
        for flat in learner.applied
    ]
    return metrics, gradients, whole(learner, learner.weights.masters), learner


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    player = Player(Engine(toy_model(), 32, 96), toy_chat(), ToySuite(tasks=4), PLAIN)
    groups = player.rollouts(list(enumerate(player.suite.tasks("train"))), 1, [8, 5, 8, 3])
    assert sum(len({t.reward for t in g.trajectories}) > 1 for g in groups) >= 3
    return groups


@pytest.fixture(scope="module")
def alone(groups) -> dict:
    """What one process without a process group computes."""
    return {id(config): trained(Replicate, config, groups)[:3] for config in (PLAIN, SECOND)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Where the ranks of each size leave checkpoints for the next, and what they hold."""
    return tmp_path_factory.mktemp("saved")


def assert_close(found: dict, expected: dict, relative: float = 1e-5) -> None:
    assert set(found) == set(expected)
    for name, want in expected.items():
        assert (found[name] - want).norm() <= relative * want.norm() + 1e-9, name


CUTS = {
    "alternate": lambda groups, rank, world: groups[rank::world],
    "uneven": lambda groups, rank, world: groups[:1] if rank == world - 1 else groups[1:] if rank == 0 else [],
    "idle": lambda groups, rank, world: groups if rank == 0 else [],
}
CASES = [
    ("replicate", Replicate, "alternate", {}),
    ("replicate", Replicate, "idle", {}),
    ("shard", Shard, "uneven", {}),
    ("shard", Shard, "idle", {"activation_checkpointing": True}),
]


AFTER_STEPS = 1e-4  # AdamW's steps enlarge rounding: one process with another micro-batch differs by 5e-5 as well
UNSHARED = ("uneven", "idle")  # the ranks keep their own trajectories: the numbers of passes differ


def compare(rank, world, groups, alone, saved) -> None:
    for name, make, cut, fields in CASES:
        update.shared = nullcontext if cut in UNSHARED else shared
        config = dataclasses.replace(PLAIN, **fields)
        mine = CUTS[cut](groups, rank, world) if world > 1 else groups
        metrics, gradients, weights, learner = trained(make, config, mine)
        same_as_alone(metrics, gradients, weights, alone[id(PLAIN)])
        self_check(learner.engine)  # the engine and the model's own forward see the new weights
        for key, p in learner.weights.model.named_parameters():
            assert torch.equal(p, weights[key]), f"{name}: {key} is not what was trained"
    update.shared = shared
    metrics, gradients, weights, learner = trained(Shard, SECOND, CUTS["alternate"](groups, rank, world))
    same_as_alone(metrics, gradients, weights, alone[id(SECOND)], AFTER_STEPS)
    exchange(world, learner, saved)


def same_as_alone(metrics, gradients, weights, expected, relative: float = 1e-5) -> None:
    expected_metrics, expected_gradients, expected_weights = expected
    for found, want in zip(metrics, expected_metrics):
        assert found == {k: pytest.approx(v, rel=relative, abs=1e-7) for k, v in want.items()}
    for found, want in zip(gradients, expected_gradients, strict=True):
        assert_close(found, want, relative)
        squares = sum(g.double().square().sum() for g in found.values())
        assert squares.sqrt() == pytest.approx(PLAIN.max_grad_norm, rel=1e-3)  # it was scaled down
    assert_close(weights, expected_weights)


def exchange(world, learner, saved) -> None:
    """Saves with this number of ranks; every checkpoint so far, of other numbers, is read back bit for bit."""
    moments = ("exp_avg", "exp_avg_sq")
    state = {m: whole(learner, [learner.optimizer.state[p][m] for p in learner.weights.masters]) for m in moments}
    checkpoint.save(saved / str(world), 2, learner, toy_tokenizer(), 1)
    if distributed.main():
        torch.save({"masters": whole_weights(learner), **state}, saved / f"{world}.pt")
    distributed.gather(None)
    for path in sorted(saved.glob("*.pt")):
        reads_back(path, Shard)


def whole_weights(learner) -> dict:
    return {name: p.detach().clone() for name, p in learner.weights.model.named_parameters()}


def reads_back(path, make) -> None:
    want = torch.load(path)
    found = checkpoint.latest(path.with_suffix(""))
    weights = make(load_policy(found[0] / "model", "float32", CPU)[0])
    weights.gather()
    learner = Learner(weights, Engine(weights.model, 1, 8), SECOND)
    checkpoint.restore_optimizer(*found, learner)
    masters = learner.weights.masters
    for moment in ("exp_avg", "exp_avg_sq"):
        read = whole(learner, [learner.optimizer.state[p][moment] for p in masters])
        assert all(torch.equal(read[name], tensor) for name, tensor in want[moment].items())
    read = whole(learner, masters)
    assert set(read) == set(want["masters"])
    assert all(torch.equal(read[name], tensor) for name, tensor in want["masters"].items())
    assert {int(state["step"]) for state in learner.optimizer.state.values()} == {4}


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_train_what_one_process_trains(world, groups, alone, saved):
    """Loss, gradients, weights, with unequal numbers of groups, micro-batches and tokens, and ranks that have none.
    And each size reads the checkpoints of the sizes before it, with weights and optimizer bit for bit."""
    on_ranks(world, saved / "meet", compare, groups, alone, saved)


def test_one_process_reads_what_any_number_of_ranks_wrote(saved):
    assert sorted(path.name for path in saved.glob("*.pt")) == ["1.pt", "2.pt", "4.pt"]
    for path in saved.glob("*.pt"):
        reads_back(path, Replicate)


def in_bfloat16(rank, world, groups, path) -> None:
    """bfloat16 in the forward of engine and trainer, float32 for masters, decays and the sums over ranks."""
    config = dataclasses.replace(PLAIN, dtype="bfloat16", lr=1e-5, activation_checkpointing=True)
    credit = METHODS["grpo"].credit(mine := CUTS["uneven"](groups, rank, world), [], [], config)
    learner = probe(lambda model: Shard(model, torch.bfloat16), config)
    start = whole(learner, learner.weights.masters)
    for step in range(1, 9):
        learner.update(mine, credit, step)
    checkpoint.save(path, 8, learner, toy_tokenizer(), 1)
    assert {master.dtype for master in learner.weights.masters} == {torch.float32}
    reached = whole(learner, learner.weights.masters)
    moved = max((reached[name] - start[name]).abs().max() for name in start)
    assert moved == pytest.approx(8 * 1e-5, rel=0.1)  # a step is far below what bfloat16 resolves at 1
    for name, p in learner.weights.model.named_parameters():
        kept = name.endswith(("linear_attn.A_log", "linear_attn.dt_bias"))
        assert torch.equal(p, reached[name].to(torch.float32 if kept else torch.bfloat16))
    self_check(learner.engine)

    found = checkpoint.latest(path)
    weights = Shard(load_policy(found[0] / "model", "float32", CPU)[0], torch.bfloat16)
    weights.gather()
    resumed = Probe(weights, Engine(weights.model, 4, 96), config, None)
    checkpoint.restore_optimizer(*found, resumed)
    for each in (learner, resumed):
        each.update(mine, credit, 9)
    assert all(torch.equal(a, b) for a, b in zip(learner.weights.masters, resumed.weights.masters))


def test_shards_train_in_bfloat16_with_float32_masters(groups, tmp_path):
    on_ranks(2, tmp_path / "meet", in_bfloat16, groups, tmp_path)


def from_the_hub(rank, world, path) -> None:
    """Rank 1 has no policy token in the step; both hold the trained model whole again after it."""
    config = dataclasses.replace(PLAIN, parallel="shard", max_grad_norm=1.0, activation_checkpointing=True)
    weights, tokenizer = parallel.load(str(path / "hub"), config, CPU)
    assert weights.sharded
    expected = torch.load(path / "expected.pt")
    assert all(torch.equal(p, expected[name].float()) for name, p in weights.model.named_parameters())
    engine = Engine(weights.model, 16, 96)
    self_check(engine)
    player = Player(engine, toy_chat(), ToySuite(needed=1, tasks=2), config)
    groups = player.rollouts(list(enumerate(player.suite.tasks("train"))), 1, [8, 8] if rank == 0 else [])
    assert any(len({t.reward for t in g.trajectories}) > 1 for g in groups) == (rank == 0)
    learner = Learner(weights, engine, config)
    metrics = learner.update(groups, METHODS["grpo"].credit(groups, [], [], config), 1)
    assert metrics["update/applied"] and metrics["mismatch_max"] < 1e-3
    assert not torch.equal(weights.model.model.norm.weight, expected["model.norm.weight"].float())
    checkpoint.save(path / "run", 1, learner, tokenizer, 1)
    saved = AutoModelForCausalLM.from_pretrained(checkpoint.latest(path / "run")[0] / "model", dtype=torch.float32)
    ids = torch.arange(12).view(2, 6)
    with torch.no_grad():
        assert torch.equal(saved(ids).logits, weights.model(ids).logits)


def test_a_hub_checkpoint_trains_in_shards_and_is_saved_for_others(tmp_path):
    torch.save(hub_checkpoint(tmp_path / "hub"), tmp_path / "expected.pt")
    on_ranks(2, tmp_path / "meet", from_the_hub, tmp_path)
    model = checkpoint.latest(tmp_path / "run")[0] / "model"
    with safe_open(model / "model.safetensors", "pt") as tensors:
        names = set(tensors.keys())
    assert names == set(torch.load(tmp_path / "expected.pt"))  # none of the outer model's names
    config = json.loads((model / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForCausalLM"] and config["model_type"] == "qwen3_5_text"
    assert config["dtype"] == "float32" and AutoTokenizer.from_pretrained(model).chat_template


def test_ranks_agree_on_a_new_name_in_a_store_that_dead_ones_have_used():
    """Ranks 1 and 2 called before, in an attempt that did not come together; each attempt gets a name of its own."""
    store, names = dist.HashStore(), []
    for rank in (1, 2):
        store.set(f"call/{rank}", "dead")
    for _ in range(2):
        with ThreadPoolExecutor(3) as pool:
            names += pool.map(lambda rank: distributed._new_name(store, rank, 3, timedelta(seconds=60)), range(3))
    assert names[0] == names[1] == names[2] != names[3] == names[4] == names[5]
    with pytest.raises(RuntimeError, match="2 of 3 ranks have not come"):
        distributed._new_name(store, 0, 3, timedelta(seconds=0.1))


def one_fails(rank, world, path) -> None:
    def work():
        if rank:
            raise OSError("no space left on rank 1")

    with pytest.raises(OSError, match="rank 1"):
        distributed.together(work)
    distributed.together(lambda: None)


def test_an_error_of_one_rank_is_raised_by_all(tmp_path):
    on_ranks(2, tmp_path / "meet", one_fails, tmp_path)


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path):
    learner = probe(Replicate, PLAIN)
    for step, success in enumerate([0.2, 0.6, 0.4, 0.6, 0.1, 0.3, 0.5], 1):
        checkpoint.save(tmp_path, step, learner, toy_tokenizer(), 2, success)
    assert sorted(path.name[-1] for path in (tmp_path / "checkpoints").iterdir()) == ["4", "6", "7"]
    assert (tmp_path / "best").read_text() == "step_000004\n" and checkpoint.latest(tmp_path)[1]["step"] == 7


def test_a_checkpoint_without_a_rank_s_file_is_refused(saved, tmp_path):
    shutil.copytree(saved / "4", tmp_path / "4")
    found = checkpoint.latest(tmp_path / "4")
    (found[0] / "optimizer-00003-of-00004.safetensors").unlink()
    learner = probe(Replicate, PLAIN)
    with pytest.raises(UserError, match="a file is missing"):
        checkpoint.restore_optimizer(*found, learner)
    with pytest.raises(UserError, match="optimizer-00003-of-00004"):
        checkpoint.latest(tmp_path / "4")
