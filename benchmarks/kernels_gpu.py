"""The kernels on this GPU: 20/50/80 % quantiles, rates, share of the floor, memory beyond inputs and gradients.

Floors come from this card: the rate of a large bfloat16 product, and of a copy. `linear_logprob` forward and backward
makes four products of 2 N V D operations, what keeps all logits three. "% of floor" is of a path's own products.
Advantage and loss, and the kernels of decoding, are timed as CUDA graphs, so that the launch cost of Python is not in
the figure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

import torch
from torch import Tensor
from triton.testing import do_bench, do_bench_cudagraph

from kernels import (
    GatedDeltaWeights, decode_attention, gated_delta_rule, grpo_loss, linear_logprob, rms_norm, segment_advantage,
)  # fmt: skip

DEVICE = "cuda"
VOCABULARY = 248_320
MODELS = {"2B": 2048, "4B": 2560}
TOKENS = (8192, 32_768)
COMPILED_TOKENS = 8192  # torch.compile is shown up to here: each shape costs it most of a minute
QUANTILES = [0.2, 0.5, 0.8]


def gemm_rate(size: int = 8192) -> float:
    """FLOP/s of a bfloat16 product."""
    a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / (do_bench(lambda: a @ b, quantiles=[0.5]) * 1e-3)


def copy_rate(size: int = 2**30) -> float:
    """Bytes/s read and written by a copy."""
    source = torch.zeros(size, device=DEVICE, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * size / (do_bench(lambda: target.copy_(source), quantiles=[0.5]) * 1e-3)


def materialised(hidden_ND: Tensor, weight_VD: Tensor, ids_N: Tensor) -> Tensor:
    return (hidden_ND @ weight_VD.T).float().log_softmax(1).gather(1, ids_N[:, None])[:, 0]


def paths() -> dict[str, Callable]:
    """What is compared: each returns log-probs [N], or a summed loss."""
    found = {
        "linear_logprob": lambda h, w, ids: linear_logprob(h, w, ids).logprob_N,
        "eager": materialised,
        "torch.compile": torch.compile(materialised, dynamic=False),
    }
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss(reduction="sum")
        found["Liger, summed"] = lambda h, w, ids: -liger(w, h, ids)
    except ImportError:
        pass
    return found


def extra_mib(run: Callable, gradients: int) -> float:
    """Peak memory of a call beyond what was there and `gradients` bytes of results."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before - gradients) / 2**20


def log_probs(report, flops: float) -> None:
    rows, candidates = [], paths()
    for model, D in MODELS.items():
        for N in TOKENS:
            hidden_ND = torch.randn(N, D, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
            weight_VD = (torch.randn(VOCABULARY, D, device=DEVICE) / D**0.5).bfloat16().requires_grad_()
            ids_N = torch.randint(0, VOCABULARY, (N,), device=DEVICE)
            inputs, product = (hidden_ND, weight_VD), 2 * N * VOCABULARY * D
            for name, path in candidates.items():
                if name == "torch.compile" and N > COMPILED_TOKENS:
                    continue

                def forward(path=path):
                    with torch.no_grad():
                        path(hidden_ND, weight_VD, ids_N)

                def both(path=path):
                    torch.autograd.grad(path(hidden_ND, weight_VD, ids_N).sum(), inputs)

                gradients = sum(x.nbytes for x in inputs)
                products = 4 if name == "linear_logprob" else 3
                for label, run, count, beyond in (("forward", forward, 1, 0), ("both", both, products, gradients)):
                    row = {"model": model, "tokens": N, "path": name, "pass": label}
                    rows.append(row | timed(run, count, product, flops, beyond))
                torch.cuda.empty_cache()
    report.table(f"Log-probs, V {VOCABULARY:,}, bfloat16 (products at {flops / 1e12:.0f} TFLOP/s)", rows)


def timed(run: Callable, products: int, product: int, flops: float, gradients: int) -> dict:
    columns = ("p20 ms", "p50 ms", "p80 ms", "TFLOP/s", "% of floor", "% of 3-product floor", "extra MiB")
    try:
        run()
        low, middle, high = do_bench(run, warmup=50, rep=400, quantiles=QUANTILES)
        extra = extra_mib(run, gradients)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return dict.fromkeys(columns, "out of memory")
    floor = product / flops * 1e3
    three = f"{300 * floor / middle:.0f}" if products > 1 else ""
    figures = (f"{low:.2f}", f"{middle:.2f}", f"{high:.2f}", f"{products * product / middle / 1e9:.0f}",
               f"{100 * products * floor / middle:.0f}", three, f"{extra:.0f}")  # fmt: skip
    return dict(zip(columns, figures))


def small_kernels(report, bandwidth: float, T: int = 32_768, B: int = 64, N: int = 30) -> None:
    cu_seqlens_B1 = torch.arange(0, T + 1, T // B, device=DEVICE, dtype=torch.int32)
    turn_ids_T = torch.randint(-1, N, (T,), device=DEVICE, dtype=torch.int32)
    advantage_B, credit_BN = torch.randn(B, device=DEVICE), torch.randn(B, N, device=DEVICE)
    logprob_T = -torch.rand(T, device=DEVICE)
    old_T, ref_T = logprob_T + 0.1 * torch.randn_like(logprob_T), logprob_T - 0.1
    advantage_T = torch.randn(T, device=DEVICE)
    mask_T = turn_ids_T >= 0

    def eager_advantage():
        row_T = torch.repeat_interleave(cu_seqlens_B1.diff().long(), output_size=T)
        stream_T = advantage_B[row_T] + credit_BN[row_T, turn_ids_T.clamp(min=0).long()]
        return torch.where(mask_T, stream_T, 0.0)

    def loss(level="token", **options):
        return grpo_loss(
            logprob_T, old_T, advantage_T, cu_seqlens_B1, mask_T,
            denominator=float(T), level=level, dual_clip=3.0, **options,
        )  # fmt: skip

    def eager_loss():
        ratio_T = (logprob_T - old_T).exp()
        clipped_T = ratio_T.clamp(0.8, 1.2)
        loss_T = -torch.minimum(ratio_T * advantage_T, clipped_T * advantage_T)
        k1_T = logprob_T - ref_T
        return (torch.where(mask_T, loss_T + 0.1 * ((-k1_T).exp() + k1_T - 1), 0.0)).sum() / T

    kl = {"ref_logprob_T": ref_T, "kl_coef": 0.1}
    cases = {
        "segment_advantage": (lambda: segment_advantage(advantage_B, credit_BN, cu_seqlens_B1, turn_ids_T), 8),
        "segment_advantage, eager": (eager_advantage, 8),
        "segment_advantage, torch.compile": (torch.compile(eager_advantage), 8),
        "grpo_loss": (loss, 17),
        "grpo_loss, KL": (lambda: loss(**kl), 21),
        "grpo_loss, sequence, row means": (lambda: loss("sequence", aggregation="seq_mean_token_mean"), 17),
        "loss without statistics or gradient, eager": (eager_loss, 17),
        "loss without statistics or gradient, torch.compile": (torch.compile(eager_loss), 17),
    }
    rows = [moved(name, run, each * T, bandwidth) for name, (run, each) in cases.items()]
    report.table(f"Advantage and loss, {T:,} tokens in {B} trajectories (copies at {bandwidth / 1e12:.2f} TB/s)", rows)


def moved(name: str, run: Callable, size: int, bandwidth: float) -> dict:
    """A row of a table of kernels that only move bytes: `size` of them, in a CUDA graph."""
    run()
    low, middle, high = (1e3 * x for x in do_bench_cudagraph(run, rep=50, quantiles=QUANTILES))
    return {
        "kernel": name,
        "p20 us": f"{low:.1f}",
        "p50 us": f"{middle:.1f}",
        "p80 us": f"{high:.1f}",
        "GB/s": f"{size / middle / 1e3:.0f}",
        "% of floor": f"{100 * size / bandwidth / (middle * 1e-6):.1f}",
        "extra KiB": f"{1024 * extra_mib(run, 0):.0f}",
    }


def gathered_attention(q_BHE, key_SJTE, value_SJTE, rows_B, scale: float) -> Tensor:
    """What `decode_attention` replaces, for rows of one length."""
    q_BJGE = q_BHE.view(len(q_BHE), key_SJTE.shape[1], -1, q_BHE.shape[2])
    keys, values = key_SJTE[rows_B], value_SJTE[rows_B]
    return torch.nn.functional.scaled_dot_product_attention(q_BJGE, keys, values, scale=scale)


def decoding(report, bandwidth: float, B: int = 128) -> None:
    """The kernels of one decode step of B rows, each for one layer."""

    def normal(*shape):
        return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)

    rows_B, ones_B = torch.randperm(B, device=DEVICE), torch.ones(B, dtype=torch.int64, device=DEVICE)
    eager_delta_rule = import_module("kernels.gated_delta_rule").by_torch
    rows = []

    def add(name: str, size: int, function: Callable, *arguments) -> None:
        rows.append(moved(name, partial(function, *arguments), size, bandwidth))

    for model, D in MODELS.items():
        J, K, V, H = 16, 128, 128, {"2B": 16, "4B": 32}[model]
        C = 2 * J * K + H * V
        inputs = normal(B, 1, C), normal(B, 1, H, V), normal(B, 1, H), normal(B, 1, H)
        decay_2H = torch.randn(2, H, device=DEVICE)
        weights = GatedDeltaWeights(normal(C, 1, 4), *decay_2H, normal(V), 1e-6)
        states = normal(B, 3, C), torch.randn(B, H, K, V, device=DEVICE)
        size = 2 * sum(x.nbytes for x in states) + sum(x.nbytes for x in inputs) + inputs[1].nbytes
        add(f"gated_delta_rule, {model}", size, gated_delta_rule, *inputs, weights, *states, rows_B, ones_B)
        add(f"gated_delta_rule, eager, {model}", size, eager_delta_rule, *inputs, weights, *states, rows_B, ones_B)

        heads, J, E = H // 2, H // 8, 256
        for length in (1024, 8192):
            q_BHE, key_SJTE, value_SJTE = normal(B, heads, E), normal(B, J, length, E), normal(B, J, length, E)
            tensors, size = (q_BHE, key_SJTE, value_SJTE), key_SJTE.nbytes + value_SJTE.nbytes + 2 * q_BHE.nbytes
            name, lengths_B = f"{model}, {length} keys", ones_B * length
            add(f"decode_attention, {name}", size, decode_attention, *tensors, rows_B, lengths_B, E**-0.5)
            add(f"gathered K/V, eager, {name}", size, gathered_attention, *tensors, rows_B, E**-0.5)
        x_BD = normal(B, D)
        add(f"rms_norm, {model}", 2 * x_BD.nbytes, rms_norm, x_BD, normal(D), 1e-6, 1.0)
        torch.cuda.empty_cache()
    report.table(f"Decoding, one layer, {B} rows (copies at {bandwidth / 1e12:.2f} TB/s)", rows)


def gpu(report) -> None:
    flops, bandwidth = gemm_rate(), copy_rate()
    small_kernels(report, bandwidth)
    decoding(report, bandwidth)
    log_probs(report, flops)
