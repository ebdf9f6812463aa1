"""A server that speaks chat completions, and misbehaves as it is told.

It holds requests to the protocol as strict servers do (key, roles, every tool call answered once, the schema's form)
and answers 400 where they break it, so a client that passes against it is well-behaved. What it says is a script: a
function of the request that returns a `Message`, or does to the connection whatever it likes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "sk-test"


class HTTP(ThreadingHTTPServer):
    request_queue_size = 128  # of more clients at once than wait in the queue, by default 5, some are reset


class Server:
    """`script(handler, request)` answers a request. Attributes: requests, those that were accepted, in order."""

    def __init__(self, script: Callable, refuses: tuple[str, ...] = (), names: bool = True):
        self.script, self.refuses, self.names = script, refuses, names
        self.requests: list[dict] = []
        self.attempts = 0
        self.closing = threading.Event()
        self.busy = self.busiest = 0
        self.lock = threading.Lock()
        self.http = HTTP(("127.0.0.1", 0), self._handler())
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def close(self) -> None:
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()

    def _handler(server):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    server.attempts += 1
                    server.busy += 1
                    server.busiest = max(server.busiest, server.busy)
                try:
                    self.serve(request)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client gave up
                finally:
                    with server.lock:
                        server.busy -= 1

            def serve(self, request):
                if self.path != "/v1/chat/completions":
                    return self.error(404, f"no route {self.path}")
                if self.headers["Authorization"] != f"Bearer {KEY}":
                    return self.error(401, f"Incorrect API key provided: {self.headers['Authorization']}")
                if refused := [name for name in server.refuses if name in request]:
                    return self.error(422, f"Unsupported fields in the request: {refused}" if server.names else "Sorry")
                if problem := protocol_error(request):
                    return self.error(400, problem)
                with server.lock:
                    server.requests.append(request)
                said = server.script(self, request)
                if said is not None:
                    self.say(said, request)

            def say(self, message: dict, request: dict):
                reason = "tool_calls" if message.get("tool_calls") else "stop"
                choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", **message}}
                usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
                self.send(
                    200, {"object": "chat.completion", "model": request["model"], "choices": [choice], "usage": usage}
                )

            def error(self, status: int, text: str, **headers: str):
                self.send(status, {"error": {"message": text, "type": "invalid_request_error"}}, **headers)

            def send(self, status: int, body, **headers: str):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def wait(self, seconds: float) -> bool:
                """Whether the server closes meanwhile."""
                return server.closing.wait(seconds)

            def log_message(self, *_):
                pass

        return Handler


def protocol_error(request: dict) -> str:
    """What a strict server would refuse, "" for a sound request."""
    if not {"model", "messages"} <= set(request) or request.get("stream"):
        return "model and messages are required, and streaming is off"
    waiting: list[str] = []
    for n, message in enumerate(request["messages"]):
        role = message.get("role")
        if role not in ("system", "user", "assistant", "tool") or not isinstance(message.get("content"), str):
            return f"message {n} is malformed"
        if (role == "system") != (n == 0) or (role == "tool") != bool(waiting):
            return f"message {n} is out of order"
        if role == "tool":
            if message.get("tool_call_id") != waiting.pop(0):
                return f"message {n} answers no call"
        for call in message.get("tool_calls", []):
            if call["type"] != "function" or not isinstance(call["function"]["arguments"], str):
                return f"message {n} has a malformed call"
            waiting.append(call["id"])
    if waiting or request["messages"][-1]["role"] == "assistant":
        return "nothing is asked"
    for tool in request.get("tools", []):
        if tool["type"] != "function" or tool["function"]["parameters"]["type"] != "object":
            return "malformed tool"
    if form := request.get("response_format"):
        schema = form["json_schema"]["schema"]
        if form["type"] != "json_schema" or sorted(schema["required"]) != sorted(schema["properties"]):
            return "malformed schema"
    return ""


# what it says --------------------------------------------------------------------------------------------------------


def text(value) -> dict:
    return {"content": value if isinstance(value, str) else json.dumps(value)}


def proposal(first, last, reason="they never opened it") -> dict:
    return text({"reason": reason, "first_turn": first, "last_turn": last})


def call(name: str, id: str = "a", **arguments) -> dict:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def always(message: dict) -> Callable:
    return lambda handler, request: message


def in_turn(*steps) -> Callable:
    """The n-th request of a conversation gets the n-th step, a message or a script; the last one repeats."""

    def script(handler, request):
        n = sum(m["role"] == "assistant" for m in request["messages"])
        step = steps[min(n, len(steps) - 1)]
        return step(handler, request) if callable(step) else step

    return script


def at_first(first: Callable, then: Callable) -> Callable:
    """The server's very first request gets another script, as where it recovers."""
    seen = []

    def script(handler, request):
        seen.append(1)
        return (first if len(seen) == 1 else then)(handler, request)

    return script


def late(seconds: float, message: dict) -> Callable:
    def script(handler, request):
        handler.wait(seconds)
        return message

    return script


def status(code: int, **headers: str) -> Callable:
    return lambda handler, request: handler.error(code, "not now", **headers)


def raw(body: bytes) -> Callable:
    return lambda handler, request: handler.send(200, body)


def cut(handler, request) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"message": {"content": "')
    handler.close_connection = True


def endless(seconds: float, piece: bytes = b"and ") -> Callable:
    """A reply without end: a piece every so many seconds, until the client has had enough."""

    def script(handler, request):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while not handler.wait(seconds):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    return script
