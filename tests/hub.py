"""A checkpoint in the layout in which the hub has Qwen3.5-2B: its 24 layers and numbers of heads, cut down in width."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from tests.toys import WORDS, toy_tokenizer

TEXT = dict(
    vocab_size=len(WORDS) + 3, hidden_size=32, intermediate_size=48, num_hidden_layers=24,
    layer_types=["full_attention" if i % 4 == 3 else "linear_attention" for i in range(24)],
    num_attention_heads=8, num_key_value_heads=2, head_dim=32, linear_num_key_heads=16, linear_num_value_heads=16,
    linear_key_head_dim=4, linear_value_head_dim=4, max_position_embeddings=512, pad_token_id=0, initializer_range=0.1,
    rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[2, 1, 1]),
)  # fmt: skip
VISION = dict(
    depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, patch_size=4,
    num_position_embeddings=16,
)  # fmt: skip


def hub_checkpoint(path: Path, files: int = 3) -> dict[str, torch.Tensor]:
    """Writes it with random weights, in several files, with vision and drafting parts; returns the text model's weights
    under the names of the text model."""
    torch.manual_seed(0)
    config = Qwen3_5Config(text_config=TEXT, vision_config=VISION, tie_word_embeddings=True)
    tensors = Qwen3_5ForConditionalGeneration(config).state_dict()
    del tensors["lm_head.weight"]
    for name, tensor in tensors.items():
        tensors[name] = tensor if name.endswith(("A_log", "linear_attn.norm.weight")) else tensor.bfloat16()
    tensors |= {f"mtp.{name}": torch.randn(32, 32).bfloat16() for name in ("fc.weight", "layers.0.mlp.up_proj.weight")}
    path.mkdir()
    names = sorted(tensors)
    places = {name: f"model-{i % files + 1:05d}-of-{files:05d}.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        part = {name: tensors[name].contiguous() for name in names if places[name] == file}
        save_file(part, path / file, metadata={"format": "pt"})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    written = config.to_dict() | {"architectures": ["Qwen3_5ForConditionalGeneration"], "dtype": "bfloat16"}
    del written["text_config"]["tie_word_embeddings"]  # the outer one says it for both
    (path / "config.json").write_text(json.dumps(written))
    toy_tokenizer().save_pretrained(path)
    prefix = "model.language_model."
    return {name.replace(prefix, "model."): t for name, t in tensors.items() if name.startswith(prefix)}
