"""The tokenizer of an embedded policy: whole names and the fixed parts of sentences are single tokens.

A Unigram model whose pieces all have the same score cuts a text into as few pieces as it can: names, the fragments
between them ("The capital of ", ".\\n2. "), and single bytes for everything else. It works on the byte-level alphabet
of GPT-2, so any text goes through it unchanged. A name that is the same token wherever it stands is what a small model
needs in order to copy it.

Source: Kudo, "Subword Regularization", 2018 (Unigram segmentation); the chat format is that of Qwen.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# Instructions for real models are dropped: the embedded policy knows the game, and its context is short.
CHAT_TEMPLATE = (
    "{%- for message in messages if message.role != 'system' -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
ROLES = ["\n", "user\n", "assistant\n"]  # what the template writes between special tokens


def build(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer in which each of `words` is one token, and any text is a sequence of them and of single bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = dict.fromkeys(split.pre_tokenize_str(text)[0][0] for text in words)
    special = [PAD, START, END]
    pieces = [*spelled, *(byte for byte in alphabet if byte not in spelled)]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces]))  # every byte is known
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    # Outside the model's own pieces, so that text which merely spells them can be cut into bytes.
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
        chat_template=CHAT_TEMPLATE,
    )
