"""The judge over HTTP: any server that speaks OpenAI's chat completions, through the official client.

Requests differ from server to server only in what is left out: a field that a server refuses (HTTP 400 or 422 that
names it; the tools or the schema of the reply when none is named) is left out and, where it was named, for the rest of
the run. `response_format` goes with the final question alone: with both, some servers never call a tool.

A proposal ends within `judge_timeout`, whatever the server does: slow, cut, endless and broken replies are failures of
that proposal, counted by reason. The key is read from OPENAI_API_KEY and is written nowhere.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

from prover_mini import distributed
from prover_mini.errors import UserError
from prover_mini.judge import prompts
from prover_mini.judge.agent import AgenticJudge, Proposal, Reach, Reply, Request, ToolCall, tokens_at_most
from prover_mini.seeds import derive

CONNECT_SECONDS = 10.0
ATTEMPTS = 4  # of one request
FIRST_PAUSE_SECONDS = 0.5  # doubles after each attempt; a server's Retry-After may ask for more
MAX_REPLY_BYTES = 1 << 20
RETRIED = (408, 409, 429)  # and every 5xx
REFUSALS = (400, 422)
OPTIONAL = ("temperature", "seed", "max_completion_tokens", "max_tokens", "response_format", "tools")
FORMAT = {"type": "json_schema", "json_schema": {"name": "proposal", "strict": True, "schema": prompts.PROPOSAL_SCHEMA}}


class Unanswered(Exception):
    """The server gave no reply that could be read; the message is the reason that is counted."""


class EndpointJudge(AgenticJudge):
    """Fields: judge_url, judge_model, judge_temperature, judge_tokens, judge_context_tokens, judge_tool_calls,
    judge_timeout (of one proposal), judge_concurrency (of this rank)."""

    def prepare(self) -> None:
        c = self.config
        self.url = c.judge_url.rstrip("/")
        self.url += "" if "/" in self.url.partition("://")[2] else "/v1"
        self.refused: frozenset[str] = frozenset()
        self.key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise UserError("OPENAI_API_KEY: holds characters that a key cannot have; set it anew")
        count = tokens_at_most
        self.reach = Reach(count, c.judge_context_tokens - c.judge_tokens, count(prompts.system(c)))
        waves = math.ceil(math.ceil(c.groups_per_step / distributed.world()) / c.judge_concurrency)
        self.check_patience(waves)
        try:
            httpx2.get(self.url, timeout=CONNECT_SECONDS)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
            raise UserError(f"--judge-url {c.judge_url}: {error}; start the server or correct the address") from None
        except httpx2.RequestError:
            pass  # something is there, and this is not its protocol

    def play(self, proposals: list[Proposal], step: int) -> None:
        asyncio.run(self._play(proposals, step))

    async def _play(self, proposals: list[Proposal], step: int) -> None:
        import openai  # slow to import: only for those who ask

        key = self.key or "none"  # local servers want none, the client wants one
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        room = asyncio.Semaphore(self.config.judge_concurrency)
        async with openai.AsyncOpenAI(api_key=key, base_url=self.url, max_retries=0, timeout=timeout) as client:
            asking = [self._propose(client, room, proposal, step) for proposal in proposals]
            for done, ended in enumerate(asyncio.as_completed(asking), 1):
                await ended
                self.player.report("judge", done, len(asking))

    async def _propose(self, client, room: asyncio.Semaphore, proposal: Proposal, step: int) -> None:
        async with room:
            started = time.monotonic()
            seed = derive(self.config.seed, step, proposal.group.index, proposal.group.task.id, "judge") >> 32
            try:
                async with asyncio.timeout(self.config.judge_timeout):
                    request = proposal.advance()
                    while request:
                        request = proposal.advance(await self._ask(client, proposal, request, seed, started))
            except TimeoutError:
                proposal.fail("timeout")
            except Unanswered as failure:
                proposal.fail(str(failure))
            proposal.seconds = time.monotonic() - started

    async def _ask(self, client, proposal: Proposal, request: Request, seed: int, started: float) -> Reply:
        """One reply, after as many attempts as that takes. Raises Unanswered."""
        refused, attempt = self.refused, 0
        while True:
            fields = self._fields(request, seed, refused)
            status, headers, body = await self._post(client, proposal, request, fields)
            if status == 200:
                return read_reply(proposal, body)
            if status in (401, 403):
                raise Unanswered("key refused")
            if status in REFUSALS and (field := refused_field(fields, body)):
                refused |= {field}
                self.refused |= {field} if field in body else set()
                continue
            reason = {None: "connection", 429: "rate limit"}.get(status, f"http {status}")
            attempt += 1
            if attempt == ATTEMPTS or not (status is None or status in RETRIED or status >= 500):
                raise Unanswered(reason)
            pause = max(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), retry_after(headers))
            if pause >= self.config.judge_timeout - (time.monotonic() - started):
                raise Unanswered(reason)
            await asyncio.sleep(pause)

    def _fields(self, request: Request, seed: int, refused: frozenset[str]) -> dict[str, Any]:
        c = self.config
        fields = {"temperature": c.judge_temperature, "seed": seed, "max_tokens": c.judge_tokens}
        if "max_tokens" in refused:
            fields["max_completion_tokens"] = c.judge_tokens
        fields |= {"tools": prompts.TOOLS} if request.offers_tools else {"response_format": FORMAT}
        return {"model": c.judge_model} | {name: value for name, value in fields.items() if name not in refused}

    async def _post(self, client, proposal: Proposal, request: Request, fields: dict) -> tuple[int | None, Any, str]:
        """(HTTP status, headers, body), with None for a status that never came; everything goes into the record."""
        import openai

        entry = proposal.exchange(request.messages, fields=fields, status=None)
        body, headers = bytearray(), {}
        create = client.chat.completions.with_streaming_response.create
        try:
            async with create(messages=request.messages, **fields) as response:
                headers = response.headers
                async for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MAX_REPLY_BYTES:
                        raise Unanswered("endless reply")
            entry["status"] = 200
        except openai.APIStatusError as error:
            entry["status"], headers = error.status_code, error.response.headers
            body += error.response.content
        except (openai.APIConnectionError, httpx2.RequestError, httpx2.StreamError) as error:
            entry["error"] = self._hidden(f"{type(error).__name__}: {error.__cause__ or error}")
        except asyncio.CancelledError:
            entry["error"] = "cut by the time limit"
            raise
        finally:
            entry["answer"] = self._hidden(body[:MAX_REPLY_BYTES].decode(errors="replace"))
        return entry["status"], headers, entry["answer"]

    def _hidden(self, text: str) -> str:
        """A text of the server without the key, which some repeat."""
        return text.replace(self.key, "(key)") if self.key else text


def refused_field(fields: dict, body: str) -> str | None:
    """The field to leave out of a request that was refused: one that the refusal names; else tools or schema."""
    structural = [name for name in ("response_format", "tools") if name in fields]
    named = [name for name in OPTIONAL if name in fields and name in body]
    return next(iter(named + structural), None)


def retry_after(headers: Any) -> float:
    """Seconds that a server asks to wait, 0 if it does not say."""
    text = headers.get("retry-after", "")
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(text) - datetime.now(timezone.utc)).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def read_reply(proposal: Proposal, body: str) -> Reply:
    """Counts what a chat completion says it used, and reads its message. Raises Unanswered for anything else."""
    try:
        data = json.loads(body)
        usage = data.get("usage") or {}
        proposal.prompt_tokens += number(usage.get("prompt_tokens"))
        proposal.reply_tokens += number(usage.get("completion_tokens"))
        message = data["choices"][0]["message"]
        content = message.get("content") or ""
        if isinstance(content, list):  # some servers answer in parts
            content = "".join(part.get("text") or "" for part in content)
        calls = [
            ToolCall(
                prompts.clean(call.get("id") or f"call_{len(proposal.exchanges)}_{n}"),
                prompts.clean(call["function"]["name"]),
                prompts.clean(call["function"].get("arguments") or "{}"),
            )
            for n, call in enumerate(message.get("tool_calls") or [])
        ]
        return Reply(prompts.clean(content), calls)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise Unanswered("bad response") from None


def number(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
