"""The rollout engine: it owns one SGLang server, and answers every request exactly once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from sat_slime.config.schema import ModelConfig, RolloutConfig
from sat_slime.lab.engine.server import SGLangServer
from sat_slime.rollout.canary import EngineScores
from sat_slime.rollout.client import ServerLost, ServerRefused
from sat_slime.rollout.continuation import by_tool, joined, rest
from sat_slime.rollout.types import TOOL, GenerationRequest, Response
from sat_slime.rollout.validation import Expectations, RejectedResponse, validate

POSTS_IN_FLIGHT = 4
ENDING_S = 1.0
"""Seconds that a server's process may take to end after its connections broke, before it counts as alive."""
INTERRUPT_EVERY_S = 0.2
"""Seconds until an interruption is repeated, for requests that had not reached SGLang's scheduler."""


Tool = Callable[[tuple[int, ...]], "tuple[int, ...] | None"]
"""What a tool writes after the tokens of a response so far; None where they do not end with a call of it."""


class EngineFailed(RuntimeError):
    """An engine that cannot go on: too many restarts of its server, or too many attempts at one response."""


@dataclass(frozen=True)
class GenerationResult:
    """The result of one call of `generate` or `stream`."""

    responses: list[Response]
    """One per request, in the order of the requests."""
    stats: dict[str, Any]
    """seconds; tokens (of responses); rejected (reason -> count); lost (requests without an answer); resent; given_up
    (whether some responses lack their end)."""


@dataclass
class _Batch:
    """Progress of one call of `generate` or `stream`."""

    interruptible: bool
    """An update of the weights interrupts it, instead of waiting for it."""
    parts: defaultdict[str, list[Response]] = field(default_factory=lambda: defaultdict(list))
    """The parts of interrupted responses so far, by request."""
    responses: dict[str, Response] = field(default_factory=dict)
    """The complete responses, by request."""
    failures: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Why attempts at a response failed, by request."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Rejected responses, by reason."""
    lost: int = 0
    """Requests that a server did not answer."""
    given_up: bool = False
    """Whether nobody wants the responses any more."""

    @property
    def oldest(self) -> int | None:
        """Version of the oldest weights that generated a token so far; None where there is none."""
        known = [part.versions[0] for parts in self.parts.values() for part in parts if part.output_ids]
        return min((int(version) for version in known if version != TOOL), default=None)


class RolloutEngine:
    """One server and its life, on one event loop; its methods may be called side by side.

    `generate` and weight updates take turns, so that all responses of one call come from one version of the weights.
    An update interrupts what `stream` has in flight, which goes on under the new weights. So an update never meets a
    request in flight, and each token is known to be of one version.
    """

    def __init__(
        self,
        index: int,
        rollout: RolloutConfig,
        model: ModelConfig,
        vocab_size: int,
        model_path: str,
        log_dir: str,
        command: list[str] | None = None,
        tool: Tool | None = None,
    ) -> None:
        """model_path: Hugging Face folder of the first weights, version 0. command: default: SGLang's server.
        tool: answers calls, whose tokens are among a request's stop tokens."""
        self.index = index
        self.rollout = rollout
        self.model = model
        self.vocab_size = vocab_size
        self._tool = tool
        self._weights = (model_path, 0)
        self._server = SGLangServer(index, rollout, model, log_dir, command)
        self._turn = asyncio.Lock()
        self._life = asyncio.Lock()  # held while the server is started, tried or given weights
        self._may_send = asyncio.Event()  # cleared while an update waits for what is in flight
        self._may_send.set()
        self._answered = asyncio.Event()
        self._state = "stopped"
        self._stopping = False
        self._restarts = 0
        self._ended = f"SGLang's server of engine {index} was ended"
        """How the server failed that this engine ended, as the beginning of a sentence."""
        self._streams: list[_Batch] = []
        """The calls of `stream` that are in progress."""
        self._deaths: list[str] = []
        """Why servers were restarted since `new_deaths` was called last."""
        self._in_flight = 0
        # Deterministic: one POST at a time, which SGLang schedules as one, so that the composition of its batches, on
        # which the last bits of a log-prob depend, is always the same. Otherwise several, so that decoding goes on
        # while one answer is packed and checked.
        posts = 1 if rollout.deterministic else min(POSTS_IN_FLIGHT, rollout.max_running_requests)
        self._posts = asyncio.Semaphore(posts)
        self._post_size = rollout.max_running_requests // posts

    async def start(self) -> dict[str, Any]:
        """Starts the server and waits until it is healthy. Returns socket (its file) and pid. Raises ServerFailed."""
        async with self._working("starting"):
            self._stopping = False
            await self._server.start(*self._weights)
        return {"socket": str(self._server.client.socket), "pid": self._server.pid}

    async def update_weights(self, path: str, version: int) -> None:
        """Loads a Hugging Face folder (config.json, model.safetensors) as `version`, once no `generate` runs. What
        `stream` has in flight is interrupted, and goes on afterwards.

        The folder must stay until the next update: a server that is restarted loads it again. Raises ServerRefused when
        the server cannot load it (the old weights stay), EngineFailed, ServerFailed.
        """
        async with self._working("ready"), self._life, self._interrupted():
            await self._revive()
            try:
                await self._server.client.update_weights(path, version)
                self._weights = (path, version)
            except ServerLost:
                self._weights = (path, version)
                self._end_server("did not take new weights")
                await self._revive()

    async def score(self, sequences: Sequence[Sequence[int]]) -> EngineScores:
        """Scores the canary's sequences, beside what `stream` has in flight; once more after a restart of a lost
        server. Raises ServerLost, ServerRefused, EngineFailed, ServerFailed."""
        try:
            return await self._server.client.score(sequences)
        except ServerLost:
            await self._try_server()
            await self._ensure_server()
            return await self._server.client.score(sequences)

    async def generate(self, requests: Sequence[GenerationRequest]) -> GenerationResult:
        """Returns exactly one validated response for each request, in order.

        A request is sent again if it was lost with a server, timed out, or its response was rejected, and only then.

        Raises EngineFailed (attempts or restarts used up), ServerFailed, ServerRefused, ValueError (a request that
        cannot be served).
        """
        self._check(requests)
        async with self._working("generating"):
            return await self._answer(requests, _Batch(interruptible=False))

    async def evaluate(self, path: str, version: int, requests: Sequence[GenerationRequest]) -> GenerationResult:
        """Does what `generate` does, under the weights of a folder, which it loads first. Raises as both do."""
        if not self._server.alive:
            self._weights = (path, version)  # the folder of those before may be gone
        await self.update_weights(path, version)
        return await self.generate(requests)

    async def stream(self, requests: Sequence[GenerationRequest]) -> GenerationResult:
        """Does what `generate` does, beside other calls and updates of the weights.

        A response may span updates: its `versions` say which weights generated each token. When the server is
        restarted, a response keeps what it had at its last interruption.
        """
        self._check(requests)
        batch = _Batch(interruptible=True)
        self._streams.append(batch)
        try:
            return await self._answer(requests, batch)
        finally:
            self._streams.remove(batch)

    async def give_up(self, oldest: int) -> None:
        """Ends the calls of `stream` that have a token of weights before version `oldest`: they return what they have
        so far."""
        for batch in self._streams:
            if not batch.given_up and batch.oldest is not None and batch.oldest < oldest:
                batch.given_up = True
                for request_id in set(batch.parts) - set(batch.responses):
                    with suppress(ServerLost, ServerRefused):  # then its answers come later, or not at all
                        await self._server.client.abort(f"{request_id}#")

    async def _answer(self, requests: Sequence[GenerationRequest], batch: _Batch) -> GenerationResult:
        started = time.monotonic()
        pending = list(requests)
        while pending and not batch.given_up:
            await self._ensure_server()
            lost = batch.lost
            posts = [pending[i : i + self._post_size] for i in range(0, len(pending), self._post_size)]
            await asyncio.gather(*(self._post(post, batch) for post in posts))
            pending = [request for request in pending if request.request_id not in batch.responses]
            self._check_attempts(pending, batch)
            if batch.lost > lost:
                await self._try_server()
        responses = [
            batch.responses.get(request.request_id) or joined(request, batch.parts[request.request_id])
            for request in requests
        ]
        return GenerationResult(
            responses,
            {
                "seconds": time.monotonic() - started,
                "tokens": sum(len(response.output_ids) for response in responses),
                "rejected": dict(batch.rejected),
                "lost": batch.lost,
                "resent": sum(len(reasons) for reasons in batch.failures.values()),
                "given_up": len(batch.responses) < len(requests),
            },
        )

    def status(self) -> dict[str, Any]:
        """state (starting, ready, generating, restarting, failed, stopped), restarts, in_flight, socket, pid,
        weight_version."""
        started = self._server.pid is not None
        return {
            "state": "generating" if self._in_flight and self._state == "ready" else self._state,
            "restarts": self._restarts,
            "in_flight": self._in_flight,
            "socket": str(self._server.client.socket) if started else None,
            "pid": self._server.pid,
            "weight_version": self._weights[1],
        }

    def new_deaths(self) -> list[str]:
        """Returns why servers were restarted since the last call, a sentence each."""
        deaths, self._deaths = self._deaths, []
        return deaths

    async def stop(self) -> None:
        """Ends the server, also while it generates: that call then fails."""
        self._stopping = True
        self._server.stop()
        self._state = "stopped"

    @asynccontextmanager
    async def _working(self, state: str) -> AsyncIterator[None]:
        async with self._turn:
            self._state = state
            try:
                yield
                self._state = "ready"
            except BaseException:
                self._state = "stopped" if self._stopping else "failed"
                raise

    @asynccontextmanager
    async def _interrupted(self) -> AsyncIterator[None]:
        """Interrupts what is in flight. Inside nothing is in flight, and nothing is sent."""
        self._may_send.clear()
        try:
            while self._in_flight:
                self._answered.clear()
                with suppress(ServerLost, ServerRefused):  # who waits for the answers is told, and sends again
                    await self._server.client.abort_all()
                with suppress(asyncio.TimeoutError):
                    while self._in_flight:
                        await asyncio.wait_for(self._answered.wait(), INTERRUPT_EVERY_S)
                        self._answered.clear()
            yield
        finally:
            self._may_send.set()

    async def _try_server(self) -> None:
        """Ends a server that lives but generates no token; this is asked after a request was lost."""
        async with self._life:
            if self._server.alive and not await self._server.client.can_generate():
                self._end_server("generated no token in time")

    def _end_server(self, why: str) -> None:
        """Notes how the server failed, and ends it. A server that `stop` has ended did not fail."""
        if self._stopping:
            return
        if not self._server.ended_within(ENDING_S):
            self._ended = self._server.dead_part() or f"SGLang's server of engine {self.index} {why} and was ended"
        else:
            self._ended = self._server.how_it_ended()
        self._server.stop()

    async def _ensure_server(self) -> None:
        """Restarts a dead server with the last weights. Raises EngineFailed, ServerFailed."""
        async with self._life:
            await self._revive()

    async def _revive(self) -> None:
        """Does the work of `_ensure_server`; the caller holds `_life`."""
        if self._stopping:
            raise EngineFailed(f"engine {self.index} was stopped")
        if self._server.alive:
            return
        death = self._server.how_it_ended() if self._server.pid else self._ended
        if self._restarts >= self.rollout.max_restarts:
            raise EngineFailed(
                f"{death}, after {self._restarts} restarts of the server "
                f"(rollout.max_restarts is {self.rollout.max_restarts}){self._server.last_words()}\n"
                f"Its log {self._server.log_path} ends with:\n{self._server.log_tail()}"
            )
        self._restarts += 1
        self._deaths.append(death)
        state, self._state = self._state, "restarting"
        await self._server.start(*self._weights)
        self._state = state

    async def _post(self, requests: list[GenerationRequest], batch: _Batch) -> None:
        """Sends some requests, or what interrupted ones still lack, in one POST. Notes each one's response, or its next
        part, or why there is none."""
        async with nullcontext() if batch.interruptible else self._posts:
            while not self._may_send.is_set():
                await self._may_send.wait()
            if batch.given_up or not self._server.alive:
                return  # nothing was sent: this is no attempt
            sent = [rest(request, batch.parts[request.request_id]) for request in requests]
            wire_ids = [f"{request.request_id}#{self._sendings(request, batch)}" for request in requests]
            model, version = self.model, self._weights[1]
            expected = Expectations(self.vocab_size, model.layers, model.experts, model.experts_per_token, version)
            self._in_flight += len(requests)
            try:
                raw = await self._server.client.generate(sent, wire_ids)
            except ServerLost as error:
                batch.lost += len(requests)
                for request in requests:
                    batch.failures[request.request_id].append(f"lost: {error}")
                return
            finally:
                self._in_flight -= len(requests)
                self._answered.set()
        for request, attempt, wire_id, answer in zip(requests, sent, wire_ids, raw, strict=True):
            try:
                part = validate(attempt, wire_id, answer, expected, interruptible=batch.interruptible)
            except RejectedResponse as error:
                batch.rejected[error.reason] += 1
                batch.failures[request.request_id].append(str(error))
                continue
            parts = batch.parts[request.request_id]
            parts.append(part)
            response = joined(request, parts)
            if written := self._written_by_tool(request, response):
                parts.append(by_tool(request, response, written))
            elif response.finish_reason != "abort":
                batch.responses[request.request_id] = response

    def _written_by_tool(self, request: GenerationRequest, response: Response) -> tuple[int, ...] | None:
        """Return what the tool answers; None where it was not called, or where no token could follow its answer: then
        the response ends with the call."""
        if self._tool is None or response.finish_reason != "stop":
            return None
        written = self._tool(response.output_ids)
        room = request.max_new_tokens - len(response.output_ids)
        return written if written and len(written) < room else None

    def _sendings(self, request: GenerationRequest, batch: _Batch) -> int:
        """Counts the sendings of a request so far."""
        return len(batch.failures[request.request_id]) + len(batch.parts[request.request_id])

    def _check(self, requests: Sequence[GenerationRequest]) -> None:
        if len({request.request_id for request in requests}) != len(requests):
            raise ValueError("two requests have the same request_id")
        for request in requests:
            longest = len(request.prompt_ids) + request.max_new_tokens
            if not request.prompt_ids or longest > self.model.max_positions:
                raise ValueError(
                    f"request {request.request_id} has {len(request.prompt_ids)} prompt tokens and up to "
                    f"{request.max_new_tokens} new ones: it needs at least one prompt token and fits into "
                    f"model.max_positions {self.model.max_positions}"
                )

    def _check_attempts(self, pending: list[GenerationRequest], batch: _Batch) -> None:
        for request in pending:
            reasons = batch.failures[request.request_id]
            if len(reasons) >= self.rollout.max_attempts:
                raise EngineFailed(
                    f"no valid response to request {request.request_id} in {len(reasons)} attempts "
                    f"(rollout.max_attempts is {self.rollout.max_attempts}): {'; '.join(reasons)}. Lost and timed out "
                    f"ones need a longer rollout.request_timeout_s or a healthier server, see {self._server.log_path}; "
                    "rejected ones are a fault of the server or of its weights"
                )
