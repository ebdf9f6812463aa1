"""Decoding and verification in the engine with a random-weight Qwen3.5 of 2B or 4B size, on this GPU.

    python -m benchmarks.gpu_engine [--model 2B] [--slots 128] [--prompt 1024] [--new 128] [--layers N]

First the engine is compared with the model's own forward, and steps from CUDA graphs with the same steps without.
A step of decoding reads all weights once, and of every slot the K/V and the recurrent and convolution states, and
writes these states: at this card's copy rate that is its floor. Three ways are timed, each with sampling: CUDA graphs,
the same kernels launched from Python, and torch operations in shapes of the moment, as on a CPU. Verification: 2 K = 16
continuations of `new` tokens from two boundaries, with restored states and with the prefix computed again for each.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

from prover_mini.engine import Engine, self_check
from prover_mini.shapes import SHAPES, known_config

CONTINUATIONS = 8
FAMILY = "Qwen/Qwen3.5-"


def random_model(size: str, layers: int, device: str):
    """The text model of Qwen3.5 in that size with random weights."""
    from transformers import Qwen3_5ForCausalLM

    cut = {"num_hidden_layers": layers} if layers else {}
    config = known_config(FAMILY + size, **cut)
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


def step_bytes(engine: Engine, rows: list[int]) -> int:
    """Bytes that one decode step of these rows must move."""
    memory, share = engine._memory, len(rows) / engine.slots
    weights = sum(p.nbytes for p in engine.model.parameters())
    states = 2 * share * (memory.recurrent_LSHKV.nbytes + memory.conv_LSWC.nbytes)
    slot_token = 2 * memory.key_ASJTE.nbytes / engine.slots / memory.key_ASJTE.shape[3]
    return int(weights + states + slot_token * sum(engine.lengths[row] for row in rows))


def graphs_differ(engine: Engine, prompts: list[list[int]]) -> float:
    """Largest difference of a hidden state between three steps from graphs and the same without, in its scale."""
    rows = list(range(min(5, engine.slots)))[::-1]
    results = []
    for graphs in (True, False):
        engine._decoder.graphs = graphs
        engine.clear(rows)
        engine.extend(rows, [prompts[row][: 5 + 7 * row] for row in rows])
        for cut in (0, 1, 2):
            engine.decode(rows[cut:], [prompts[row][100 + cut] for row in rows[cut:]])
        results.append(engine._memory.hidden_SD[rows].float())
    engine._decoder.graphs = True
    return ((results[0] - results[1]).abs().max() / results[1].std()).item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[name.removeprefix(FAMILY) for name in SHAPES], default="2B")
    parser.add_argument("--slots", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--layers", type=int, default=0, help="0: all of the model's")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device, new = options.device, options.new
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    model = random_model(options.model, options.layers, device)
    engine = Engine(model, options.slots, options.prompt + 4 * new + 16)
    prompts = random.integers(0, 248_000, (options.slots, options.prompt)).tolist()
    rows = list(range(options.slots))

    self_check(engine)
    print(f"{options.model}: the engine agrees with the model's own forward")
    if device == "cuda":
        difference = graphs_differ(engine, prompts)
        print(f"decoding with and without CUDA graphs: hidden states differ by at most {difference:.1e} of their scale")
        if not difference <= 0.02:
            print("FAILED: CUDA graphs compute something else")
            return 1

    engine.clear(rows)
    prefill = seconds(lambda: engine.extend(rows, prompts), device)
    print(f"prefill {options.slots * options.prompt / prefill:,.0f} tokens/s")
    decoding(engine, rows, new, random, device)
    verification(engine, prompts[0], new, random, device)
    return 0


def decoding(engine: Engine, rows: list[int], new: int, random: np.random.Generator, device: str) -> None:
    rate = 0.0
    if device == "cuda":
        from benchmarks.kernels_gpu import copy_rate

        rate = copy_rate()
    decoder = engine._decoder
    for name in ("CUDA graphs", "kernels, no graphs", "torch operations"):
        if name != "torch operations":
            if decoder is None:
                continue
            decoder.graphs = name == "CUDA graphs"
        engine._decoder = None if name == "torch operations" else decoder
        made = seconds(lambda: generate(engine, rows, 3, random), device)
        floor = step_bytes(engine, rows) / rate if rate else 0.0
        step = seconds(lambda: generate(engine, rows, new, random), device) / new
        sampling = seconds(lambda: [engine.sample(rows, random.random(len(rows)), 1.0) for _ in range(8)], device) / 8
        line = f"decode, {name:20} {len(rows) / step:9,.0f} tokens/s at {len(rows)} slots, {1e3 * step:.2f} ms a step"
        line += f" ({1e3 * sampling:.2f} of them sampling; the first three took {made:.1f} s)"
        if floor:
            line += f", {100 * floor / step:.0f} % of the floor of {1e3 * floor:.2f} ms"
        print(line, flush=True)
    engine._decoder = decoder
    if decoder is not None:
        decoder.graphs = device == "cuda"


def verification(engine: Engine, prompt: list[int], new: int, random: np.random.Generator, device: str) -> None:
    rows, half = list(range(engine.slots)), len(prompt) // 2
    engine.clear(rows)
    engine.extend([0], [prompt[:half]])
    marks = engine.mark([0])
    engine.extend([0], [prompt[half:]])
    states = engine.seal(0, marks + engine.mark([0]))
    branches = [state for state in states for _ in range(CONTINUATIONS)]
    targets = rows[: len(branches)]

    def forked():
        engine.restore(branches, targets)
        generate(engine, targets, new, random)

    def recomputed():
        engine.clear(targets)
        engine.extend(targets, [prompt[: state.length] for state in branches])
        generate(engine, targets, new, random)

    engine.clear(targets)
    engine.extend(targets, [prompt[:2]] * len(targets))
    generate(engine, targets, 2, random)  # makes the graph of this size
    with_forks, without = seconds(forked, device), seconds(recomputed, device)
    print(f"verification of one segment: {with_forks:.2f} s with forks, {without:.2f} s with recomputed prefixes")


if __name__ == "__main__":
    sys.exit(main())
