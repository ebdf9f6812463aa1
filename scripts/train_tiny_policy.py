"""Makes an embedded policy, a directory below prover_mini/assets, from nothing: one command, one CPU core, minutes.

    python -m scripts.train_tiny_policy searchqa
    python -m scripts.train_tiny_policy alfworld         and then alfworld-rare, which goes on from it

A small Qwen imitates a fallible scripted player of its environment; `scripts/tiny` holds a recipe for each policy.
"""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers.utils import logging

from prover_mini.model import ASSETS, load_policy
from scripts.tiny import tokenizer as tokenizers
from scripts.tiny.imitation import imitate
from scripts.tiny.model import make_model, sharpen, start_near_kinds
from scripts.tiny.recipe import Recipe

# name of the policy: (module, its recipe)
RECIPES = {
    "searchqa": ("scripts.tiny.searchqa.recipe", "RECIPE"),
    "webshop": ("scripts.tiny.webshop.recipe", "RECIPE"),
    "alfworld": ("scripts.tiny.alfworld.recipe", "RECIPE"),
    "alfworld-rare": ("scripts.tiny.alfworld.recipe", "RARE"),
}


def make(recipe: Recipe, target: Path) -> None:
    torch.manual_seed(0)
    tokenizer = tokenizers.build(recipe.words())
    data = recipe.demonstrations(tokenizer)
    rate, tokens = np.mean([d.success for d in data]), sum(len(d.ids) for d in data)
    print(f"\r{len(data)} episodes, {tokens / 1e6:.1f} M tokens, success {rate:.2f}")
    if recipe.start:
        model, _ = load_policy(str(ASSETS / recipe.start), "float32", torch.device("cpu"))
    else:
        model = make_model(
            len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id, recipe.layers, recipe.hidden
        )
        pairs = recipe.kinds().items()
        start_near_kinds(model, dict(tokenizer.encode(word + kind, add_special_tokens=False) for word, kind in pairs))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e3:.0f} k parameters", flush=True)
    imitate(model, data, recipe.steps, recipe.batch, recipe.peak_lr)
    sharpen(model, recipe.sharpness)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    print(f"{target}: {sum(file.stat().st_size for file in target.iterdir()) / 1e6:.1f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes an embedded policy from nothing in about 10 CPU-minutes.")
    parser.add_argument("name", choices=RECIPES, help="which one")
    parser.add_argument("--target", type=Path, help="directory to write (default: where the trainer looks for it)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    module, recipe = RECIPES[arguments.name]
    make(getattr(import_module(module), recipe), arguments.target or ASSETS / arguments.name)


if __name__ == "__main__":
    main()
