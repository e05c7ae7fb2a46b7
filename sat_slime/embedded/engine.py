"""The rollout engine: an actor that owns one SGLang server, and answers every request exactly once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sat_slime.config.schema import ModelConfig, RolloutConfig
from sat_slime.embedded.server import SGLangServer
from sat_slime.rollout.client import ServerLost
from sat_slime.rollout.types import GenerationRequest, Response
from sat_slime.rollout.validation import Expectations, RejectedResponse, validate

POSTS_IN_FLIGHT = 4


class EngineFailed(RuntimeError):
    """An engine that cannot go on: too many restarts of its server, or too many attempts at one response."""


@dataclass(frozen=True)
class GenerationResult:
    """What came of one call of `generate`."""

    responses: list[Response]
    """One per request, in the order of the requests."""
    stats: dict[str, Any]
    """seconds; tokens (of responses); rejected (reason -> count); lost (requests without an answer); resent; restarts
    (of the server, within this call)."""


@dataclass
class _Batch:
    """Progress of one call of `generate`."""

    responses: dict[str, Response] = field(default_factory=dict)
    failures: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    rejected: Counter[str] = field(default_factory=Counter)
    lost: int = 0


class RolloutEngine:
    """One server and its life. Wrapped by `ray.remote`; its methods may be called side by side.

    Generation and weight updates take turns, so that an update never meets a request in flight and all responses of
    one call of `generate` come from one version of the weights.
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
    ) -> None:
        """model_path: Hugging Face folder of the first weights, version 0. command: in place of SGLang's."""
        self.index = index
        self.rollout = rollout
        self.model = model
        self.vocab_size = vocab_size
        self._weights = (model_path, 0)
        self._server = SGLangServer(index, rollout, model, log_dir, command)
        self._turn = asyncio.Lock()
        self._state = "stopped"
        self._stopping = False
        self._restarts = 0
        self._in_flight = 0
        # Deterministic: one POST at a time, which SGLang schedules as one, so that the composition of its batches, on
        # which the last bits of a log-prob depend, is always the same. Otherwise several, so that decoding goes on
        # while one answer is packed and checked.
        posts = 1 if rollout.deterministic else min(POSTS_IN_FLIGHT, rollout.max_running_requests)
        self._posts = asyncio.Semaphore(posts)
        self._post_size = rollout.max_running_requests // posts

    async def start(self) -> dict[str, Any]:
        """Start the server and wait for its health: url, pid, port. Raises ServerFailed."""
        async with self._working("starting"):
            self._stopping = False
            await self._server.start(*self._weights)
        return {"url": self._server.client.url, "pid": self._server.pid, "port": self._server.port}

    async def update_weights(self, path: str, version: int) -> None:
        """Load a Hugging Face folder (config.json, model.safetensors) as `version`, once nothing is in flight.

        The folder must stay until the next update: a server that is restarted loads it again. Raises ServerRefused when
        the server cannot load it (the old weights stay), EngineFailed, ServerFailed.
        """
        async with self._working("ready"):
            await self._ensure_server()
            try:
                await self._server.client.update_weights(path, version)
                self._weights = (path, version)
            except ServerLost:
                self._weights = (path, version)
                self._server.stop()
                await self._ensure_server()

    async def generate(self, requests: Sequence[GenerationRequest]) -> GenerationResult:
        """Exactly one validated response per request, in order. What is lost with a server, times out or is rejected is
        sent again; nothing else is.

        Raises EngineFailed (attempts or restarts used up), ServerFailed, ServerRefused, ValueError (a request that
        cannot be served).
        """
        self._check(requests)
        async with self._working("generating"):
            started, restarts, batch = time.monotonic(), self._restarts, _Batch()
            pending = list(requests)
            while pending:
                await self._ensure_server()
                lost = batch.lost
                posts = [pending[i : i + self._post_size] for i in range(0, len(pending), self._post_size)]
                await asyncio.gather(*(self._post(post, batch) for post in posts))
                pending = [request for request in pending if request.request_id not in batch.responses]
                self._check_attempts(pending, batch)
                if batch.lost > lost and self._server.alive and not await self._server.client.can_generate():
                    self._server.stop()
            responses = [batch.responses[request.request_id] for request in requests]
            return GenerationResult(
                responses,
                {
                    "seconds": time.monotonic() - started,
                    "tokens": sum(len(response.output_ids) for response in responses),
                    "rejected": dict(batch.rejected),
                    "lost": batch.lost,
                    "resent": sum(len(reasons) for reasons in batch.failures.values()),
                    "restarts": self._restarts - restarts,
                },
            )

    async def status(self) -> dict[str, Any]:
        """state (starting, ready, generating, restarting, failed, stopped), restarts, in_flight, url, pid,
        weight_version."""
        started = self._server.pid is not None
        return {
            "state": self._state,
            "restarts": self._restarts,
            "in_flight": self._in_flight,
            "url": self._server.client.url if started else None,
            "pid": self._server.pid,
            "weight_version": self._weights[1],
        }

    async def stop(self) -> None:
        """End the server, also while it generates: that call then fails."""
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

    async def _ensure_server(self) -> None:
        """Restart a dead server with the last weights."""
        if self._stopping:
            raise EngineFailed(f"engine {self.index} was stopped")
        if self._server.alive:
            return
        if self._restarts >= self.rollout.max_restarts:
            raise EngineFailed(
                f"the SGLang server of engine {self.index} died, after {self._restarts} restarts "
                f"(rollout.max_restarts is {self.rollout.max_restarts}){self._server.last_words()}\n"
                f"Its log {self._server.log_path} ends with:\n{self._server.log_tail()}"
            )
        self._restarts += 1
        state, self._state = self._state, "restarting"
        await self._server.start(*self._weights)
        self._state = state

    async def _post(self, requests: list[GenerationRequest], batch: _Batch) -> None:
        """Send some requests in one POST; note each one's response, or why there is none."""
        async with self._posts:
            if not self._server.alive:
                return  # not sent, so not an attempt
            wire_ids = [f"{request.request_id}#{len(batch.failures[request.request_id])}" for request in requests]
            self._in_flight += len(requests)
            try:
                raw = await self._server.client.generate(requests, wire_ids)
            except ServerLost as error:
                batch.lost += len(requests)
                for request in requests:
                    batch.failures[request.request_id].append(f"lost: {error}")
                return
            finally:
                self._in_flight -= len(requests)
        expected = Expectations(
            vocab_size=self.vocab_size,
            layers=self.model.layers,
            experts=self.model.experts,
            top_k=self.model.experts_per_token,
            weight_version=self._weights[1],
        )
        for request, wire_id, answer in zip(requests, wire_ids, raw, strict=True):
            try:
                batch.responses[request.request_id] = validate(request, wire_id, answer, expected)
            except RejectedResponse as error:
                batch.rejected[error.reason] += 1
                batch.failures[request.request_id].append(str(error))

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
