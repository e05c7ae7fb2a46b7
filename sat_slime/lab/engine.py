"""The rollout engine: an SGLang server of the run, by which every request is answered exactly once.

`Server` is a process and the way to ask it; `Engine` restarts it, and sends again what was lost or is not valid;
`RunningEngine` has one on an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from sat_slime.config.exits import how_it_ended
from sat_slime.config.schema import LabConfig
from sat_slime.lab.process import PartFailure
from sat_slime.lab.responses import joined, rest, validate
from sat_slime.lab.sglang_process import SCRATCH, SOCKET
from sat_slime.rollout.canary import EngineScores, read_scores, score_payload
from sat_slime.rollout.client import in_words
from sat_slime.rollout.scratch import Scratch, new_scratch
from sat_slime.rollout.types import GenerationRequest, Response
from sat_slime.rollout.validation import Expectations, RejectedResponse

SGLANG_COMMAND = (sys.executable, "-m", "sat_slime.lab.sglang_process")
CPU_ARGUMENTS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-cuda-graph", "--disable-overlap-schedule"),
)
CONTEXT_MARGIN = 8  # SGLang keeps up to 7 positions of its context length for itself
LOG_TAIL_LINES = 20
POSTS_IN_FLIGHT = 4
MAX_RESTARTS = 3
"""Restarts of the server within a run before the run ends with an error."""
MAX_ATTEMPTS = 4
"""Attempts at one response (lost, timed out or rejected) before the run ends with an error."""
ENDING_S = 1.0
"""Seconds that a server's process may take to end after its connections broke, before it counts as alive."""
INTERRUPT_EVERY_S = 0.2
"""Seconds until an interruption is repeated, for requests that had not reached SGLang's scheduler."""


class ServerLost(ConnectionError):
    """The server did not answer in time, or the connection broke: what was asked may or may not have happened."""


class EngineFailed(PartFailure):
    """The engine cannot go on: its server does not start or refuses what it is asked, or too many restarts of it or
    attempts at one response were made."""


# ------------------------------------------------------------------------------------------------------------ a server


class Server:
    """An SGLang process on a socket file of this user. It ends with `stop`, and with this process, however that
    ends."""

    def __init__(self, config: LabConfig, log_dir: Path, command: Sequence[str] = SGLANG_COMMAND) -> None:
        """command: what to run, with SGLang's arguments appended."""
        self.config, self.command = config, command
        self.log_path = log_dir.resolve() / "sglang.log"
        self.socket = Path()
        """The file that the server listens on, once it was started."""
        self.death = "SGLang's server was ended"
        """How the server that was ended last failed, as the beginning of a sentence."""
        self._http: httpx.AsyncClient | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: Scratch | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self, model_path: str, version: int) -> None:
        """Starts with the weights of a Hugging Face folder, reported as `version`, and waits until it is healthy.

        Raises:
            EngineFailed: with the end of the log.
        """
        self.stop()
        self._scratch = new_scratch()
        self.socket = self._scratch.path / SOCKET
        # A connection that is kept may have died with its server, so each call opens a new one.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        transport = httpx.AsyncHTTPTransport(limits=limits, uds=str(self.socket), trust_env=False)
        rollout = self.config.rollout
        self._http = httpx.AsyncClient(
            base_url="http://localhost", timeout=rollout.request_timeout_s, transport=transport, trust_env=False
        )
        self._spawn(self.arguments(model_path, version), self._scratch)
        deadline = time.monotonic() + rollout.startup_timeout_s
        while not await self.answers("/health", timeout_s=5.0):
            if not self.alive:
                code = self._process.poll() if self._process else None
                self._fail("ended before it was healthy" + ("" if code is None else f" (exit code {code})"))
            if time.monotonic() > deadline:
                self._fail(
                    f"is not healthy after {rollout.startup_timeout_s:g} s (rollout.startup_timeout_s): raise it "
                    "if the machine is slow"
                )
            await asyncio.sleep(0.1)

    def arguments(self, model_path: str, version: int) -> list[str]:
        """Return SGLang's arguments."""
        rollout, model = self.config.rollout, self.config.model
        context_length = model.max_positions + CONTEXT_MARGIN
        arguments = {
            "--model-path": str(Path(model_path).resolve()),
            "--weight-version": version,
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
            *CPU_ARGUMENTS,
        ]
        if model.resolved_family.has_experts:
            switches.append("--enable-return-routed-experts")
        return [str(word) for pair in arguments.items() for word in pair] + switches

    def stop(self) -> None:
        """Ends the server and all its processes at once: it holds nothing worth saving."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            if self._process.stdin:
                self._process.stdin.close()
            self._process = None
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def end(self, why: str) -> None:
        """Ends a server that fails, unless it ends by itself in a moment. why: how it failed, for `death`."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_S)
        if self.alive:
            self.death = f"SGLang's server {why} and was ended{self._last_words()}"
            self.stop()

    def how_it_ended(self) -> str:
        """Return how a server that is not alive ended, and what it wrote last, as the beginning of a sentence."""
        if self._process is None or self._process.returncode is None:
            return self.death
        how = how_it_ended(self._process.returncode)
        return f"SGLang's server (process {self._process.pid}) {how}{self._last_words()}"

    def log_tail(self) -> str:
        """Return the last lines of the log, as the end of a message."""
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        return "\n    ".join([f"\nIts log {self.log_path} ends with:", *lines[-LOG_TAIL_LINES:]])

    def _last_words(self) -> str:
        """Return the last line that the server wrote, as the end of a sentence; empty when it wrote none."""
        lines = [line.strip() for line in self.log_tail().splitlines()[2:]]
        line = next((line for line in reversed(lines) if line), "---")
        return "" if line.startswith("---") else f"; last in its log: {line}"

    async def post(self, path: str, payload: dict[str, Any], *, answers: bool = True) -> Any:
        """Return the JSON that the server answers to a POST. Raises ServerLost, EngineFailed."""
        assert self._http is not None, "it was started"
        try:
            answer = await self._http.post(path, json=payload)
            if 400 <= answer.status_code < 500:
                raise EngineFailed(f"{self.socket}{path} answered {answer.status_code}: {answer.text[:300]}")
            answer.raise_for_status()
            return answer.json() if answers else None
        except (httpx.HTTPError, ValueError) as error:
            raise ServerLost(f"{self.socket}{path}: {in_words(error)}") from error

    async def answers(self, path: str, timeout_s: float) -> bool:
        """Return whether /health answers that the HTTP server is up, or /health_generate that it generates a token,
        which it does not where a scheduler died behind it."""
        assert self._http is not None, "it was started"
        try:
            return (await self._http.get(path, timeout=timeout_s)).status_code == 200
        except httpx.HTTPError:
            return False

    def _spawn(self, arguments: list[str], folder: Scratch) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        # SGLang leaves its sockets in the temporary folder; in one of its own they go with the server.
        environment = {**os.environ, **server_environment()}
        environment |= {"TMPDIR": str(folder.path), SCRATCH: str(folder.path)}
        command = [*self.command, *arguments]
        with self.log_path.open("ab") as log:
            log.write(f"--- at {folder.path / SOCKET}: {' '.join(command)}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # never written to: its closing tells the server that we are gone
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder.path,
                pass_fds=(folder.hold,),  # the server's processes keep the hold when this one is killed
                start_new_session=True,
            )

    def _fail(self, what: str) -> None:
        self.stop()
        raise EngineFailed(f"SGLang's server {what}{self._last_words()}{self.log_tail()}")


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
        "CUDA_VISIBLE_DEVICES": "",  # a GPU is left alone
        "OMP_NUM_THREADS": "1",  # more threads on busy cores are ten times slower
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


# ----------------------------------------------------------------------------------------------------------- an engine


@dataclass
class Generation:
    """A call of `generate`: how far it is, and what came of it once it has ended."""

    requests: Sequence[GenerationRequest]
    parts: defaultdict[str, list[Response]] = field(default_factory=lambda: defaultdict(list))
    """The parts of interrupted responses so far, by request."""
    complete: dict[str, Response] = field(default_factory=dict)
    """The complete responses, by request."""
    failures: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Why attempts at a response failed, by request."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Responses that were not valid, by reason."""
    lost: int = 0
    """Requests without an answer."""
    cancelled: bool = False
    """It is to end with what it has."""
    seconds: float = 0.0

    @property
    def pending(self) -> list[GenerationRequest]:
        """The requests whose responses are not complete."""
        return [request for request in self.requests if request.request_id not in self.complete]

    @property
    def responses(self) -> list[Response]:
        """One for each request, in their order; those of pending ones as far as they go."""
        return [self.complete.get(r.request_id) or joined(r, self.parts[r.request_id]) for r in self.requests]

    @property
    def faults(self) -> dict[str, int]:
        """Counts of rejected, lost and resent responses, for rollout/* of the run folder."""
        return {
            "rejected": self.rejected.total(),
            "lost": self.lost,
            "resent": sum(len(reasons) for reasons in self.failures.values()),
            **{f"rejected/{reason}": count for reason, count in self.rejected.items()},
        }

    @property
    def oldest(self) -> int | None:
        """Version of the oldest weights that generated a token so far; None where there is none."""
        known = [part.versions[0] for parts in self.parts.values() for part in parts if part.output_ids]
        return min(map(int, known), default=None)


class Engine:
    """One server and its life, on one event loop; its methods may be called side by side.

    An update of the weights interrupts what is in flight, which goes on under the new ones. So an update never meets a
    request in flight, and each token is known to be of one version. Mode batch updates when nothing is in flight.
    """

    def __init__(
        self, config: LabConfig, model_path: Path, log_dir: Path, command: Sequence[str] = SGLANG_COMMAND
    ) -> None:
        """model_path: Hugging Face folder of the first weights, version 0. command: as of Server."""
        self.config = config
        self.server = Server(config, log_dir, command)
        self.stopped = False
        self.restarts = 0
        self.deaths: list[str] = []
        """Why servers were restarted, a sentence each."""
        self.in_flight = 0
        """Requests that the server has not answered."""
        self.weights = (str(model_path), 0)
        """Folder and version of what the server holds, or is started with."""
        self._life = asyncio.Lock()  # held while the server is started, tried or given weights
        self._may_send = asyncio.Event()  # cleared while an update waits for what is in flight
        self._may_send.set()
        self._idle = asyncio.Event()  # set when the last answer in flight comes
        self._interruptions = 0
        """Times that an update asked for the end of what is in flight."""
        self._generations: list[Generation] = []
        """The calls of `generate` that are in progress."""
        # Deterministic: one POST at a time, which SGLang schedules as one, so that the composition of its batches, on
        # which the last bits of a log-prob depend, is always the same. Otherwise several, so that decoding goes on
        # while one answer is packed and checked.
        rollout = config.rollout
        self._posts = 1 if rollout.deterministic else min(POSTS_IN_FLIGHT, rollout.max_running_requests)

    async def start_server(self) -> None:
        """Starts the server and waits until it is healthy. Raises EngineFailed."""
        await self.server.start(*self.weights)

    async def stop(self) -> None:
        """Ends the server, also while it generates: that call then fails."""
        self.stopped = True
        self.server.stop()

    async def update_weights(self, folder: Path, version: int) -> None:
        """Loads a Hugging Face folder (config.json, model.safetensors) as `version`, after it has interrupted what is
        in flight.

        The folder must stay until the next update: a server that is restarted loads it again. Raises EngineFailed, also
        when the server cannot load it: then the old weights stay.
        """
        async with self._life:
            self._may_send.clear()
            try:
                while self.in_flight:
                    self._interruptions += 1
                    self._idle.clear()
                    with suppress(ServerLost, EngineFailed):  # who waits for the answers learns of it, and sends again
                        await self.server.post("/abort_request", {"abort_all": True}, answers=False)
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._idle.wait(), INTERRUPT_EVERY_S)
                await self._revive()
                await self._load(str(folder), version)
            finally:
                self._may_send.set()

    async def _load(self, path: str, version: int) -> None:
        try:
            weights = {"model_path": path, "weight_version": str(version)}
            await self.server.post("/update_weights_from_disk", weights)
            self.weights = (path, version)
        except EngineFailed as error:
            raise EngineFailed(f"the weights of {path} could not be loaded: {error}") from error
        except ServerLost:
            self.weights = (path, version)
            self._end_server("did not take new weights")
            await self._revive()

    async def score(self, sequences: Sequence[Sequence[int]]) -> EngineScores:
        """Scores the canary's sequences, beside what is in flight; once more after a restart of a lost server. Raises
        EngineFailed."""
        try:
            try:
                answers = await self.server.post("/generate", score_payload(sequences))
            except ServerLost:
                await self._try_server()
                await self._ensure_server()
                answers = await self.server.post("/generate", score_payload(sequences))
            return read_scores(answers, sequences)
        except (ServerLost, ValueError) as error:
            raise EngineFailed(f"SGLang's server gave no scores: {error}") from error

    async def generate(self, requests: Sequence[GenerationRequest]) -> Generation:
        """Returns exactly one valid response for each request, in order.

        A request is sent again if it was lost with a server, timed out, or its response was rejected, and only then. A
        response may span updates: its `versions` say which weights generated each token. When the server is restarted,
        a response keeps what it had at its last interruption.

        Raises EngineFailed (attempts or restarts used up, or the server refuses).
        """
        started, call = time.monotonic(), Generation(requests)
        self._generations.append(call)
        at_once, size = asyncio.Semaphore(self._posts), self.config.rollout.max_running_requests // self._posts
        try:
            while (pending := call.pending) and not call.cancelled:
                await self._ensure_server()
                lost = call.lost
                posts = [pending[i : i + size] for i in range(0, len(pending), size)]
                await asyncio.gather(*(self._post(post, call, at_once) for post in posts))
                self._check_attempts(call)
                if call.lost > lost:
                    await self._try_server()
        finally:
            self._generations.remove(call)
        call.seconds = time.monotonic() - started
        return call

    async def give_up(self, oldest: int) -> None:
        """Ends the calls of `generate` that have a token of weights before version `oldest`: they return what they have
        so far."""
        for call in self._generations:
            if not call.cancelled and call.oldest is not None and call.oldest < oldest:
                call.cancelled = True
                for request_id in set(call.parts) - set(call.complete):
                    with suppress(ServerLost, EngineFailed):  # then its answers come later, or not at all
                        await self.server.post("/abort_request", {"rid": f"{request_id}#"}, answers=False)

    async def _post(self, requests: list[GenerationRequest], call: Generation, at_once: asyncio.Semaphore) -> None:
        """Sends some requests, or what interrupted ones still lack, in one POST. Notes each one's response, or its next
        part, or why there is none."""
        async with at_once:
            while not self._may_send.is_set():
                await self._may_send.wait()
            if call.cancelled or not self.server.alive:
                return  # nothing was sent: this is no attempt
            parts, failures = call.parts, call.failures
            ids = [request.request_id for request in requests]
            sent = [rest(request, parts[name]) for request, name in zip(requests, ids, strict=True)]
            wire_ids = [f"{name}#{len(failures[name]) + len(parts[name])}" for name in ids]
            model, version = self.config.model, self.weights[1]
            sizes = self.config.task.vocab_size, model.layers, model.experts, model.experts_per_token
            self.in_flight += len(requests)
            interruptions = self._interruptions
            try:
                raw = await self.server.post("/generate", generate_payload(sent, wire_ids))
                if not isinstance(raw, list) or len(raw) != len(requests):
                    raise ServerLost(f"it answered {raw!r:.200}, not {len(requests)} responses")
            except ServerLost as error:
                call.lost += len(requests)
                for name in ids:
                    failures[name].append(f"lost: {error}")
                return
            finally:
                self.in_flight -= len(requests)
                if not self.in_flight:
                    self._idle.set()
        for request, attempt, wire_id, answer in zip(requests, sent, wire_ids, raw, strict=True):
            try:
                part = validate(attempt, wire_id, answer, Expectations(*sizes, version))
            except RejectedResponse as error:
                call.rejected[error.reason] += 1
                failures[request.request_id].append(str(error))
                continue
            if part.finish_reason == "abort" and interruptions == self._interruptions and not call.cancelled:
                call.rejected["finish_reason"] += 1
                failures[request.request_id].append("aborted by the server itself")
                continue
            parts[request.request_id].append(part)
            response = joined(request, parts[request.request_id])
            if response.finish_reason != "abort":
                call.complete[request.request_id] = response

    def _check_attempts(self, call: Generation) -> None:
        for request in call.pending:
            reasons = call.failures[request.request_id]
            if len(reasons) >= MAX_ATTEMPTS:
                raise EngineFailed(
                    f"no valid response to request {request.request_id} in {len(reasons)} attempts: "
                    f"{'; '.join(reasons)}. Lost and timed out "
                    f"ones need a longer rollout.request_timeout_s or a healthier server, see {self.server.log_path}; "
                    "rejected ones are a fault of the server or of its weights"
                )

    # --------------------------------------------------------------------------------------------- the server's life

    async def _try_server(self) -> None:
        """Ends a server that lives but generates no token; this is asked after a request was lost."""
        async with self._life:
            if self.server.alive and not await self.server.answers("/health_generate", timeout_s=20.0):
                self._end_server("generated no token in time")

    def _end_server(self, why: str) -> None:
        if not self.stopped:
            self.server.end(why)

    async def _ensure_server(self) -> None:
        """Restarts a dead server with the last weights. Raises EngineFailed."""
        async with self._life:
            await self._revive()

    async def _revive(self) -> None:
        """Does the work of `_ensure_server`; the caller holds `_life`."""
        if self.stopped:
            raise EngineFailed("the engine was stopped")
        if self.server.alive:
            return
        death = self.server.how_it_ended()
        if self.restarts >= MAX_RESTARTS:
            raise EngineFailed(f"{death}, after {self.restarts} restarts of the server{self.server.log_tail()}")
        self.restarts += 1
        self.deaths.append(death)
        await self.server.start(*self.weights)


class RunningEngine:
    """The engine on an event loop in a thread of its own. What waits here raises EngineFailed where it cannot go on."""

    def __init__(self, config: LabConfig, model_path: Path, log_dir: Path) -> None:
        self.engine = Engine(config, model_path, log_dir)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()

    def start(self, method: str, *arguments: Any) -> Future[Any]:
        """Starts a method of Engine."""
        return asyncio.run_coroutine_threadsafe(self._call(method, arguments), self._loop)

    async def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return await getattr(self.engine, method)(*arguments)
        except PartFailure:
            raise
        except Exception as error:
            raise EngineFailed(f"rollout engine: {type(error).__name__}: {error}") from error

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of a method of Engine, waited for."""
        return self.start(method, *arguments).result()

    def new_deaths(self) -> list[str]:
        """Return why the server was restarted since this was asked last, a sentence for each restart."""
        deaths, self.engine.deaths = self.engine.deaths, []
        return deaths

    def close(self) -> None:
        """Ends the server and what is in flight."""
        try:
            self.call("stop")
        finally:
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
