"""The rollout engine: an SGLang server of the run.

Where the server dies, does not answer in time, or gives an answer that nothing may be trained on, the run ends with an
error that says so, and goes on with --resume.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from sat_slime.config.exits import how_it_ended
from sat_slime.config.schema import LabConfig
from sat_slime.lab.process import ENVIRONMENT, PartFailure
from sat_slime.lab.responses import GenerationRequest, Response, joined, rest, validate
from sat_slime.lab.sglang_process import SCRATCH, SOCKET
from sat_slime.rollout.canary import EngineScores, read_scores, score_payload
from sat_slime.rollout.client import in_words
from sat_slime.rollout.scratch import Scratch, new_scratch
from sat_slime.rollout.validation import Expectations, RejectedResponse

SGLANG_COMMAND = (sys.executable, "-m", "sat_slime.lab.sglang_process")
CONTEXT_MARGIN = 8  # SGLang keeps up to 7 positions of its context length for itself
LOG_TAIL_LINES = 20
POSTS_IN_FLIGHT = 4
ENDING_S = 1.0
"""Seconds that a server's process may take to end after its connections broke, before it counts as alive."""
INTERRUPT_EVERY_S = 0.2
"""Seconds until an interruption is repeated, for requests that had not reached SGLang's scheduler."""


class Generation(NamedTuple):
    """What came of some requests."""

    responses: list[Response]
    """One valid response for each request, in their order."""
    seconds: float


class Engine:
    """An SGLang process on a socket file of this user. It ends with `close`, and with this process, however that ends.

    An update of the weights interrupts what is in flight, which goes on under the new ones. So an update never meets a
    request in flight, and each token is known to be of one version. Mode batch updates when nothing is in flight.
    """

    def __init__(self, config: LabConfig, log_dir: Path, command: Sequence[str] = SGLANG_COMMAND) -> None:
        """command: what to run, with SGLang's arguments appended."""
        self.config, self.command = config, command
        self.log_path = log_dir.resolve() / "sglang.log"
        self.version = 0
        """Of the weights that the server holds."""
        self.in_flight = 0
        """Requests that the server has not answered."""
        self._failed: PartFailure | None = None
        """Why a generation failed, for the update that waited for its end."""
        self.process: subprocess.Popen[bytes] | None = None
        self._folders = ExitStack()
        self._turn = threading.Condition()
        self._updating = False
        """An update waits for what is in flight, and nothing is sent."""
        self._interruptions = 0
        """Times that an update asked for the end of what is in flight."""
        # Deterministic: one POST at a time, which SGLang schedules as one, so that the composition of its batches, on
        # which the last bits of a log-prob depend, is always the same. Otherwise several, so that decoding goes on
        # while one answer is packed and checked.
        rollout = config.rollout
        self._posts = 1 if rollout.deterministic else min(POSTS_IN_FLIGHT, rollout.max_running_requests)
        self._generating = ThreadPoolExecutor(rollout.max_running_requests, "generation")

    def start(self, model_path: Path) -> None:
        """Starts with the weights of a Hugging Face folder as version 0, and waits until the server is healthy. Raises
        PartFailure, with the last error in the log."""
        scratch = new_scratch()
        self._folders.callback(scratch.remove)
        self.socket = scratch.path / SOCKET
        """The file that the server listens on."""
        rollout = self.config.rollout
        # A connection that is kept may have died with its server, so each call opens a new one.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        transport = httpx.HTTPTransport(limits=limits, uds=str(self.socket), trust_env=False)
        self._http = httpx.Client(
            base_url="http://localhost", timeout=rollout.request_timeout_s, transport=transport, trust_env=False
        )
        self._spawn(self.arguments(model_path), scratch)
        deadline = time.monotonic() + rollout.startup_timeout_s
        while not self._is_healthy():
            if self.process is not None and self.process.poll() is not None:
                raise self._failure(f"ended before it was healthy (exit code {self.process.returncode})")
            if time.monotonic() > deadline:
                within = f"{rollout.startup_timeout_s:g} s (rollout.startup_timeout_s)"
                raise self._failure(f"is not healthy after {within}: raise it if the machine is slow")
            time.sleep(0.1)

    def arguments(self, model_path: Path) -> list[str]:
        """Return SGLang's arguments."""
        rollout, model = self.config.rollout, self.config.model
        context_length = model.max_positions + CONTEXT_MARGIN
        arguments = {
            "--model-path": str(model_path.resolve()),
            "--weight-version": self.version,
            "--dtype": rollout.dtype,
            "--context-length": context_length,
            "--max-running-requests": rollout.max_running_requests,
            # Room for every running request at its longest, so that none is ever put back for lack of memory.
            "--max-total-tokens": rollout.max_running_requests * context_length,
            "--grammar-backend": "none",
            "--log-level-http": "warning",
        }
        switches = [
            "--skip-tokenizer-init",
            "--disable-radix-cache",
            "--enable-deterministic-inference",  # what makes SGLang heed a request's sampling seed
            "--sleep-on-idle",  # an idle scheduler takes three quarters of a core otherwise
            *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
            *("--disable-cuda-graph", "--disable-overlap-schedule"),
        ]
        if model.resolved_family.has_experts:
            switches.append("--enable-return-routed-experts")
        return [str(word) for pair in arguments.items() for word in pair] + switches

    def _spawn(self, arguments: list[str], folder: Scratch) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        # SGLang leaves its sockets in the temporary folder; in one of its own they go with the server.
        environment = {**os.environ, **server_environment()}
        environment |= {"TMPDIR": str(folder.path), SCRATCH: str(folder.path)}
        command = [*self.command, *arguments]
        with self.log_path.open("ab") as log:
            log.write(f"--- at {folder.path / SOCKET}: {' '.join(command)}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # never written to: its closing tells the server that we are gone
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder.path,
                pass_fds=(folder.hold,),  # the server's processes keep the hold when this one is killed
                start_new_session=True,
            )

    def _is_healthy(self) -> bool:
        with suppress(httpx.HTTPError):
            return self._http.get("/health", timeout=5.0).status_code == 200
        return False

    def close(self) -> None:
        """Ends the server, all its processes and what is in flight at once: it holds nothing worth saving."""
        if self.process is not None:
            with self.process, suppress(ProcessLookupError):  # which waits for it, and closes its input
                os.killpg(self.process.pid, signal.SIGKILL)
        self._generating.shutdown(cancel_futures=True)
        self._folders.close()

    def _failure(self, what: str) -> PartFailure:
        """Return the error of what the server did, with the last line of its log that names an error, or else its
        last, where it wrote any."""
        log = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        words = [line.strip() for line in log.rpartition("\n--- ")[2].splitlines()[1:] if line.strip()]
        words = words[-LOG_TAIL_LINES:]
        errors = [line for line in words if re.match(r"\S*(Error|Exception)\b", line)]
        last = f"; last in its log: {(errors or words)[-1]}" if words else ""
        return PartFailure(f"SGLang's server {what}{last}; log: {self.log_path}")

    def post(self, path: str, payload: dict[str, Any], *, answers: bool = True) -> Any:
        """Return the JSON that the server answers to a POST. Raises PartFailure."""
        assert self.process is not None, "it was started"
        try:
            answer = self._http.post(path, json=payload)
            answer.raise_for_status()
            return answer.json() if answers else None
        except (httpx.HTTPError, ValueError) as error:
            what = f"did not do {path}: {in_words(error)}"
            if isinstance(error, httpx.TimeoutException):
                what += f" ({self.config.rollout.request_timeout_s:g} s: raise rollout.request_timeout_s if it is slow)"
            with suppress(subprocess.TimeoutExpired):  # its connections break before it has ended
                what = how_it_ended(self.process.wait(ENDING_S))
            raise self._failure(f"(process {self.process.pid}) {what}") from error

    # ------------------------------------------------------------------------------------------- weights and requests

    def update_weights(self, folder: Path, version: int) -> None:
        """Loads a Hugging Face folder (config.json, model.safetensors) as `version`, after it has interrupted what is
        in flight. Raises PartFailure."""
        with self._turn:
            self._updating = True
        try:
            while self.in_flight:
                self._interruptions += 1
                self.post("/abort_request", {"abort_all": True}, answers=False)
                with self._turn:
                    self._turn.wait_for(lambda: not self.in_flight, INTERRUPT_EVERY_S)
            if self._failed is not None:
                raise self._failed
            # Without a flush, which ends SGLang's scheduler where that has not put away what it has just answered:
            # with --disable-radix-cache nothing is cached beyond a request.
            weights = {"model_path": str(folder), "weight_version": str(version), "flush_cache": False}
            self.post("/update_weights_from_disk", weights)
            self.version = version
        finally:
            with self._turn:
                self._updating = False
                self._turn.notify_all()

    def score(self, sequences: Sequence[Sequence[int]]) -> EngineScores:
        """Scores the canary's sequences, beside what is in flight. Raises PartFailure."""
        answers = self.post("/generate", score_payload(sequences))
        try:
            return read_scores(answers, sequences)
        except ValueError as error:
            raise PartFailure(f"SGLang's server gave no scores: {error}") from error

    def generate(self, requests: Sequence[GenerationRequest]) -> Future[Generation]:
        """Begins to generate one response for each request; the future fails with PartFailure. A response may span
        updates: its `versions` say which weights generated each token."""
        return self._generating.submit(self._generated, requests)

    def _generated(self, requests: Sequence[GenerationRequest]) -> Generation:
        started, size = time.monotonic(), self.config.rollout.max_running_requests // self._posts
        with ThreadPoolExecutor(self._posts) as posting:
            parts = posting.map(self._answered, [requests[i : i + size] for i in range(0, len(requests), size)])
            responses = [response for part in parts for response in part]
        return Generation(responses, time.monotonic() - started)

    def _answered(self, requests: Sequence[GenerationRequest]) -> list[Response]:
        """Return the responses to some requests that are sent in one POST. What an update interrupts is sent again,
        with the tokens so far at the end of its prompt."""
        parts: dict[str, list[Response]] = {request.request_id: [] for request in requests}
        pending = list(requests)
        while pending:
            sent = [rest(request, parts[request.request_id]) for request in pending]
            wire_ids = [f"{request.request_id}#{len(parts[request.request_id])}" for request in pending]
            with self._turn:
                self._turn.wait_for(lambda: not self._updating)
                self.in_flight += len(pending)
                interruptions, version = self._interruptions, self.version
            try:
                answers = self.post("/generate", generate_payload(sent, wire_ids))
            except PartFailure as error:
                self._failed = error
                raise
            finally:
                with self._turn:
                    self.in_flight -= len(pending)
                    self._turn.notify_all()
            if not isinstance(answers, list) or len(answers) != len(sent):
                raise PartFailure(f"SGLang's server answered {answers!r:.200}, not {len(sent)} responses")
            for request, wire_id, answer in zip(sent, wire_ids, answers, strict=True):
                parts[request.request_id].append(self._valid(request, wire_id, answer, version, interruptions))
            pending = [r for r in pending if joined(r, parts[r.request_id]).finish_reason == "abort"]
        return [joined(request, parts[request.request_id]) for request in requests]

    def _valid(
        self, request: GenerationRequest, wire_id: str, answer: Any, version: int, interruptions: int
    ) -> Response:
        """Return the response to what was sent under a version, after so many interruptions. Raises PartFailure."""
        model = self.config.model
        sizes = self.config.task.vocab_size, model.layers, model.experts, model.experts_per_token
        try:
            part = validate(request, wire_id, answer, Expectations(*sizes, version))
            if part.finish_reason == "abort" and interruptions == self._interruptions:
                raise RejectedResponse("finish_reason", "aborted by the server itself")
        except RejectedResponse as error:
            raise PartFailure(
                f"the response to request {request.request_id} is not valid, a fault of SGLang's server or of its "
                f"weights: {error}; log: {self.log_path}"
            ) from error
        return part


def server_environment() -> dict[str, str]:
    """Return what a server needs in its environment besides ours."""
    package_parent = str(Path(__file__).resolve().parents[2])
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")])),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",  # its log has what it wrote last, in its order, also when it was killed
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # /health answers at once instead of after a second
        "SGLANG_USE_PICKLE_IPC": "0",  # its processes send each other bytes: torch's pickles cost a tenth of a batch
        "SGLANG_USE_CPU_ENGINE": "1",
        **ENVIRONMENT,
        "TORCHDYNAMO_DISABLE": "1",  # torch.compile needs a C++ compiler and gains nothing at this size
    }


def generate_payload(requests: Sequence[GenerationRequest], wire_ids: Sequence[str]) -> dict[str, Any]:
    """Return the body of /generate: many requests in one POST, since one for each would cost several times the
    generation. Each asks for one sample: after `n` > 1 a server does not end on SIGTERM."""
    return {
        "rid": list(wire_ids),
        "input_ids": [list(request.prompt_ids) for request in requests],
        "sampling_params": [
            {
                "temperature": request.temperature,
                "max_new_tokens": request.max_new_tokens,
                "stop_token_ids": list(request.stop_token_ids),
                "sampling_seed": request.seed,
                "top_k": -1,
            }
            for request in requests
        ],
        "return_logprob": True,
        "return_routed_experts": True,  # ignored by a server of a dense model
    }
