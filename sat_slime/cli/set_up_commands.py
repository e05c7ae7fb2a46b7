"""`sat-slime check`, `prepare` and `data`: whether a run can be, and what it starts from."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from sat_slime.cli.terminal import BAD_INPUT, FAILED, OK, OverridesAsInLaunch, complain, refuse_failures

if TYPE_CHECKING:
    from sat_slime.config.finding import Finding


COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


def check(
    file: Annotated[
        Path,
        typer.Argument(help="A YAML file: of a run, or of init plugin; or a run's folder.", show_default=False),
    ],
    overrides: OverridesAsInLaunch = None,
) -> None:
    """Check a run's settings and this machine: lists problems and fixes.

    Imports the engines to be sure that they work, which takes some seconds;
    that they do is remembered until a package is installed or removed.
    Of a run of slime, the cluster that cluster.address names is checked, by a
    small job that uses no GPU, and time and cost are estimated, by what the
    run has measured where its folder is given.

        sat-slime check configs/lab/quickstart.yaml
    """
    console = Console(soft_wrap=True, highlight=False)
    failed_settings = failed_machine = False
    for finding in findings_of(file, overrides or []):
        console.print(*_columns(finding), sep="  ")
        failed_settings |= finding.mark == "FAIL" and finding.of_settings
        failed_machine |= finding.mark == "FAIL" and not finding.of_settings
    raise typer.Exit(BAD_INPUT if failed_settings else FAILED if failed_machine else OK)


def findings_of(file: Path, overrides: Sequence[str]) -> Iterator[Finding]:
    """Yield the finding of every check of a run."""
    from sat_slime.cli.lab_run import lab_findings
    from sat_slime.config import ConfigError, LabConfig, load_config
    from sat_slime.config.finding import settings_findings
    from sat_slime.config.plugin_file import is_plugin_file, plugin_findings
    from sat_slime.runs.folder import RunFolder

    if is_plugin_file(file):
        yield from plugin_findings(file)
        return
    folder = file if file.is_dir() and RunFolder(file).is_run() else None
    file = RunFolder(folder).config if folder else file
    try:
        config = load_config(file, overrides)
    except ConfigError as error:
        yield from settings_findings(error.errors)
        return
    if isinstance(config, LabConfig):
        yield from lab_findings(config, file)
    else:
        from sat_slime.cli.slime_run import slime_findings

        yield from slime_findings(config, file, folder)


def _columns(finding: Finding) -> tuple[str, str, str]:
    return f"[{COLOURS[finding.mark]}]{finding.mark:4}[/]", f"{finding.what:14}", escape(finding.detail)


prepare = typer.Typer(no_args_is_help=True, help="Make what a run starts from: engines, weights, slime, its model.")


@prepare.command("engines")
def prepare_engines(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands; run nothing.")] = False,
) -> None:
    """Install Megatron and SGLang beside this package, for runs on this machine's CPU.

    torch stays as it is. SGLang goes in without its own list of dependencies,
    which asks for a CUDA build of torch.
    """
    from sat_slime.cli.engine_packages import install_engines

    code = install_engines(dry_run, typer.echo)
    raise typer.Exit(FAILED if code else OK)


@prepare.command("model")
def prepare_model(
    file: Annotated[
        Path,
        typer.Argument(
            help="A YAML file of a run or a model, such as configs/models/qwen3-4b.yaml.", show_default=False
        ),
    ],
    hf: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Hugging Face weights; default: slime.hf-checkpoint.")
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="FOLDER", help="Where to; default: slime.ref-load.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of this machine to use.")] = 1,
    overrides: OverridesAsInLaunch = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command; run nothing.")] = False,
) -> None:
    """Convert Hugging Face weights to Megatron's format, with slime's own tool.

    A checkpoint that is there is never overwritten.

        sat-slime prepare model configs/models/qwen3-4b.yaml --hf /data/Qwen3-4B-Base --out /data/Qwen3-4B
    """
    settings = {"slime.hf-checkpoint": hf, "slime.ref-load": out}
    code = convert_model(file, {k: v for k, v in settings.items() if v}, overrides or [], gpus, dry_run)
    raise typer.Exit(FAILED if code else OK)


def convert_model(file: Path, settings: Mapping[str, Any], overrides: Sequence[str], gpus: int, dry_run: bool) -> int:
    """Convert a model's weights, and return the exit code of slime's tool. Raises ConfigError."""
    from sat_slime.cli.slime_run import by_flag
    from sat_slime.config import ConfigError, SlimeConfig, load_config
    from sat_slime.launch.command import CONVERSION, conversion_command
    from sat_slime.launch.hf_checkpoint import hf_findings
    from sat_slime.launch.local_ray import own_python_first
    from sat_slime.launch.machine import source_findings
    from sat_slime.runs.saved import newest_iteration

    config = load_config(file, overrides, settings)
    if not isinstance(config, SlimeConfig):
        raise ConfigError([f"{file}: runtime is {config.runtime}: only models of slime runs are converted"])
    if unset := [key for key in ("hf-checkpoint", "ref-load") if config.slime.get(key) is None]:
        options = {"hf-checkpoint": "--hf", "ref-load": "--out"}
        raise ConfigError([f"{file}: slime.{key} is not set: give {options[key]} FOLDER" for key in unset])
    if not config.model.layers:
        raise ConfigError([f"{file}: slime has no num-layers: name a file of configs/models"])
    sent, out = conversion_command(config, gpus), Path(str(config.model.megatron_checkpoint))
    if dry_run:
        variables = [f"{name}={shlex.quote(value)}" for name, value in sent.env.items()]
        typer.echo(" \\\n    ".join([" ".join(["env", *variables]), *by_flag(sent.command)]))
        return 0
    if newest_iteration(out) is not None:
        raise ConfigError([f"{out} holds a converted checkpoint already: use it, or name another --out"])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError([f"{out} exists and is no converted checkpoint: delete it, or name another --out"])
    folders = {"cluster.slime_dir": CONVERSION, "cluster.megatron_dir": "megatron/training"}
    refuse_failures([*source_findings(config, folders), *hf_findings(config)])
    code = subprocess.run(sent.command, env={**own_python_first(), **sent.env}).returncode
    if code:
        complain([f"slime's tool ended with exit code {code}; delete what it wrote in {out}"])
    else:
        typer.echo(f"{out} is ready")
    return code


@prepare.command("laptop")
def prepare_laptop(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The YAML file of a lab run; default: the quick start.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to; default: where configs/slime/laptop.yaml looks.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Make it anew where it is there.")] = False,
    overrides: OverridesAsInLaunch = None,
) -> None:
    """Make the model, tokenizer, prompts and held-out problems of configs/slime/laptop.yaml: those of the lab
    quick start, or of another lab run. sat-slime launch makes the quick start's where they are missing.

    --set changes settings of the lab run: another task, its settings, its warm-up.

        sat-slime prepare laptop --out data/laptop

        sat-slime prepare laptop --overwrite --set task.name=my_package.sorting
    """
    from sat_slime.cli.slime_run import LAPTOP, make_laptop

    folder = out or LAPTOP
    make_laptop(folder.expanduser().absolute(), overwrite, file, overrides or [])
    typer.echo(f"{folder} is ready")


@prepare.command("slime")
def prepare_slime(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Gets slime and Megatron-LM.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands; run nothing.")] = False,
) -> None:
    """Get the real slime for runs and rehearsals on this machine's CPU: slime and Megatron-LM with slime's patches, at
    the commits that were tested, and four packages that slime imports.

    What is there already stays as it is; what was broken off goes on.
    A mirror: git config --global url.MIRROR.insteadOf https://github.com/

        sat-slime prepare slime --out checkouts
    """
    from sat_slime.cli.engine_packages import prepare_checkouts

    out = out.absolute()
    if prepare_checkouts(out, dry_run, typer.echo):
        complain(["the last command failed, see above: the same sat-slime prepare slime goes on from there"])
        raise typer.Exit(FAILED)
    if not dry_run:
        places = {"slime_dir": out / "slime", "megatron_dir": out / "Megatron-LM"}
        sets = " ".join(f"--set {shlex.quote(f'cluster.{key}={folder}')}" for key, folder in places.items())
        typer.echo(f"slime is ready: sat-slime launch configs/slime/laptop.yaml {sets}, or rehearse FILE {sets}")


data = typer.Typer(no_args_is_help=True, help="Prompts with labels: prepare the paper's.")


@data.callback()
def _group() -> None:
    """Keep `prepare` a command of its own: a group of a single one would be that command."""


@data.command("prepare")
def data_prepare(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to.", show_default=False)],
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SET",
            help="dapo, dolci or aime24 from a file, a folder, OWNER/NAME/FOLDER@REVISION of the hub, or none. "
            "Repeatable; default: the paper's.",
        ),
    ] = None,
    template: Annotated[
        str, typer.Option(metavar="TEMPLATE", help="slime, dapo, boxed, none, a file, or a text with {problem} in it.")
    ] = "slime",
    repeated: Annotated[
        Literal["keep", "drop"], typer.Option(help="Problems that come again, within a set or in the next.")
    ] = "drop",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace prompts prepared in FOLDER.")] = False,
) -> None:
    """Make train.jsonl and aime24.jsonl, as slime reads them, and manifest.json.

    Default: the paper's, DAPO-Math-17k and Dolci-RL-Zero-Math-7B, each
    problem once, with one instruction, each label verified against itself;
    and AIME 2024. Every row that is left out is accounted for.

        sat-slime data prepare --out data/paper

        sat-slime data prepare --out data/dapo --source dapo=zhuzilin/dapo-math-17k --source dolci=none
    """
    from sat_slime.config import ConfigError
    from sat_slime.prompts import PromptError
    from sat_slime.prompts.prepare import prepare

    sources = {name: given for name, _, given in (text.partition("=") for text in source or [])}
    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        prepare(out, sources, template, repeated, overwrite, console)
    except PromptError as error:
        raise ConfigError([str(error)]) from error
