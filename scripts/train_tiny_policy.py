"""Makes the embedded policy, prover_mini/assets/tiny, from nothing: one command, one CPU core, minutes.

    python -m scripts.train_tiny_policy

A small Qwen3.5 (a Gated DeltaNet layer, then attention layers) imitates a fallible searcher in 30 worlds whose facts
are false (scripts/tiny): it learns to search, to copy names and to take wrong turns, and no fact. What it starts with
is what makes copying appear early: a name is one token, heads are wide enough to carry one (32 dimensions), and
attention begins as copying does, with an output that undoes the value projection and keys that resemble queries.

Source: the architecture is that of transformers' Qwen3_5ForCausalLM; Trockman and Kolter, "Mimetic Initialization of
Self-Attention Layers", 2023.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.utils import logging

from envs.searchqa.world import parse_mix
from scripts.tiny import tokenizer as tiny_tokenizer
from scripts.tiny.counterfactual import counterfactual
from scripts.tiny.demonstrations import Demonstration, Noise, demonstrate

TARGET = Path(__file__).parent.parent / "prover_mini" / "assets" / "tiny"
LAYERS = ("linear_attention", "full_attention", "full_attention")
HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 64, 4, 2, 32
EMBEDDING_STD = 0.15
KEY_LIKE_QUERY = 0.7
MIX = "1-hop:.2,2-hop:.5,3-hop:.3"
WORLDS, EPISODES_PER_WORLD = 30, 1000
STEPS, BATCH, PEAK_LR = 1100, 64, 3e-3
SHARPNESS = 1.3  # of the final logits: takes the tail of wrong names off, and leaves the decisions open


def make_model(vocabulary: int, pad: int, end: int, layers=LAYERS, hidden: int = HIDDEN) -> Qwen3_5ForCausalLM:
    config = Qwen3_5TextConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=len(layers),
        layer_types=list(layers), num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
        linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=32,
        linear_conv_kernel_dim=4, tie_word_embeddings=True, max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1],
        },
        pad_token_id=pad, eos_token_id=end, bos_token_id=None,
    )  # fmt: skip
    model = Qwen3_5ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD)
    for layer, kind in zip(model.model.layers, layers):
        if kind == "full_attention":
            start_as_copying(layer.self_attn)
    return model


@torch.no_grad()
def start_as_copying(attention: torch.nn.Module) -> None:
    """Output projection = transpose of the value projection; queries lean towards their head's keys."""
    hidden = attention.v_proj.in_features
    value_JED = attention.v_proj.weight.view(KV_HEADS, HEAD_DIM, hidden)
    key_JED = attention.k_proj.weight.view(KV_HEADS, HEAD_DIM, hidden)
    query_HED = attention.q_proj.weight.view(HEADS, 2 * HEAD_DIM, hidden)[:, :HEAD_DIM]  # the rest is the gate
    output_DHE = attention.o_proj.weight.view(hidden, HEADS, HEAD_DIM)
    for head in range(HEADS):
        group = head * KV_HEADS // HEADS
        output_DHE[:, head] = value_JED[group].T
        query_HED[head].mul_(KEY_LIKE_QUERY).add_(key_JED[group], alpha=KEY_LIKE_QUERY)


def make_demonstrations(tokenizer, worlds: int, each: int, noise: Noise, seed: int = 0) -> list[Demonstration]:
    names = {tokenizer.encode(name, add_special_tokens=False)[0] for name in tiny_tokenizer.names()}
    found: list[Demonstration] = []
    for k in range(worlds):
        found += demonstrate(counterfactual(seed + k), tokenizer, names, noise, parse_mix(MIX), each, seed=seed + k)
        print(f"\rdemonstrations: world {k + 1} of {worlds}", end="", flush=True)
    rate = np.mean([d.success for d in found])
    print(f", {len(found)} episodes, {sum(len(d.ids) for d in found) / 1e6:.1f} M tokens, success {rate:.2f}")
    return found


def imitate(model, data: list[Demonstration], steps: int, batch: int, lr: float) -> None:
    """AdamW on the searcher's own tokens; batches of episodes of similar length; warm-up, then cosine to 5 %."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, betas=(0.9, 0.98))
    data = sorted(data, key=lambda d: len(d.ids))
    rng, order, losses, tokens, start = random.Random(0), [], [], 0, time.process_time()
    model.train()
    for step in range(1, steps + 1):
        if not order:
            order = rng.sample(range(len(data) // batch), len(data) // batch)
        first = order.pop() * batch
        episodes = data[first : first + batch]
        rate = lr * min(1.0, step / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        loss = imitation_loss(model, episodes)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        tokens += sum(len(d.ids) for d in episodes)
        if step % 50 == 0 or step == steps:
            seconds = time.process_time() - start
            progress = f"{tokens / 1e6:.2f} M tokens  {seconds:.0f} CPU-s"
            print(f"step {step}/{steps}  loss {np.mean(losses[-50:]):.3f}  {progress}", flush=True)


def imitation_loss(model, episodes: list[Demonstration]) -> torch.Tensor:
    longest = max(len(d.ids) for d in episodes)
    ids_BT = torch.zeros(len(episodes), longest, dtype=torch.long)
    said_BT = torch.zeros(len(episodes), longest, dtype=torch.bool)
    for b, d in enumerate(episodes):
        ids_BT[b, : len(d.ids)] = torch.tensor(d.ids)
        said_BT[b, : len(d.ids)] = torch.tensor(d.said)
    hidden_BTD = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    hidden_ND = hidden_BTD[:, :-1][said_BT[:, 1:]]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden_ND), ids_BT[:, 1:][said_BT[:, 1:]])


@torch.no_grad()
def sharpen(model, factor: float) -> None:
    """Multiplies the logits: the final norm's weight is stored as its difference from 1."""
    weight = model.model.norm.weight
    weight.copy_((1 + weight) * factor - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the embedded policy, from nothing, in about 10 CPU-minutes.")
    parser.add_argument("--target", type=Path, default=TARGET, help="directory to write (default: %(default)s)")
    target = parser.parse_args().target
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = tiny_tokenizer.build()
    data = make_demonstrations(tokenizer, WORLDS, EPISODES_PER_WORLD, Noise())
    model = make_model(len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e3:.0f} k parameters", flush=True)
    imitate(model, data, STEPS, BATCH, PEAK_LR)
    sharpen(model, SHARPNESS)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    print(f"{target}: {sum(file.stat().st_size for file in target.iterdir()) / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
