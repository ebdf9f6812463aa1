"""Loading a policy. The embedded ones are directories like any other, read through the same calls."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from pathlib import Path

import torch
from safetensors import safe_open

from prover_mini.config import Config
from prover_mini.errors import UserError, first_line

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

ASSETS = Path(__file__).parent / "assets"
FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
NOT_TEXT = ("mtp.", "model.visual.", "visual.")  # of Qwen3.5: the drafting and the vision part
LINEAR_PATHS = (
    ("delta rule", "fla", "flash-linear-attention"),
    ("convolution", "causal_conv1d", "causal-conv1d"),
)


def policy_path(config: Config) -> str:
    """The directory or hub id behind `--model`: the embedded policies have short names, one for each environment."""
    return str(ASSETS / config.model.replace("tiny", config.env)) if config.embedded else config.model


def directory(name: str) -> Path | None:
    """The directory that `name` is; None for a hub id. Raises UserError for what can be neither."""
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") > 1 or name.startswith((".", "~")):
        raise UserError(f"--model {name}: no such directory")
    return None


def locate(name: str) -> Path:
    """The directory of a model: itself, or where the files of a hub id are after downloading what is missing.

    Raises UserError when there is no such model, or none with safetensors weights.
    """
    path = directory(name)
    if not path:
        from huggingface_hub import snapshot_download

        try:
            path = Path(snapshot_download(name, allow_patterns=FILES))
        except Exception as error:
            raise UserError(f"--model {name}: cannot be loaded ({first_line(error)})") from None
    if not any(path.glob("*.safetensors")):
        raise UserError(f"--model {name}: no *.safetensors weights in that directory")
    return path


def read_config(path: Path | str):
    """The configuration of a model in a directory or on the hub. Of an image and text model that ties its embeddings,
    the text model does so too, whether or not the nested configuration repeats it."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path)
    if getattr(config, "tie_word_embeddings", False):
        config.get_text_config().tie_word_embeddings = True
    return config


def parameter_count(path: Path) -> int:
    """Parameters of the text model in a directory, from the headers of its files.

    Raises UserError for files that cannot be read.
    """
    try:
        skipped = NOT_TEXT + (("lm_head.",) if read_config(path).get_text_config().tie_word_embeddings else ())
        index = path / "model.safetensors.index.json"
        names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else None
        files = [path / name for name in names] if names else path.glob("*.safetensors")
        count = 0
        for file in files:
            with safe_open(file, "pt") as tensors:
                shapes = [tensors.get_slice(key).get_shape() for key in tensors.keys() if not key.startswith(skipped)]
            count += sum(map(math.prod, shapes))
        return count
    except Exception as error:
        raise UserError(f"--model {path}: cannot be loaded ({first_line(error)})") from None


def load_policy(name: str | Path, dtype: str, device: torch.device):
    """(model, tokenizer) of a local directory or a hub id; weights are read from safetensors only.

    Of an image and text model (the hub's Qwen3.5) the text model is read.

    Raises UserError when there is no such model, it lacks weights, or it is not a causal language model.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    path = locate(str(name))
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model, loading = AutoModelForCausalLM.from_pretrained(
            path, config=read_config(path), dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # the libraries raise many kinds for bad files; the user needs the first line
        raise UserError(f"--model {name}: cannot be loaded ({first_line(error)})") from None
    if missing := sorted(loading["missing_keys"]):  # the library fills them with random numbers
        raise UserError(
            f"--model {name}: {len(missing)} weights are missing, such as {missing[0]}; copy the model again"
        )
    if not 0 < len(tokenizer) <= model.config.vocab_size:
        sizes = f"the tokenizer has {len(tokenizer)} tokens, the model {model.config.vocab_size}"
        raise UserError(f"--model {name}: {sizes}; copy the files of both from one place")
    return model.to(device).eval(), tokenizer


def use_flash_attention(model, device: torch.device) -> None:
    """Attention of the training forward by flash-attn, where it is installed and takes the model's type."""
    from transformers.utils import is_flash_attn_2_available

    if device.type == "cuda" and model.dtype == torch.bfloat16 and is_flash_attn_2_available():
        model.set_attn_implementation("flash_attention_2")


def paths(model, device: torch.device) -> str:
    """Which implementations the training forward uses, in one line."""
    attention = model.config._attn_implementation
    flash = "" if "flash" in attention else " (flash-attn: bfloat16 on a GPU)" if installed("flash_attn") else (
        " (flash-attn is not installed)"
    )
    used = [f"attention {attention}{flash}"]
    if "linear_attention" in model.config.layer_types:
        for what, package, name in LINEAR_PATHS:
            used.append(f"{what} {name}" if installed(package) else f"{what} torch ({name} is not installed)")
    return ", ".join([*used, f"log-probs {'Triton' if device.type == 'cuda' else 'torch'}"])


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
