"""Judges without a language model: a random segment, and the step that the failures could have taken and did not."""

from __future__ import annotations

import random
import re

from envs.action import spoken
from prover_mini.credit import first_creditable, valid_segments
from prover_mini.judge.base import Answer, Judge
from prover_mini.seeds import derive
from prover_mini.trajectory import Group, Segment, Trajectory

CLOSING = re.compile(r"</(\w+)>")  # of <action>..</action>, <search>..</search>
WORD = re.compile(r"[^\s<>\[\](){}|\"]+")
NAME = "#"
LEAST_MISSED = 0.5  # share of the failures


class RandomJudge(Judge):
    """Control: a uniformly random valid segment of the reference."""

    def propose_one(self, group: Group, step: int) -> Answer:
        reference = group.reference
        segments = valid_segments(reference, self.config.max_segment_turns)
        if not segments:
            return None
        generator = random.Random(derive(self.config.seed, step, group.index, group.task.id, "random judge"))
        return Segment(reference, *generator.choice(segments), reason="random")


class DivergenceJudge(Judge):
    """Contrast without a language model: the step that most failures could have taken and did not.

    The *kind* of an action is its words with a sign in place of every name, a name being a word with a digit or a
    capital letter: "heat egg 1 with microwave 1" and "heat cup 2 with microwave 1" are one kind. A failure *missed*
    step t of the reference when it was shown every name in it and never did anything of its kind.

        missed(t) = share of the failed trajectories that missed step t

    The last step with the largest share is proposed, together with the turn before it, which led there; nothing where
    fewer than half of the failures missed it. A failure that never found the thing was not shown its name, so being
    lucky in a search is no such step. Made for terse actions in a fixed form: of queries in free words hardly two are
    of one kind, and a verb with a capital letter is taken for a name. Cost: one pass over the group's texts, no model
    call.
    """

    def propose_one(self, group: Group, step: int) -> Answer:
        reference = group.reference
        shown = [{name for turn in t.turns for name in names(turn.observation)} for t in group.failures]
        taken = [{kind(turn.action) for turn in t.turns if turn.valid} for t in group.failures]
        best, segment = LEAST_MISSED, None
        for n, turn in enumerate(reference.turns):
            needed, missed_kind = names(said(turn.action)), kind(turn.action)
            missed = sum(needed <= there and missed_kind not in done for there, done in zip(shown, taken)) / len(shown)
            if turn.valid and missed >= best and (span := self._span(reference, n)):
                reason = f"{missed:.0%} of the failures could have taken turn {n} and did not"
                best, segment = missed, Segment(reference, *span, reason)
        return segment

    def _span(self, reference: Trajectory, n: int) -> tuple[int, int] | None:
        """Turn n with the one before it, or of these two the one that may be credited."""
        spans = [(n - 1, n), (n, n), (n - 1, n - 1)]
        return first_creditable(reference, spans, self.config.max_segment_turns)


def said(action: str) -> str:
    """What a turn does: the tag that it closes last, in any case, with what stands in it; else all but its thoughts."""
    text = spoken(action)
    if closing := next(reversed(list(CLOSING.finditer(text))), None):
        tag = closing[1]
        *_, opened = re.split(f"<{tag}>", text[: closing.end()], flags=re.IGNORECASE)
        if len(opened) < closing.end():
            return f"{tag.lower()} {re.split(f'</{tag}>', opened, flags=re.IGNORECASE)[0]}"
    return text


def words(text: str) -> list[str]:
    """Words without brackets and closing punctuation, a number joined to the word before it: "mug 1"."""
    out: list[list[str]] = []
    for word in WORD.findall(text):
        word = word.rstrip(".,:;!?'")
        if word.isdecimal() and out:
            out[-1].append(word)
        elif word:
            out.append([word])
    return [" ".join(parts) for parts in out]


def is_name(word: str) -> bool:
    return any(c.isdigit() or c.isupper() for c in word)


def names(text: str) -> set[str]:
    return {word.casefold() for word in words(text) if is_name(word)}


def kind(action: str) -> tuple[str, ...]:
    """The words of an action with `NAME` for each run of names."""
    marked = [NAME if is_name(word) else word for word in words(said(action))]
    return tuple(word for n, word in enumerate(marked) if word != NAME or marked[n - 1 : n] != [NAME])
