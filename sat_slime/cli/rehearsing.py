"""A run of slime, its own file, is run whole on this machine's CPU cores, resumed, and checked by what it recorded."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from sat_slime.cli.any_run import method_and_order
from sat_slime.cli.slime_run import Where, launch_job, plan_slime_run, stop_job
from sat_slime.cli.terminal import COLOURS, Ending, refuse_failures, say, short, sigterm_as_ctrl_c, undisturbed
from sat_slime.config import ConfigError, SlimeConfig, load_config
from sat_slime.launch.checks import settings_errors
from sat_slime.launch.command import run_folder
from sat_slime.launch.duration import duration_lines
from sat_slime.launch.flags import ask_slime
from sat_slime.launch.job_files import JobRecord
from sat_slime.launch.machine import machine_findings, source_findings
from sat_slime.rehearsal.material import make_material
from sat_slime.rehearsal.rehearsal_checks import FAIL, LEFT, Check, all_checks, read_records
from sat_slime.rehearsal.thin import checkpoint_at, thin_settings
from sat_slime.rollout.scratch import new_scratch
from sat_slime.runs.folder import RunFolder, RunFolderError


def rehearse_run(
    file: Path, settings: Mapping[str, Any], overrides: Sequence[str], overwrite: bool, dry_run: bool, console: Console
) -> Ending:
    """Rehearse a run. settings: of load_config. dry_run: end where slime would be started. Raises ConfigError,
    RunFolderError or JobError before anything starts."""
    begun, config = time.monotonic(), load_config(file, overrides, settings)
    if not isinstance(config, SlimeConfig):
        raise ConfigError(f"{file} is a lab run, which runs on a CPU: sat-slime launch {short(file)}")
    kept = Path("rehearsals") / config.name
    if kept.absolute() == run_folder(config).absolute():
        raise ConfigError(
            f"output_dir is {config.output_dir}, where the rehearsal would stand in the run's own place: "
            "--set output_dir=runs"
        )
    if not dry_run and kept.is_symlink():
        raise RunFolderError(f"{kept} is a link, and what it leads to is not deleted: --set name=NAME makes another")
    try:
        if not dry_run:
            RunFolder(kept).check_new(overwrite)
    except RunFolderError as error:
        ours = RunFolder(kept).is_run()
        why = "there already: --overwrite deletes an earlier rehearsal," if ours else "no run's, and is not deleted:"
        raise RunFolderError(f"{kept} is {why} --set name=NAME makes another") from error
    with sigterm_as_ctrl_c():
        scratch = new_scratch()
        try:
            rehearsal = Rehearsal(file, config, scratch.path / "rehearsal", console)
            if rehearsal.marks[FAIL]:
                say(console, "not started: fix what failed first")
            elif not dry_run:
                rehearsal.run(overwrite)
        except KeyboardInterrupt:
            return Ending("interrupted", "interrupted: everything that was started has ended", "")
        finally:
            with undisturbed():
                scratch.remove()
    lines: list[str] = []
    if not dry_run:
        held = f"{rehearsal.marks['OK']} checks held, {rehearsal.marks[FAIL]} did not"
        lines = [f"{held}; {(time.monotonic() - begun) / 60:.1f} minutes", *duration_lines(config), LEFT]
        lines.append(f"kept in {kept}: settings, rows and log")
    return Ending("failed" if rehearsal.marks[FAIL] else "finished", None, "\n".join(lines))


class Rehearsal:
    """A rehearsal, from the settings of the run to what was found."""

    def __init__(self, file: Path, config: SlimeConfig, folder: Path, console: Console):
        """Derive what is rehearsed, make in `folder` what it starts from, ask slime's parser. Raises ConfigError."""
        self.file, self.folder, self.console = file, folder, console
        self.marks: Counter[str] = Counter()
        say(console, f"rehearsal of {file}: {method_and_order(config)}")
        if errors := settings_errors(config):
            raise ConfigError(*(f"{file}: {error}" for error in errors))
        thin = thin_settings(config, folder)
        self.thin, self.run_folder = thin.config, run_folder(thin.config)
        saves = config.checkpoint.every_n_iterations and not config.checkpoint.without_optimizer
        self.first = checkpoint_at(self.thin) if saves else self.thin.pipeline.iterations
        """Iterations of the first job; the run is resumed after them."""
        if errors := settings_errors(self.thin):
            raise ConfigError(*(f"the rehearsal of {file} cannot be: {error}" for error in errors))
        refuse_failures(source_findings(self.thin, {"cluster.slime_dir": "slime", "cluster.megatron_dir": "megatron"}))
        make_material(config, self.thin, folder)
        slime = ask_slime(config, run_folder(config))
        if slime.refusals:
            raise ConfigError(*(f"{file}: {line}" for line in slime.refusals))
        for finding in slime.findings():
            mark = finding.mark if finding.mark != "WARN" else FAIL
            self._found(Check("the run's own flags", "taken by slime's parser", finding.detail, mark))
        for change in thin.changes:
            say(console, f"      {change.key}: {_short(change.was)} -> {_short(change.now)} ({change.why})")
        for finding in machine_findings(self.thin, self.run_folder):
            if finding.mark != "OK":
                self._found(Check(finding.what, "nothing to fix", finding.detail, finding.mark))

    def run(self, overwrite: bool) -> None:
        """Run slime, resume it, and check what was recorded; its checkpoints go."""
        whole = self.thin.pipeline.iterations
        if self._launch(self.first, overwrite=overwrite) and self.first < whole:
            self._launch(whole, resume=True)
        shutil.rmtree(RunFolder(self.run_folder).checkpoints, ignore_errors=True)
        for check in all_checks(self.thin, read_records(self.folder, self.run_folder), self.first):
            self._found(check)

    def _launch(self, iterations: int, overwrite: bool = False, resume: bool = False) -> bool:
        """Run slime up to an iteration, and note how it ended; returns whether it finished."""
        pipeline = self.thin.pipeline.model_copy(update={"iterations": iterations})
        thin = self.thin.model_copy(update={"pipeline": pipeline})
        plan = plan_slime_run(thin, self.file, self.run_folder, resume=resume)
        try:
            ending = launch_job(plan, Where(skip_checks=True), overwrite=overwrite, console=self.console)
            if ending.status == "interrupted":
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            if self.run_folder.is_dir() and JobRecord.read(self.run_folder):
                with undisturbed():
                    stop_job(self.run_folder, Console(quiet=True))
            raise
        what = f"slime, whole, iterations {self.first + 1 if resume else 1} to {iterations}"
        finished, error = ending.status == "finished", (ending.error or "").strip()
        self._found(Check(what, "finished", ending.status, "OK" if finished else FAIL, error))
        return finished

    def _found(self, check: Check) -> None:
        self.marks[check.mark] += 1
        self.console.print(f"[{COLOURS[check.mark]}]{check.mark:4}[/]  ", end="")
        say(self.console, f"{check.what}: {check.found or check.expected}")
        if check.mark == FAIL and check.expected:
            say(self.console, f"      expected: {check.expected}")
        if check.remark:
            say(self.console, f"      {check.remark}")


def _short(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
