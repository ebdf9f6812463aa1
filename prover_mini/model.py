"""Loading a policy. The embedded ones are directories like any other, read through the same calls."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from prover_mini.config import Config
from prover_mini.errors import UserError

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

ASSETS = Path(__file__).parent / "assets"


def policy_path(config: Config) -> str:
    """The directory or hub id behind `--model`: the embedded policies have short names, one for each environment."""
    return str(ASSETS / config.model.replace("tiny", config.env)) if config.embedded else config.model


def load_policy(name: str, dtype: str, device: torch.device):
    """(model, tokenizer) of a local directory or a hub id; weights are read from safetensors only.

    Raises UserError when there is no such model, it lacks weights, or it is not a causal language model.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    if Path(name).is_dir():
        if not any(Path(name).glob("*.safetensors")):
            raise UserError(f"--model {name}: no *.safetensors weights in that directory")
    elif name.count("/") > 1 or name.startswith((".", "~")):
        raise UserError(f"--model {name}: no such directory")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model, loading = AutoModelForCausalLM.from_pretrained(
            name, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # the libraries raise many kinds for bad files; the user needs the first line
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise UserError(f"--model {name}: cannot be loaded ({reason})") from None
    if missing := sorted(loading["missing_keys"]):  # the library fills them with random numbers
        raise UserError(
            f"--model {name}: {len(missing)} weights are missing, such as {missing[0]}; copy the model again"
        )
    if not 0 < len(tokenizer) <= model.config.vocab_size:
        sizes = f"the tokenizer has {len(tokenizer)} tokens, the model {model.config.vocab_size}"
        raise UserError(f"--model {name}: {sizes}; copy the files of both from one place")
    return model.to(device).eval(), tokenizer
