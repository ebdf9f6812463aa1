"""Drawing tokens by inverting each row's distribution function at a uniform of its own.

    token = the first v with sum_{w <= v} p_w > u sum_w p_w,   p = exp(z - max z),   z = logits / temperature

in float64 sums. A large vocabulary is inverted in two levels: first the sums of its cells of CELL words, then the words
of the cell that was hit. One running sum over 248,320 words would write each in float64, one after another.

Shapes: B rows, V words, N cells, C words of a cell.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CELL = 512  # divides the 248,320 words of Qwen3.5, so that no padded copy is made of them


def draw(logits_BV: Tensor, uniforms_B1: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Tokens [B, 1] int64, and their log-probs [B, 1] float64 under the full distribution.

    Args:
        logits_BV: float32; overwritten.
        uniforms_B1: float64 in [0, 1).
        temperature: 0 takes the most likely token, with its log-prob at temperature 1.
    """
    if temperature not in (0, 1):
        logits_BV /= temperature
    logits_BV -= logits_BV.amax(-1, keepdim=True)
    weights_BV = logits_BV.exp()
    if not temperature:
        tokens_B1, total_B1 = logits_BV.argmax(-1, keepdim=True), weights_BV.sum(-1, True, dtype=torch.float64)
    elif logits_BV.shape[1] <= 8 * CELL:
        cdf_BV = weights_BV.cumsum(-1, dtype=torch.float64)
        total_B1 = cdf_BV[:, -1:]
        tokens_B1 = _first_above(cdf_BV, uniforms_B1 * total_B1)
    else:
        weights_BNC = F.pad(weights_BV, (0, -logits_BV.shape[1] % CELL)).view(len(logits_BV), -1, CELL)
        cdf_BN = weights_BNC.sum(-1, dtype=torch.float64).cumsum(-1)
        total_B1 = cdf_BN[:, -1:]
        targets_B1 = uniforms_B1 * total_B1
        cells_B1 = _first_above(cdf_BN, targets_B1)
        before_B1 = F.pad(cdf_BN, (1, 0)).gather(1, cells_B1)
        hit_BC = weights_BNC.take_along_dim(cells_B1[..., None], 1)[:, 0]
        tokens_B1 = cells_B1 * CELL + _first_above(hit_BC.cumsum(-1, dtype=torch.float64), targets_B1 - before_B1)
        tokens_B1.clamp_(max=logits_BV.shape[1] - 1)  # where the logits are not finite
    return tokens_B1, logits_BV.gather(1, tokens_B1) - total_B1.log()


def _first_above(cdf_BN: Tensor, targets_B1: Tensor) -> Tensor:
    total_B1 = cdf_BN[:, -1:]
    # rounding may lift a target to the total itself, past the last entry that has a probability
    targets_B1 = torch.minimum(targets_B1, total_B1.nextafter(torch.zeros_like(total_B1)))
    return torch.searchsorted(cdf_BN, targets_B1, right=True).clamp_(max=cdf_BN.shape[1] - 1)
