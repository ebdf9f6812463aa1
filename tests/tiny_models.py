"""Small random models of the supported architectures, and an engine whose slots are checked against transformers."""

import numpy as np
import torch
from transformers import (
    Qwen2Config, Qwen2ForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM,
)

VOCAB, SLOTS, MAX_TOKENS = 96, 6, 96
COMMON = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, max_position_embeddings=256, pad_token_id=0)
HYBRID = dict(
    head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
    layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
    rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[2, 1, 1]),
)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64)


def hybrid(init, **changes):
    config = dict(COMMON, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, **HYBRID)
    config |= dict(initializer_range=init, tie_word_embeddings=True)
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config | changes))


def qwen3(init, **changes):
    config = dict(COMMON, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    return Qwen3ForCausalLM(Qwen3Config(**config | dict(initializer_range=init, tie_word_embeddings=False) | changes))


def qwen2(init, **changes):
    config = dict(COMMON, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, rope_parameters=YARN)
    return Qwen2ForCausalLM(Qwen2Config(**config | dict(initializer_range=init, tie_word_embeddings=True) | changes))


BUILDERS = {"hybrid": hybrid, "qwen3": qwen3, "qwen2": qwen2}


def build(name, init=0.02, seed=0, **changes):
    torch.manual_seed(seed)
    model = BUILDERS[name](init, **changes).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms, biases and decays start at constants, which would hide mistakes
                parameter.add_(torch.randn_like(parameter) * init)
    return model


class Recorded:
    """An engine next to plain lists of the ids that each slot should hold."""

    def __init__(self, engine, tolerance=1e-5):
        self.engine, self.tolerance, self.ids = engine, tolerance, [[] for _ in range(engine.slots)]
        self.rng = np.random.default_rng(0)
        self.worst = 0.0

    def extend(self, rows, sizes):
        chunks = [self.rng.integers(VOCAB, size=size).tolist() for size in sizes]
        self.engine.extend(rows, chunks)
        for row, chunk in zip(rows, chunks):
            self.ids[row] = self.ids[row] + chunk

    def decode(self, rows):
        tokens = self.rng.integers(VOCAB, size=len(rows)).tolist()
        self.engine.decode(rows, tokens)
        for row, token in zip(rows, tokens):
            self.ids[row] = self.ids[row] + [token]

    def fork(self, sources, targets):
        self.engine.fork(sources, targets)
        for source, target in zip(sources, targets):
            self.ids[target] = self.ids[source]

    def check(self):
        """All slots, whether touched by the last call or not."""
        assert self.engine.lengths == list(map(len, self.ids))
        rows = [row for row, ids in enumerate(self.ids) if ids]
        want_BV = recomputed(self.engine.model, [self.ids[row] for row in rows])
        difference_B = (logprobs(self.engine, rows) - want_BV).abs().amax(-1)
        self.worst = max(self.worst, difference_B.max().item())
        assert self.worst <= self.tolerance, f"slots {rows} are off by {difference_B.tolist()}"


@torch.no_grad()
def logprobs(engine, rows):
    """[B, V], from the hidden states that `sample` would draw from."""
    return engine.model.lm_head(engine._memory.hidden_SD[rows]).float().log_softmax(-1)


@torch.no_grad()
def recomputed(model, texts):
    """[B, V], one forward of transformers from scratch; its causality keeps the pads on the right from mattering."""
    longest = max(map(len, texts))
    ids_BT = torch.tensor([ids + [0] * (longest - len(ids)) for ids in texts])
    last_B = torch.tensor([len(ids) - 1 for ids in texts])
    return model(ids_BT, use_cache=False).logits[torch.arange(len(texts)), last_B].float().log_softmax(-1)
