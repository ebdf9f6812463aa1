"""The agentic judge: what it is asked, which tools answer it, and what counts as a proposal. How a model is reached is
not known here (`endpoint.py`, `policy.py`).

    material -> (tool calls -> results)* -> proposal -> (what is wrong with it -> proposal)* -> answer

A `dialogue` is a generator: it yields requests, is sent replies, and returns the answer. So it can be played over a
network, many at once, or in the rollout engine. The code validates what it returns; nothing a judge says is believed.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from envs.analysis import plain
from envs.bm25 import BM25
from prover_mini.config import Config
from prover_mini.credit import segment_error, valid_segments
from prover_mini.errors import UserError
from prover_mini.judge import prompts
from prover_mini.judge.base import Answer, Failure, Judge
from prover_mini.trajectory import Group, Segment, Trajectory

REPAIRS = 3  # times that an unusable proposal is sent back
MOST_FOUND, MOST_SHOWN = 10, 8  # turns in one result of search_trajectory, of get_segment
FOUND_CHARACTERS, SHOWN_CHARACTERS = 300, 2000  # of one text in such a result
MESSAGE_TOKENS = 16  # what a chat template adds to a message, at most
READ_CHARACTERS = 8_000  # where a proposal is looked for: the end of a reply


@dataclass(frozen=True)
class ToolCall:
    """`arguments` is JSON as the model wrote it. `id` is empty where the call was written into the reply's text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Request:
    """The whole conversation, in the format of chat completions. Messages are only ever appended to it."""

    messages: list[dict]
    offers_tools: bool


@dataclass(frozen=True)
class Reply:
    text: str
    tool_calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True)
class Reach:
    """What a model can be sent: `room` tokens in all, as `count` counts those of a text; the system prompt takes
    `system_tokens` of them."""

    count: Callable[[str], int]
    room: int
    system_tokens: int


class Conversation:
    def __init__(self, reach: Reach, system: str):
        self.reach, self.tokens = reach, reach.system_tokens
        self.messages: list[dict] = [{"role": "system", "content": system}]

    def add(self, role: str, content: str, **fields: Any) -> None:
        self.messages.append({"role": role, "content": content, **fields})
        self.tokens += MESSAGE_TOKENS + self.reach.count(content)

    def has_room(self, content: str = "") -> bool:
        return self.tokens + MESSAGE_TOKENS + self.reach.count(content) <= self.reach.room


def dialogue(group: Group, instructions: str, config: Config, reach: Reach) -> Generator[Request, Reply, Answer]:
    """The conversation about one eligible group. `instructions` are those of the environment to its policy."""
    reference, most = group.reference, config.max_segment_turns
    if not valid_segments(reference, most):
        return None
    talk = Conversation(reach, prompts.system(config))
    openings = (prompts.material(group, instructions, config, detail) for detail in prompts.DETAILS)
    if (opening := next(filter(talk.has_room, openings), None)) is None:
        return Failure("context")
    talk.add("user", opening)
    runs = Runs(group)
    calls_left, repairs = config.judge_tool_calls, 0
    while talk.has_room():
        offers_tools = calls_left > 0
        reply = yield Request(talk.messages, offers_tools)
        calls = reply.tool_calls or written_calls(reply.text)
        if calls and offers_tools:
            calls = calls[:calls_left]
            calls_left -= len(calls)
            answer_calls(talk, runs, reply, calls)
            if not calls_left:
                talk.add("user", prompts.PROPOSE)
            continue
        segment, problem = read_proposal(reply, reference, most)
        if not problem:
            return segment
        talk.add("assistant", reply.text or "(no text)")
        if offers_tools and problem in ("empty reply", "not json"):  # it thought aloud, and was not asked to end yet
            talk.add("user", prompts.PROPOSE)
        elif repairs == REPAIRS:
            return Failure(problem)
        else:
            repairs += 1
            talk.add("user", prompts.REPAIR.substitute(problem=prompts.problem(problem, reference, most)))
        calls_left = 0
    return Failure("context")


def answer_calls(talk: Conversation, runs: Runs, reply: Reply, calls: list[ToolCall]) -> None:
    """Adds the reply and the results of its calls, in the form in which it called."""
    if native := bool(reply.tool_calls):
        listed = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
        ]
        talk.add("assistant", reply.text, tool_calls=listed)
    else:
        talk.add("assistant", reply.text)
    for call in calls:
        result = runs.answer(call)
        result = result if talk.has_room(result) else prompts.NO_ROOM
        if native:
            talk.add("tool", result, tool_call_id=call.id)
        else:
            talk.add("user", f"Result of {prompts.one_line(call.name, 40)}:\n{result}")


# what the judge says -------------------------------------------------------------------------------------------------


def json_objects(text: str) -> list[dict]:
    """The JSON objects that stand in a text, after the model's thoughts and outside of each other, in order."""
    text = text.rpartition("</think>")[2][-READ_CHARACTERS:]
    found, at, decoder = [], text.find("{"), json.JSONDecoder()
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
            found.append(value)
        except (ValueError, RecursionError):
            end = at + 1
        at = text.find("{", end)
    return found


def written_calls(text: str) -> list[ToolCall]:
    """A tool call that was written into the text of a reply."""
    for value in json_objects(text):
        name = value.get("tool", value.get("name"))
        if isinstance(name, str) and isinstance(value.get("arguments"), dict):
            return [ToolCall("", name, json.dumps(value["arguments"]))]
    return []


def read_proposal(reply: Reply, reference: Trajectory, max_turns: int) -> tuple[Segment | None, str]:
    """(segment or None for "nothing worth verifying", "") or (None, why the reply is no usable proposal)."""
    if reply.tool_calls or written_calls(reply.text):
        return None, "tool loop"
    if not reply.text.strip():
        return None, "empty reply"
    proposals = [value for value in json_objects(reply.text) if "first_turn" in value or "last_turn" in value]
    if not proposals:
        return None, "not json"
    turns = [proposals[-1].get(name, "missing") for name in ("first_turn", "last_turn")]
    reason = proposals[-1].get("reason")
    if not isinstance(reason, str):
        return None, "schema"
    if turns == [None, None]:
        return None, ""
    if not all(type(turn) is int for turn in turns):  # a bool is no number here
        return None, "schema"
    if error := segment_error(reference, *turns, max_turns):
        return None, error
    return Segment(reference, *turns, reason=prompts.cut(prompts.clean(reason), SHOWN_CHARACTERS)), ""


# the tools -----------------------------------------------------------------------------------------------------------


class Runs:
    """What the tools can look at: the failed runs of a group, and its reference."""

    def __init__(self, group: Group):
        self.failures = {prompts.run_id(t): t for t in group.failures}
        self.all = {"reference": group.reference, **self.failures}

    def answer(self, call: ToolCall) -> str:
        """The result of any call; a wrong one is answered with what is wrong."""
        tools = {"search_trajectory": self.search_trajectory, "get_segment": self.get_segment}
        if call.name not in tools:
            return f"There is no such tool. The tools are {' and '.join(tools)}."
        try:
            arguments = json.loads(call.arguments or "{}")
            return tools[call.name](**arguments)
        except (TypeError, ValueError, RecursionError):
            return f"{call.name} was called wrongly: it takes {SIGNATURES[call.name]}."

    def search_trajectory(self, query: str, k: int = 5) -> str:
        """Raises TypeError for arguments of other types."""
        if not isinstance(query, str) or type(k) is not int:
            raise TypeError
        hits = self._index.search(plain(query), min(max(k, 1), MOST_FOUND))
        places = [self._places[i] for i, _ in hits]
        lines = [f"{run}:\n{prompts.turn_line(self.all[run], turn, FOUND_CHARACTERS)}" for run, turn in places]
        return "\n".join(lines) or "No turn of a failed run holds any of these words."

    def get_segment(self, traj_id: str, start_turn: int, end_turn: int) -> str:
        """Raises TypeError for arguments of other types."""
        if not isinstance(traj_id, str) or type(start_turn) is not int or type(end_turn) is not int:
            raise TypeError
        if traj_id not in self.all:
            return f"There is no such run. The runs are {', '.join(self.all)}."
        run = self.all[traj_id]
        last = len(run.turns) - 1
        if not 0 <= start_turn <= end_turn <= last:
            return f"{traj_id} has turns 0 to {last}."
        end = min(end_turn, start_turn + MOST_SHOWN - 1)
        parts = [prompts.turn_text(run, n, SHOWN_CHARACTERS) for n in range(start_turn, end + 1)]
        if end == last:
            parts.append(f"Then {prompts.ending(run)}.")
        elif end < end_turn:
            parts.append(f"(One call shows {MOST_SHOWN} turns.)")
        return "\n".join(parts)

    @cached_property
    def _places(self) -> list[tuple[str, int]]:
        return [(name, n) for name, run in self.failures.items() for n in range(len(run.turns))]

    @cached_property
    def _index(self) -> BM25:
        runs = self.failures
        return BM25.build(
            plain(f"{runs[name].turns[n].action} {prompts.result(runs[name], n)}") for name, n in self._places
        )


SIGNATURES = {
    "search_trajectory": "query (a text) and k (an integer)",
    "get_segment": "traj_id (a text), start_turn and end_turn (integers)",
}


# many proposals ------------------------------------------------------------------------------------------------------


@dataclass
class Proposal:
    """One dialogue, played, and the record of it. `answer` is set when it has ended, in whatever way."""

    group: Group
    dialogue: Generator[Request, Reply, Answer]
    answer: Answer | str = "open"
    exchanges: list[dict] = field(default_factory=list)
    prompt_tokens: int = 0
    reply_tokens: int = 0
    seconds: float = 0.0
    _logged: int = 0

    def advance(self, reply: Reply | None = None) -> Request | None:
        """The first request (without a reply), or what follows a reply; None when the dialogue has ended."""
        try:
            return self.dialogue.send(reply)
        except StopIteration as end:
            self.answer = end.value
            return None

    def fail(self, reason: str) -> None:
        self.dialogue.close()
        self.answer = Failure(reason)

    def exchange(self, messages: list[dict], **fields: Any) -> dict:
        """A new entry of the record, made before anything is sent: the messages that no earlier entry holds, `fields`,
        and the raw answer as text, to be filled in."""
        entry = {"sent": [dict(m) for m in messages[self._logged :]], **fields, "answer": None}
        self._logged = len(messages)
        self.exchanges.append(entry)
        return entry

    def record(self, step: int) -> dict:
        segment = self.answer if isinstance(self.answer, Segment) else None
        failure = self.answer.reason if isinstance(self.answer, Failure) else None
        return {
            "step": step,
            "group": self.group.index,
            "task_id": self.group.task.id,
            "reference": self.group.reference.sample,
            "outcome": "segment" if segment else "failure" if failure else "none",
            "first_turn": segment.first_turn if segment else None,
            "last_turn": segment.last_turn if segment else None,
            "reason": segment.reason if segment else failure,
            "prompt_tokens": self.prompt_tokens,
            "reply_tokens": self.reply_tokens,
            "seconds": round(self.seconds, 3),
            "exchanges": self.exchanges,
        }


class AgenticJudge(Judge):
    """A judge that talks: it plays one dialogue for each group, and remembers every word of it."""

    def __init__(self, config: Config, player: Any):
        super().__init__(config, player)
        self.records: list[dict] = []
        self.reach: Reach | None = None  # set by `prepare`

    def check_patience(self, times: int) -> None:
        """Raises UserError if ranks would not wait for a step's proposals, which take `times` the limit at most."""
        c = self.config
        if times * c.judge_timeout >= c.rank_timeout:
            raise UserError(
                f"--judge-timeout {c.judge_timeout:g}: a step's proposals may take {times} times that, longer than "
                f"ranks wait for each other (--rank-timeout {c.rank_timeout}); lower it, or raise --judge-concurrency"
            )

    @abstractmethod
    def play(self, proposals: list[Proposal], step: int) -> None:
        """Plays all dialogues to their answers, inside the time limits. What fails is failed, not raised."""

    def propose_all(self, groups: list[Group], step: int) -> list[Answer]:
        instructions = self.player.suite.instructions
        proposals = [Proposal(g, dialogue(g, instructions, self.config, self.reach)) for g in groups]
        self.play(proposals, step)
        for p in proposals:
            self.usage.prompt_tokens += p.prompt_tokens
            self.usage.reply_tokens += p.reply_tokens
            self.records.append(p.record(step))
        return [p.answer for p in proposals]

    def take_records(self) -> list[dict]:
        records, self.records = self.records, []
        return records


def tokens_at_most(text: str) -> int:
    """Tokens of a text where its tokenizer is not known: one for three bytes, more than English takes."""
    return math.ceil(len(text.encode(errors="replace")) / 3)
