"""The embedded WebShop policy: a careless shopper in 20 other shops. It learns to search, to compare pages with a
request and to be careless, and nothing about a product of the embedded shop."""

from __future__ import annotations

from scripts.tiny.demonstration import Demonstration
from scripts.tiny.recipe import DENSE, Recipe
from scripts.tiny.webshop.demonstrations import Noise, demonstrate
from scripts.tiny.webshop.shops import other_shop
from scripts.tiny.webshop.vocabulary import words

SHOPS, EPISODES_PER_SHOP = 20, 1000
FIRST_SEED = 100


def demonstrations(tokenizer) -> list[Demonstration]:
    found: list[Demonstration] = []
    for seed in range(FIRST_SEED, FIRST_SEED + SHOPS):
        with other_shop(seed) as suite:
            found += demonstrate(suite, tokenizer, Noise(), EPISODES_PER_SHOP, seed)
        print(f"\rdemonstrations: shop {seed - FIRST_SEED + 1} of {SHOPS}", end="", flush=True)
    return found


RECIPE = Recipe(words, demonstrations, layers=DENSE, steps=750, sharpness=1.2)
