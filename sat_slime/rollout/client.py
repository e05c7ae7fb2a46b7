"""HTTP client of one SGLang server on a socket file: several requests in one POST, weights from disk, health."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from sat_slime.rollout.canary import EngineScores, read_scores, score_payload
from sat_slime.rollout.types import GenerationRequest


class ServerLost(ConnectionError):
    """The server did not answer in time, or the connection broke: what was asked may or may not have happened."""


class ServerRefused(RuntimeError):
    """The server answered that it will not do it: asking again would not help."""


def in_words(error: Exception) -> str:
    """Return why an HTTP request came to nothing, in words."""
    if isinstance(error, httpx.ConnectError):
        return f"no server answers there ({error})"
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.InvalidURL)):
        return "this is no address of a server, such as http://127.0.0.1:30000"
    if isinstance(error, httpx.HTTPStatusError):
        return f"answered {error.response.status_code}: {error.response.text[:300]}"
    if isinstance(error, httpx.TransportError):
        return f"the connection broke ({str(error) or type(error).__name__})"
    return f"the answer is no JSON ({error})"


LOCAL_URL = "http://localhost"
"""The URL of a server on a socket file. The file is its address; this is only what a header says."""


class SGLangClient:
    """A client of one server. A POST carries many requests: one for each would cost several times the generation."""

    def __init__(self, socket: Path, request_timeout_s: float) -> None:
        self.socket = socket
        # A connection that is kept may have died with its server, so each call opens a new one.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        transport = httpx.AsyncHTTPTransport(limits=limits, uds=str(socket), trust_env=False)
        self._http = httpx.AsyncClient(
            base_url=LOCAL_URL, timeout=request_timeout_s, transport=transport, trust_env=False
        )

    async def generate(self, requests: Sequence[GenerationRequest], wire_ids: Sequence[str]) -> list[Any]:
        """Asks for one response to each request. Returns SGLang's JSON, in order and unchecked.

        Args:
            wire_ids: the ids under which SGLang gets the requests.

        Raises: ServerLost, ServerRefused.
        """
        answer = await self._post("/generate", generate_payload(requests, wire_ids))
        if not isinstance(answer, list) or len(answer) != len(requests):
            raise ServerLost(f"{self.socket}/generate answered {answer!r:.200}, not {len(requests)} responses")
        return answer

    async def update_weights(self, path: str, version: int) -> None:
        """Loads the Hugging Face folder `path`; responses report `version` from then on. Nothing may be in flight.

        Raises: ServerLost, ServerRefused.
        """
        try:
            await self._post("/update_weights_from_disk", {"model_path": path, "weight_version": str(version)})
        except ServerRefused as error:
            raise ServerRefused(f"the weights of {path} could not be loaded: {error}") from error

    async def score(self, sequences: Sequence[Sequence[int]]) -> EngineScores:
        """Scores the canary's sequences. Raises: ServerLost, ServerRefused."""
        answers = await self._post("/generate", score_payload(sequences))
        try:
            return read_scores(answers, sequences)
        except ValueError as error:
            raise ServerLost(str(error)) from error

    async def abort_all(self) -> None:
        """Ends every request in flight: each is answered with the tokens that it has so far.

        Raises: ServerLost, ServerRefused.
        """
        await self._post("/abort_request", {"abort_all": True}, answers=False)

    async def abort(self, wire_id: str) -> None:
        """Ends the requests in flight whose id begins so: each is answered with the tokens that it has so far.

        Raises: ServerLost, ServerRefused.
        """
        await self._post("/abort_request", {"rid": wire_id}, answers=False)

    async def healthy(self, timeout_s: float = 10.0) -> bool:
        """Return whether the HTTP server answers that it is up."""
        return await self._answers("/health", timeout_s)

    async def can_generate(self, timeout_s: float = 20.0) -> bool:
        """Return whether the server generates a token. This also finds a scheduler that died behind a live HTTP
        server."""
        return await self._answers("/health_generate", timeout_s)

    async def close(self) -> None:
        await self._http.aclose()

    async def _answers(self, path: str, timeout_s: float) -> bool:
        try:
            return (await self._http.get(path, timeout=timeout_s)).status_code == 200
        except httpx.HTTPError:
            return False

    async def _post(self, path: str, payload: dict[str, Any], answers: bool = True) -> Any:
        try:
            answer = await self._http.post(path, json=payload)
            if 400 <= answer.status_code < 500:
                raise ServerRefused(f"{self.socket}{path} answered {answer.status_code}: {answer.text[:300]}")
            answer.raise_for_status()
            return answer.json() if answers else None
        except (httpx.HTTPError, ValueError) as error:
            raise ServerLost(f"{self.socket}{path}: {in_words(error)}") from error


def generate_payload(requests: Sequence[GenerationRequest], wire_ids: Sequence[str]) -> dict[str, Any]:
    """Return the body of /generate. Each request asks for one sample: after `n` > 1 a server does not end on
    SIGTERM."""
    return {
        "rid": list(wire_ids),
        "input_ids": [list(request.prompt_ids) for request in requests],
        "sampling_params": [
            {
                "temperature": request.temperature,
                "max_new_tokens": request.max_new_tokens,
                "stop_token_ids": list(request.stop_token_ids),
                "sampling_seed": request.seed,
                "top_p": request.top_p,
                "top_k": -1,
            }
            for request in requests
        ],
        "return_logprob": True,
        "return_routed_experts": True,  # ignored by a server of a dense model
        "top_logprobs_num": [request.distribution_size for request in requests],
    }
