"""Starting a run: settings to a plan, the plan to a run folder, the runtime, and what to say at the end."""

from __future__ import annotations

import contextlib
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sat_slime.cli.check import load_run, missing_engines, verifier_error
from sat_slime.cli.driver import Lost, Outcome, watched
from sat_slime.cli.resume import find_checkpoint
from sat_slime.config import (
    ConfigError,
    EmbeddedConfig,
    config_errors,
    config_warnings,
    dump_config,
    load_config,
    method_label,
)
from sat_slime.config.checks import prompt_tokens, responses_per_iteration
from sat_slime.config.marks import changed_settings
from sat_slime.config.method import method_switches
from sat_slime.grid.state import GridFolder
from sat_slime.rollout.ray_start import STARTS, RayNotStarted
from sat_slime.runs.collapse import CollapseWatch
from sat_slime.runs.folder import RunFolder, RunFolderError, writable
from sat_slime.runs.live_view import make_view
from sat_slime.runs.log import RunLog, tracker_error
from sat_slime.runs.rows import write_atomically

if TYPE_CHECKING:
    from sat_slime.cli.slime import SlimePlan
    from sat_slime.embedded.checkpoint import Checkpoint


@dataclass(frozen=True)
class Plan:
    """A run that can start."""

    config: EmbeddedConfig
    folder: Path
    resume: bool
    warnings: tuple[str, ...]
    resume_from: int | None = None
    """The iteration whose checkpoint is to be gone on from, 0 for the beginning; None: the newest one's."""


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    status: str
    """finished, interrupted or failed; of a run that goes on as a job, detached."""
    error: str | None
    """The failure: a line that speaks for itself, and what more there is, such as the end of a log."""
    text: str
    """Where the report is and how to go on."""


def plan_run(
    file: Path,
    settings: Mapping[str, Any],
    overrides: Sequence[str],
    resume: bool,
    look_for_slime: bool = False,
    resume_from: int | None = None,
) -> Plan | SlimePlan:
    """The run that the command line asks for, checked. Raises ConfigError or RunFolderError.

    look_for_slime: of a run of slime, hold its flags against the slime on this machine.
    resume_from: the iteration of the checkpoint to go on from, instead of the newest.
    """
    folder: Path | None = None
    if GridFolder(file).is_grid():
        raise RunFolderError(f"{file} is a grid, not a run: sat-slime grid {file} goes on with it")
    if file.is_dir():
        folder, file = file, RunFolder.open(file).config
        if not resume and "name" not in settings:
            raise RunFolderError(f"{folder} is a run: go on with it (--resume), or run it again as another (--name X)")
    elif resume and RunFolder(file.parent).config == file and RunFolder(file.parent).is_run():
        folder = file.parent
    if told := contradiction(settings):
        raise ConfigError([told])
    config = load_run(file, overrides, settings)
    if not isinstance(config, EmbeddedConfig):
        from sat_slime.cli.slime import plan_slime_run

        return plan_slime_run(config, file, None if "name" in settings else folder, resume, look_for_slime, resume_from)
    errors = config_errors(config)
    if message := tracker_error(config.logging.wandb_project):
        errors.append(message)
    if errors:
        raise ConfigError([f"{file}: {error}" for error in errors])
    if folder is None or "name" in settings:
        folder = Path(config.output_dir).expanduser() / config.name
    if resume:
        _check_resume(config, folder)
    return Plan(config, folder, resume, tuple(config_warnings(config)), resume_from)


def contradiction(settings: Mapping[str, Any]) -> str | None:
    """Which option takes back what --method says, or None."""
    name = settings.get("method")
    try:
        named = method_switches(name) if name is not None else {}
    except ValueError:
        return None  # told with all that is wrong with the settings
    base = settings.get("method.base")
    options = [f"--base {base}"] if named and base not in (None, named["base"]) else []
    for key in ("sat", "tis", "r3"):
        if named and named[key] in (True, {"enabled": True}) and settings.get(f"method.{key}") is False:
            options.append(f"--no-{key}")
    return f"--method {name} and {options[0]} contradict each other: leave one of them out" if options else None


def _check_resume(config: EmbeddedConfig, path: Path) -> None:
    if not path.exists():
        raise RunFolderError(f"there is no run {path} to resume: start it without --resume or --resume-from")
    folder = RunFolder.open(path)
    saved = load_config(folder.config)
    if not isinstance(saved, EmbeddedConfig):
        raise ConfigError([f"{path}: a run of runtime {saved.runtime}, not of {config.runtime}: choose another --name"])
    if error := changed_settings(saved, config):
        raise ConfigError([f"{path}: {error}"])
    before, after = saved.pipeline.iterations, config.pipeline.iterations
    finished = folder.state().get("status") == "finished"
    if after < before or (finished and after == before):
        state = f"is finished after {before} iterations" if finished else f"was planned for {before} iterations"
        raise ConfigError([f"{path}: the run {state}; to go on, name more: --set pipeline.iterations={before * 2}"])


def describe(plan: Plan) -> str:
    """The resolved settings and what would be started."""
    config, train, rollout = plan.config, plan.config.train, plan.config.rollout
    responses = responses_per_iteration(config)
    steps = config.pipeline.iterations * config.pipeline.optimizer_steps_per_rollout
    longest = prompt_tokens(config) + rollout.max_response_tokens
    order = f"lag {config.pipeline.lag}" if config.pipeline.lag else "synchronous"
    lines = [
        f"method      {method_label(config.method.model_dump())}, {order}",
        f"trainer     {train.world_size} rank(s): tensor parallel {train.tensor_parallel}, data parallel "
        f"{train.data_parallel}, expert parallel {train.expert_parallel}; {train.dtype}",
        f"engines     {rollout.engines} SGLang server(s), {rollout.dtype}",
        f"batch       {rollout.prompts_per_iteration} prompts x {rollout.samples_per_prompt} samples = {responses} "
        f"responses, at most {responses * longest:,} tokens an iteration",
        f"length      {config.pipeline.iterations} iterations, {steps} optimizer steps",
        f"folder      {plan.folder}",
    ]
    if plan.resume:
        saved = find_checkpoint(plan, may_ask=False)
        lines.append(f"goes on     from {saved.path.name if saved else 'its beginning'}")
    if missing := missing_engines():
        lines.append(f"missing     {', '.join(missing)}: {INSTALL_ENGINES}")
    return "\n".join([dump_config(config), *(f"# {line}" for line in lines)])


INSTALL_ENGINES = 'install them with scripts/setup.sh, or pip install "sat-slime[embedded]" and SGLang'


def launch(plan: Plan, *, overwrite: bool, live: bool | None, console: Console) -> Ending:
    """Run the plan to its end, whatever that is. Raises RunFolderError or ConfigError when it cannot start."""
    if missing := missing_engines():
        raise ConfigError([f"the embedded runtime needs {', '.join(missing)}: {INSTALL_ENGINES}"])
    if error := verifier_error(plan.config):
        raise ConfigError([error])
    with sigterm_as_ctrl_c():
        folder, saved, aside = _claim(plan, overwrite)
        try:
            for path in aside:
                told = f"a checkpoint that is not gone on from is now {path}"
                console.print(told, markup=False, highlight=False, soft_wrap=True)
                _note(folder, told, "WARNING")
            try:
                outcome = _drive(plan, folder, saved, live, console)
            except KeyboardInterrupt:
                outcome = Outcome("interrupted")
            return _end(folder, outcome.status, outcome.error, console)
        finally:
            folder.unlock()


def _drive(plan: Plan, folder: RunFolder, saved: Checkpoint | None, live: bool | None, console: Console) -> Outcome:
    """Run the plan in a driver of its own; a Ray that does not start is started once more, from scratch."""
    from sat_slime.embedded.deaths import MemoryWatch

    memory = MemoryWatch()
    try:
        for start in range(1, STARTS + 1):
            outcome = watched(lambda lost: _run(plan, folder, saved, live, console, lost))
            if not outcome.again or start == STARTS:
                break
            told = f"{outcome.error}\nstarting once more"
            console.print(told, markup=False, highlight=False, soft_wrap=True)
        remark = memory.remark() if outcome.error else None
    finally:
        memory.close()
    if remark:
        outcome = replace(outcome, error=with_remark(str(outcome.error), remark))
    if outcome.dead:
        console.show_cursor()  # which a live view had hidden
        _note(folder, str(outcome.error), "ERROR")
    return outcome


def with_remark(error: str, remark: str) -> str:
    """The remark joins the error's first line, which is the one that is kept."""
    first, *rest = error.splitlines()
    return "\n".join([f"{first}; {remark}", *rest])


def _note(folder: RunFolder, text: str, level: str) -> None:
    """A line of log.txt, before there is a driver that writes it, or after one that could not."""
    stamp = datetime.now().isoformat(sep=" ", timespec="seconds")
    with contextlib.suppress(OSError), folder.log.open("a", encoding="utf-8") as log:
        log.write(f"{stamp} {level:<7} {text}\n")


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, also where the runtime, which handles both by itself, does not run."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _claim(plan: Plan, overwrite: bool) -> tuple[RunFolder, Checkpoint | None, list[Path]]:
    """The run's folder, locked, with its settings; the checkpoint to go on from; newer ones, which are set aside, so
    that a resume after a start that fails goes on from the same one. Where it is damaged nothing in the folder changes.
    Raises RunFolderError or ConfigError."""
    text, saved, aside = dump_config(plan.config), None, []
    if not plan.resume:
        folder = RunFolder.create(plan.folder, text, overwrite)
    else:
        folder = RunFolder.open(plan.folder)
        with writable(folder.path):
            folder.lock()
        try:
            saved = find_checkpoint(plan, may_ask=True)
            with writable(folder.path):
                aside = _set_aside(folder, saved)
                write_atomically(folder.config, text)
        except BaseException:
            folder.unlock()
            raise
    with writable(folder.path):
        folder.started()
    return folder, saved, aside


def _set_aside(folder: RunFolder, saved: Checkpoint | None) -> list[Path]:
    from sat_slime.embedded.checkpoint import set_aside

    return set_aside(folder.checkpoints, after=saved.state.iteration if saved else 0)


def _run(
    plan: Plan, folder: RunFolder, saved: Checkpoint | None, live: bool | None, console: Console, lost: Lost
) -> Outcome:
    """The run, to its end."""
    import sat_slime.embedded as runtime

    def lose(error: RuntimeError) -> None:
        lost(Outcome("failed", message_of(error), again=isinstance(error, RayNotStarted), dead=True))

    config = plan.config
    pipeline = config.pipeline
    title = f"{folder.path.name} · {method_label(config.method.model_dump())} · lag {pipeline.lag}"
    log: RunLog | None = None
    failed = False
    try:
        done = saved.state.updates if saved else 0
        view = make_view(title, pipeline.iterations * pipeline.optimizer_steps_per_rollout, console, live, done)
        with view:
            log = RunLog(
                folder,
                view,
                tensorboard=config.logging.tensorboard,
                wandb_project=config.logging.wandb_project,
                config=config.model_dump(mode="json"),
                watch=CollapseWatch(
                    max(1, pipeline.lag * pipeline.optimizer_steps_per_rollout), config.eval.every_n_iterations > 0
                ),
                stop_on_collapse=config.collapse.stop,
            )
            log.message(f"{title}, in {folder.path}")
            if saved and not saved.has_checksums:
                log.message(
                    f"{saved.path.name} has no checksums, since an earlier version wrote it: its files can be read, "
                    "but a number in them that changed would not be noticed",
                    "warning",
                )
            runtime.run(config, folder.path.resolve(), log, resume=saved, lost=lose)
        return Outcome("finished")
    except KeyboardInterrupt:
        return Outcome("interrupted")
    except Exception as error:
        failed = True
        _keep_traceback(log)
        return Outcome("failed", message_of(error), again=isinstance(error, RayNotStarted))
    finally:
        if log is not None:
            log.close(failed)


def _keep_traceback(log: RunLog | None) -> None:
    try:
        if log is not None:
            log.message(traceback.format_exc(), "debug")
    except OSError:  # a full disk may be why the run failed; its own error is the one to tell
        pass


def _end(folder: RunFolder, status: str, error: str | None, console: Console) -> Ending:
    """Note the ending and write the report; neither may hide how the run itself ended."""
    again = f"sat-slime report {folder.path}"
    lines = []
    if status == "failed":
        lines.append(f"more in {folder.log} and {folder.logs}")
    if status != "finished":
        lines.append(f"go on with: sat-slime launch {folder.path} --resume")
    try:
        folder.ended(status, error and error.splitlines()[0])
        console.print("writing the report ...", highlight=False)
        from sat_slime.report.run.page import write_report

        lines.append(f"report: {write_report(folder.path)}")
    except KeyboardInterrupt:
        lines.append(f"no report: interrupted; write it with: {again}")
        if status != "failed":  # whose error is worth more
            with contextlib.suppress(OSError):
                folder.ended("interrupted")
        status = "interrupted"
    except Exception as report_error:
        lines.append(f"no report: {one_line(report_error)}; when that is mended: {again}")
    return Ending(status, error, "\n".join(lines))


def one_line(error: BaseException) -> str:
    """The first line of `message_of`."""
    return message_of(error).splitlines()[0]


def message_of(error: BaseException) -> str:
    """What an error says: its message where that speaks for itself, else with its type before it."""
    cause = getattr(error, "cause", None)  # Ray wraps what an actor raised
    if isinstance(cause, BaseException):
        error = cause
    message = str(error).strip()
    if message and isinstance(error, (RuntimeError, OSError, ValueError)):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
