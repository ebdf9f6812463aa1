"""Forward of one ragged chunk through the weights of a transformers model, on top of what each slot already holds.

A chunk is right padded. Row b holds `counts_B[b]` real tokens (0: the row idles) and continues from its own state:
K/V of `start` tokens in every attention layer, and the last W - 1 convolution inputs plus the recurrent state in every
Gated DeltaNet layer. Pads write their K/V behind the row's end where nothing reads it, run with g = 0 and beta = 0,
and the convolution window is taken at each row's own end: a padded row ends exactly where it would end alone.

The weights are read from the modules at every call, so an optimizer step needs no copy into the engine.
Supported: Qwen3.5 (any mixture of attention and Gated DeltaNet layers), Qwen3, Qwen2.5.
Equations: the model's own in transformers; what is between the projections in `kernels`.

Shapes: B rows of the chunk, S slots, T tokens, N keys attended to, D hidden, H heads, J K/V heads, E head size,
A attention layers, L linear layers, C convolution channels, W convolution width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2ForCausalLM, Qwen3_5ForCausalLM, Qwen3ForCausalLM
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm

from kernels.decode_attention import decode_attention
from kernels.gated_delta_rule import GatedDeltaWeights, gated_delta_rule
from kernels.rms_norm import rms_norm
from prover_mini.errors import UserError

SUPPORTED = (Qwen3_5ForCausalLM, Qwen3ForCausalLM, Qwen2ForCausalLM)


@dataclass(frozen=True)
class Memory:
    """What S slots hold. Position `max_tokens` of the K/V buffers is scratch space for pads."""

    key_ASJTE: Tensor
    value_ASJTE: Tensor
    conv_LSWC: Tensor  # W - 1 inputs, oldest first
    recurrent_LSHKV: Tensor  # fp32 whatever the dtype of the weights
    hidden_SD: Tensor  # of the last token, after the final norm


@dataclass(frozen=True)
class Tables:
    """What a chunk looks up by position and slot."""

    cos_TE: Tensor  # [positions, 1, E]
    sin_TE: Tensor  # [positions, 1, E], the first half negated
    lanes_SJ: Tensor  # where each slot's run of positions begins in the flattened K/V buffers, per K/V head


@dataclass(frozen=True)
class Chunk:
    """One forward's input, and all that its layers share. `rows`: a slice (views) or indices (gathered copies).

    `keys` and `mask_B1TN` say what a chunk attends to. A chunk of one token may say it by `lengths_B` instead, which
    lets every shape in it be known beforehand.
    """

    ids_BT: Tensor
    rows: slice | Tensor
    counts_B: Tensor | None  # None: every token is real
    write: Tensor  # [B * J * T], where K and V go in the flattened buffer
    cos_BTE: Tensor  # [B, T, 1, E]
    sin_BTE: Tensor
    keys: int = 0  # N; 0 when every row starts empty, so that the chunk attends to itself alone
    mask_B1TN: Tensor | None = None  # added to the scores
    lengths_B: Tensor | None = None  # keys of each row, its new one included; 0: the row idles


def check_supported(model: PreTrainedModel) -> None:
    """Raises `UserError` for a model that `forward` would get wrong."""
    name, config = type(model).__name__, model.config
    if not isinstance(model, SUPPORTED):
        raise UserError(f"{name} is not supported by the rollout engine: use one of "
                        f"{', '.join(c.__name__ for c in SUPPORTED)}")
    if others := set(config.layer_types) - {"full_attention", "linear_attention"}:
        raise UserError(f"{name} has layers of type {', '.join(sorted(others))}: the rollout engine supports "
                        "full_attention and linear_attention (set use_sliding_window to false in its config.json)")
    if config.hidden_act != "silu":
        raise UserError(f"{name} has hidden_act {config.hidden_act}: the rollout engine supports silu")
    if (rope := config.rope_parameters["rope_type"]) in ("dynamic", "longrope"):
        raise UserError(f"{name} has rope_type {rope}, which changes with the length: use default, linear or yarn")


def make_memory(model: PreTrainedModel, slots: int, max_tokens: int) -> Memory:
    """Empty slots, on the model's device and in its dtype. Bytes: 2 A S J (max_tokens + 1) E + states."""
    config, layers = model.config, model.model.layers
    weight = model.model.embed_tokens.weight
    attention = [layer.self_attn for layer in layers if hasattr(layer, "self_attn")]
    linear = [layer.linear_attn for layer in layers if hasattr(layer, "linear_attn")]
    size = attention[0].head_dim if attention else 0

    def zeros(*shape, dtype=weight.dtype):
        return torch.zeros(*shape, device=weight.device, dtype=dtype)

    kv = (len(attention), slots, config.num_key_value_heads, max_tokens + 1, size)
    if not linear:
        conv, recurrent = zeros(0, slots, 0, 0), zeros(0, slots, 0, 0, 0)
    else:
        one = linear[0]
        conv = zeros(len(linear), slots, one.conv_kernel_size - 1, one.conv_dim)
        recurrent = zeros(len(linear), slots, one.num_v_heads, one.head_k_dim, one.head_v_dim, dtype=torch.float32)
    return Memory(zeros(*kv), zeros(*kv), conv, recurrent, zeros(slots, config.hidden_size))


def make_tables(model: PreTrainedModel, memory: Memory) -> Tables:
    """cos and sin of every position, as the model's own rotary module computes them, and the slots' places."""
    weight = model.model.embed_tokens.weight
    slots, heads, tokens = memory.key_ASJTE.shape[1:4]
    lanes_SJ = torch.arange(slots * heads, device=weight.device).view(slots, heads) * tokens
    rotary, positions = model.model.rotary_emb, torch.arange(tokens, device=weight.device)[None]
    if hasattr(rotary, "mrope_section"):  # Qwen3.5 rotates by time, height and width, which are one for text
        positions = positions.expand(3, 1, -1)
    cos_1TE, sin_1TE = rotary(weight, positions)
    half = sin_1TE.shape[-1] // 2
    sin_1TE = torch.cat((-sin_1TE[..., :half], sin_1TE[..., half:]), -1)
    return Tables(cos_1TE[0, :, None], sin_1TE[0, :, None], lanes_SJ)


def place(tables: Tables, rows: slice | Tensor, positions_BT: Tensor) -> dict[str, Tensor]:
    """The fields of a `Chunk` that follow from where its tokens are."""
    write_BJT = tables.lanes_SJ[rows, :, None] + positions_BT[:, None]
    return {
        "write": write_BJT.flatten(), "cos_BTE": tables.cos_TE[positions_BT], "sin_BTE": tables.sin_TE[positions_BT]
    }  # fmt: skip


def forward(model: PreTrainedModel, memory: Memory, chunk: Chunk) -> None:
    """Consumes the chunk: advances K/V, states and last hidden of its rows in place."""
    x_BTD = model.model.embed_tokens(chunk.ids_BT)
    attention = linear = 0
    for layer, kind in zip(model.model.layers, model.config.layer_types):
        h_BTD = normalised(x_BTD, layer.input_layernorm)
        if kind == "full_attention":
            cache = memory.key_ASJTE[attention], memory.value_ASJTE[attention]
            x_BTD = x_BTD + self_attention(layer.self_attn, h_BTD, chunk, *cache)
            attention += 1
        else:
            states = memory.conv_LSWC[linear], memory.recurrent_LSHKV[linear]
            x_BTD = x_BTD + gated_delta_net(layer.linear_attn, h_BTD, chunk, *states)
            linear += 1
        x_BTD = x_BTD + layer.mlp(normalised(x_BTD, layer.post_attention_layernorm))
    rows, counts_B = chunk.rows, chunk.counts_B
    if counts_B is None:
        memory.hidden_SD[rows] = normalised(x_BTD[:, -1], model.model.norm)
    else:
        last_B = (counts_B - 1).clamp(min=0)
        last_BD = normalised(x_BTD[torch.arange(len(last_B), device=last_B.device), last_B], model.model.norm)
        memory.hidden_SD[rows] = torch.where(counts_B[:, None] > 0, last_BD, memory.hidden_SD[rows])


def normalised(x: Tensor, norm: nn.Module) -> Tensor:
    """Root mean square norm by a norm of the model; Qwen3.5 stores its scale as a difference from one."""
    if isinstance(norm, Qwen3_5RMSNorm):
        return rms_norm(x, norm.weight, norm.eps, offset=1.0)
    return rms_norm(x, norm.weight, norm.variance_epsilon)


def rotate_(x_BTHE: Tensor, chunk: Chunk) -> Tensor:
    """Rotary embedding of the leading dimensions that the tables cover, in place."""
    covered = x_BTHE[..., : chunk.cos_BTE.shape[-1]]
    swapped = covered.roll(covered.shape[-1] // 2, -1)
    covered.mul_(chunk.cos_BTE).addcmul_(swapped, chunk.sin_BTE)
    return x_BTHE


def self_attention(attn: nn.Module, x_BTD: Tensor, chunk: Chunk, key_SJTE: Tensor, value_SJTE: Tensor) -> Tensor:
    """Causal attention of the chunk to its rows' K/V and to itself; appends the chunk's own K/V."""
    B, T, size = *x_BTD.shape[:2], attn.head_dim
    k_BTJE, v_BTJE = attn.k_proj(x_BTD).view(B, T, -1, size), attn.v_proj(x_BTD).view(B, T, -1, size)
    gate_BTD = None
    q_BTHE = attn.q_proj(x_BTD)
    if q_BTHE.shape[-1] == 2 * attn.o_proj.in_features:  # Qwen3.5: each head's query is followed by its output gate
        q_BTHE, gate_BTD = q_BTHE.view(B, T, -1, 2 * size).chunk(2, -1)
    q_BTHE = q_BTHE.reshape(B, T, -1, size)
    if hasattr(attn, "q_norm"):
        q_BTHE, k_BTJE = normalised(q_BTHE, attn.q_norm), normalised(k_BTJE, attn.k_norm)
    q_BHTE = rotate_(q_BTHE, chunk).transpose(1, 2)
    k_BJTE, v_BJTE = rotate_(k_BTJE, chunk).transpose(1, 2), v_BTJE.transpose(1, 2)
    key_SJTE.view(-1, size).index_copy_(0, chunk.write, k_BJTE.reshape(-1, size))
    value_SJTE.view(-1, size).index_copy_(0, chunk.write, v_BJTE.reshape(-1, size))
    if chunk.lengths_B is None:
        out_BHTE = masked_attention(q_BHTE, k_BJTE, v_BJTE, chunk, key_SJTE, value_SJTE, attn.scaling)
    else:
        q_BHE = q_BHTE[:, :, 0].contiguous()
        out_BHE = decode_attention(q_BHE, key_SJTE, value_SJTE, chunk.rows, chunk.lengths_B, attn.scaling)
        out_BHTE = out_BHE[:, :, None]
    out_BTD = out_BHTE.transpose(1, 2).reshape(B, T, -1)
    if gate_BTD is not None:
        out_BTD = out_BTD * gate_BTD.reshape(B, T, -1).sigmoid()
    return attn.o_proj(out_BTD)


def masked_attention(q_BHTE, k_BJTE, v_BJTE, chunk: Chunk, key_SJTE, value_SJTE, scale: float) -> Tensor:
    """Attention outputs [B, H, T, E]; `k_BJTE` and `v_BJTE` are the chunk's own, which the cache holds already."""
    B, H, T, size = q_BHTE.shape
    if chunk.keys:
        k_BJTE, v_BJTE = key_SJTE[chunk.rows, :, : chunk.keys], value_SJTE[chunk.rows, :, : chunk.keys]
    if T == 1:  # the heads that share a K/V head are like T = H / J tokens of it, which reads K and V once for all
        q_BHTE = q_BHTE.view(B, k_BJTE.shape[1], -1, size)
    out_BHTE = F.scaled_dot_product_attention(
        q_BHTE, k_BJTE, v_BJTE, attn_mask=chunk.mask_B1TN, is_causal=not chunk.keys, scale=scale,
        enable_gqa=q_BHTE.shape[1] != k_BJTE.shape[1],
    )  # fmt: skip
    return out_BHTE.reshape(B, H, T, size)


def gated_delta_net(net: nn.Module, x_BTD: Tensor, chunk: Chunk, conv_SWC: Tensor, recurrent_SHKV: Tensor) -> Tensor:
    """Short convolution, gated delta rule, gated norm; advances both states of the rows in place."""
    B, T = x_BTD.shape[:2]
    weights = GatedDeltaWeights(
        net.conv1d.weight, net.A_log, net.dt_bias, net.norm.weight, net.norm.variance_epsilon
    )  # fmt: skip
    z_BTHV = net.in_proj_z(x_BTD).view(B, T, -1, net.head_v_dim)
    out_BTHV = gated_delta_rule(
        net.in_proj_qkv(x_BTD), z_BTHV, net.in_proj_b(x_BTD), net.in_proj_a(x_BTD), weights,
        conv_SWC, recurrent_SHKV, chunk.rows, chunk.counts_B,
    )  # fmt: skip
    return net.out_proj(out_BTHV.reshape(B, T, -1))
