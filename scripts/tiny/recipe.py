"""What makes an embedded policy: the words that are its tokens, what it imitates, its shape, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scripts.tiny.demonstration import Demonstration

HYBRID = ("linear_attention", "full_attention", "full_attention")
DENSE = ("full_attention",) * 3


@dataclass(frozen=True)
class Recipe:
    """
    Attributes:
        words: the texts that are one token each.
        demonstrations: episodes to imitate, in the ids of the tokenizer that is made of the words.
        layers: kinds of layers; with a linear one the model is a Qwen3.5, without a Qwen3.
        hidden: width of the model.
        steps, batch: of the imitation, in optimizer steps and episodes.
        peak_lr: AdamW's learning rate after warm-up.
        sharpness: the logits of the finished policy are multiplied by this.
        kinds: for some of the words the word of their kind, near which their embedding starts.
        start: an embedded policy of the same words and shape, to go on from; without one the weights are random.
    """

    words: Callable[[], list[str]]
    demonstrations: Callable[..., list[Demonstration]]
    layers: tuple[str, ...] = HYBRID
    hidden: int = 64
    steps: int = 1000
    batch: int = 64
    peak_lr: float = 3e-3
    sharpness: float = 1.0
    kinds: Callable[[], dict[str, str]] = dict
    start: str = ""
