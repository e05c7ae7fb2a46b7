"""The plan of an evaluation: a running engine, a model's folder or a run of the embedded runtime, on a set of problems.

Every graded sample is a line of samples.jsonl as soon as it is there. Given again, the command asks for the others.
"""

from __future__ import annotations

import hashlib
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
from sat_slime.prompts.labels import default_workers
from sat_slime.prompts.set_rows import find_columns, label_text, missing_columns, problem_text, read_jsonl
from sat_slime.prompts.text import fill, find_template, strip_instruction
from sat_slime.reward import MODES, VerifierPool
from sat_slime.rollout.client import LOCAL_URL
from sat_slime.runs.folder import RunFolder


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of `sat-slime eval`."""

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
class EvaluationPlan:
    """An evaluation that can start."""

    questions: list[Question]
    scores: ScoresConfig
    samples: int
    """Samples per problem and repeat."""
    settings: dict[str, Any]
    """eval.json tells them, and they are compared with those of samples that are there already."""
    out: Path
    open_engine: Callable[[AsyncExitStack, EvaluationPlan], Any]
    """A coroutine that starts the engine; the engine ends with the stack."""
    open_grade: Callable[[AsyncExitStack], Grade]
    step: int | None = None
    """Optimizer updates after which a run would have made this evaluation; None where it is of no run."""


def plan_evaluation(options: EvaluationOptions) -> EvaluationPlan:
    """Return the evaluation that the options ask for, checked. Raises ConfigError, RunFolderError or PromptError, with
    a line for what is missing or does not fit."""
    if (options.what is None) == (options.engine is None):
        raise ConfigError(["give a run, a model's folder, or --engine URL: one of them"])
    if options.what is not None and (found := _run_of(options.what)) is not None:
        return _plan_run(options, *found)
    if options.what is not None and not (options.what / "config.json").is_file():
        if not options.what.exists():
            raise ConfigError([f"there is no {options.what}: name a run, one of its checkpoints, or a model's folder"])
        raise ConfigError(
            [f"{options.what} is neither a run, which has a config.yaml, nor a model's folder, which has a config.json"]
        )
    if options.data is None:
        raise ConfigError(["--data is not given: name a .jsonl file of problems, such as aime24.jsonl"])
    for package, extra in (("math-verify", "reward"), ("httpx", "slime")):
        if installed_version(package) is None:
            raise ConfigError([f"{package} is not installed, which an evaluation needs: pip install '.[{extra}]'"])
    if options.what is not None:
        lacking = [name for name in engine_packages.missing_engines() if name in ("sglang", "transformers")]
        if lacking:
            raise ConfigError([f"a model's folder is served by {', '.join(lacking)}, not installed: {INSTALL_ENGINES}"])
    return _plan_data(options)


def _run_of(what: Path) -> tuple[Path, Path | None] | None:
    """Return the run folder that a path means, and its checkpoint, or `initial`, where the path names one; else
    None."""
    if RunFolder(what).config.is_file() and not (what / "config.json").is_file():
        return what, None
    parents = list(what.resolve().parents)
    if what.name == "initial" and RunFolder(parents[0]).config.is_file():
        return parents[0], what
    if what.parent.name == "checkpoints" and RunFolder(parents[1]).config.is_file():
        return parents[1], what
    return None


# ---------------------------------------------------------------------------------------------- problems of a file


def _plan_data(options: EvaluationOptions) -> EvaluationPlan:
    assert options.data is not None
    if options.mode not in MODES:
        raise ConfigError([f"--verifier is {options.mode}: it is one of {', '.join(MODES)}"])
    questions = read_questions(options.data, options.template, options.raw)
    samples = options.samples or 1
    scores = _scores(options, samples)
    sampling = Sampling(
        max_tokens=options.max_tokens or 8192,
        temperature=1.0 if options.temperature is None else options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        chat_args=options.chat_args,
    )
    settings = {
        "data": str(options.data),
        "data_sha256": hashlib.sha256(options.data.read_bytes()).hexdigest(),
        "engine": options.engine or str(options.what),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "verifier": options.mode,
        "template": "none: raw text" if options.raw else options.template,
        "chat_args": options.chat_args,
        "samples_per_problem": samples,
        "repeats": scores.repeats,
        "k": scores.sizes(samples),
    }

    async def open_engine(stack: AsyncExitStack, plan: EvaluationPlan) -> Engine:
        if options.engine:
            completions = CompletionsEngine(options.engine, sampling, options.concurrency, options.timeout_s)
        else:
            server = await _serve(stack, options, plan.out)
            where, remark = server.client.socket, partial(_end_of, server)
            completions = CompletionsEngine(LOCAL_URL, sampling, options.concurrency, options.timeout_s, where, remark)
        engine = await stack.enter_async_context(completions)
        plan.settings.update(await engine.about())
        return engine

    def open_grade(stack: AsyncExitStack) -> Grade:
        pool = VerifierPool(default_workers())
        stack.callback(pool.close)

        async def grade(question: Question, answer: Answer) -> Any:
            return await pool.verify_async(answer.text, question.label, options.mode)  # type: ignore[arg-type]

        return grade

    out = options.out or Path("eval") / options.data.stem
    return EvaluationPlan(questions, scores, samples, settings, out, open_engine, open_grade)


def read_questions(path: Path, template: str, raw: bool = False) -> list[Question]:
    """Return the problems of a .jsonl file: messages as they are; text without an instruction inside the template's.

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
        messages: str | list[dict[str, str]]
        if text is None or as_messages:
            messages = prompt
        elif raw:
            messages = text
        else:
            worded = text if strip_instruction(text)[1] else fill(instruction, text)
            messages = [{"role": "user", "content": worded}]
        questions.append(Question(str(row.get("id", number)), messages, label))
    if not questions:
        raise PromptError(f"{path} holds no problem")
    if len({question.id for question in questions}) < len(questions):
        questions = [Question(str(i), question.prompt, question.label) for i, question in enumerate(questions, 1)]
    return questions


async def _serve(stack: AsyncExitStack, options: EvaluationOptions, out: Path) -> ModelServer:
    """Start a server of the model's folder; it ends with the stack."""
    server = ModelServer(str(out), options.startup_timeout_s, options.tensor_parallel, options.server_args)
    stack.callback(server.stop)
    await server.start(str(options.what), 0)
    return server


ENDING_S = 1.0
"""Seconds that a server's process may take to end after its connections broke."""


def _end_of(server: ModelServer) -> str:
    """Return how a server ended, if it did, and its log, as the end of a sentence."""
    ended = f"; {server.how_it_ended()}" if server.ended_within(ENDING_S) else ""
    return f"{ended}; its log is {server.log_path}"


# -------------------------------------------------------------------------------------------- an embedded run


def _plan_run(options: EvaluationOptions, run: Path, checkpoint: Path | None) -> EvaluationPlan:
    config = load_config(RunFolder(run).config)
    if not isinstance(config, EmbeddedConfig):
        raise ConfigError(
            [
                f"{run} is a run of slime, whose checkpoints are Megatron's: convert one with slime's "
                "tools/convert_torch_dist_to_hf.py and give that folder, or give --engine of the run's engines"
            ]
        )
    refused = {
        "--data": options.data,
        "--max-tokens": options.max_tokens,
        "--seed": options.seed,
        "--raw": options.raw or None,
    }
    if given := [option for option, value in refused.items() if value is not None]:
        raise ConfigError(
            [f"{given[0]} does not go with the embedded run {run}, whose model knows only its task: leave it out"]
        )
    if missing := engine_packages.missing_engines():
        raise ConfigError([f"an embedded run is evaluated with {', '.join(missing)}: {INSTALL_ENGINES}"])
    weights = _weights(run, checkpoint)
    samples = options.samples or config.eval.samples_per_problem
    scores = _scores(options, samples, config.eval)
    changes: dict[str, object] = {"samples_per_problem": samples, "repeats": scores.repeats, "k": scores.k}
    if options.temperature is not None:
        changes["temperature"] = options.temperature
    config = held_out.asked(config, changes)
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

    async def open_engine(stack: AsyncExitStack, plan: EvaluationPlan) -> Engine:
        return await stack.enter_async_context(held_out.HeldOutEngine(config, weights, plan.out))

    def open_grade(stack: AsyncExitStack) -> Grade:
        grader = Grader(config.verifier, config.task)
        stack.callback(grader.close)

        async def grade(question: Question, answer: Answer) -> Any:
            return await grader.verdict(question.label, answer.token_ids)

        return grade

    name = f"step-{weights.step:06d}" + ("" if options.temperature is None else f"-temperature-{options.temperature:g}")
    out = options.out or run / "eval" / name
    return EvaluationPlan(
        held_out.questions(config), scores, samples, settings, out, open_engine, open_grade, weights.step
    )


def _weights(run: Path, checkpoint: Path | None) -> Weights:
    """Return the weights of a run that were named, the newest where none were. Raises ConfigError where they are
    damaged or missing."""
    try:
        if checkpoint is None:
            weights = held_out.newest_weights(run)
        elif checkpoint.name == "initial":
            weights = held_out.initial_weights(run)
        else:
            weights = held_out.weights_of(checkpoint)
    except DamagedCheckpoint as damage:
        raise ConfigError([f"{damage}; {_whole_instead(run)}"]) from None
    if weights is None:
        raise ConfigError([f"{checkpoint or run} holds no weights: it has neither a checkpoint nor an initial model"])
    return weights


def _whole_instead(run: Path) -> str:
    """Return what else of the run can be evaluated, in words."""
    whole = newest_whole(run / "checkpoints")
    if whole is None:
        return "no checkpoint of the run is whole"
    return f"{whole.path.name} is the newest that is whole: sat-slime eval {whole.path}"


def _scores(options: EvaluationOptions, samples: int, default: ScoresConfig | None = None) -> ScoresConfig:
    scores = ScoresConfig(
        repeats=options.repeats or (default.repeats if default else 1), k=options.k or (default.k if default else None)
    )
    try:
        scores.check(samples)
    except ValueError as error:
        message = str(error).replace("samples_per_problem", "--samples").replace("repeats", "--repeats")
        raise ConfigError([f"--{message}"]) from None
    return scores
