"""The embedded ALFWorld policies: two fallible players of fresh games. They know how everything is done; one often
leaves out the step that decides, the other almost always."""

from __future__ import annotations

from functools import partial

from scripts.tiny.alfworld.demonstrations import Noise, demonstrate
from scripts.tiny.alfworld.vocabulary import kinds, words
from scripts.tiny.demonstration import Demonstration
from scripts.tiny.recipe import DENSE, Recipe


def demonstrations(noise: Noise, episodes: int, seed: int, tokenizer) -> list[Demonstration]:
    found = []
    for episode in demonstrate(tokenizer, noise, episodes, seed):
        found.append(episode)
        if len(found) % 500 == 0:
            print(f"\rdemonstrations: {len(found)} of {episodes}", end="", flush=True)
    return found


RECIPE = Recipe(
    words, partial(demonstrations, Noise(), 10_000, 1), DENSE, steps=2000, batch=16, sharpness=1.15, kinds=kinds
)
RARE = Recipe(
    words, partial(demonstrations, Noise(skip=0.93, astray=0.8), 5_000, 2), DENSE,
    steps=300, batch=16, peak_lr=1e-3, start="alfworld",
)  # fmt: skip
