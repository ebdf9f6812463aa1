"""Behaviour cloning: a model learns to say what the player of its demonstrations said."""

from __future__ import annotations

import math
import random
import time

import numpy as np
import torch

from scripts.tiny.demonstration import Demonstration


def imitate(model, data: list[Demonstration], steps: int, batch: int, lr: float) -> None:
    """AdamW on the player's own tokens; batches of episodes of similar length; warm-up, then cosine to 5 %."""
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
