"""A game, a vocabulary and random models that are small enough to reason about exactly.

The game lasts `turns` turns. A turn is a hit when its first word is "a" or "b", a miss otherwise; a turn without any
word of the alphabet is an invalid action. The episode succeeds when at least `needed` turns were hits.
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from envs.base import Env, Step, Suite, Task
from prover_mini.chat import Chat
from prover_mini.config import Config

WORDS = ["<pad>", "<|im_start|>", "<|im_end|>", "user", "assistant", "a", "b", "c", "d", "hit", "miss", "what", "?"]
TEMPLATE = (
    "{% for m in messages %}{% if m.role != 'system' %}<|im_start|> {{ m.role }} {{ m.content }} <|im_end|> {% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)


def toy_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<pad>", unk_token="?", chat_template=TEMPLATE,
        additional_special_tokens=["<|im_start|>"],
    )  # fmt: skip


def toy_model(architecture: str = "qwen3_5", seed: int = 0, scale: float = 0.2, vocabulary: int = len(WORDS)):
    """A random model in float32: "qwen3_5" (hybrid), "qwen3" or "qwen2"."""
    torch.manual_seed(seed)
    common = dict(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, tie_word_embeddings=True, initializer_range=scale, pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    if architecture == "qwen3_5":
        config = Qwen3_5TextConfig(
            **common, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], head_dim=16,
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
        )  # fmt: skip
        return Qwen3_5ForCausalLM(config).eval()
    if architecture == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**common, num_hidden_layers=2, head_dim=16)).eval()
    return Qwen2ForCausalLM(Qwen2Config(**common, num_hidden_layers=2)).eval()


class ToyEnv(Env):
    def __init__(self, turns: int, needed: int):
        self.turns, self.needed, self.hits, self.played = turns, needed, 0, 0

    def reset(self, task: Task) -> str:
        self.hits = self.played = 0
        if task.data == "broken":
            raise RuntimeError("this task is broken")
        self.fragile = task.data == "fragile"
        return "what what"

    def step(self, action: str) -> Step:
        words = [word for word in action.split() if word in "abcd"]
        if self.fragile and words and words[0] == "d":
            raise RuntimeError("this game breaks on d")
        hit = bool(words) and words[0] in "ab"
        self.hits += hit
        self.played += 1
        done = self.played == self.turns
        return Step("hit" if hit else "miss", float(done and self.hits >= self.needed), done, bool(words))

    def snapshot(self):
        return self.hits, self.played, self.fragile

    def restore(self, state) -> None:
        self.hits, self.played, self.fragile = state


class ToySuite(Suite):
    name, instructions, max_turns = "toy", "", 8

    def __init__(self, turns: int = 3, needed: int = 2, tasks: int = 6, kind: str = "sound"):
        self.turns, self.needed = turns, needed
        self._tasks = [Task(f"toy-{i:02d}", "train", "toy", kind) for i in range(tasks)]

    def tasks(self, split: str) -> list[Task]:
        return self._tasks

    def make_env(self) -> ToyEnv:
        return ToyEnv(self.turns, self.needed)


def toy_config(**fields) -> Config:
    defaults = dict(max_turns=8, max_turn_tokens=2, max_observation_tokens=8, max_context_tokens=96, lr=1e-2)
    return Config(**{**defaults, **fields})


def toy_chat() -> Chat:
    return Chat(toy_tokenizer(), "", 8)
