"""A run of the lab runtime: its plan, its checks, its way from start to end, and what other terminals do."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

import sat_slime.lab as runtime
from sat_slime.cli import any_run
from sat_slime.cli.terminal import Ending, short, sigterm_as_ctrl_c
from sat_slime.config import ConfigError, LabConfig, config_errors, config_warnings, dump_config
from sat_slime.config.disk import checksum_faults, in_words
from sat_slime.config.finding import Finding, fail, ok, settings_findings
from sat_slime.config.jsonl import number, read_rows, write_atomically
from sat_slime.lab import checkpoint
from sat_slime.lab.checkpoint import Checkpoint
from sat_slime.launch.job_files import Tail
from sat_slime.launch.small_run import installed_version
from sat_slime.runs import going_back
from sat_slime.runs.folder import RunFolder, RunFolderError, writable
from sat_slime.runs.log import RunLog
from sat_slime.runs.reading import last_row
from sat_slime.runs.saved import set_aside

LabPlan = any_run.Plan[LabConfig]


def plan_lab_run(config: LabConfig, file: Path, folder: Path | None, resume: bool, resume_from: int | None) -> LabPlan:
    """Return the run that the command line asks for, its settings checked. Raises ConfigError or RunFolderError.
    folder: that of an existing run, wherever it was moved to; None: output_dir/name."""
    if errors := config_errors(config):
        raise ConfigError(*(f"{file}: {error}" for error in errors))
    folder = folder or Path(config.output_dir).expanduser() / config.name
    if resume:
        before, after = going_back.settings_before(config, folder).pipeline.iterations, config.pipeline.iterations
        finished = RunFolder(folder).state().get("status") == "finished" and resume_from in (None, after)
        if after < before or (finished and after == before):
            state = f"{'is finished after' if finished else 'was planned for'} {before} iterations"
            raise ConfigError(f"{folder}: the run {state}; to go on, name more: --set pipeline.iterations={before * 2}")
    return LabPlan(config, folder, resume, resume_from)


def describe(plan: LabPlan) -> str:
    """Return the resolved settings and what would be started."""
    config, train, rollout = plan.config, plan.config.train, plan.config.rollout
    responses, longest = rollout.responses_per_iteration, config.task.prompt_tokens + rollout.max_response_tokens
    lines = [
        f"method      {any_run.method_and_order(config)}",
        f"trainer     {train.dtype}",
        f"engine      {rollout.dtype}",
        f"batch       {rollout.prompts_per_iteration} prompts x {rollout.samples_per_prompt} samples = {responses} "
        f"responses, at most {responses * longest:,} tokens an iteration",
        f"length      {any_run.how_long(config)}",
        f"folder      {plan.folder}",
    ]
    if plan.resume:
        saved = find_checkpoint(plan.folder, config, plan.resume_from)
        lines.append(f"goes on     from {saved.path.name if saved else 'its start'}")
    if missing := missing_engines():
        lines.append(f"missing     {', '.join(missing)}: {INSTALL_ENGINES}")
    return "\n".join([dump_config(config), *(f"# {line}" for line in lines)])


def find_checkpoint(folder: Path, config: LabConfig, wanted: int | None) -> Checkpoint | None:
    """Return the checkpoint that a lab run goes on from with these settings; None: from the beginning. wanted: its
    iteration, 0 for the beginning; None: the newest checkpoint. Raises ConfigError where files of it or the initial
    model do not match their checksums, or it was made with other settings, prompts or another package."""
    checkpoints = RunFolder(folder).checkpoints
    there = checkpoint.numbered(checkpoints)
    going_back.refuse_unknown(wanted, checkpoints, there)
    number = max(there, default=0) if wanted is None else wanted
    if number == 0:
        if wanted is None:
            going_back.refuse_lost(folder, config, checkpoints)
        return None
    try:
        saved = checkpoint.verified(there[number])
    except checkpoint.DamagedCheckpoint as damage:
        others = (n for n in going_back.instead_of(number, there) if n != number)
        whole = next((n for n in others if not checksum_faults(there[n])), 0)
        raise going_back.damaged(folder, config, str(damage), number, whole) from None
    state, initial = saved.state, folder / "initial"
    going_back.refuse_other_settings(saved.path, state.settings, state.version, config, wanted, state.iteration)
    if state.prompts and state.prompts != checkpoint.made_with(config, state.iteration)["prompts"]:
        raise ConfigError(
            f"{saved.path}: the task now makes other prompts than when this was saved: put NumPy's version "
            "back, or start another run with --name X"
        )
    if faults := checksum_faults(initial):
        raise ConfigError(
            f"{initial} is damaged: {in_words(faults)}; it is the reference model that this run started with: put the "
            "old one back, or start another run (--name X)"
        )
    return saved


ENGINES = {"megatron-core": "megatron"} | {name: name for name in ("sglang", "transformers", "safetensors", "httpx")}
"""Each package with a module of it."""
INSTALL_ENGINES = "run scripts/setup.sh of a checkout, or pip as docs/start.md says"


def missing_engines() -> list[str]:
    """Return the packages that are not installed. The import of one that is may fail all the same."""
    return [package for package, module in ENGINES.items() if importlib.util.find_spec(module) is None]


def refuse_without_engines() -> None:
    """Raise ConfigError where packages are missing."""
    if missing := missing_engines():
        raise ConfigError(f"the lab runtime needs {', '.join(missing)}: {INSTALL_ENGINES}")


def lab_findings(config: LabConfig, file: Path) -> Iterator[Finding]:
    """Yield every check of a run: its settings, then the engines."""
    errors = config_errors(config)
    yield from settings_findings(errors, config_warnings(config))
    if not errors:
        yield ok("settings", str(file))
    missing = missing_engines()
    yield from (fail(package, f"not installed: {INSTALL_ENGINES}") for package in missing)
    there = (package for package in ENGINES if package not in missing)
    yield from (ok(package, installed_version(package) or "version unknown") for package in there)


def launch_lab_run(plan: LabPlan, *, overwrite: bool, console: Console) -> Ending:
    """Run the plan to its end, whatever that is. Raises RunFolderError or ConfigError when it cannot start."""
    refuse_without_engines()
    with sigterm_as_ctrl_c():
        folder, saved, aside = _claim(plan, overwrite)
        try:
            try:
                error = _run(plan, folder, saved, aside, console)
                status = "finished" if error is None else "failed"
            except KeyboardInterrupt:
                status, error = "interrupted", None
            return _end(folder, status, error, console)
        finally:
            folder.lock.release()


def _claim(plan: LabPlan, overwrite: bool) -> tuple[RunFolder, Checkpoint | None, list[Path]]:
    """Lock the run's folder and write its settings. Returns the folder, the checkpoint to go on from, and the newer
    checkpoints: they are set aside, so that a resume after a start that fails goes on from the same one. A damaged
    checkpoint changes nothing in the folder. Raises RunFolderError or ConfigError."""
    text = dump_config(plan.config)
    if not plan.resume:
        folder = RunFolder.create(plan.folder, text, overwrite)
        with writable(folder.path):
            folder.started()
        return folder, None, []
    folder = RunFolder.open(plan.folder)
    with folder.claimed():
        saved = find_checkpoint(plan.folder, plan.config, plan.resume_from)
        with writable(folder.path):
            done = saved.state.iteration if saved else 0
            aside = set_aside(checkpoint.numbered(folder.checkpoints), after=done)
            folder.started()  # first: a finished run would be finished with new settings that were written before
            write_atomically(folder.config, text)
    return folder, saved, aside


def _run(
    plan: LabPlan, folder: RunFolder, saved: Checkpoint | None, aside: Sequence[Path], console: Console
) -> str | None:
    """Run the loop, with view and log, to its end. Returns its error if it failed."""
    config, heading = plan.config, any_run.title(folder.path.name, plan.config)
    log = RunLog(folder, heading, any_run.optimizer_steps(config), console, saved.state.updates if saved else 0)
    with log:
        try:
            for path in aside:
                log.message(f"a checkpoint that is not gone on from is now {path}", "warning")
            log.message(f"{heading}, in {folder.path}")
            runtime.run(config, folder.path.resolve(), log, resume=saved)
            return None
        except Exception as error:
            with contextlib.suppress(OSError):  # a full disk may be why it failed; its own error is the one to tell
                log.message(traceback.format_exc(), "debug")
            return any_run.message_of(error)


def _end(folder: RunFolder, status: str, error: str | None, console: Console) -> Ending:
    """Note the ending and write the report; neither may hide how the run itself ended."""
    lines, shown = [], short(folder.path)
    if status == "failed":
        lines.append(f"more in {folder.log} and {folder.logs}")
    if accuracy := _accuracy(folder):
        lines.append(accuracy)
    try:
        try:
            folder.ended(status, error and error.splitlines()[0])
        except OSError as not_noted:
            lines.append(f"its end is not noted: {any_run.message_of(not_noted)}")
        console.print("writing the report ...", highlight=False)
        lines.append(any_run.report_line(folder.path))
        if status == "finished":
            lines.append(f"beside another run: sat-slime report {shown} RUN --out comparison")
    except KeyboardInterrupt:
        lines.append(f"no report: interrupted; write it with: sat-slime report {shown}")
        if status != "failed":  # the error of a failed run is worth more
            with contextlib.suppress(OSError):
                folder.ended("interrupted")
        status = "interrupted"
    if status != "finished":
        lines.append(f"go on with: sat-slime launch {shown} --resume")
    return Ending(status, error, "\n".join(lines))


def _accuracy(folder: RunFolder) -> str:
    """Return the answer of a run in a line: its accuracy before training and at the newest evaluation."""
    evals = [row for row in read_rows(folder.eval) if number(row, "accuracy") == number(row, "accuracy")]
    if len(evals) < 2:
        return ""
    first, last = (number(evals[place], "accuracy") for place in (0, -1))
    return f"accuracy: {first:.3f} before training, {last:.3f} at step {evals[-1].get('step', '?')}"


LOOK_S = 0.2
"""Seconds between looks at a run that goes on."""
AT_ONCE_S = 2.5
"""Seconds between two signals that count as two."""


def log_of(folder: RunFolder) -> Iterator[str]:
    """Yield what is in the log of a run, and what comes until the run ends."""
    log, goes_on = Tail(folder.log), True
    while goes_on:
        goes_on = folder.lock.is_held()
        yield from log.lines()
        if goes_on:
            time.sleep(LOOK_S)


def lab_status(folder: RunFolder, config: LabConfig) -> list[str]:
    """Return what the folder of a lab run tells, a line each."""
    noted, saved = folder.state(), checkpoint.newest(folder.checkpoints)
    status, newest = noted.get("status"), last_row(folder.metrics)
    state = f"running (process {noted.get('pid')})" if status == "running" else status or "not started"
    lines = any_run.status_lines(config, state, noted, newest, saved.name if saved else None)
    if noted.get("error"):
        lines.append(f"error       {noted['error']}")
    if status not in ("running", "finished"):
        lines.append(f"go on with  sat-slime launch {short(folder.path)} --resume")
    return lines


def stop_run(path: Path, at_once: bool, console: Console) -> Ending:
    """End what works on a folder of a run or a grid, as Ctrl-C in its own terminal does, at once as a second one does,
    and wait for it. Raises RunFolderError where the process that has the folder's lock is not one of this machine's, or
    not this user's: its number may be a stranger's here."""
    lock = RunFolder(path).lock  # a grid's is of the same name
    if not (holder := lock.holder()):
        return Ending("finished", None, f"{short(path)}: nothing runs here")
    sent = [signal.SIGTERM] * (2 if at_once else 1)
    if not holder.signal(sent, AT_ONCE_S if at_once else 0.0) and lock.is_held():
        raise RunFolderError(
            f"{short(path)} is in use by {holder}, which cannot be ended from here: stop it where it runs"
        )
    if not at_once:
        console.print("it ends after its iteration and a checkpoint; at once: --now", markup=False, highlight=False)
    while lock.is_held():
        time.sleep(LOOK_S)
    return Ending("finished", None, f"{short(path)}: stopped")
