"""Every kernel on guarded tensors: `TRITON_INTERPRET=1 python -m tests.guard`.

All inputs and everything the launchers allocate end at inaccessible memory, so a single access outside kills the
process. First a forked process asks a kernel for one column more than there is, to show that the guard works.
"""

from __future__ import annotations

import os
import signal
from importlib import import_module

import torch

from kernels import GatedDeltaWeights, decode_attention, gated_delta_rule, grpo_loss, rms_norm, segment_advantage
from tests.interpreter import INTERPRETED, guarded
from tests.test_decode_attention import cache
from tests.test_gated_delta_rule import layer

assert INTERPRETED, "run this with TRITON_INTERPRET=1"
log_probs = import_module("kernels.linear_logprob")


def guard_allocations() -> None:
    """From here on, new tensors of the launchers are guarded."""
    for name in ("empty", "empty_like", "full"):
        original = getattr(torch, name)

        def allocate(*arguments, original=original, **options):
            fresh = original(*arguments, **options)
            return guarded(fresh) if fresh.numel() else fresh

        setattr(torch, name, allocate)


def advantages_and_losses() -> None:
    for lengths in ([1], [5, 0, 300], [257, 1, 255]):
        cu_seqlens_B1 = guarded(torch.tensor([0, *lengths]).cumsum(0))
        T, B = sum(lengths), len(lengths)
        turn_ids_T = guarded(torch.arange(T) % 4 - 1)
        advantage_T = segment_advantage(guarded(torch.randn(B)), guarded(torch.randn(B, 3)), cu_seqlens_B1, turn_ids_T)
        logprob_T, old_T, ref_T, weight_T = (guarded(torch.rand(T)) for _ in range(4))
        for level in ("token", "sequence", "sequence_token"):
            grpo_loss(
                logprob_T, old_T, guarded(advantage_T), cu_seqlens_B1, guarded(turn_ids_T >= 0),
                denominator=1.0, level=level, ref_logprob_T=ref_T, kl_coef=0.1, weight_T=weight_T,
            )  # fmt: skip


def softmax(columns: int) -> None:
    ids_N = guarded(torch.tensor([0, columns - 1, columns // 2]))
    logits_NC = guarded(torch.randn(3, columns))
    state = log_probs._FusedSoftmax(ids_N, torch.float32, 0.7, True)
    state.add(logits_NC, 0)
    ones_N = [guarded(torch.ones(3)) for _ in range(3)]
    for dtype in (torch.float32, torch.bfloat16):
        gradient = log_probs._FusedGradient([guarded(x) for x in state.state], 0.7, True, *ones_N)
        gradient.of(guarded(logits_NC), 0, dtype)


def decode() -> None:
    """The last slot is in use, and the last row idles or not."""
    for J, H, K, V, dtype in ((1, 2, 5, 3, torch.float32), (2, 2, 8, 16, torch.bfloat16)):
        inputs, weights, states = layer(J, H, K, V, 2, dtype)
        inputs, states = list(map(guarded, inputs)), list(map(guarded, states))
        weights = GatedDeltaWeights(*map(guarded, weights[:4]), weights.eps)
        for counts in ([1, 1], [1, 0]):
            rows_B, counts_B = guarded(torch.tensor([4, 0])), guarded(torch.tensor(counts))
            gated_delta_rule(*inputs, weights, *states, rows_B, counts_B)
    for H, J, E, dtype in ((3, 1, 5, torch.float32), (4, 2, 16, torch.bfloat16)):
        tensors = list(map(guarded, cache(H, J, E, 2, positions=70, dtype=dtype)))
        for lengths in ([70, 0], [1, 33]):
            decode_attention(*tensors, guarded(torch.tensor([4, 0])), guarded(torch.tensor(lengths)), 0.3)
        rms_norm(tensors[0], guarded(torch.ones(E)), 1e-6)


def one_column_too_many(columns: int) -> None:
    logits_NC = guarded(torch.randn(1, columns))
    state = log_probs._FusedSoftmax(torch.tensor([0]), torch.float32, 1.0, False)
    log_probs._online_softmax_kernel[(1,)](
        logits_NC, state.ids_N, state.max_N, state.sum_N, state.weighted_N, state.target_N, columns, columns + 1, 0,
        INVERSE_TEMPERATURE=1.0, ENTROPY=False, BLOCK=256,
    )  # fmt: skip


if __name__ == "__main__":
    guard_allocations()
    if os.fork() == 0:
        one_column_too_many(130)
        os._exit(0)
    assert os.WTERMSIG(os.wait()[1]) == signal.SIGSEGV
    print("one column too many was caught")
    advantages_and_losses()
    for columns in (1, 127, 130, 1025):
        softmax(columns)
    decode()
    print("every other access was inside")
