"""`sat-slime eval`: its options, and the evaluation that they ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sat_slime.cli.terminal import FAILED, bad_input, complain


def evaluate(
    what: Annotated[
        Path | None,
        typer.Argument(
            help="A run of the embedded runtime, one of its checkpoints, or a model's Hugging Face folder.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="URL", help="A running server with OpenAI's API, such as SGLang's.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A .jsonl file of problems; of a run, its own held-out ones.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples per problem and repeat; default: 1.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Whole evaluations; default: 1.")] = None,
    k: Annotated[
        str | None, typer.Option(metavar="K,...", help="Counts for avg@k and pass@k; default: --samples.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy; default: 1.")] = None,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Nucleus of sampling.")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest response, in tokens; default: 8192.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the samples, for a server that heeds it; default: none is sent.")
    ] = None,
    verifier: Annotated[str, typer.Option(metavar="MODE", help="See docs/reward.md.")] = "default",
    template: Annotated[
        str, typer.Option(metavar="TEMPLATE", help="Around text without an instruction; as in data prepare.")
    ] = "slime",
    raw: Annotated[bool, typer.Option("--raw", help="Send text as it is, without template and chat template.")] = False,
    chat_args: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Arguments of the chat template, such as '{\"enable_thinking\": false}'."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 64,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds for one response.")] = 3600.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to; default: eval/DATA, or in the run.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the samples that are there first.")] = False,
    tensor_parallel: Annotated[
        int, typer.Option(min=1, help="GPUs of the server.", rich_help_panel="A model's folder")
    ] = 1,
    server_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARG", help="One more argument of SGLang. Repeatable.", rich_help_panel="A model's folder"
        ),
    ] = None,
) -> None:
    """Evaluate an engine, a model or a run: avg@k, pass@k, intervals, a table of problems.

    Every sample is kept in FOLDER/samples.jsonl as soon as it is graded; given
    again after any end, the command asks for the others alone. The numbers are
    printed and in FOLDER/eval.json.

    [bold]Examples[/]

        sat-slime eval runs/quickstart

        sat-slime eval --engine http://127.0.0.1:30000 --data aime24.jsonl --samples 16 --k 1,8,16 --max-tokens 32768

        sat-slime eval /data/Qwen3-4B --data aime24.jsonl --samples 4 --tensor-parallel 2 --out eval/qwen3-4b
    """
    from sat_slime.cli.evaluation_run.evaluation_asking import EvaluationFailed, run_evaluation, show_result
    from sat_slime.cli.evaluation_run.evaluation_plan import EvaluationOptions, plan_evaluation
    from sat_slime.prompts import PromptError

    console = Console()
    options = EvaluationOptions(
        what=what,
        engine=engine,
        data=data,
        samples=samples,
        repeats=repeats,
        k=_numbers_of(k),
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        seed=seed,
        mode=verifier,
        template=template,
        raw=raw,
        chat_args=_json_object(chat_args),
        concurrency=concurrency,
        timeout_s=timeout,
        out=out,
        overwrite=overwrite,
        tensor_parallel=tensor_parallel,
        server_args=tuple(server_arg or ()),
    )
    try:
        plan = plan_evaluation(options)
        result = run_evaluation(plan, overwrite, console)
    except PromptError as error:
        bad_input([str(error)])
    except EvaluationFailed as error:
        complain(str(error).splitlines())
        raise typer.Exit(FAILED) from None
    show_result(result, console)
    plain: Any = {"markup": False, "highlight": False, "soft_wrap": True}
    console.print(f"in {plan.out}: eval.json, samples.jsonl", **plain)
    console.print(f"accuracy {100 * result['accuracy']:.1f} % of {result['n_samples']} samples", **plain)
    if result["n_samples"] == result["n_problems"]:
        console.print("for a tighter interval, and pass@k: the same command with --samples 8 --overwrite", **plain)


def _numbers_of(text: str | None) -> list[int] | None:
    numbers = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(number.isdigit() and int(number) for number in numbers):
        bad_input([f"--k {text}: expected numbers from 1 with commas between, such as 1,8"])
    return [int(number) for number in numbers] or None


def _json_object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        bad_input([f'--chat-args {text}: expected a JSON object, such as {{"enable_thinking": false}}'])
    return value
