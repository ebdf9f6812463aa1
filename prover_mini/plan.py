"""What a run would take on GPUs, before there are any: `train.py --plan`, from the model's config.json alone.

Memory of a GPU is counted at its two peaks, while rollouts sample and while the update runs:

    rollout   weights + AdamW (sharded, or whole) + gathered weights + states at turn boundaries + a prefill + slots
    update    weights + AdamW + gradients + activations of a micro-batch + a chunk of log-probs + boundaries + slots

What a token keeps for the backward pass is counted by running one layer of each kind on tensors without data, with
attention that keeps no scores; flash-linear-attention keeps less than the delta rule in plain torch. Times are floors:
every rank's bytes at the card's bandwidth or its operations at the card's dense bfloat16 rate, whichever takes longer,
as if nothing else cost time. Decoding reads the weights once per token and each slot's K/V and states; exchange between
GPUs is not counted. All of it is at the limits of the configuration, every trajectory as long as it may become.

Sources: sizes of cards and their rates, the vendor's data sheets; memory as nvidia-smi shows it.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.table import Table

from kernels.linear_logprob import chunk_columns
from prover_mini import memory
from prover_mini.config import Config
from prover_mini.engine import BATCH_TOKENS
from prover_mini.errors import UserError, first_line
from prover_mini.forward import check_supported, make_memory
from prover_mini.memory import GIB
from prover_mini.model import directory, policy_path, read_config
from prover_mini.parallel import shards
from prover_mini.shapes import SHAPES, known_config

GPUS = 8  # where neither --gpus nor torchrun says how many
RESERVED = 0.08  # of a card: CUDA context, communication buffers, fragmentation
SAMPLE_TOKENS = 256  # a multiple of the delta rule's chunk


@dataclass(frozen=True)
class Card:
    """A GPU: MiB of memory, TB/s of its memory, dense bfloat16 TFLOP/s."""

    name: str
    mib: int
    bandwidth: float
    flops: float

    @property
    def bytes(self) -> int:
        return self.mib << 20


CARDS = (
    Card("RTX 4090 24 GB", 24_564, 1.008, 165),
    Card("L40S 48 GB", 46_068, 0.864, 362),
    Card("A100 80 GB", 81_920, 2.039, 312),
    Card("H100 80 GB", 81_559, 3.35, 989),
    Card("H200 141 GB", 143_771, 4.8, 989),
    Card("B200 180 GB", 183_359, 8.0, 2250),
)


@dataclass(frozen=True)
class Shape:
    """A model in bytes and operations.

    Attributes:
        token_bytes: K/V of one token in a slot. state_bytes: what a slot holds besides, whatever its length.
        kept_bytes: activations that a token keeps for the backward pass, of all layers. layer_bytes: of the layer
            with most. boundary_bytes: the inputs of all layers, which are kept instead with activation checkpointing.
        pass_bytes: weights that a pass over shards has gathered at one time: embedding, head and two layers.
        body_flops: of one token's forward without the head. head_flops: of one token's logits. pair_flops: of a token
            with one before it, in all attention layers.
    """

    parameters: int
    token_bytes: float
    state_bytes: float
    kept_bytes: float
    layer_bytes: float
    boundary_bytes: float
    pass_bytes: float
    body_flops: float
    head_flops: float
    pair_flops: float
    item: int  # bytes of a weight in rollouts


def shape_of(config: Config) -> Shape:
    """Counts on a model without data. Raises UserError where there is no configuration of a supported model."""
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register("fused", fused_attention)
    dtype = getattr(torch, config.dtype)
    model_config = text_config(config)
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(model_config, dtype=dtype)
        except ValueError as error:
            raise UserError(f"--model {config.model}: is no causal language model ({first_line(error)})") from None
        check_supported(model)
        slot, longer = make_memory(model, 1, 0), make_memory(model, 1, 1)
    parameters = sum(p.numel() for p in model.parameters())
    head = model.get_output_embeddings().weight.numel()
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    body = parameters - head * (1 if tied else 2)
    token = size_of(longer.key_ASJTE, longer.value_ASJTE) - size_of(slot.key_ASJTE, slot.value_ASJTE)
    kept = kept_by_layers(model)
    layers, attention = model.config.layer_types, model.config.layer_types.count("full_attention")
    head_size = getattr(model.config, "head_dim", None) or model.config.hidden_size // model.config.num_attention_heads
    return Shape(
        parameters=parameters,
        token_bytes=token,
        state_bytes=size_of(slot.conv_LSWC, slot.recurrent_LSHKV, slot.hidden_SD) + token,  # one position is scratch
        kept_bytes=sum(kept[kind] for kind in layers),
        layer_bytes=max(kept.values()),
        boundary_bytes=len(layers) * model.config.hidden_size * dtype.itemsize,
        pass_bytes=dtype.itemsize * (parameters - body + 2 * body / len(layers)),
        body_flops=2 * body,
        head_flops=2 * head,
        pair_flops=4 * attention * model.config.num_attention_heads * head_size,
        item=dtype.itemsize,
    )


def text_config(config: Config):
    """The configuration of the text model: built in, in a directory, or fetched from the hub."""
    if config.model in SHAPES:
        return known_config(config.model)
    name = policy_path(config)
    path = directory(name) or name
    try:
        return read_config(path).get_text_config()
    except Exception as error:  # the library raises many kinds
        known = ", ".join(SHAPES)
        raise UserError(
            f"--model {name}: no config.json can be read ({first_line(error)}); {known} need none"
        ) from None


def kept_by_layers(model) -> dict[str, float]:
    """Bytes that one token keeps for the backward pass in a layer of each kind."""
    hidden_BTD = torch.zeros(1, SAMPLE_TOKENS, model.config.hidden_size, dtype=model.dtype, device="meta")
    positions = torch.zeros(1, SAMPLE_TOKENS, dtype=torch.long, device="meta")
    if hasattr(model.model.rotary_emb, "mrope_section"):
        positions = positions.expand(3, 1, -1)
    angles = model.model.rotary_emb(hidden_BTD, positions)
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    model.train()
    model.config._attn_implementation = "fused"
    kept = {}
    for layer, kind in zip(model.model.layers, model.config.layer_types):
        if kind in kept:
            continue
        held: dict[int, torch.UntypedStorage] = {}

        def hold(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights:
                held[storage._cdata] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
            layer(hidden_BTD.requires_grad_(), position_embeddings=angles, attention_mask=None)
        kept[kind] = sum(storage.nbytes() for storage in held.values()) / SAMPLE_TOKENS
    return kept


class FusedAttention(torch.autograd.Function):
    """Keeps what fused kernels keep: queries, keys, values, result and one float32 sum per query."""

    @staticmethod
    def forward(ctx, query_BHTE, key_BJTE, value_BJTE):
        out_BHTE = torch.empty_like(query_BHTE)
        sum_BHT = query_BHTE.new_empty(query_BHTE.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(query_BHTE, key_BJTE, value_BJTE, out_BHTE, sum_BHT)
        return out_BHTE


def fused_attention(module, query, key, value, attention_mask, **options):
    return FusedAttention.apply(query, key, value).transpose(1, 2), None


def size_of(*tensors: torch.Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@dataclass(frozen=True)
class Work:
    """Tokens of one step at the limits of a configuration; `rows` is the busiest GPU's share of trajectories."""

    context: int  # tokens of a trajectory
    sampled: int  # of them by the policy
    rows: int
    groups: int

    @staticmethod
    def of(config: Config, gpus: int) -> Work:
        sampled = min(config.max_turns * config.max_turn_tokens, config.max_context_tokens)
        groups = math.ceil(config.groups_per_step / gpus)
        return Work(config.max_context_tokens, sampled, groups * config.group_size, groups)


def memory_of(shape: Shape, config: Config, gpus: int, sharded: bool) -> dict[str, float]:
    """Bytes on one GPU by what holds them, without slots; `peak` is the larger of the two sums."""
    held = memory.training_bytes(shape.parameters, config.dtype, gpus if sharded else 1)
    gradients = held["gradients"]
    gathered = {name: size for name, size in held.items() if name.endswith("in rollouts")}
    state = {name: size for name, size in held.items() if name not in gathered and name != "gradients"}
    if config.kl_coef:
        state["reference model"] = shape.item * shape.parameters / (gpus if sharded else 1)
    state["states at turn boundaries"] = config.state_cache_mb << 20 if config.credit != "grpo" else 0
    work = Work.of(config, gpus)
    together = min(config.micro_batch, work.rows)
    tokens = together * work.context
    if config.activation_checkpointing:
        activations = tokens * (shape.boundary_bytes + 2 * shape.layer_bytes)
    else:
        activations = tokens * (shape.kept_bytes + shape.layer_bytes)
    trained = together * work.sampled
    chunk = trained * chunk_columns(trained, torch.device("cuda")) * (4 + (2 if shape.item == 2 else 0))
    prefill = BATCH_TOKENS * shape.layer_bytes
    in_update = shape.pass_bytes if sharded else sum(gathered.values())
    rollout = sum(gathered.values()) + prefill
    update = gradients + in_update + max(activations + chunk, gradients)  # the flat gradient is a second copy
    return {
        **state,
        **gathered,
        "prefill of rollouts": prefill,
        "gradients": gradients,
        "activations of a micro-batch": activations,
        "chunk of log-probs": chunk,
        "peak": sum(state.values()) + max(rollout, update),
    }


def slot_bytes(shape: Shape, config: Config) -> float:
    return shape.state_bytes + shape.token_bytes * config.max_context_tokens


def slots_that_fit(shape: Shape, config: Config, gpus: int, sharded: bool, card: Card) -> int:
    free = card.bytes * (1 - RESERVED) - memory_of(shape, config, gpus, sharded)["peak"]
    return max(math.floor(free / slot_bytes(shape, config)), 0)


def advice(shape: Shape, config: Config, gpus: int, sharded: bool, card: Card) -> tuple[int, int]:
    """(micro-batch, slots) that fit: the micro-batch is halved until all trajectories of a step can be played at once,
    or as many as `slots` says. 0 slots where nothing fits."""
    work = Work.of(config, gpus)
    wanted = min(config.slots, max(work.rows, 2 * config.continuations * work.groups))
    size = config.micro_batch
    while True:
        slots = slots_that_fit(shape, replace(config, micro_batch=size), gpus, sharded, card)
        if slots >= wanted or size == 1:
            return size, min(slots, config.slots)
        size //= 2


def floors(shape: Shape, config: Config, gpus: int, card: Card, slots: int) -> dict[str, float]:
    """Seconds of a step's phases on the busiest GPU, at best."""
    work = Work.of(config, gpus)

    def decode(rows: int, tokens: int, context: float) -> float:
        """`rows` trajectories that sample `tokens` each, with `context` tokens behind them on average."""
        waves = math.ceil(rows / slots)
        at_once = rows / waves
        read = shape.item * shape.parameters + at_once * (context * shape.token_bytes + 2 * shape.state_bytes)
        operations = at_once * (shape.body_flops + shape.head_flops + context * shape.pair_flops)
        return waves * tokens * max(read / (card.bandwidth * 1e12), operations / (card.flops * 1e12))

    trajectory = work.context * shape.body_flops + work.context**2 / 2 * shape.pair_flops
    prompt = trajectory * (work.context - work.sampled) / work.context
    rollout = decode(work.rows, work.sampled, work.context / 2) + work.rows * prompt / (card.flops * 1e12)
    verify = 0.0
    if config.credit == "prover":
        rows = 2 * config.continuations * work.groups
        verify = decode(rows, work.sampled // 2, 0.75 * work.context) + rows / 2 * prompt / (card.flops * 1e12)
    passes = 4 if config.activation_checkpointing else 3  # of the body: forward, twice that backward, and forward again
    head = 4 * work.sampled * shape.head_flops  # kernels/linear_logprob.py
    update = work.rows * (passes * trajectory + head) / (card.flops * 1e12)
    return {"rollout": rollout, "verify": verify, "update": update, "step": rollout + verify + update}


def show(config: Config) -> None:
    """Prints the plan, on rank 0."""
    started = int(os.environ.get("WORLD_SIZE", 1))
    gpus = config.gpus or (started if started > 1 else GPUS)
    if os.environ.get("RANK", "0") != "0":
        return
    shape, work = shape_of(config), Work.of(config, gpus)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 110)
    console.print(
        f"{config.model}: {shape.parameters / 1e6:,.2f} M parameters, {config.dtype}, on {gpus} GPUs; "
        f"{config.groups_per_step} groups of {config.group_size}, at most {config.max_context_tokens} tokens each"
        + (", activation checkpointing" if config.activation_checkpointing else "")
    )
    console.print(memory_table(shape, config, gpus))
    console.print(
        f"a slot: {short(slot_bytes(shape, config) / GIB)} GiB = {short(shape.token_bytes / 1024)} KiB of K/V per "
        f"token x {config.max_context_tokens} + {short(shape.state_bytes / 2**20)} MiB of states"
    )
    console.print(card_table(shape, config, gpus))
    trajectories = config.groups_per_step * config.group_size
    continued = config.groups_per_step * config.continuations * work.sampled if config.credit == "prover" else 0
    console.print(
        f"tokens of a step at these limits: {trajectories * work.context:,} of rollouts, "
        f"{trajectories * work.sampled:,} of them sampled and trained on, and {continued:,} sampled in continuations "
        "if every group is verified from its middle; shorter episodes take less"
    )


def short(number: float) -> str:
    """With one decimal, or with two digits where that would hide them."""
    return f"{number:,.1f}" if number >= 1 or not number else f"{number:.2g}"


def memory_table(shape: Shape, config: Config, gpus: int) -> Table:
    modes = [("whole on each", False)] + ([(f"in shards over {gpus}", True)] if gpus > 1 else [])
    columns = [memory_of(shape, config, gpus, sharded) for _, sharded in modes]
    table = Table(title="GiB of a GPU, by where weights and optimizer lie", title_justify="left")
    table.add_column("")
    for name, _ in modes:
        table.add_column(name, justify="right")
    items = dict.fromkeys(item for column in columns for item in column if item != "peak")
    for item, label in [*zip(items, items), ("peak", "most at one time, without slots")]:
        table.add_row(label, *(short(column.get(item, 0.0) / GIB) for column in columns))
    return table


def card_table(shape: Shape, config: Config, gpus: int) -> Table:
    title = f"{gpus} GPUs: --micro-batch and --slots to set, and seconds of a step at least"
    table = Table(title=title, title_justify="left")
    phases = ("rollout", "verify", "update", "step")
    for name in ("card", "GiB", "state", "micro-batch", "slots fit", "slots", *phases):
        table.add_column(name, justify="left" if name in ("card", "state") else "right", no_wrap=True)
    for card in CARDS:
        sharded = shards(config, shape.parameters, gpus, card.bytes)
        size, slots = advice(shape, config, gpus, sharded, card)
        fitting = slots_that_fit(shape, replace(config, micro_batch=size), gpus, sharded, card)
        seconds = floors(shape, config, gpus, card, slots) if slots else {}
        table.add_row(
            card.name,
            f"{card.bytes / GIB:.1f}",
            "in shards" if sharded else "whole",
            f"{size}" if slots else "-",
            f"{fitting:,}",
            f"{slots}" if slots else "-",
            *(short(seconds[phase]) if seconds else "-" for phase in phases),
        )
    return table
