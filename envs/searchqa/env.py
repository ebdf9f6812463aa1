"""SearchQA as a game: search a passage collection turn by turn, then answer once.

    <search>query</search>   -> the best passages, numbered, inside <information>
    <answer>text</answer>    -> the end; reward 1 if the answer is an exact match, score = its F1

A turn may hold any text around exactly one such action. What stands inside <think> never counts, nor does what comes
before a lone `</think>` (the template may have opened it) or after a `<think>` that is never closed. Tags match in any
case. Everything else is answered with an observation that says what was wrong.

verl-agent's parser of the same actions agrees on most texts (two actions invalid, tag case free, stray closing tags
ignored). It differs where a tag is only mentioned in <think> (it counts there; it does not here), where a closing tag
comes before the action (invalid there; ignored here, as any stray one), and for an empty action (valid there; here
there is nothing to search or to judge).

The environment is given the policy's own words of one turn, so that an answer quoted in the prompt or in a passage
can't be mistaken for the policy's (as happens where a whole transcript is scanned).

Source: the action format of Search-R1, arXiv:2503.09516.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envs.action import spoken
from envs.base import Env, Step, Task
from envs.searchqa.retriever import Retriever
from envs.searchqa.scoring import exact_match, f1

INSTRUCTIONS = (
    "Answer the question. You may search for passages first, as often as you need. "
    "End every turn with exactly one action:\n"
    "<search>query</search> to see the best passages for a query,\n"
    "<answer>text</answer> to give the final answer, a name or a few words."
)
OPENING = re.compile(r"<(search|answer)>", re.IGNORECASE)


@dataclass(frozen=True)
class Action:
    """`kind` is "search" or "answer" and `text` is what stands in the tags, or "invalid" and `text` says why."""

    kind: str
    text: str


def parse_action(turn: str) -> Action:
    """The one action of a turn. Takes any text."""
    text = spoken(turn)
    openings = list(OPENING.finditer(text))
    if not openings:
        return Action("invalid", "there is no <search> or <answer>")
    if len(openings) > 1:
        return Action("invalid", "there is more than one action")
    kind = openings[0][1].lower()
    closing = re.compile(f"</{kind}>", re.IGNORECASE).search(text, openings[0].end())
    if not closing:
        return Action("invalid", f"<{kind}> is not closed by </{kind}>")
    text = text[openings[0].end() : closing.start()].strip()
    return Action(kind, text) if text else Action("invalid", f"<{kind}> is empty")


class SearchQAEnv(Env):
    """The state is the task and whether the episode is over: a search changes nothing but the transcript."""

    def __init__(self, retriever: Retriever, topk: int):
        self.retriever = retriever
        self.topk = topk
        self.task: Task | None = None
        self.done = False

    def reset(self, task: Task) -> str:
        self.task, self.done = task, False
        return f"Question: {task.data.question}"

    def step(self, action: str) -> Step:
        """Raises only what the retriever raises when its server is lost."""
        if self.done:
            return Step("The episode is over.", done=True, valid=False)
        parsed = parse_action(action)
        if parsed.kind == "search":
            return Step(show_passages(self.retriever.search(parsed.text, self.topk)))
        if parsed.kind == "answer":
            self.done = True
            golden = self.task.data.golden_answers
            reward = float(exact_match(parsed.text, golden))
            return Step("", reward, done=True, score=f1(parsed.text, golden))
        return Step(
            f"Invalid action: {parsed.text}. Give exactly one <search>query</search> or <answer>text</answer>.",
            valid=False,
        )

    def snapshot(self) -> tuple[Task | None, bool]:
        return self.task, self.done

    def restore(self, state: tuple[Task | None, bool]) -> None:
        self.task, self.done = state


def show_passages(passages: list[str]) -> str:
    if not passages:
        return "<information>\nNothing found.\n</information>"
    lines = [f"{number}. {readable(passage)}" for number, passage in enumerate(passages, 1)]
    return "\n".join(["<information>", *lines, "</information>"])


def readable(contents: str) -> str:
    """A passage `"Title"\\ntext` on one line, with the title only where the text doesn't hold it already."""
    head, newline, text = contents.partition("\n")
    title = head.strip().strip('"')
    text = " ".join(text.split())
    if not newline or not title:
        return " ".join(contents.split())
    return text if title.lower() in text.lower() else f"{title}: {text}"
