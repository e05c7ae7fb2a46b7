"""The samples of an evaluation are asked of an engine: of any server with OpenAI's API, such as SGLang's.

The server applies its model's chat template and its tokenizer, so that this side needs neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from sat_slime.reward.verdict import Verdict
from sat_slime.rollout.client import ServerLost, ServerRefused, in_words, through

ATTEMPTS = 5
"""Attempts at one sample; the server may be restarted meanwhile."""


@dataclass(frozen=True)
class Question:
    """A problem of an evaluation."""

    id: str
    """An id that is unique in its set."""
    prompt: str | list[dict[str, str]]
    """Text, or chat messages."""
    label: str


@dataclass(frozen=True)
class Answer:
    """One response."""

    text: str
    tokens: int
    truncated: bool
    """True where it was cut at the longest length."""
    weights: str | None
    """Version of the weights that made it, as the engine reports it; None from one that does not."""
    token_ids: tuple[int, ...] = ()
    """The response's tokens, from an engine without a tokenizer."""


@dataclass(frozen=True)
class Sampled:
    """A graded sample."""

    question: Question
    sample: int
    answer: Answer
    verdict: Verdict


Wanted = Sequence[tuple[Question, int]]
"""Question and number of the sample, from 0."""
Grade = Callable[[Question, Answer], Awaitable[Verdict]]


class Engine(Protocol):
    """An engine answers questions."""

    def answers(self, wanted: Wanted) -> AsyncIterator[tuple[int, Answer]]:
        """Yields the place in `wanted` and the answer of each sample, as they come."""
        ...


def by_problem(questions: Sequence[Question], samples: int) -> list[tuple[Question, int]]:
    """Return every sample of an evaluation, a problem's in a row."""
    return [(question, sample) for question in questions for sample in range(samples)]


async def ask(engine: Engine, wanted: Wanted, grade: Grade) -> AsyncIterator[Sampled]:
    """Yields all wanted samples, graded, as they come. Raises what the engine raises."""
    async for index, answer in engine.answers(wanted):
        question, sample = wanted[index]
        yield Sampled(question, sample, answer, await grade(question, answer))


@dataclass(frozen=True)
class Sampling:
    """Settings by which responses are drawn."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int | None = None
    """Sample i of every problem gets seed + i. SGLang heeds it with --enable-deterministic-inference."""
    chat_args: dict[str, Any] | None = None
    """Arguments of the chat template, such as enable_thinking."""


class CompletionsEngine:
    """A server that has /v1/chat/completions for messages and /v1/completions for text.

    It gets at most `concurrency` requests at a time. Use it as an asynchronous context.
    """

    def __init__(
        self,
        url: str,
        sampling: Sampling,
        concurrency: int = 64,
        timeout_s: float = 3600.0,
        socket: Path | None = None,
        remark: Callable[[], str] = lambda: "",
    ) -> None:
        """
        timeout_s: how long one response may take, with all its tokens.
        socket: the file on which the server listens, instead of a port.
        remark: tells what else is known of a server that is lost, as the end of a sentence.
        """
        self.url = url.rstrip("/")
        self.place = self.url if socket is None else str(socket)
        self.remark = remark
        self.sampling = sampling
        self.concurrency = concurrency
        self.model = "default"
        self.pause_s = 1.0
        self._http = httpx.AsyncClient(timeout=timeout_s, transport=through(socket, concurrency), trust_env=False)

    async def __aenter__(self) -> CompletionsEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def about(self) -> dict[str, str | None]:
        """Return what the server holds: model (its name), model_path and weight_version, None where it does not say.

        Raises ServerLost, ServerRefused.
        """
        models = await self._json("GET", "/v1/models")
        try:
            self.model = str(models["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise ServerRefused(f"{self.place}/v1/models answered {models!r:.200}, not a list of models") from error
        try:
            info = await self._json("GET", "/model_info")  # SGLang's own
        except ServerRefused:
            info = {}
        known = info if isinstance(info, dict) else {}
        return {"model": self.model} | {
            key: str(known[key]) if known.get(key) is not None else None for key in ("model_path", "weight_version")
        }

    async def answers(self, wanted: Wanted) -> AsyncIterator[tuple[int, Answer]]:
        """Yields the answers as `Engine.answers`.

        Raises ServerLost (after ATTEMPTS) and ServerRefused, once the requests under way are answered.
        """
        todo = iter(range(len(wanted)))
        pending: set[asyncio.Task[tuple[int, Answer]]] = set()
        failure: BaseException | None = None
        try:
            while True:
                while failure is None and len(pending) < self.concurrency and (index := next(todo, None)) is not None:
                    pending.add(asyncio.create_task(self._answer(index, *wanted[index])))
                if not pending:
                    break
                finished, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    if error := task.exception():
                        failure = failure or error
                    else:
                        yield task.result()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        if failure is not None:
            raise failure

    async def _answer(self, index: int, question: Question, sample: int) -> tuple[int, Answer]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return index, await self._ask(question, sample)
            except ServerLost:
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(self.pause_s * 2 ** (attempt - 1))
            except ServerRefused as error:
                raise ServerRefused(f"problem {question.id}: {error}") from error
        raise AssertionError

    async def _ask(self, question: Question, sample: int) -> Answer:
        sampling = self.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed + sample
        if isinstance(question.prompt, str):
            path, body["prompt"] = "/v1/completions", question.prompt
        else:
            path, body["messages"] = "/v1/chat/completions", question.prompt
            if sampling.chat_args:
                body["chat_template_kwargs"] = sampling.chat_args
        return _read(await self._json("POST", path, body), self.place + path)

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        try:
            answer = await self._http.request(method, self.url + path, json=body)
            if 400 <= answer.status_code < 500 and answer.status_code != 429:
                raise ServerRefused(f"{self.place}{path} answered {answer.status_code}: {answer.text[:300]}")
            return answer.raise_for_status().json()
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise ServerRefused(f"{self.place}{path}: {in_words(error)}") from error
        except (httpx.HTTPError, ValueError) as error:
            raise ServerLost(f"{self.place}{path}: {in_words(error)}{self.remark()}") from error


def _read(raw: Any, where: str) -> Answer:
    """Return the answer in a server's JSON. Raises ServerLost where it is not a whole response."""
    try:
        (choice,) = raw["choices"]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        reason, tokens = choice["finish_reason"], int(raw["usage"]["completion_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise ServerLost(f"{where} answered {raw!r:.200}, which is no response") from error
    if reason not in ("stop", "length"):
        raise ServerLost(f"{where}: the response ended by {reason!r}, neither stop nor length")
    version = (raw.get("metadata") or {}).get("weight_version")
    return Answer(text or "", tokens, reason == "length", None if version is None else str(version))
