"""The tokenizer of the embedded policy: whole names and the fixed parts of sentences are single tokens.

A Unigram model whose pieces all have the same score cuts a text into as few pieces as it can: names, the fragments
between them ("The capital of ", ".\\n2. "), and single bytes for everything else. It works on the byte-level alphabet
of GPT-2, so any text goes through it unchanged. The names hold no blank, the fragments hold them all: a name is the
same token in a question, a passage, a query and an answer, which is what a small model needs in order to copy it.

Source: Kudo, "Subword Regularization", 2018 (Unigram segmentation); the chat format is that of Qwen.
"""

from __future__ import annotations

import re

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from envs.searchqa import env, world

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = ["<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>"]
FRAME = ["Question: ", "\n", "user\n", "assistant\n", "<information>\n1. ", "\n</information>", "Nothing found."]
TOPK = 3
# Turns that the environment calls invalid, each in its own way: its whole replies are tokens.
INVALID_TURNS = ["", "<search>a", "<answer>a", "<search></search>", "<answer></answer>", "<search>a</search>" * 2]
# Instructions for real models are dropped: the embedded policy knows the game, and its context is short.
CHAT_TEMPLATE = (
    "{%- for message in messages if message.role != 'system' -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def names() -> list[str]:
    """Everything a fact of the world can be about or say: countries, cities, currencies, numbers, time zones..."""
    tables = world.real_world().tables
    subjects = {subject for table in tables.values() for subject in table}
    values = {value for relation, table in tables.items() if relation != "borders" for value in table.values()}
    return sorted(subjects | values)


def fragments() -> list[str]:
    """What stands around the names in passages, queries and questions."""
    templates = [*world.PASSAGES.values(), *world.QUERIES.values(), *world.INVERSE_QUERIES.values()]
    templates += [*world.ASKED.values(), *world.DESCRIBED.values(), world.COMPARED]
    parts = {part for template in templates for part in re.split(r"\{[so]\}", template)}
    return sorted(parts - {""} | {", ", " and "})


def frame() -> list[str]:
    """The turns around them: tags, numbering of passages, replies to invalid actions."""
    ends = {f"{part}\n{rank}. " for part in (".", "") for rank in range(2, TOPK + 1)} | {".\n</information>"}
    game = env.SearchQAEnv(None, TOPK)
    replies = {game.step(turn).observation for turn in INVALID_TURNS}
    return sorted({*TAGS, *FRAME, *ends, *replies})


def build() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = dict.fromkeys(split.pre_tokenize_str(text)[0][0] for text in [*names(), *fragments(), *frame()])
    special = [PAD, START, END]
    pieces = [*words, *(byte for byte in alphabet if byte not in words)]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
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
