"""Decoding and verification in the engine with a random-weight Qwen3.5 of 2B size, on this GPU.

    python -m benchmarks.gpu_engine [--slots 128] [--prompt 1024] [--new 128] [--layers 24]

Decoding reads all weights once per token of every slot, so the floor is the time to read them at this card's copy
rate (K/V and recurrent states not counted). Verification: 2 K = 16 continuations of `new` tokens from two boundaries,
with restored states and with the prefix computed again for each.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

from prover_mini.engine import Engine

CONTINUATIONS = 8


def random_model(layers: int, device: str):
    """The text model of Qwen3.5-2B with random weights."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    config = Qwen3_5TextConfig(
        vocab_size=248_320, hidden_size=2048, intermediate_size=6144, num_hidden_layers=layers, layer_types=kinds,
        num_attention_heads=8, num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16,
        linear_key_head_dim=128, linear_value_head_dim=128, tie_word_embeddings=True, max_position_embeddings=32_768,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen3_5ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def seconds(run, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def generate(engine: Engine, rows: list[int], new: int, random: np.random.Generator) -> None:
    for _ in range(new):
        tokens, _ = engine.sample(rows, random.random(len(rows)), 1.0)
        engine.decode(rows, tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device, new = options.device, options.new
    random = np.random.default_rng(0)
    model = random_model(options.layers, device)
    engine = Engine(model, options.slots, options.prompt + 2 * new + 8)
    weight_bytes = sum(p.nbytes for p in model.parameters())
    prompts = random.integers(0, 248_000, (options.slots, options.prompt)).tolist()
    rows = list(range(options.slots))

    engine.extend(rows[:2], [p[:64] for p in prompts[:2]])  # warm up
    generate(engine, rows[:2], 3, random)
    engine.clear(rows)
    prefill = seconds(lambda: engine.extend(rows, prompts), device)
    generate(engine, rows, 4, random)
    decode = seconds(lambda: generate(engine, rows, new, random), device)
    print(f"prefill {options.slots * options.prompt / prefill:,.0f} tokens/s")
    rate = options.slots * new / decode
    line = f"decode  {rate:,.0f} tokens/s at {options.slots} slots, {1e3 * decode / new:.2f} ms a step"
    if device == "cuda":
        from benchmarks.kernels_gpu import copy_rate

        floor = weight_bytes / copy_rate()
        line += f", {100 * floor * new / decode:.0f} % of the floor of {1e3 * floor:.2f} ms"
    print(line)

    half = options.prompt // 2
    engine.clear(rows)
    engine.extend([0], [prompts[0][:half]])
    marks = engine.mark([0])
    engine.extend([0], [prompts[0][half:]])
    states = engine.seal(0, marks + engine.mark([0]))
    branches = [state for state in states for _ in range(CONTINUATIONS)]
    targets = rows[: len(branches)]

    def forked():
        engine.restore(branches, targets)
        generate(engine, targets, new, random)

    def recomputed():
        engine.clear(targets)
        engine.extend(targets, [prompts[0][: state.length] for state in branches])
        generate(engine, targets, new, random)

    engine.clear(targets)
    with_forks, without = seconds(forked, device), seconds(recomputed, device)
    print(f"verification of one segment: {with_forks:.2f} s with forks, {without:.2f} s with recomputed prefixes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
