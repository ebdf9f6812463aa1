"""Retrievers: local search, and the HTTP client against a server of its own that behaves, or does not."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import pytest

from envs import load_suite
from envs.searchqa.retriever import HTTPRetriever, RetrievalError
from prover_mini.errors import UserError
from tests.judge_server import HTTP

DOCUMENTS = [{"id": str(i), "contents": f'"Title {i}"\ntext {i}'} for i in range(5)]
TEXTS = [document["contents"] for document in DOCUMENTS]


def scored(request):
    """A server of the protocol: one list of hits for each query."""
    hits = [{"document": document, "score": 1.0} for document in DOCUMENTS[: request["topk"]]]
    return 200, {"result": [hits for _ in request["queries"]]}


def bare(request):
    return 200, {"result": [DOCUMENTS[: request["topk"]]]}


def split_fields(request):
    return 200, {"result": [[{"title": f"Title {i}", "text": f"text {i}"} for i in range(request["topk"])]]}


def flat_strings(request):
    return 200, {"result": TEXTS[: request["topk"]]}


def more_than_asked(request):
    return 200, {"result": [DOCUMENTS]}


def single_query(request):
    return (200, {"result": DOCUMENTS[: request["topk"]]}) if "query" in request else (422, {"detail": "no query"})


@pytest.fixture
def serve():
    """serve(answer, ...) starts a server that gives the n-th request to the n-th answer, the last one to the rest."""
    servers = []

    def start(*answers):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                seen.append((self.path, body))
                status, reply = answers[min(len(seen), len(answers)) - 1](body)
                data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        seen = []
        server = HTTP(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/retrieve", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def client(url, **changes):
    return HTTPRetriever(url, **({"read_seconds": 5.0, "attempts": 3, "first_pause_seconds": 0.01} | changes))


def status(code):
    return lambda request: (code, {"detail": "no"})


def hang(request):
    time.sleep(0.6)
    return scored(request)


def test_speaks_the_protocol(serve):
    url, seen = serve(scored)
    assert client(url).search("who?", 3) == TEXTS[:3]
    assert seen == [("/retrieve", {"queries": ["who?"], "topk": 3, "return_scores": True})]


@pytest.mark.parametrize("answer", [bare, split_fields, flat_strings, more_than_asked])
def test_reads_other_layouts_of_the_reply(serve, answer):
    assert client(serve(answer)[0]).search("q", 2) == TEXTS[:2]


@pytest.mark.parametrize("result", [[], [[]]])
def test_no_hit(serve, result):
    assert client(serve(lambda request: (200, {"result": result}))[0]).search("q", 3) == []


def test_falls_back_to_a_single_query_and_remembers(serve):
    url, seen = serve(single_query)
    retriever = client(url)
    assert retriever.search("a", 2) == retriever.search("b", 2) == TEXTS[:2]
    assert [sorted(set(body) & {"query", "queries"}) for _, body in seen] == [["queries"], ["query"], ["query"]]


@pytest.mark.parametrize("address", ["", "/"])
def test_address_without_a_path(serve, address):
    url, seen = serve(scored)
    client(url.removesuffix("/retrieve") + address).search("q", 1)
    assert seen[0][0] == "/retrieve"


@pytest.mark.parametrize("first", [status(500), status(503), status(429), hang])
def test_tries_again(serve, first):
    url, seen = serve(first, scored)
    assert client(url, read_seconds=0.3).search("q", 1) == TEXTS[:1]
    assert len(seen) == 2


def test_gives_up_with_an_exception_of_the_episode(serve):
    url, seen = serve(status(500))
    with pytest.raises(RetrievalError, match="3 attempts.*500"):
        client(url).search("q", 1)
    assert len(seen) == 3


def test_hanging_server_costs_its_timeouts_only(serve):
    url, _ = serve(hang)
    started = time.monotonic()
    with pytest.raises(RetrievalError, match="2 attempts"):
        client(url, read_seconds=0.1, attempts=2).search("q", 1)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("code", [400, 404, 422])
def test_refusal_is_not_repeated(serve, code):
    url, seen = serve(status(code))
    with pytest.raises(RetrievalError, match=str(code)):
        client(url).search("q", 1)
    assert len(seen) <= 2  # "queries", and "query" where that may help


@pytest.mark.parametrize(
    "reply",
    [
        b"<html>",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b'{"result": 3}',
        b'{"result": [[{"score": 1}]]}',
        b'{"result": [[7]]}',
    ],
)
def test_wrong_reply(serve, reply):
    url, seen = serve(lambda request: (200, reply))
    with pytest.raises(RetrievalError, match="the reply is not"):
        client(url).search("q", 1)
    assert len(seen) == 1


def test_any_text_can_be_sent(serve):
    url, seen = serve(scored)
    client(url).search('\ud800 "\x00\u2028 日', 1)
    assert seen[0][1]["queries"] == ['? "\x00\u2028 日']


def test_many_threads(serve):
    url, _ = serve(lambda request: (200, {"result": [[request["queries"][0]]]}))
    retriever = client(url)
    with ThreadPoolExecutor(8) as pool:
        queries = [f"q{i}" for i in range(64)]
        assert list(pool.map(lambda q: retriever.search(q, 1), queries)) == [[q] for q in queries]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/retrieve", "nonsense", "ftp://a/b", "http://[::1", "http://host:port/"]
)
def test_unreachable_at_start(url):
    with pytest.raises(UserError, match="retriever_url .*start the server"):
        client(url, connect_seconds=0.5).probe()


def test_suite_plays_through_a_server(serve, tmp_path):
    url, _ = serve(scored, scored, status(404))
    data = tmp_path / "q.jsonl"
    data.write_text('{"id": "1", "question": "Who?", "answer": "Me", "split": "test"}\n')
    suite = load_suite("searchqa", SimpleNamespace(data=str(data), corpus="", retriever_url=url, topk=2, mix=""))
    assert suite.workers > 1
    env = suite.make_env()
    env.reset(suite.tasks("test")[0])
    seen = env.step("<search>me</search>").observation
    assert seen == "<information>\n1. Title 0: text 0\n2. Title 1: text 1\n</information>"
    with pytest.raises(RetrievalError):
        env.step("<search>again</search>")


def test_suite_refuses_a_dead_server(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(UserError, match="127.0.0.1:1/retrieve"):
        load_suite("searchqa", SimpleNamespace(data="", corpus="", retriever_url="http://127.0.0.1:1", topk=3, mix=""))
