"""The embedded SearchQA policy: a fallible searcher in 30 worlds whose facts are false. It learns to search, to copy
names and to take wrong turns, and no fact."""

from __future__ import annotations

from envs.searchqa.world import parse_mix
from scripts.tiny.demonstration import Demonstration
from scripts.tiny.recipe import Recipe
from scripts.tiny.searchqa.counterfactual import counterfactual
from scripts.tiny.searchqa.demonstrations import Noise, demonstrate
from scripts.tiny.searchqa.vocabulary import names, words

MIX = "1-hop:.2,2-hop:.5,3-hop:.3"
WORLDS, EPISODES_PER_WORLD = 30, 1000


def demonstrations(tokenizer) -> list[Demonstration]:
    name_ids = {tokenizer.encode(name, add_special_tokens=False)[0] for name in names()}
    found: list[Demonstration] = []
    for k in range(WORLDS):
        world = counterfactual(k)
        found += demonstrate(world, tokenizer, name_ids, Noise(), parse_mix(MIX), EPISODES_PER_WORLD, seed=k)
        print(f"\rdemonstrations: world {k + 1} of {WORLDS}", end="", flush=True)
    return found


# The sharpness takes the tail of wrong names off, and leaves the decisions open.
RECIPE = Recipe(words, demonstrations, steps=1100, sharpness=1.3)
