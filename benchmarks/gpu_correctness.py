"""All kernels on this machine's GPU against float64 on the CPU: the torch path, or the loops of the kernel's test.

    python -m benchmarks.gpu_correctness [--small]

`--small` leaves out what needs gigabytes, for running under compute-sanitizer. With TRITON_INTERPRET=1 and --device
cpu it goes through the interpreter. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import torch

from kernels import (
    GatedDeltaWeights, decode_attention, gated_delta_rule, grpo_loss, linear_logprob, logits_logprob, rms_norm,
    segment_advantage,
)  # fmt: skip
from tests.test_decode_attention import by_softmax, cache
from tests.test_gated_delta_rule import by_loop, layer
from tests.test_rms_norm import by_definition

failures = 0


def check(name: str, got: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> None:
    global failures
    difference = (got.double().cpu() - expected.double().cpu()).abs()
    excess = (difference - atol - rtol * expected.double().cpu().abs()).max().item() if got.numel() else 0.0
    if not excess <= 0 or got.shape != expected.shape:
        failures += 1
        print(f"DIFFERS {name}: at most {difference.max().item():.3g} off")


def tokens(lengths: list[int]) -> dict[str, torch.Tensor]:
    T = sum(lengths)
    logprob_T = -torch.rand(T) * 4
    return {
        "logprob_T": logprob_T,
        "old_logprob_T": logprob_T + 0.4 * torch.randn(T),
        "advantage_T": torch.randn(T),
        "cu_seqlens_B1": torch.tensor([0, *lengths]).cumsum(0),
        "mask_T": torch.rand(T) > 0.4,
        "ref_logprob_T": logprob_T + torch.randn(T),
        "weight_T": torch.rand(T) * 2,
    }


def wide(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}


def losses(device: str, batches: list[list[int]]) -> None:
    for lengths in batches:
        inputs = tokens(lengths)
        inputs["logprob_T"][~inputs["mask_T"]] = torch.nan  # what is masked takes no part
        for level, aggregation, kl in itertools.product(
            ("token", "sequence", "sequence_token"), ("token_mean", "seq_mean_token_mean"), ("k1", "k2", "k3")
        ):
            options = {"denominator": 100.0, "level": level, "aggregation": aggregation, "kl": kl, "kl_coef": 0.1}
            results = []
            for batch in ({name: x.to(device) for name, x in inputs.items()}, wide(inputs)):
                logprob_T = batch.pop("logprob_T").detach().clone().requires_grad_()
                loss, stats = grpo_loss(logprob_T, **batch, **options, dual_clip=2.0)
                loss.backward()
                results.append((loss.detach(), logprob_T.grad, torch.stack(list(stats))))
            label = f"grpo_loss {level} {aggregation} {kl} T={sum(lengths)}"
            for part, got, expected in zip(("loss", "gradient", "statistics"), *results):
                check(f"{label} {part}", got, expected, 1e-4, 1e-5)


def advantages(device: str, batches: list[list[int]]) -> None:
    for lengths in batches:
        B, T = len(lengths), sum(lengths)
        tables = torch.randn(B), torch.randn(B, 9), torch.tensor([0, *lengths]).cumsum(0), torch.randint(-1, 9, (T,))
        got_T = segment_advantage(*(x.to(device) for x in tables))
        expected_T = segment_advantage(tables[0].double(), tables[1].double(), *tables[2:])
        check(f"segment_advantage T={T}", got_T, expected_T, 1e-6, 1e-6)


def log_probs(device: str, shapes: list[tuple[int, int, int]]) -> None:
    for (N, D, V), dtype, entropy in itertools.product(
        shapes, (torch.float32, torch.bfloat16, torch.float16), (False, True)
    ):
        hidden_ND, weight_VD = torch.randn(N, D).to(dtype), (torch.randn(V, D) / D**0.5).to(dtype)
        ids_N, g_PN = torch.randint(0, V, (N,)), torch.randn(3, N)
        results = []
        for place, kind in ((device, dtype), ("cpu", torch.float64)):
            inputs = [x.to(place, kind).requires_grad_() for x in (hidden_ND, weight_VD)]
            out = linear_logprob(*inputs, ids_N.to(place), 0.8, entropy=entropy, logsumexp=True)
            values = [x for x in out if x is not None]
            total = sum((g.to(x) * x).sum() for g, x in zip(g_PN, values))
            results.append([*values, *torch.autograd.grad(total, inputs)])
        exact = dtype == torch.float32
        for i, (got, expected) in enumerate(zip(*results)):
            # half-precision gradients are rounded on their way out
            rtol, atol = (1e-4, 1e-4) if exact else (2e-2, 2e-2)
            check(f"linear_logprob {dtype} N={N} V={V} entropy={entropy} output {i}", got, expected, rtol, atol)


def far_rows(device: str) -> None:
    """Rows of given logits beyond 2^31 elements, and more rows than a 16-bit grid axis holds."""
    N, V = 8800, 248_320
    logits_NV = torch.randn(N, V, device=device, dtype=torch.bfloat16)
    ids_N = torch.randint(0, V, (N,), device=device)
    got_N = logits_logprob(logits_NV, ids_N).logprob_N
    last = slice(N - 8, N)
    expected_N = logits_NV[last].double().log_softmax(1).gather(1, ids_N[last, None])[:, 0]
    check("logits_logprob beyond 2^31 elements", got_N[last], expected_N, 1e-4, 1e-4)
    logits_NV = torch.randn(70_000, 33, device=device)
    ids_N = torch.randint(0, 33, (70_000,), device=device)
    expected_N = logits_NV.double().log_softmax(1).gather(1, ids_N[:, None])[:, 0]
    check("logits_logprob with 70,000 rows", logits_logprob(logits_NV, ids_N).logprob_N, expected_N, 1e-5, 1e-5)


def delta_steps(device: str, shapes: list[tuple[int, int, int, int]]) -> None:
    """Busy and idle rows in slots out of order; shapes are key heads, value heads, key size, value size."""
    rows, counts = [3, 0, 4, 2], [1, 0, 1, 1]
    busy = torch.tensor(counts) > 0
    for shape, dtype in itertools.product(shapes, (torch.float32, torch.bfloat16)):
        inputs, weights, states = layer(*shape, len(rows), dtype)
        want = by_loop(inputs, weights, states, rows, counts)
        weights = GatedDeltaWeights(*(x.to(device) for x in weights[:4]), weights.eps)
        inputs, states = ([x.to(device) for x in tensors] for tensors in (inputs, states))
        rows_B, counts_B = torch.tensor(rows, device=device), torch.tensor(counts, device=device)
        out = gated_delta_rule(*inputs, weights, *states, rows_B, counts_B)
        name, exact = f"gated_delta_rule {dtype} {shape}", dtype == torch.float32
        check(f"{name} output", out.cpu()[busy], want[0][busy], *[1e-4 if exact else 2e-2] * 2)
        check(f"{name} window", states[0], want[1], 0, 0)
        check(f"{name} state", states[1], want[2], 1e-4, 1e-5)


def attention(device: str, shapes: list[tuple[int, int, int]], lengths: list[int]) -> None:
    """Shapes are query heads, K/V heads, head size."""
    rows = [4, 1, 0, 3][: len(lengths)]
    for shape, dtype in itertools.product(shapes, (torch.float32, torch.bfloat16)):
        tensors = cache(*shape, len(rows), positions=max(lengths) + 1, dtype=dtype)
        want = by_softmax(*tensors, rows, lengths, shape[2] ** -0.5)
        where = torch.tensor(rows, device=device), torch.tensor(lengths, device=device)
        got = decode_attention(*(x.to(device) for x in tensors), *where, shape[2] ** -0.5)
        tolerance = 1e-4 if dtype == torch.float32 else 2e-2
        check(f"decode_attention {dtype} {shape} {lengths}", got, want, tolerance, tolerance)


def norms(device: str, shapes: list[tuple[int, int]]) -> None:
    for (N, D), dtype in itertools.product(shapes, (torch.float32, torch.bfloat16)):
        x_ND, weight_D = torch.randn(N, D).to(dtype), torch.randn(D).to(dtype)
        tolerance = 1e-5 if dtype == torch.float32 else 8e-3
        got = rms_norm(x_ND.to(device), weight_D.to(device), 1e-6, 1.0)
        check(f"rms_norm {dtype} {N} x {D}", got, by_definition(x_ND, weight_D, 1e-6, 1.0), tolerance, tolerance)


def far_slots(device: str) -> None:
    """K/V beyond 2^31 elements from the beginning of the buffer, and a slot of thousands of parts."""
    E, T = 256, 4_400_000
    cache_SJTE = torch.empty(2, 1, T, E, device=device, dtype=torch.bfloat16)
    cache_SJTE[1, :, :700].normal_()
    q_BHE = torch.randn(1, 4, E, device=device, dtype=torch.bfloat16)
    where = torch.tensor([1], device=device), torch.tensor([700], device=device)
    got = decode_attention(q_BHE, cache_SJTE, cache_SJTE, *where, E**-0.5)
    near = cache_SJTE[1:, :, :700].cpu()
    check("decode_attention beyond 2^31", got, by_softmax(q_BHE.cpu(), near, near, [0], [700], E**-0.5), 2e-2, 2e-2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    large = not options.small
    torch.manual_seed(0)
    batches = [[1], [7, 0, 900, 1, 600]] + [[40_000, 30_000]] * large
    advantages(options.device, batches)
    losses(options.device, batches)
    shapes = [(5, 16, 7), (6, 32, 1000), (3, 64, 4099)]
    log_probs(options.device, shapes + [(700, 256, 20_000), (64, 512, 248_320)] * large)
    delta_steps(options.device, [(2, 4, 8, 12), (2, 2, 16, 32)] + [(16, 16, 128, 128), (16, 32, 128, 128)] * large)
    attention(options.device, [(4, 2, 16), (14, 2, 64)], [70, 0, 1, 33])
    norms(options.device, [(3, 7), (2, 300), (5, 2048)])
    if large:
        attention(options.device, [(8, 2, 256), (16, 8, 128), (14, 2, 64)], [1300, 0, 512, 513])
        norms(options.device, [(70_000, 256), (9, 2560), (3, 16_384), (2, 20_000)])
        far_rows(options.device)
        far_slots(options.device)
    print("all kernels agree with float64" if not failures else f"{failures} comparisons differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
