"""Where the weights that are trained lie: whole on every rank, or in shards over all of them.

Between updates every rank holds the whole model in the dtype of the rollouts, and the engine reads it live. An update
is enclosed by `scatter` and `gather`. In between, each rank runs forward and backward passes on its own trajectories,
`gradient` sums over ranks, and the optimizer steps `masters`: float32, all of the model or this rank's part of it.

The decays of Gated DeltaNet layers pass through two exponentials, so they stay float32 in every forward (`FLOAT32`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from kernels.linear_logprob import LogProb, linear_logprob
from prover_mini import distributed, memory
from prover_mini.config import Config
from prover_mini.forward import check_supported
from prover_mini.model import load_policy, locate, parameter_count, use_flash_attention

FLOAT32 = ("A_log", "dt_bias")


def token_logprobs(
    model, ids_BT: Tensor, at_N: Tensor, targets_N: Tensor, temperature: float, entropy: bool = False
) -> LogProb:
    """Log-probs of `targets_N` from the hidden states at places `at_N` of the flattened batch.

    Right padding needs no mask: both kinds of layers are causal, and padded positions are never read.
    """
    hidden_BTD = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    hidden_ND = hidden_BTD.flatten(0, 1)[at_N]
    return linear_logprob(hidden_ND, model.get_output_embeddings().weight, targets_N, temperature, entropy=entropy)


@dataclass(frozen=True)
class Part:
    """A trained parameter as this rank holds it.

    Attributes:
        master: float32; of a float32 parameter its own storage, not a copy.
        first_row: of the whole parameter, where the master begins.
        written: a checkpoint takes it from this rank.
        rounded: the forward has it in a smaller type.
    """

    name: str
    master: Tensor
    first_row: int
    written: bool
    rounded: bool


class Replicate:
    """Every rank holds the whole model; gradients are summed over ranks as one vector.

    Args:
        model: a transformers causal language model; parameters without `requires_grad` are not trained.
        dtype: of the forward; the default leaves the model as it is.

    Attributes: parts, what is trained; masters, theirs, in the same order.
    """

    sharded = False

    def __init__(self, model, dtype: torch.dtype | None = None):
        self.model = model
        names, self.parameters = _trained(model)
        self.masters = [p.detach().float() for p in self.parameters]
        for name, parameter in model.named_parameters():
            if dtype and not name.endswith(FLOAT32):
                parameter.data = parameter.data.to(dtype)
        self.parts = [
            Part(name, master, 0, distributed.main(), parameter.dtype != torch.float32)
            for name, master, parameter in zip(names, self.masters, self.parameters)
        ]
        self.logprobs = partial(token_logprobs, model)
        self._sums: dict[Tensor, Tensor] = {}
        for parameter in self.parameters:
            if parameter.dtype != torch.float32:
                parameter.register_post_accumulate_grad_hook(self._add_in_float32)

    def scatter(self) -> None:
        """Before an update. Nothing to do here."""

    def gather(self) -> None:
        """After an update. Nothing to do here."""

    def passes(self, own: int) -> int:
        """Passes that this rank has to make when it has `own` micro-batches; to be asked before the first of them."""
        return own

    def gradient(self) -> Tensor:
        """The gradient of `masters` summed over ranks, float32 and flat; the next one begins at zero."""
        gradient = torch.zeros(sum(p.numel() for p in self.parameters), device=self.masters[0].device)
        for parameter, part in zip(self.parameters, gradient.split([p.numel() for p in self.parameters])):
            found = self._sums.pop(parameter, parameter.grad)
            if found is not None:
                part.copy_(found.flatten())
            parameter.grad = None
        return distributed.sum_(gradient)

    def discard(self) -> None:
        """Forgets what passes have added up, without a word to other ranks."""
        self._sums.clear()
        for parameter in self.parameters:
            parameter.grad = None

    def norm(self, gradient: Tensor) -> float:
        """The norm of the whole model's gradient, from what `gradient` returned."""
        return gradient.norm().item()

    def own(self, gradient: Tensor) -> Tensor:
        """What no other rank has of it: sums over ranks count each coordinate once."""
        return gradient if distributed.main() else gradient[:0]

    @torch.no_grad()
    def publish(self) -> None:
        """Makes stepped masters the weights of the next forward."""
        for parameter, master in zip(self.parameters, self.masters):
            parameter.copy_(master)

    def _add_in_float32(self, parameter: Tensor) -> None:
        """Micro-batches add up here: in bfloat16, all after the first few would be lost in rounding."""
        if parameter in self._sums:
            self._sums[parameter].add_(parameter.grad)
        else:
            self._sums[parameter] = parameter.grad.float()
        parameter.grad = None


class Shard:
    """Each rank keeps a part of every parameter, its gradient and its optimizer state (FSDP2). See `Replicate`.

    All ranks have to make the same number of passes (`passes`). A layer's weights are gathered when a pass reaches it
    and freed behind it; embedding, final norm and head stay for the whole pass, so that the loss can use the head.
    """

    sharded = True

    def __init__(self, model, dtype: torch.dtype = torch.float32):
        ranks = dist.get_world_size()
        mesh = init_device_mesh(next(model.parameters()).device.type, (ranks,))
        # one policy per group of parameters: what stays float32 is left out, whole on every rank
        whole = {p for name, p in model.named_parameters() if name.endswith(FLOAT32)}
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for module in (*model.model.layers, model):
            fully_shard(module, mesh=mesh, mp_policy=policy, ignored_params=whole)
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for module in self._modules:
            module.set_gradient_divide_factor(1.0)  # a sum: the loss is divided by its denominator already
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other factor
        model.token_logprobs = partial(token_logprobs, model)
        register_fsdp_forward_method(model, "token_logprobs")

        self.model, self.logprobs = model, model.token_logprobs
        named = sorted(zip(*_trained(model)), key=lambda named: named[1] in whole)  # shards first
        self.parameters = [parameter for _, parameter in named]
        rounded = dtype != torch.float32
        self.parts = [
            Part(name, p.detach(), 0, distributed.main(), False)
            if p in whole
            else Part(name, p.detach().to_local(), dist.get_rank() * math.ceil(len(p) / ranks), True, rounded)
            for name, p in named
        ]
        self.masters = [part.master for part in self.parts]
        self._shard_numel = sum(part.master.numel() for part, p in zip(self.parts, self.parameters) if p not in whole)

    def scatter(self) -> None:
        """Before an update: frees the gathered weights."""
        for module in self._modules:
            module.reshard()
        self.model.set_reshard_after_forward(True)
        self.model.set_reshard_after_forward(False, recurse=False)

    def gather(self) -> None:
        """After an update: gathers the whole model on every rank, until `scatter`."""
        self.model.set_reshard_after_forward(False)
        for module in self._modules:
            module.unshard()

    def passes(self, own: int) -> int:
        return max(distributed.gather(own))

    def gradient(self) -> Tensor:
        gradient = torch.zeros(sum(m.numel() for m in self.masters), device=self.masters[0].device)
        for parameter, part in zip(self.parameters, gradient.split([m.numel() for m in self.masters])):
            if parameter.grad is not None:
                found = parameter.grad.to_local() if isinstance(parameter, DTensor) else parameter.grad
                part.copy_(found.flatten())
            parameter.grad = None
        distributed.sum_(gradient[self._shard_numel :])  # of what is whole; the shards are summed
        return gradient

    def norm(self, gradient: Tensor) -> float:
        shards, whole = gradient[: self._shard_numel], gradient[self._shard_numel :]
        squares = distributed.sum_(torch.linalg.vector_norm(shards, dtype=torch.float64).square())
        return (squares + torch.linalg.vector_norm(whole, dtype=torch.float64).square()).sqrt().item()

    def own(self, gradient: Tensor) -> Tensor:
        return gradient if distributed.main() else gradient[: self._shard_numel]

    def publish(self) -> None:
        """Drops what is gathered from the weights before the step."""
        for module in self._modules:
            module.reshard()


def _trained(model) -> tuple[list[str], list[Tensor]]:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [name for name, _ in named], [p for _, p in named]


def load(source: str, config: Config, device: torch.device, trained: bool = True):
    """(weights, tokenizer) of a policy, gathered. Rank 0 reads the files; the others get the weights from it.

    Args:
        source: a local directory or a hub id.
        trained: False for a reference, whose weights never change.

    Raises UserError on every rank for a model that cannot be loaded or does not fit.
    """
    loaded = distributed.first(lambda: _read(source, config, device, trained) if distributed.main() else None)
    model = loaded[0] if loaded else None
    shared = distributed.broadcast(loaded and (model.config, *loaded[1:]))
    model_config, tokenizer, sharded = shared
    if not distributed.main():
        from transformers import AutoModelForCausalLM

        with torch.device(device):
            model = AutoModelForCausalLM.from_config(model_config, dtype=torch.float32).eval()
    for tensor in (*model.parameters(), *model.buffers()):
        distributed.share(tensor.data)
    model.requires_grad_(trained)
    if trained and config.activation_checkpointing:
        model.activation_checkpointing_enable()
    weights = (Shard if sharded else Replicate)(model, getattr(torch, config.dtype))
    weights.gather()
    use_flash_attention(model, device)
    return weights, tokenizer


def _read(source: str, config: Config, device: torch.device, trained: bool):
    """(model, tokenizer, whether to shard it), after a look at the files' headers for what it will take."""
    path = locate(source)
    parameters = parameter_count(path)
    sharded = choose(config, parameters, device)
    if trained:
        memory.check(source, parameters, config.dtype, distributed.world() if sharded else 1, device)
    model, tokenizer = load_policy(path, "float32", device)
    check_supported(model)
    return model, tokenizer, sharded


def choose(config: Config, parameters: int, device: torch.device) -> bool:
    """Whether to shard a model over the present ranks."""
    return shards(config, parameters, distributed.world(), memory.total(device))


def shards(config: Config, parameters: int, ranks: int, device_bytes: int) -> bool:
    """Whether to shard: as `--parallel` says, or else when the training state of a whole model would fill more than a
    quarter of a device's memory, the rest being for K/V, states and activations. `device_bytes` 0: not known."""
    if ranks == 1:
        return False
    if config.parallel != "auto":
        return config.parallel == "shard"
    return 0 < device_bytes < 4 * sum(memory.training_bytes(parameters, config.dtype, 1).values())


def describe(weights: Replicate | Shard) -> str:
    """The model and where its weights lie, in one line."""
    ranks = distributed.world()
    where = f"in shards over {ranks} ranks" if weights.sharded else f"whole on {ranks} ranks" if ranks > 1 else ""
    count = sum(p.numel() for p in weights.model.parameters()) / 1e6
    name = type(weights.model).__name__.removeprefix("FSDP")
    return f"{name}, {count:,.2f} M parameters {where}".strip() + f", {str(weights.model.dtype).removeprefix('torch.')}"
