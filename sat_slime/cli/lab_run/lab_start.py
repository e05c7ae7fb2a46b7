"""A run of the lab runtime from its plan to its end: the run folder, the loop, the report, and what to say."""

from __future__ import annotations

import contextlib
import traceback
from datetime import datetime
from pathlib import Path

from rich.console import Console

import sat_slime.lab as runtime
from sat_slime.cli.lab_run import engine_packages
from sat_slime.cli.lab_run.lab_plan import LabPlan, find_checkpoint
from sat_slime.cli.run_words import message_of, no_report, optimizer_steps, report_line, title
from sat_slime.cli.terminal import Ending, say, sigterm_as_ctrl_c
from sat_slime.config import ConfigError, dump_config
from sat_slime.config.jsonl import number, read_rows, write_atomically
from sat_slime.lab.checkpoint import Checkpoint, set_aside
from sat_slime.runs.collapse import CollapseWatch
from sat_slime.runs.folder import RunFolder, writable
from sat_slime.runs.health import HealthWatch
from sat_slime.runs.live_view import RunView
from sat_slime.runs.log import RunLog


def launch_lab_run(plan: LabPlan, *, overwrite: bool, live: bool | None, console: Console) -> Ending:
    """Run the plan to its end, whatever that is. Raises RunFolderError or ConfigError when it cannot start."""
    if missing := engine_packages.missing_engines():
        raise ConfigError([f"the lab runtime needs {', '.join(missing)}: {engine_packages.INSTALL_ENGINES}"])
    with sigterm_as_ctrl_c():
        folder, saved, aside = _claim(plan, overwrite)
        try:
            for path in aside:
                line = f"a checkpoint that is not gone on from is now {path}"
                say(console, line)
                _note(folder, line)
            try:
                status, error = _run(plan, folder, saved, live, console)
            except KeyboardInterrupt:
                status, error = "interrupted", None
            return _end(folder, status, error, console)
        finally:
            folder.unlock()


def _note(folder: RunFolder, text: str) -> None:
    """Add a warning to log.txt before the run's log is open."""
    stamp = datetime.now().isoformat(sep=" ", timespec="seconds")
    with contextlib.suppress(OSError), folder.log.open("a", encoding="utf-8") as log:
        log.write(f"{stamp} WARNING {text}\n")


def _claim(plan: LabPlan, overwrite: bool) -> tuple[RunFolder, Checkpoint | None, list[Path]]:
    """Lock the run's folder and write its settings. Returns the folder, the checkpoint to go on from, and the newer
    checkpoints: they are set aside, so that a resume after a start that fails goes on from the same one. A damaged
    checkpoint changes nothing in the folder. Raises RunFolderError or ConfigError."""
    text, saved, aside = dump_config(plan.config), None, []
    if not plan.resume:
        folder = RunFolder.create(plan.folder, text, overwrite)
    else:
        folder = RunFolder.open(plan.folder)
        with writable(folder.path):
            folder.lock()
        try:
            saved = find_checkpoint(plan.folder, plan.config, plan.resume_from)
            with writable(folder.path):
                aside = set_aside(folder.checkpoints, after=saved.state.iteration if saved else 0)
                write_atomically(folder.config, text)
        except BaseException:
            folder.unlock()
            raise
    with writable(folder.path):
        folder.started()
    return folder, saved, aside


def _run(
    plan: LabPlan, folder: RunFolder, saved: Checkpoint | None, live: bool | None, console: Console
) -> tuple[str, str | None]:
    """Run the loop, with view and log, to its end. Returns the run's status, and its error if it failed."""
    config = plan.config
    pipeline = config.pipeline
    heading = title(folder.path.name, config)
    log: RunLog | None = None
    failed = False
    try:
        done = saved.state.updates if saved else 0
        with RunView(heading, optimizer_steps(config), console, live, first_step=done) as view:
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
                health=HealthWatch.of(config.model_dump(mode="json")) if config.logging.health else None,
            )
            log.message(f"{heading}, in {folder.path}")
            runtime.run(config, folder.path.resolve(), log, resume=saved)
        return "finished", None
    except KeyboardInterrupt:
        return "interrupted", None
    except Exception as error:
        failed = True
        with contextlib.suppress(OSError):  # a full disk may be why the run failed; its own error is the one to tell
            if log is not None:
                log.message(traceback.format_exc(), "debug")
        return "failed", message_of(error)
    finally:
        if log is not None:
            log.close(failed)


def _end(folder: RunFolder, status: str, error: str | None, console: Console) -> Ending:
    """Note the ending and write the report; neither may hide how the run itself ended."""
    lines = []
    if status == "failed":
        lines.append(f"more in {folder.log} and {folder.logs}")
    if accuracy := _accuracy(folder):
        lines.append(accuracy)
    try:
        folder.ended(status, error and error.splitlines()[0])
        console.print("writing the report ...", highlight=False)
        lines.append(report_line(folder.path))
        if status == "finished":
            lines.append(f"beside another run: sat-slime report {folder.path} RUN --out comparison")
    except KeyboardInterrupt:
        lines.append(f"no report: interrupted; write it with: sat-slime report {folder.path}")
        if status != "failed":  # the error of a failed run is worth more
            with contextlib.suppress(OSError):
                folder.ended("interrupted")
        status = "interrupted"
    except Exception as not_noted:
        lines.append(no_report(not_noted, folder.path))
    if status != "finished":
        lines.append(f"go on with: sat-slime launch {folder.path} --resume")
    return Ending(status, error, "\n".join(lines))


def _accuracy(folder: RunFolder) -> str:
    """Return the answer of a run in a line: its accuracy before training and at the newest evaluation."""
    evals = [row for row in read_rows(folder.eval) if number(row, "accuracy") == number(row, "accuracy")]
    if len(evals) < 2:
        return ""
    first, last = (number(evals[place], "accuracy") for place in (0, -1))
    return f"accuracy: {first:.3f} before training, {last:.3f} at step {evals[-1].get('step', '?')}"
