"""The judge in the rollout engine: the policy's own weights, or a model of its own that is loaded once.

A dialogue is played as an episode is, by the same loop: what the judge is told next is the observation, its reply the
action. So all dialogues of a step run as one batch, each draw is a function of its place, the token ids only append,
and the weights are those of this moment: nothing of a dialogue outlives it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from envs.base import Env, Step, Suite, Task
from prover_mini.chat import Chat
from prover_mini.engine import Engine, self_check
from prover_mini.errors import UserError
from prover_mini.judge import prompts
from prover_mini.judge.agent import REPAIRS, AgenticJudge, Proposal, Reach, Reply, Request
from prover_mini.model import load_policy
from prover_mini.rollout import Origin, Player
from prover_mini.seeds import derive
from prover_mini.trajectory import OFF_POLICY, Trajectory


class PolicyJudge(AgenticJudge):
    """Fields: judge_model (empty: the policy), judge_temperature, judge_tokens, judge_context_tokens, judge_tool_calls,
    judge_timeout (of all proposals of a step together), judge_concurrency (slots of a judge_model)."""

    def prepare(self) -> None:
        c = self.config
        self.check_patience(1)
        engine, tokenizer, context = self.player.engine, self.player.chat.tokenizer, "--max-context-tokens"
        if c.judge_model:
            engine, tokenizer, context = *self._load(), "--judge-context-tokens"
        room = min(engine.max_tokens, c.judge_context_tokens)
        reply_tokens = min(c.judge_tokens, room // 4)
        chat = JudgeChat(tokenizer, prompts.system(c), engine.max_tokens)
        system_tokens = len(chat.prompt(""))
        if system_tokens + reply_tokens >= room:
            raise UserError(
                f"{context} {room}: the judge's instructions take {system_tokens} tokens and its reply {reply_tokens}; "
                "raise it, or choose another --judge"
            )
        settings = replace(
            c,
            max_turn_tokens=max(reply_tokens, 1),
            max_turns=c.judge_tool_calls + REPAIRS + 2,
            max_observation_tokens=1,
        )
        self.judge_player = Player(engine, chat, DialogueSuite(), settings)
        self.judge_player.report = self._watch
        self.reach = Reach(lambda text: len(chat.encode(text)), room - reply_tokens, system_tokens)
        self.deadline = 0.0

    def _load(self) -> tuple[Engine, Any]:
        c = self.config
        if not Path(c.judge_model).is_dir():
            raise UserError(f"--judge-model {c.judge_model}: no such directory")
        try:
            model, tokenizer = load_policy(c.judge_model, c.dtype, self.player.engine.device)
        except UserError as error:
            raise UserError(str(error).replace("--model", "--judge-model")) from None
        engine = Engine(model, c.judge_concurrency, c.judge_context_tokens)
        self_check(engine)
        return engine, tokenizer

    def play(self, proposals: list[Proposal], step: int) -> None:
        started = time.monotonic()
        self.deadline = started + self.config.judge_timeout
        asked = [(p, request) for p in proposals if (request := p.advance())]
        origins = [self._origin(Dialogue(p, request), step) for p, request in asked]
        reason = "context"  # what is left open by the loop itself has no room for one more reply
        try:
            self.judge_player.play(origins, self.config.judge_temperature, label="judge")
        except TimeoutError:
            reason = "timeout"
        except FloatingPointError:
            reason = "not finite"
        for (proposal, _), origin in zip(asked, origins):
            proposal.seconds = time.monotonic() - started
            for trajectory in origin.results:
                self._record(proposal, trajectory)
            if proposal.answer == "open":
                proposal.fail(reason)

    def _watch(self, label: str, done: int, total: int) -> None:
        """Called by the loop after every move."""
        self.player.report(label, done, total)
        if time.monotonic() > self.deadline:
            raise TimeoutError

    def _origin(self, dialogue: Dialogue, step: int) -> Origin:
        group = dialogue.proposal.group
        opening = dialogue.news()

        def spawn(k: int) -> Trajectory:
            trajectory = Trajectory(group.task, k, derive(self.config.seed, step, group.index, group.task.id, "judge"))
            trajectory.observe(self.judge_player.chat.prompt(opening))
            return trajectory

        return Origin(spawn, 1, opening, dialogue)

    def _record(self, proposal: Proposal, trajectory: Trajectory) -> None:
        """What was said, also where the last reply was cut. A prompt's tokens count once, as they are computed."""
        if trajectory.error:
            raise RuntimeError(trajectory.error)
        fields = {"model": self.config.judge_model or "policy", "temperature": self.config.judge_temperature}
        for turn in trajectory.turns:
            end = turn.end if turn.end >= 0 else len(trajectory.ids)
            answer = self.judge_player.chat.text(trajectory.ids[turn.start : end])
            sent = [{"role": "user", "content": turn.observation}]
            proposal.exchanges.append({"sent": sent, "fields": fields, "answer": answer})
            proposal.reply_tokens += end - turn.start
        if proposal.exchanges:
            system = {"role": "system", "content": prompts.system(self.config)}
            proposal.exchanges[0]["sent"].insert(0, system)
        proposal.prompt_tokens = trajectory.turn_ids.count(OFF_POLICY)


class Dialogue:
    """Where a proposal's dialogue stands: the request that waits for a reply, and how much of it was told."""

    def __init__(self, proposal: Proposal, request: Request):
        self.proposal, self.request, self.told = proposal, request, 1  # the system prompt is the chat's own

    def news(self) -> str:
        """What was not yet told, of messages that are not the judge's own."""
        messages = self.request.messages[self.told :]
        self.told = len(self.request.messages)
        return "\n\n".join(m["content"] for m in messages if m["role"] != "assistant")


class JudgeChat(Chat):
    """Takes texts whole, and keeps none: prompts of a judge are long and never come again."""

    def _outside(self, text: str) -> tuple[int, ...]:
        return tuple(self.encode(text))


class DialogueEnv(Env):
    """Plays one dialogue, once and from its beginning: `restore` is given the dialogue itself."""

    dialogue: Dialogue

    def reset(self, task: Task) -> str:
        raise NotImplementedError

    def step(self, action: str) -> Step:
        request = self.dialogue.proposal.advance(Reply(prompts.clean(action)))
        return Step(self.dialogue.news()) if request else Step("", done=True)

    def snapshot(self) -> Dialogue:
        return self.dialogue

    def restore(self, state: Dialogue) -> None:
        self.dialogue = state


class DialogueSuite(Suite):
    name, instructions, max_turns = "judge", "", 0

    def tasks(self, split: str) -> list[Task]:
        return []

    def make_env(self) -> DialogueEnv:
        return DialogueEnv()
