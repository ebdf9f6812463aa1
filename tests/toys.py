"""A game, a vocabulary and random models that are small enough to reason about exactly.

The game lasts `turns` turns. A turn is a hit when its first word is "a" or "b", a miss otherwise; a turn without any
word of the alphabet is an invalid action. The episode succeeds when at least `needed` turns were hits.
"""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from envs.base import Env, Step, Suite, Task
from prover_mini.chat import Chat
from prover_mini.config import Config
from tests.tiny_models import build

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


def toy_model(architecture: str = "hybrid", seed: int = 0):
    """A random model over the toy's words, sharp enough to prefer some of them: "hybrid", "qwen3" or "qwen2"."""
    layers = {"layer_types": ["linear_attention", "full_attention"]} if architecture == "hybrid" else {}
    return build(architecture, 0.2, seed, vocab_size=len(WORDS), num_hidden_layers=2, **layers)


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
    defaults = dict(groups_per_step=6, max_turns=8, max_turn_tokens=2, lr=1e-2)
    defaults |= dict(max_observation_tokens=8, max_context_tokens=96)
    return Config(**{**defaults, **fields})


def toy_chat() -> Chat:
    return Chat(toy_tokenizer(), "", 8)
