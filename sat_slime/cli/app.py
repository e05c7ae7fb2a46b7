"""Commands and their help. The work is in the modules beside; they are imported when a command runs, so that --help
answers at once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

if TYPE_CHECKING:
    from sat_slime.cli.launch import Ending

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""
SLIME = "Runs of slime"
"""Heading of the options that an embedded run has not."""

app = typer.Typer(
    name="sat-slime",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""
    Asynchronous RL of language models that stays stable: the
    staleness-adaptive trust region (SAT) and what it is compared with, on
    real Megatron, SGLang and Ray.

    [bold]A first run[/], about five minutes on two cores:

        sat-slime launch configs/embedded/quickstart.yaml

    [bold]Exit codes[/]: 0 done, 1 the run or a check failed, 2 bad input, 130 interrupted.
    """,
)


def main() -> None:
    """Entry point of the command."""
    app(prog_name="sat-slime")


@contextlib.contextmanager
def _without_traceback() -> Iterator[None]:
    """Faults of the input end the command with a line each, Ctrl-C with one."""
    try:
        from sat_slime.config import ConfigError
        from sat_slime.runs.folder import RunFolderError

        try:
            yield
        except (ConfigError, RunFolderError) as error:
            _complain(str(error).splitlines())
            raise typer.Exit(BAD_INPUT) from None
        except RuntimeError as error:
            from sat_slime.plugin.launch.ray_jobs import JobError

            if not isinstance(error, JobError):
                raise
            _complain([str(error)])
            raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        _complain(["interrupted"])
        raise typer.Exit(INTERRUPTED) from None


def _complain(lines: list[str]) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for line in lines:
        console.print("[bold red]error:[/] ", end="")
        console.print(line, markup=False)


@app.command()
def launch(
    file: Annotated[
        Path,
        typer.Argument(help="A YAML file of the run; to go on with a run, its folder will do.", show_default=False),
    ],
    method: Annotated[
        str | None, typer.Option(help="A named method, such as [bold]sat-gspo-r3[/]; see sat-slime methods.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="The base recipe alone: grpo, gspo, dppo, ...")] = None,
    sat: Annotated[
        bool | None, typer.Option("--sat/--no-sat", help="Contract the trust region on stale tokens.")
    ] = None,
    r3: Annotated[bool | None, typer.Option("--r3/--no-r3", help="Replay the engine's expert routing.")] = None,
    tis: Annotated[bool | None, typer.Option("--tis/--no-tis", help="Truncated importance sampling.")] = None,
    lag: Annotated[
        int | None, typer.Option(help="Iterations per weight broadcast (updates of staleness); 0 is synchronous.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any setting, such as [bold]--set train.lr=1e-4[/]. Repeatable."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run and of its folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of the run.")] = False,
    resume_from: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="ITERATION",
            help="Go on from an older checkpoint, 0 from the beginning, and drop what came after it.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier run of that name first.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved settings and the plan; start nothing.")
    ] = False,
    live: Annotated[
        bool | None,
        typer.Option("--live/--no-live", help="Live view or a line per step; by itself, live on a terminal."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ray's dashboard, such as http://10.0.0.1:8265.",
            rich_help_panel=SLIME,
        ),
    ] = None,
    start_ray: Annotated[
        bool,
        typer.Option(
            "--start-ray", help="Start a Ray on this machine for the run, and end it with it.", rich_help_panel=SLIME
        ),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Send the job and return; do not follow it.", rich_help_panel=SLIME)
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="With --dry-run: command, environment and files as JSON.", rich_help_panel=SLIME),
    ] = False,
    skip_checks: Annotated[
        bool,
        typer.Option(
            "--skip-checks", help="Check the settings alone, no machine and no cluster.", rich_help_panel=SLIME
        ),
    ] = False,
) -> None:
    """Run the loop that FILE describes.

    All about the run goes to [bold]runs/NAME/[/]: settings, metrics, samples,
    checkpoints and, however the run ends, [bold]report.html[/].

    Options change what the file says; [bold]--set[/] reaches every setting.
    Ctrl-C or SIGTERM once ends cleanly after the iteration, saves, and says
    how to go on; a second one ends at once. A run of slime is a job of a Ray
    cluster: Ctrl-C ends the view, and the job goes on.

    A resume first looks at the checkpoint: of an embedded run it holds every
    file against its checksum. Where one is damaged it starts nothing, and
    says which checkpoint is whole and what going back to it costs.

    [bold]Examples[/]

        sat-slime launch configs/embedded/quickstart.yaml

        sat-slime launch configs/embedded/quickstart.yaml --no-sat --lag 1 --name gspo-lag1

        sat-slime launch configs/embedded/quickstart.yaml --method grpo-tis --dry-run

        sat-slime launch runs/quickstart --resume --set pipeline.iterations=400

        sat-slime launch runs/quickstart --resume-from 96

        sat-slime launch configs/paper/qwen3-30b-a3b.yaml --method sat-gspo-r3 --lag 8 --detach
    """
    choices = {
        "method": method,
        "method.base": base,
        "method.sat": sat,
        "method.r3": r3,
        "method.tis": tis,
        "pipeline.lag": lag,
        "name": name,
    }
    settings: dict[str, Any] = {key: value for key, value in choices.items() if value is not None}
    console = Console()
    with _without_traceback():
        from sat_slime.cli import launch as launching

        resume = resume or resume_from is not None
        if resume and overwrite:
            _complain(["--resume goes on with a run and --overwrite deletes it: give one of them"])
            raise typer.Exit(BAD_INPUT)
        plan = launching.plan_run(file, settings, overrides or [], resume, dry_run and not skip_checks, resume_from)
        for warning in plan.warnings:
            Console(stderr=True, soft_wrap=True).print(f"warning: {warning}", style="yellow", markup=False)
        if isinstance(plan, launching.Plan):
            of_slime = {"--address": address, "--start-ray": start_ray, "--detach": detach, "--json": as_json}
            if given := [option for option, value in {**of_slime, "--skip-checks": skip_checks}.items() if value]:
                _complain([f"{given[0]} is for runs of slime, and {file} is an embedded run: leave it out"])
                raise typer.Exit(BAD_INPUT)
            if dry_run:
                console.print(launching.describe(plan), markup=False, highlight=False, soft_wrap=True)
                return
            ending = launching.launch(plan, overwrite=overwrite, live=live, console=console)
        else:
            from sat_slime.cli import jobs, slime

            if dry_run:
                if not skip_checks:
                    slime.raise_failed(slime.check_here(plan, address), slime.to_stderr())
                typer.echo(slime.describe_json(plan) if as_json else slime.describe(plan))
                return
            where = jobs.Where(address, start_ray, detach, skip_checks)
            ending = jobs.launch(plan, where, overwrite, live, console)
    _finish(ending, console)


def _finish(ending: Ending, console: Console) -> NoReturn:
    if ending.error:
        _complain([ending.error])
    console.print(ending.text, markup=False, highlight=False, soft_wrap=True)
    codes = {"finished": OK, "detached": OK, "interrupted": INTERRUPTED}
    raise typer.Exit(codes.get(ending.status, FAILED))


RunArgument = Annotated[Path, typer.Argument(help="A run folder, such as runs/my-run.", show_default=False)]


@app.command()
def grid(
    file: Annotated[
        Path,
        typer.Argument(help="A YAML file of a grid; to go on with one, its folder will do.", show_default=False),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CELLS", help="METHOD, METHOD@LAG or @LAG, such as [bold]'sat-*@8'[/]. Repeatable."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="SEEDS", help="Some of the grid's seeds, such as [bold]0,1[/].")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting of all runs. Repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the grid and of its folder.")] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Start failed cells again, from their checkpoints.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost; start nothing.")] = False,
    live: Annotated[
        bool | None,
        typer.Option("--live/--no-live", help="Live table or a line per event; by itself, live on a terminal."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="URL", help="As in launch: Ray's dashboard.", rich_help_panel=SLIME)
    ] = None,
    skip_checks: Annotated[
        bool, typer.Option("--skip-checks", help="As in launch: check the settings alone.", rich_help_panel=SLIME)
    ] = False,
) -> None:
    """Run methods x lags x seeds, each a run of its own.

    All about the grid goes to [bold]grids/NAME/[/]. Given again, the command
    goes on where it was, whatever ended it: finished cells stay as they are, a
    half-run one goes on from its checkpoint. Ctrl-C once ends the running
    cells after their iteration and a checkpoint; twice, at once.

    [bold]Examples[/]

        sat-slime grid configs/grid/embedded.yaml --dry-run

        sat-slime grid configs/grid/embedded.yaml --only gspo --only sat-gspo@8 --seeds 0

        sat-slime status grids/embedded --follow
    """
    console = Console()
    with _without_traceback():
        from sat_slime.cli import grid as grids

        numbers = [text.strip() for text in (seeds or "").split(",") if text.strip()]
        if not all(number.isdigit() for number in numbers):
            _complain([f"--seeds {seeds}: expected numbers with commas between, such as 0,1"])
            raise typer.Exit(BAD_INPUT)
        plan = grids.plan_grid(file, name, only or [], [int(number) for number in numbers], overrides or [])
        for warning in plan.warnings:
            Console(stderr=True, soft_wrap=True).print(f"warning: {warning}", style="yellow", markup=False)
        if dry_run:
            console.print(grids.describe(plan, retry_failed), soft_wrap=True)
            return
        options = [*(["--address", address] if address else []), *(["--skip-checks"] if skip_checks else [])]
        ending = grids.run_grid(plan, retry_failed, options, live, console)
    console.print(ending.text, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit({"finished": OK, "interrupted": INTERRUPTED}.get(ending.status, FAILED))


@app.command("eval")
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
    samples: Annotated[int | None, typer.Option(min=1, help="Samples per problem and repeat; by itself 1.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Whole evaluations; by itself 1.")] = None,
    k: Annotated[
        str | None, typer.Option(metavar="K,...", help="Counts for avg@k and pass@k; by itself --samples.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy; by itself 1.")] = None,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Nucleus of sampling.")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest response, in tokens; by itself 8192.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the samples, for a server that heeds it; by itself none is sent.")
    ] = None,
    verifier: Annotated[str, typer.Option(metavar="MODE", help="See docs/reward.md.")] = "default",
    template: Annotated[
        str, typer.Option(metavar="TEMPLATE", help="Around text without an instruction; as in data prepare.")
    ] = "slime",
    raw: Annotated[bool, typer.Option("--raw", help="Send text as it is, without template and chat template.")] = False,
    chat_args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Of the chat template, such as '{\"enable_thinking\": false}'.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 64,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds for one response.")] = 3600.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to; by itself eval/DATA, or in the run.", show_default=False),
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
    console = Console()
    with _without_traceback():
        from sat_slime.cli import evaluate as evaluating
        from sat_slime.cli import evaluate_run
        from sat_slime.prompts import PromptError

        sizes, arguments = _numbers_of(k, "--k"), _json_object(chat_args, "--chat-args")
        wish = evaluating.Wish(
            what, engine, data, samples, repeats, sizes, temperature, top_p, max_tokens, seed, verifier, template, raw,
            arguments, concurrency, timeout, out, overwrite, tensor_parallel, tuple(server_arg or ()),
        )  # fmt: skip
        try:
            task = evaluating.plan(wish)
            result = evaluate_run.run(task, overwrite, console)
        except PromptError as error:
            _complain([str(error)])
            raise typer.Exit(BAD_INPUT) from None
        except evaluate_run.EvaluationFailed as error:
            _complain(str(error).splitlines())
            raise typer.Exit(FAILED) from None
    evaluate_run.show(result, console)
    console.print(f"in {task.out}: eval.json, samples.jsonl", markup=False, highlight=False, soft_wrap=True)


def _numbers_of(text: str | None, option: str) -> list[int] | None:
    numbers = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(number.isdigit() and int(number) for number in numbers):
        _complain([f"{option} {text}: expected numbers from 1 with commas between, such as 1,8"])
        raise typer.Exit(BAD_INPUT)
    return [int(number) for number in numbers] or None


def _json_object(text: str | None, option: str) -> dict[str, Any] | None:
    if text is None:
        return None
    import json

    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        _complain([f'{option} {text}: expected a JSON object, such as {{"enable_thinking": false}}'])
        raise typer.Exit(BAD_INPUT)
    return value


@app.command()
def status(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run folder, such as runs/my-run, or a grid's, such as grids/my-grid.", show_default=False
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Of a grid: go on until it ends or Ctrl-C.")] = False,
) -> None:
    """Say how a run is doing: its state, progress and newest checkpoint, and why it ended. Of a grid: all its cells.

    sat-slime status runs/my-run

    sat-slime status grids/my-grid --follow
    """
    with _without_traceback():
        from sat_slime.grid.state import GridFolder

        if GridFolder(run).is_grid():
            from sat_slime.cli.grid import show_status

            show_status(GridFolder(run), follow, Console())
            return
        from sat_slime.cli.status import lines

        for line in lines(run):
            typer.echo(line)


@app.command()
def logs(
    run: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends or Ctrl-C.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="The last so many lines; all of them by itself.")
    ] = None,
) -> None:
    """Print the log of a run of slime. Ctrl-C ends the printing; the job goes on.

    sat-slime logs runs/my-run -f
    """
    with _without_traceback():
        from sat_slime.cli.sent import follow_log, last_log_lines

        try:
            for line in (follow_log if follow else last_log_lines)(run, lines):
                typer.echo(line)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


@app.command()
def stop(run: RunArgument) -> None:
    """End the job of a run of slime, and the Ray that was started for it. Nothing else is touched.

    What came after the newest checkpoint is lost; [bold]launch RUN --resume[/] goes on from there.
    """
    console = Console()
    with _without_traceback():
        from sat_slime.cli.sent import stop as stop_run

        ending = stop_run(run, console)
    _finish(ending, console)


prepare = typer.Typer(no_args_is_help=True, help="Make what a run of slime starts from.")
app.add_typer(prepare, name="prepare")


@prepare.callback()
def _prepare() -> None:
    """Make what a run of slime starts from."""


@prepare.command("model")
def prepare_model(
    file: Annotated[
        Path,
        typer.Argument(
            help="A YAML file of a run or a model, such as configs/models/qwen3-4b.yaml.", show_default=False
        ),
    ],
    hf: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Hugging Face weights; by itself model.hf_checkpoint.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where to; by itself model.megatron_checkpoint.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of this machine to use.")] = 1,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As in launch. Repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command; run nothing.")] = False,
) -> None:
    """Convert Hugging Face weights to Megatron's format, with slime's own tool.

    A checkpoint that is there is never overwritten, and one that broke off is
    not taken for a whole one.

        sat-slime prepare model configs/models/qwen3-4b.yaml --hf /data/Qwen3-4B-Base --out /data/Qwen3-4B
    """
    settings = {"model.hf_checkpoint": hf, "model.megatron_checkpoint": out}
    with _without_traceback():
        from sat_slime.cli.prepare import convert_model

        code = convert_model(file, {k: v for k, v in settings.items() if v}, overrides or [], gpus, dry_run)
    raise typer.Exit(FAILED if code else OK)


@prepare.command("laptop")
def prepare_laptop(
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to; by itself where configs/slime/laptop.yaml looks.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Make it anew where it is there.")] = False,
) -> None:
    """Make the model, tokenizer, prompts and held-out problems of configs/slime/laptop.yaml: those of the embedded
    quick start. sat-slime launch does so by itself.

        sat-slime prepare laptop --out data/laptop
    """
    with _without_traceback():
        from sat_slime.cli.laptop import LAPTOP, make_laptop

        folder = out or LAPTOP
        make_laptop(folder.absolute(), overwrite)
    typer.echo(f"{folder} is ready")


data = typer.Typer(no_args_is_help=True, help="Prompts with labels: prepare the paper's, check any.")
app.add_typer(data, name="data")
SET = "A file, a folder, OWNER/NAME/FOLDER@REVISION of the hub, or none; by itself the paper's."
WORKERS = "Processes of the verifier; by itself half as many as cores, at most 8."


@data.command("prepare")
def data_prepare(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to.", show_default=False)],
    dapo: Annotated[str | None, typer.Option(metavar="SET", help=SET)] = None,
    dolci: Annotated[str | None, typer.Option(metavar="SET", help="Likewise.")] = None,
    aime24: Annotated[str | None, typer.Option(metavar="SET", help="Likewise.")] = None,
    template: Annotated[
        str, typer.Option(metavar="TEMPLATE", help="slime, dapo, boxed, none, a file, or a text with {problem} in it.")
    ] = "slime",
    chat_template: Annotated[
        str | None,
        typer.Option(metavar="TOKENIZER", help="Apply its chat template here; by itself slime does, with the model's."),
    ] = None,
    repeated: Annotated[
        str, typer.Option(metavar="keep|drop", help="Problems that come again, within a set or in the next.")
    ] = "drop",
    bad_labels: Annotated[
        str, typer.Option(metavar="keep|drop", help="Problems whose label the verifier cannot do with, or with two.")
    ] = "keep",
    verifier: Annotated[str, typer.Option(metavar="MODE", help="The run's mode; see docs/reward.md.")] = "prime_math",
    seed: Annotated[int, typer.Option(help="Of the order.")] = 1234,
    workers: Annotated[int | None, typer.Option(min=1, help=WORKERS, show_default=False)] = None,
    allow_counts: Annotated[
        bool, typer.Option("--allow-counts", help="Take sets of other sizes than the paper's.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace prompts prepared in FOLDER.")] = False,
) -> None:
    """Make train.jsonl and aime24.jsonl, as slime reads them, and manifest.json.

    By itself the paper's: DAPO-Math-17k and Dolci-RL-Zero-Math-7B, each
    problem once, with one instruction, each label verified against itself;
    and AIME 2024. Every row that is left out is accounted for.

        sat-slime data prepare --out data/paper

        sat-slime data prepare --out data/dapo --dapo zhuzilin/dapo-math-17k --dolci none
    """
    with _without_traceback():
        from sat_slime.cli import data as prompts

        given = {"dapo": dapo, "dolci": dolci, "aime24": aime24}
        written = prompts.prepare(
            prompts.Preparation(
                out=out,
                sources={name: source for name, source in given.items() if source is not None},
                template=template,
                chat_template=chat_template,
                repeated=repeated,
                bad_labels=bad_labels,
                verifier=verifier,
                seed=seed,
                workers=workers,
                allow_counts=allow_counts,
                overwrite=overwrite,
            ),
            Console(highlight=False, markup=False, soft_wrap=True),
        )
    raise typer.Exit(OK if written else FAILED)


@data.command("check")
def data_check(
    file: Annotated[Path, typer.Argument(help="A file of prompts, .jsonl or .parquet.", show_default=False)],
    evaluation: Annotated[
        Path | None, typer.Option("--eval", metavar="FILE", help="Prompts of the evaluation, to find in FILE.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="A tokenizer, to find prompts above --max-tokens.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The run's rollout.max_prompt_tokens.")] = None,
    input_key: Annotated[str, typer.Option(help="The run's data.input_key.")] = "prompt",
    label_key: Annotated[str, typer.Option(help="The run's data.label_key.")] = "label",
    verifier: Annotated[str, typer.Option(metavar="MODE", help="The run's mode; see docs/reward.md.")] = "prime_math",
    workers: Annotated[int | None, typer.Option(min=1, help=WORKERS, show_default=False)] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every row that is found.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON per row that is found.")] = False,
) -> None:
    """Find duplicates, over-long prompts, labels that the verifier cannot do with, problems of the evaluation, and rows
    that slime would stumble over. Exit code 1 where something is found.

        sat-slime data check data/paper/train.jsonl --eval data/paper/aime24.jsonl

        sat-slime data check mine.jsonl --tokenizer /data/Qwen3-4B-Base --max-tokens 2048
    """
    with _without_traceback():
        from sat_slime.cli import data as prompts

        asked = prompts.Inspection(file, evaluation, tokenizer, max_tokens, input_key, label_key, verifier, workers)
        found = prompts.check(asked)
        prompts.show(found, show_all, as_json, Console(highlight=False, markup=False))
    raise typer.Exit(FAILED if found.faults else OK)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A YAML file of a run.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As in launch. Repeatable.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="URL", help="As in launch: the cluster to check.", rich_help_panel=SLIME)
    ] = None,
) -> None:
    """Check a run's settings and this machine, a line each, with the remedy of what fails.

    Imports the engines to be sure that they work, which takes some seconds.
    Of a run of slime, the cluster is checked where one is named, by a small
    job that uses no GPU.

        sat-slime check configs/embedded/quickstart.yaml
    """
    from sat_slime.cli.check import check_all

    console = Console(soft_wrap=True, highlight=False)
    failed_config = failed_machine = False
    for finding in check_all(file, overrides or [], address):
        console.print(*finding.columns(), sep="  ")
        failed_config |= finding.mark == "FAIL" and finding.of_config
        failed_machine |= finding.mark == "FAIL" and not finding.of_config
    raise typer.Exit(BAD_INPUT if failed_config else FAILED if failed_machine else OK)


@app.command()
def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="A method, such as sat-gspo-r3, or what goes beside one: sat, tis, r3, topp."),
    ] = None,
) -> None:
    """List the stabilizers and the named methods; of one method, its formula, parameters and source.

    Use one with [bold]launch FILE --method NAME[/], or write
    [bold]method: NAME[/] in the file.

        sat-slime methods dppo-kl
    """
    console = Console()
    with _without_traceback():
        from sat_slime.cli.methods import show_method, show_table

        if name is None:
            show_table(console)
        else:
            show_method(name, console)


@app.command()
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_OR_GRID...",
            help="Run folders, grids, or files of slime's metrics; see docs/report.md.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where a comparison goes; by itself into the grid, else [bold]report/[/]."),
    ] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Of a comparison, draw this figure alone. Repeatable."),
    ] = None,
) -> None:
    """Write report.html and figures of a run, of several, or of a grid, whatever there is of them.

    One run: what happened in it. Several, or a grid: the paper's table beside
    ours, what differs beyond noise, all curves, and what they do not show.

        sat-slime report runs/quickstart

        sat-slime report grids/embedded

        sat-slime report runs/gspo-lag8-seed* runs/sat-gspo-lag8-seed* --out comparison
    """
    with _without_traceback():
        from sat_slime.report.write import write_reports
        from sat_slime.runs.row_faults import faults_of

        for written in write_reports(paths, out, figure or []):
            typer.echo(written)
        for path in paths:
            for sentence in faults_of(path):
                Console(stderr=True, soft_wrap=True).print(f"warning: {path}: {sentence}", style="yellow", markup=False)


@app.command()
def replay(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="DUMP...", help="Dumps, folders of them, or run folders.", show_default=False),
    ],
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help="Methods with commas between them, or [bold]all[/].")
    ] = "all",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the methods that read it, such as [bold]sat.alpha=0.95[/]; a list of values replays "
            "each. Repeatable.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where page, figures and tables go.")] = Path("replay"),
    microbatch_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Micro-batches of up to N response tokens, instead of the dump's own."),
    ] = None,
    microbatch_responses: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Micro-batches of N responses, instead of the dump's own."),
    ] = None,
    token_mean: Annotated[
        bool, typer.Option("--token-mean", help="Weigh tokens alike in the cosines, not responses.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Threads; by itself, one per core.", show_default=False)
    ] = None,
) -> None:
    """What would every method have done to these tokens? No GPU, no slime, no run.

    DUMP is a file of slime's [bold]--save-debug-train-data[/], a folder of them, the
    folder of [bold]--dump-details[/], or a run folder with dumps/. For each method: which
    tokens it clips, masks or re-weights, how many it leaves, and how its gradient
    points beside the others'. A file that cannot be read is skipped and named,
    and the exit code is then 1.

    [bold]Examples[/]

        sat-slime replay runs/my-run

        sat-slime replay dump/train_data --methods gspo,sat-gspo --out gspo-replay

        sat-slime replay runs/my-run --methods sat-gspo --set 'sat.alpha=[0.8,0.9,0.95]'
    """
    with _without_traceback():
        from sat_slime.cli import replay as replaying
        from sat_slime.report.replay.step_batch import Layout

        layout = Layout(microbatch_tokens, microbatch_responses)
        command = ["sat-slime", *sys.argv[1:]]
        console = Console(soft_wrap=True)
        whole = replaying.run(paths, methods, overrides or [], out, layout, token_mean, threads, command, console)
    raise typer.Exit(OK if whole else FAILED)


@app.command()
def diagnose(run: RunArgument) -> None:
    """Say what the mismatch of a run is made of, and where its tail comes from.

    From the token dumps of diagnosed steps ([bold]--set
    diagnose.every_n_steps=5[/] at launch): policy lag, expert routing,
    precision and the rest, by lag, position, probability and entropy; the
    improvement bound; the true total variation beside the sampled ratio. Of a
    run of slime with denominator checkpoint, policy and implementation part.
    Page, figures and tables go to [bold]RUN/diagnosis/[/].

        sat-slime diagnose runs/my-run
    """
    with _without_traceback():
        from sat_slime.cli.diagnose import diagnose as diagnose_run

        diagnose_run(run, Console())


@app.command()
def version() -> None:
    """Print the versions of this package and of the engines."""
    from sat_slime.cli.check import ENGINES, installed_version

    for package in ("sat-slime", "torch", *(engine.package for engine in ENGINES)):
        typer.echo(f"{package:16} {installed_version(package) or 'not installed'}")
