"""A stand-in for a server with OpenAI's API as SGLang has it: answers by a function, faults on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeCompletions(ThreadingHTTPServer):
    """`respond` makes the text of a request's body. `faults` is consumed from the front, one a request: an HTTP status,
    or a body to send in place of the answer. `seen` holds the bodies, `most` how many were served at once."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, respond: Callable[[dict[str, Any]], str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.respond = respond
        self.faults: list[Any] = []
        self.seen: list[dict[str, Any]] = []
        self.version: str | None = "8"
        self.is_sglang = True
        self.delay_s = 0.0
        self.finish_reason = "stop"
        self.lock = threading.Lock()
        self.now = self.most = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: FakeCompletions

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            return self.answer({"data": [{"id": "tiny"}]})
        if self.path == "/model_info" and self.server.is_sglang:
            return self.answer({"model_path": "/models/tiny", "weight_version": self.server.version})
        return self.answer({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"]))) | {"path": self.path}
        server = self.server
        with server.lock:
            server.seen.append(body)
            server.now += 1
            server.most = max(server.most, server.now)
            fault = server.faults.pop(0) if server.faults else None
        time.sleep(server.delay_s)
        text = None if fault else server.respond(body)
        with server.lock:  # before the answer is on its way: who has it may ask the next one at once
            server.now -= 1
        if isinstance(fault, int):
            return self.answer({"message": "no"}, fault)
        if fault is not None:
            return self.answer(fault)
        said = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
        choice = {"index": 0, "finish_reason": server.finish_reason, **said}
        usage = {"prompt_tokens": 9, "completion_tokens": len(text)}
        metadata = {"metadata": {"weight_version": server.version}} if server.is_sglang else {}
        return self.answer({"choices": [choice], "usage": usage, **metadata})


@contextmanager
def serving(respond: Callable[[dict[str, Any]], str]):
    server = FakeCompletions(respond)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
