"""A stand-in for SGLang's HTTP server: made-up responses in the shape of real ones, and faults on demand.

As a program it listens where `sglang_process` does, and takes SGLang's arguments, plus `--faults`: a JSON list of
names, of which each POST for responses takes the first.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

VOCAB, LAYERS, EXPERTS, TOP_K = 16, 2, 8, 2
HANGS = "hangs"
"""A file that marks a folder of weights that are never loaded; the server removes it when it begins."""


def response(rid: str, prompt: list[int], sampling: dict[str, Any], version: str) -> dict[str, Any]:
    """What SGLang answers to one request, deterministic in its seed."""
    rng = random.Random(sampling["sampling_seed"])
    tokens: list[int] = []
    while len(tokens) < sampling["max_new_tokens"] and not (tokens and tokens[-1] in sampling["stop_token_ids"]):
        tokens.append(rng.randrange(VOCAB))
    rows = (len(prompt) + len(tokens) - 1) * LAYERS
    experts = [expert for _ in range(rows) for expert in rng.sample(range(EXPERTS), TOP_K)]
    return {
        "output_ids": tokens,
        "meta_info": {
            "id": rid,
            "finish_reason": {"type": "stop" if len(tokens) < sampling["max_new_tokens"] else "length"},
            "prompt_tokens": len(prompt),
            "weight_version": version,
            "output_token_logprobs": [[-rng.random() - 0.01, token, None] for token in tokens],
            "routed_experts": base64.b64encode(struct.pack(f"<{len(experts)}i", *experts)).decode(),
        },
    }


def spoil(answer: dict[str, Any], fault: str) -> None:
    """Turns a good response into a bad one."""
    meta = answer["meta_info"]
    if fault == "short_experts":
        meta["routed_experts"] = base64.b64encode(base64.b64decode(meta["routed_experts"])[: -4 * TOP_K]).decode()
    elif fault == "stale":
        meta["weight_version"] = "0"
    elif fault == "abort":
        meta["finish_reason"] = {"type": "abort", "message": "aborted"}
    else:
        raise ValueError(fault)


def interrupt(answer: dict[str, Any], prompt: int, tokens: int) -> None:
    """Leaves the first tokens of a response, as SGLang answers when it aborts one."""
    meta = answer["meta_info"]
    del answer["output_ids"][tokens:], meta["output_token_logprobs"][tokens:]
    meta["finish_reason"] = {"type": "abort", "message": "Aborted"}
    rows = (prompt + len(answer["output_ids"]) - 1) * LAYERS * TOP_K
    meta["routed_experts"] = base64.b64encode(base64.b64decode(meta["routed_experts"])[: 4 * rows]).decode()
    if not tokens:  # it was not begun
        del meta["prompt_tokens"], meta["routed_experts"]


class FakeSGLang(ThreadingUnixStreamServer):
    """`faults` is consumed from the front, one a POST for responses."""

    daemon_threads = True
    request_queue_size = 128  # a socket file with a full queue refuses

    def __init__(self, file: Path, version: str, faults: list[str | None]) -> None:
        super().__init__(str(file), Handler)
        self.file, self.version, self.faults = file, version, faults
        self.healthy = True
        self.aborted = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: FakeSGLang

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.answer({}, 200 if self.server.healthy else 503)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/update_weights_from_disk":
            if not Path(body["model_path"]).exists():
                return self.answer({"success": False, "message": "no such folder"}, 400)
            if (Path(body["model_path"]) / HANGS).exists():
                (Path(body["model_path"]) / HANGS).unlink()
                threading.Event().wait()
            self.server.version = body["weight_version"]
            return self.answer({"success": True, "message": "loaded", "num_paused_requests": 0})
        if self.path == "/abort_request":
            self.server.aborted.set()
            return self.answer({})
        fault = self.server.faults.pop(0) if self.server.faults else None
        if fault == "die":
            os._exit(1)
        if fault == "die_slowly":  # its connections are gone before it is, as with a process that is killed
            self.server.file.unlink()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            return self.connection.close()
        if fault == "hang":
            threading.Event().wait()
        if fault == "error":
            return self.answer({"error": {"message": "internal"}}, 500)
        if fault == "refuse":
            return self.answer({"error": {"message": "too long"}}, 400)
        answers = [
            response(*request, self.server.version)
            for request in zip(body["rid"], body["input_ids"], body["sampling_params"], strict=True)
        ]
        if fault == "part":  # decodes until it is interrupted: a third of each, and nothing of the last
            self.server.aborted.wait()
            self.server.aborted.clear()
            for answer, prompt, sampling in zip(answers, body["input_ids"], body["sampling_params"], strict=True):
                tokens = 0 if answer is answers[-1] else max(1, sampling["max_new_tokens"] // 3)
                interrupt(answer, len(prompt), tokens)
            return self.answer(answers)
        if fault == "garbage":
            return self.answer({"what": "is this"})
        if fault:
            spoil(answers[0], fault)
        return self.answer(answers)


def main() -> None:
    arguments = dict(zip(sys.argv, sys.argv[1:], strict=False))
    if "--exit" in sys.argv:
        print("cannot load the model", flush=True)
        sys.exit(3)
    faults = json.loads(arguments.get("--faults", "[]"))
    server = FakeSGLang(Path(os.environ["SAT_SLIME_SCRATCH"]) / "http", arguments["--weight-version"], faults)
    server.healthy = "--unhealthy" not in sys.argv
    print("serving", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
