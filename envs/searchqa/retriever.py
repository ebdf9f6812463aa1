"""Where passages come from: BM25 over a local corpus, or a server that speaks the Search-R1 protocol.

    POST /retrieve {"queries": [query], "topk": k, "return_scores": true}
    -> {"result": [[{"document": {"id", "contents"}, "score"}, ...]]}

Servers differ, so bare documents in place of {"document", "score"}, documents given as plain strings or as "title"
and "text", and one flat list for one query are read too. A server that refuses "queries" (HTTP 400 or 422) is asked
with a single "query" from then on.

Source: retrieval server of Search-R1, arXiv:2503.09516.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import httpx2

from envs.analysis import Analyser
from envs.bm25 import BM25
from envs.searchqa.corpus import passage_contents
from prover_mini.errors import UserError

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
ATTEMPTS = 7  # 31 seconds of pauses: what a server takes to restart
ATTEMPTS_AT_START = 4
FIRST_PAUSE_SECONDS = 0.5  # doubles after each attempt
REFUSED = (400, 422)
RETRIED = (408, 429)  # and every 5xx


class Retriever(Protocol):
    def search(self, query: str, k: int) -> list[str]:
        """Contents of the best passages, at most k, best first. May be called from several threads."""


class RetrievalError(Exception):
    """The server is lost or does not speak the protocol: the episode can't go on."""


class BM25Retriever:
    def __init__(self, index: BM25, passages: Sequence[str], analyse: Analyser):
        self.index = index
        self.passages = passages
        self.analyse = analyse

    def search(self, query: str, k: int) -> list[str]:
        return [self.passages[i] for i, _ in self.index.search(self.analyse(query), k)]


class HTTPRetriever:
    """A client with pooled connections. An address without a path, as http://127.0.0.1:8000, gets /retrieve."""

    def __init__(
        self,
        url: str,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
        attempts: int = ATTEMPTS,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ):
        self.url = url if "/" in url.partition("://")[2].rstrip("/") else url.rstrip("/") + "/retrieve"
        self.attempts = attempts
        self.first_pause_seconds = first_pause_seconds
        self.single_query = False
        self.client = httpx2.Client(
            timeout=httpx2.Timeout(read_seconds, connect=connect_seconds), follow_redirects=True
        )

    def probe(self) -> None:
        """Asks one question, so that a wrong address shows before any work is done. Raises UserError."""
        try:
            self._search("test", 1, min(self.attempts, ATTEMPTS_AT_START))
        except RetrievalError as error:
            raise UserError(f"retriever_url {self.url}: {error}; start the server or correct the address") from error

    def search(self, query: str, k: int) -> list[str]:
        """Raises RetrievalError when the last attempt has failed, or at once where a new attempt can't help."""
        return self._search(query, k, self.attempts)

    def _search(self, query: str, k: int, attempts: int) -> list[str]:
        query = query.encode(errors="replace").decode()  # JSON has no place for half a surrogate pair
        for attempt in range(attempts):
            if attempt:
                time.sleep(self.first_pause_seconds * 2 ** (attempt - 1))
            try:
                response = self._post(query, k)
            except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
                raise RetrievalError(str(error)) from error
            except httpx2.RequestError as error:
                failure = str(error) or type(error).__name__
                continue
            if response.is_success:
                return read_reply(response)[:k]
            failure = f"answered with HTTP status {response.status_code}"
            if response.status_code < 500 and response.status_code not in RETRIED:
                raise RetrievalError(failure)
        raise RetrievalError(f"no answer in {attempts} attempts, the last one: {failure}")

    def _post(self, query: str, k: int) -> httpx2.Response:
        if not self.single_query:
            response = self.client.post(self.url, json={"queries": [query], "topk": k, "return_scores": True})
            if response.status_code not in REFUSED:
                return response
        response = self.client.post(self.url, json={"query": query, "topk": k, "return_scores": True})
        self.single_query = response.is_success
        return response


def read_reply(response: httpx2.Response) -> list[str]:
    """The passages of a reply to one query. Raises RetrievalError where it isn't of the protocol."""
    try:
        result = response.json()["result"]
        if result and isinstance(result[0], list):
            result = result[0]
        return [_contents(hit) for hit in result]
    except (ValueError, KeyError, TypeError) as error:
        raise RetrievalError(f'the reply is not {{"result": [[passages]]}}: {response.text[:80]!r}') from error


def _contents(hit: Any) -> str:
    document = hit.get("document", hit) if isinstance(hit, dict) else hit
    return document if isinstance(document, str) else passage_contents(document)
