"""The softmax arithmetic of `kernels.linear_logprob` in torch operations, for the CPU."""

from __future__ import annotations

import torch
from torch import Tensor


class OnlineSoftmax:
    """m, s, the target's logit and the entropy's sum of N rows, fed one chunk of logits after another."""

    def __init__(self, ids_N: Tensor, dtype: torch.dtype, temperature: float, entropy: bool):
        def full(value: float) -> Tensor:
            return torch.full(ids_N.shape, value, dtype=dtype, device=ids_N.device)

        self.ids_N, self.temperature, self.entropy = ids_N, temperature, entropy
        self.max_N, self.sum_N, self.weighted_N = full(-torch.inf), full(0.0), full(0.0)
        self.target_N = full(torch.nan)  # stays NaN where the id is in no chunk

    def add(self, logits_NC: Tensor, start: int) -> None:
        """`logits_NC`: unscaled logits of columns start.. in the dtype of the sums; overwritten."""
        z_NC = logits_NC if self.temperature == 1 else logits_NC.div_(self.temperature)
        column_N = self.ids_N - start
        here_N = (column_N >= 0) & (column_N < z_NC.shape[1])
        picked_N = z_NC.gather(1, column_N.clamp(0, z_NC.shape[1] - 1)[:, None])[:, 0]
        self.target_N = torch.where(here_N, picked_N, self.target_N)

        max_N = torch.maximum(self.max_N, z_NC.amax(1))
        # rows without a finite logit so far keep s = 0; -inf - -inf would be NaN
        drop_N = torch.where(self.sum_N > 0, self.max_N - max_N, 0.0)
        z_NC.sub_(torch.where(max_N == -torch.inf, 0.0, max_N)[:, None])
        if self.entropy:
            e_NC = z_NC.exp()
            self.weighted_N = (self.weighted_N + self.sum_N * drop_N) * drop_N.exp()
            self.weighted_N += z_NC.masked_fill_(e_NC == 0, 0.0).mul_(e_NC).sum(1)
        else:
            e_NC = z_NC.exp_()
        self.sum_N = self.sum_N * drop_N.exp() + e_NC.sum(1)
        self.max_N = max_N

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """(logprob_N, entropy_N, logsumexp_N)"""
        log_N = self.sum_N.log()
        return (self.target_N - self.max_N) - log_N, log_N - self.weighted_N / self.sum_N, self.max_N + log_N

    @property
    def state(self) -> tuple[Tensor, ...]:
        """What `SoftmaxGradient` needs."""
        return self.ids_N, self.max_N, self.sum_N, self.weighted_N


class SoftmaxGradient:
    """Gradient of the logits, chunk by chunk: (e (base - slope (z - m)) + g onehot) / temperature, e = exp(z - m).

    m and s are kept apart: at logits of 1e4 the float32 logsumexp is off by 1e-3, and so would be every probability.
    """

    def __init__(
        self, state: tuple[Tensor, ...], temperature: float, entropy: bool, g_N: Tensor, h_N: Tensor, l_N: Tensor
    ):
        self.ids_N, self.max_N, sum_N, weighted_N = state
        self.temperature, self.entropy = temperature, entropy
        g_N, h_N, l_N = g_N / temperature, h_N / temperature, l_N / temperature
        self.g_N, self.slope_N, self.base_N = g_N, h_N / sum_N, (l_N - g_N) / sum_N
        if entropy:
            self.base_N = self.base_N + self.slope_N * weighted_N / sum_N

    def of(self, logits_NC: Tensor, start: int, dtype: torch.dtype) -> Tensor:
        """The gradient of columns start.. in `dtype`; `logits_NC` is overwritten."""
        z_NC = logits_NC if self.temperature == 1 else logits_NC.div_(self.temperature)
        z_NC.sub_(self.max_N[:, None])
        if self.entropy:
            e_NC = z_NC.exp()
            z_NC.masked_fill_(e_NC == 0, 0.0).mul_(-self.slope_N[:, None]).add_(self.base_N[:, None]).mul_(e_NC)
        else:
            z_NC.exp_().mul_(self.base_N[:, None])
        here_N = ((self.ids_N >= start) & (self.ids_N < start + z_NC.shape[1])).nonzero()[:, 0]
        z_NC[here_N, self.ids_N[here_N] - start] += self.g_N[here_N]
        return z_NC.to(dtype)
