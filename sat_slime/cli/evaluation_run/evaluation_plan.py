"""The plan of an evaluation: a running engine, a model's folder or a run of the embedded runtime, on a set of problems.

Every graded sample is a line of samples.jsonl as soon as it is there. Given again, the command asks for the others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sat_slime.cli.embedded_run import engine_packages
from sat_slime.cli.embedded_run.engine_packages import INSTALL_ENGINES, installed_version
from sat_slime.config import ConfigError, EmbeddedConfig, load_config
from sat_slime.config.schema import ScoresConfig
from sat_slime.embedded import held_out
from sat_slime.embedded.checkpoint import DamagedCheckpoint, newest_whole
from sat_slime.embedded.engine.server import ModelServer
from sat_slime.embedded.grading import Grader
from sat_slime.embedded.held_out import Weights
from sat_slime.evaluation.questions import Answer, CompletionsEngine, Engine, Grade, Question, Sampling
from sat_slime.prompts import PromptError
from sat_slime.prompts.set_rows import find_columns, label_text, missing_columns, problem_text, read_jsonl
from sat_slime.prompts.text import fill, find_template, strip_instruction
from sat_slime.reward import MODES, VerifierPool
from sat_slime.rollout.client import LOCAL_URL
from sat_slime.runs.folder import RunFolder


@dataclass(frozen=True)
class Wish:
    """What the command line asks for."""

    what: Path | None = None
    """A run, one of its checkpoints, or a model's folder."""
    engine: str | None = None
    """Address of a running server."""
    data: Path | None = None
    samples: int | None = None
    repeats: int | None = None
    k: list[int] | None = None
    temperature: float | None = None
    top_p: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    mode: str = "default"
    template: str = "slime"
    raw: bool = False
    chat_args: dict[str, Any] | None = None
    concurrency: int = 64
    timeout_s: float = 3600.0
    out: Path | None = None
    overwrite: bool = False
    tensor_parallel: int = 1
    server_args: tuple[str, ...] = ()
    startup_timeout_s: float = 1800.0


@dataclass(frozen=True)
class Task:
    """An evaluation that can start."""

    questions: list[Question]
    scores: ScoresConfig
    samples: int
    """Samples per problem and repeat."""
    settings: dict[str, Any]
    """eval.json tells them, and they are compared with those of samples that are there already."""
    out: Path
    open_engine: Callable[[AsyncExitStack, Task], Any]
    """A coroutine that starts the engine; the engine ends with the stack."""
    open_grade: Callable[[AsyncExitStack], Grade]
    step: int | None = None
    """Optimizer updates after which a run would have made this evaluation."""


def plan_evaluation(wish: Wish) -> Task:
    """The evaluation that is asked for, checked. Raises ConfigError, RunFolderError or PromptError, with a line for
    what is missing or does not fit."""
    if (wish.what is None) == (wish.engine is None):
        raise ConfigError(["give a run, a model's folder, or --engine URL: one of them"])
    if wish.what is not None and _run_of(wish.what) is not None:
        return _plan_run(wish, *_run_of(wish.what))  # type: ignore[misc]
    if wish.what is not None and not (wish.what / "config.json").is_file():
        if not wish.what.exists():
            raise ConfigError([f"there is no {wish.what}: name a run, one of its checkpoints, or a model's folder"])
        raise ConfigError(
            [f"{wish.what} is neither a run, which has a config.yaml, nor a model's folder, which has a config.json"]
        )
    if wish.data is None:
        raise ConfigError(["--data is not given: name a .jsonl file of problems, such as aime24.jsonl"])
    for package, extra in (("math-verify", "reward"), ("httpx", "slime")):
        if installed_version(package) is None:
            raise ConfigError(
                [f"{package} is not installed, which an evaluation needs: pip install 'sat-slime[{extra}]'"]
            )
    if wish.what is not None:
        _check_sglang()
    return _plan_data(wish)


def _run_of(what: Path) -> tuple[Path, Path | None] | None:
    """The run folder, and which of its checkpoints, or initial, where one is named."""
    if RunFolder(what).config.is_file() and not (what / "config.json").is_file():
        return what, None
    parents = list(what.resolve().parents)
    if what.name == "initial" and RunFolder(parents[0]).config.is_file():
        return parents[0], what
    if what.parent.name == "checkpoints" and RunFolder(parents[1]).config.is_file():
        return parents[1], what
    return None


def _check_sglang() -> None:
    if missing := [name for name in engine_packages.missing_engines() if name in ("sglang", "transformers")]:
        raise ConfigError([f"a model's folder is served by {', '.join(missing)}, not installed: {INSTALL_ENGINES}"])


# ---------------------------------------------------------------------------------------------- problems of a file


def _plan_data(wish: Wish) -> Task:
    assert wish.data is not None
    if wish.mode not in MODES:
        raise ConfigError([f"--verifier is {wish.mode}: it is one of {', '.join(MODES)}"])
    questions = read_questions(wish.data, wish.template, wish.raw)
    samples = wish.samples or 1
    scores = _scores(wish, samples)
    sampling = Sampling(
        max_tokens=wish.max_tokens or 8192,
        temperature=1.0 if wish.temperature is None else wish.temperature,
        top_p=wish.top_p,
        seed=wish.seed,
        chat_args=wish.chat_args,
    )
    settings = {
        "data": str(wish.data),
        "data_sha256": hashlib.sha256(wish.data.read_bytes()).hexdigest(),
        "engine": wish.engine or str(wish.what),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "verifier": wish.mode,
        "template": "none: raw text" if wish.raw else wish.template,
        "chat_args": wish.chat_args,
        "samples_per_problem": samples,
        "repeats": scores.repeats,
        "k": scores.sizes(samples),
    }

    async def open_engine(stack: AsyncExitStack, task: Task) -> Engine:
        if wish.engine:
            asked = CompletionsEngine(wish.engine, sampling, wish.concurrency, wish.timeout_s)
        else:
            server = await _serve(stack, wish, task.out)
            where, remark = server.client.socket, partial(_end_of, server)
            asked = CompletionsEngine(LOCAL_URL, sampling, wish.concurrency, wish.timeout_s, where, remark)
        engine = await stack.enter_async_context(asked)
        task.settings.update(await engine.about())
        return engine

    def open_grade(stack: AsyncExitStack) -> Grade:
        pool = VerifierPool(max(1, min(8, (os.cpu_count() or 2) // 2)))
        stack.callback(pool.close)

        async def grade(question: Question, answer: Answer) -> Any:
            return await pool.verify_async(answer.text, question.label, wish.mode)  # type: ignore[arg-type]

        return grade

    out = wish.out or Path("eval") / wish.data.stem
    return Task(questions, scores, samples, settings, out, open_engine, open_grade)


def read_questions(path: Path, template: str, raw: bool = False) -> list[Question]:
    """The problems of a .jsonl file: messages as they are; text without an instruction inside the template's.

    raw: text as it is, for a model without chat template. Raises PromptError.
    """
    instruction, questions = find_template(template), []
    for number, row in read_jsonl(path):
        if not isinstance(row, dict):
            raise PromptError(f"{path}: line {number} is not a JSON object")
        prompt_key, label_key = find_columns(tuple(row))
        if prompt_key is None or label_key is None:
            raise PromptError(f"{path}: line {number}: {missing_columns(row)}")
        prompt, label, text = row[prompt_key], label_text(row[label_key]), problem_text(row[prompt_key])
        as_messages = isinstance(prompt, list) and bool(prompt) and not raw
        if label is None or (text is None and not as_messages):
            raise PromptError(f"{path}: line {number} has no {'label' if label is None else 'problem'} that is text")
        asked: str | list[dict[str, str]]
        if text is None or as_messages:
            asked = prompt
        elif raw:
            asked = text
        else:
            worded = text if strip_instruction(text)[1] else fill(instruction, text)
            asked = [{"role": "user", "content": worded}]
        questions.append(Question(str(row.get("id", number)), asked, label))
    if not questions:
        raise PromptError(f"{path} holds no problem")
    if len({question.id for question in questions}) < len(questions):
        questions = [Question(str(place), one.prompt, one.label) for place, one in enumerate(questions, 1)]
    return questions


async def _serve(stack: AsyncExitStack, wish: Wish, out: Path) -> ModelServer:
    """Start a server of the model's folder; it ends with the stack."""
    server = ModelServer(str(out), wish.startup_timeout_s, wish.tensor_parallel, wish.server_args)
    stack.callback(server.stop)
    await server.start(str(wish.what), 0)
    return server


ENDING_S = 1.0
"""Seconds that a server's process may take to end after its connections broke."""


def _end_of(server: ModelServer) -> str:
    """How a server ended, if it did, and its log, as the end of a sentence."""
    ended = f"; {server.how_it_ended()}" if server.ended_within(ENDING_S) else ""
    return f"{ended}; its log is {server.log_path}"


# -------------------------------------------------------------------------------------------- an embedded run


def _plan_run(wish: Wish, run: Path, part: Path | None) -> Task:
    config = load_config(RunFolder(run).config)
    if not isinstance(config, EmbeddedConfig):
        raise ConfigError(
            [
                f"{run} is a run of slime, whose checkpoints are Megatron's: convert one with slime's "
                "tools/convert_torch_dist_to_hf.py and give that folder, or give --engine of the run's engines"
            ]
        )
    refused = {"--data": wish.data, "--max-tokens": wish.max_tokens, "--seed": wish.seed, "--raw": wish.raw or None}
    if given := [option for option, value in refused.items() if value is not None]:
        raise ConfigError(
            [f"{given[0]} does not go with the embedded run {run}, whose model knows its task alone: leave it out"]
        )
    _check_engines()
    weights = _weights(run, part)
    samples = wish.samples or config.eval.samples_per_problem
    scores = _scores(wish, samples, config.eval)
    asked: dict[str, object] = {"samples_per_problem": samples, "repeats": scores.repeats, "k": scores.k}
    if wish.temperature is not None:
        asked["temperature"] = wish.temperature
    config = held_out.asked(config, asked)
    settings = {
        "run": str(run),
        "engine": "embedded",
        "weights": str(weights.folder),
        "weight_version": str(weights.step),
        "problems": config.eval.problems,
        "temperature": config.eval.temperature,
        "verifier": config.verifier.mode,
        "samples_per_problem": samples,
        "repeats": scores.repeats,
        "k": scores.sizes(samples),
    }

    async def open_engine(stack: AsyncExitStack, task: Task) -> Engine:
        return await stack.enter_async_context(held_out.HeldOutEngine(config, weights, task.out))

    def open_grade(stack: AsyncExitStack) -> Grade:
        grader = Grader(config.verifier, config.task)
        stack.callback(grader.close)

        async def grade(question: Question, answer: Answer) -> Any:
            return await grader.verdict(question.label, answer.token_ids)

        return grade

    name = f"step-{weights.step:06d}" + ("" if wish.temperature is None else f"-temperature-{wish.temperature:g}")
    out = wish.out or run / "eval" / name
    return Task(held_out.questions(config), scores, samples, settings, out, open_engine, open_grade, weights.step)


def _check_engines() -> None:
    if missing := engine_packages.missing_engines():
        raise ConfigError([f"an embedded run is evaluated with {', '.join(missing)}: {INSTALL_ENGINES}"])


def _weights(run: Path, part: Path | None) -> Weights:
    """The weights that were named. Raises ConfigError where they are damaged or missing."""
    try:
        if part is None:
            found = held_out.newest_weights(run)
        elif part.name == "initial":
            found = held_out.initial_weights(run)
        else:
            found = held_out.weights_of(part)
    except DamagedCheckpoint as damage:
        raise ConfigError([f"{damage}; {_whole_instead(run)}"]) from None
    if found is None:
        raise ConfigError([f"{part or run} holds no weights: it has neither a checkpoint nor an initial model"])
    return found


def _whole_instead(run: Path) -> str:
    """What else of the run can be evaluated."""
    whole = newest_whole(run / "checkpoints")
    if whole is None:
        return "no checkpoint of the run is whole"
    return f"{whole.path.name} is the newest that is whole: sat-slime eval {whole.path}"


def _scores(wish: Wish, samples: int, default: ScoresConfig | None = None) -> ScoresConfig:
    scores = ScoresConfig(
        repeats=wish.repeats or (default.repeats if default else 1), k=wish.k or (default.k if default else None)
    )
    try:
        scores.check(samples)
    except ValueError as error:
        told = str(error).replace("samples_per_problem", "--samples").replace("repeats", "--repeats")
        raise ConfigError([f"--{told}"]) from None
    return scores
