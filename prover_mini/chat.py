"""Text to token ids, in pieces that only ever append.

The chat template is rendered once with markers in place of the messages and cut at them, so that a conversation is
built from fixed pieces around observations: sampled tokens are never decoded and encoded again. Text from outside is
encoded with special tokens split, so an observation cannot close its own message.
"""

from __future__ import annotations

from functools import lru_cache

from prover_mini.errors import UserError

FIRST, REPLY, SECOND = "FIRSTUSERMESSAGE", "ASSISTANTREPLY", "SECONDUSERMESSAGE"


class Chat:
    """The conversation format of one tokenizer.

    Args:
        tokenizer: a transformers tokenizer whose chat template closes every message with a special token.
        instructions: the system prompt.
        max_observation_tokens: longer observations are cut there.
    """

    def __init__(self, tokenizer, instructions: str, max_observation_tokens: int):
        self.tokenizer = tokenizer
        self.limit = max_observation_tokens
        messages = [
            {"role": "system", "content": instructions},
            {"role": "user", "content": FIRST},
            {"role": "assistant", "content": REPLY},
            {"role": "user", "content": SECOND},
        ]
        opening = self._render(messages[:2])
        whole = self._render(messages)
        if opening.count(FIRST) != 1 or whole.count(REPLY) != 1 or whole.count(SECOND) != 1:
            raise UserError("the tokenizer's chat template does not render a conversation: use an instruct model")
        head, self_opening = opening.split(FIRST)
        between, answer_opening = whole.split(REPLY)[1].split(SECOND)
        self._head, self._opening = self._template(head), self._template(self_opening)
        self._between, self._answer_opening = self._template(between), self._template(answer_opening)
        if not self._head + self._opening:
            raise UserError("the tokenizer makes no tokens of its chat template: its vocabulary is missing")
        self.end = self._between.pop(0) if self._between else -1
        if self.end not in tokenizer.all_special_ids:
            raise UserError(
                "the tokenizer's chat template does not close a message with a special token: use an instruct model"
            )

    def _render(self, messages: list[dict]) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        except Exception as error:  # a template is a program from outside: whatever it raises means the same
            raise UserError(f"the tokenizer has no usable chat template ({error}): use an instruct model") from None

    def _template(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Text from outside: no special token comes of it."""
        text = text.encode(errors="replace").decode()  # half a surrogate pair, legal in JSON, is no text
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    @lru_cache(maxsize=8192)
    def _outside(self, text: str) -> tuple[int, ...]:
        return tuple(self.encode(text)[: self.limit])

    def prompt(self, observation: str) -> list[int]:
        """Ids up to the policy's first token."""
        return [*self._head, *self._outside(observation), *self._opening]

    def answer(self, observation: str, ended: bool) -> list[int]:
        """Ids after a policy turn up to its next one; `ended` is False where the turn was cut before its end token."""
        return [*([] if ended else [self.end]), *self._between, *self._outside(observation), *self._answer_opening]

    def text(self, ids: list[int]) -> str:
        """What the policy said, for the environment; the end token is not part of it."""
        return self.tokenizer.decode(ids[:-1] if ids and ids[-1] == self.end else ids, skip_special_tokens=False)

    def pieces(self, ids: list[int]) -> list[str]:
        """The text of each token, for display. A character that is spread over tokens belongs to the last of them."""
        out: list[str] = []
        held: list[int] = []
        for id in ids:
            held.append(id)
            text = self.tokenizer.decode(held, skip_special_tokens=False)
            whole = "\ufffd" not in text or len(held) == 4  # no character has more bytes
            out.append(text if whole else "")
            held = [] if whole else held
        if held:
            out[-1] = self.tokenizer.decode(held, skip_special_tokens=False)
        return out
