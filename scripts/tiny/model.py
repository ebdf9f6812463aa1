"""Small Qwen models whose start makes copying appear early.

Heads are wide enough to carry a name (32 dimensions), and attention begins as copying does, with an output that undoes
the value projection and keys that resemble queries.

Source: the architectures are those of transformers' Qwen3_5ForCausalLM and Qwen3ForCausalLM; Trockman and Kolter,
"Mimetic Initialization of Self-Attention Layers", 2023.
"""

from __future__ import annotations

import torch
from transformers import PretrainedConfig, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

from scripts.tiny.recipe import HYBRID

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
EMBEDDING_STD = 0.15
KEY_LIKE_QUERY = 0.7


def make_model(vocabulary: int, pad: int, end: int, layers: tuple[str, ...] = HYBRID, hidden: int = 64):
    """A causal language model with random weights; draws from torch's global generator."""
    shape = dict(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=len(layers),
        layer_types=list(layers), num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
        tie_word_embeddings=True, max_position_embeddings=4096, pad_token_id=pad, eos_token_id=end, bos_token_id=None,
    )  # fmt: skip
    model = hybrid(shape) if "linear_attention" in layers else dense(shape)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD)
    for layer, kind in zip(model.model.layers, layers):
        if kind == "full_attention":
            start_as_copying(layer.self_attn)
    return model


def hybrid(shape: dict) -> Qwen3_5ForCausalLM:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1]}
    config = Qwen3_5TextConfig(
        **shape, rope_parameters=rope, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=16,
        linear_value_head_dim=32, linear_conv_kernel_dim=4,
    )  # fmt: skip
    return Qwen3_5ForCausalLM(config)


def dense(shape: dict) -> Qwen3ForCausalLM:
    config: PretrainedConfig = Qwen3Config(**shape, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    return Qwen3ForCausalLM(config)


@torch.no_grad()
def start_as_copying(attention: torch.nn.Module) -> None:
    """Output projection = transpose of the value projection; queries lean towards their head's keys."""
    hidden = attention.v_proj.in_features
    value_JED = attention.v_proj.weight.view(KV_HEADS, HEAD_DIM, hidden)
    key_JED = attention.k_proj.weight.view(KV_HEADS, HEAD_DIM, hidden)
    query_HED = attention.q_proj.weight.view(HEADS, -1, hidden)[:, :HEAD_DIM]  # in a Qwen3.5 the rest is the gate
    output_DHE = attention.o_proj.weight.view(hidden, HEADS, HEAD_DIM)
    for head in range(HEADS):
        group = head * KV_HEADS // HEADS
        output_DHE[:, head] = value_JED[group].T
        query_HED[head].mul_(KEY_LIKE_QUERY).add_(key_JED[group], alpha=KEY_LIKE_QUERY)


@torch.no_grad()
def start_near_kinds(model, kind_of: dict[int, int]) -> None:
    """Gives tokens half of their kind's embedding, so that attention to a kind finds its instances from the start."""
    embedding_VD = model.model.embed_tokens.weight
    for token, kind in kind_of.items():
        embedding_VD[token].add_(embedding_VD[kind]).mul_(0.5**0.5)


@torch.no_grad()
def sharpen(model, factor: float) -> None:
    """Multiplies the logits through the final norm's weight, which a Qwen3.5 stores as its difference from 1."""
    weight = model.model.norm.weight
    offset = 1 if isinstance(model, Qwen3_5ForCausalLM) else 0
    weight.copy_((offset + weight) * factor - offset)
