"""A run of slime, its own file, is run whole on this machine's CPU cores, resumed, and checked by what it recorded."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from sat_slime.cli.any_run import method_and_order
from sat_slime.cli.slime_job import Where, launch_job, stop_job
from sat_slime.cli.slime_run import plan_slime_run
from sat_slime.cli.terminal import FAILED, INTERRUPTED, OK, complain, sigterm_as_ctrl_c, undisturbed
from sat_slime.config import ConfigError, SlimeConfig, dump_config, load_config
from sat_slime.config.disk import is_replaceable
from sat_slime.launch.checks import settings_errors
from sat_slime.launch.command import run_folder
from sat_slime.launch.duration import duration_lines
from sat_slime.launch.job_files import JobRecord
from sat_slime.launch.machine import machine_findings
from sat_slime.launch.slimes_parser import ask_slime
from sat_slime.rehearsal.material import make_material
from sat_slime.rehearsal.rehearsal_checks import FAIL, LEFT, NOTE, Check, all_checks, read_records
from sat_slime.rehearsal.thin import Change, Sizes, checkpoint_at, thin_settings
from sat_slime.rollout.scratch import new_scratch
from sat_slime.runs.folder import RunFolderError, writable

COLOURS = {"OK": "green", "NOTE": "cyan", "WARN": "yellow", "FAIL": "bold red"}


def rehearse_run(
    file: Path,
    settings: Mapping[str, Any],
    overrides: Sequence[str],
    sizes: Sizes,
    out: Path | None,
    *,
    resume: bool,
    overwrite: bool,
    dry_run: bool,
) -> int:
    """Rehearse a run, and return the exit code. Raises ConfigError, RunFolderError or JobError before anything starts.

    settings: dotted key to value, of the options that stand for a setting. out: gets what was found; None:
    rehearsals/NAME. resume: also go on from a checkpoint. dry_run: end where slime would be started.
    """
    console = Console(soft_wrap=True, highlight=False)
    config = load_config(file, overrides, settings)
    if not isinstance(config, SlimeConfig):
        raise ConfigError([f"{file} is a lab run, which runs on a CPU: sat-slime launch {file}"])
    folder = (out or Path("rehearsals") / config.name).absolute()
    if folder.exists() and not overwrite and not dry_run:
        raise RunFolderError(f"{folder} is there already: --overwrite deletes it, --out names another")
    if not is_replaceable(folder, ["rehearsal.json"]) and not dry_run:
        raise RunFolderError(f"{folder} is not a rehearsal's, and is not deleted: --out names another")
    rehearsal = Rehearsal(file, config, sizes, resume, console)
    with sigterm_as_ctrl_c(), contextlib.ExitStack() as cleaning:
        scratch = new_scratch()
        cleaning.callback(undisturbed()(scratch.remove))
        try:
            rehearsal.prepare(scratch.path / "rehearsal")
            if not dry_run:
                rehearsal.run()
        except KeyboardInterrupt:
            complain(["interrupted: everything that was started has ended"])
            return INTERRUPTED
        if dry_run:
            return FAILED if rehearsal.failed else OK
        with writable(folder):
            rehearsal.keep(folder)
    rehearsal.tell_result(folder)
    return FAILED if rehearsal.failed else OK


@dataclass
class Rehearsal:
    """A rehearsal, from the settings of the run to what was found."""

    file: Path
    config: SlimeConfig
    sizes: Sizes
    resume: bool
    console: Console
    thin: SlimeConfig = field(init=False)
    folder: Path = field(init=False)
    changes: list[Change] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    words: str = ""
    times: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return any(check.mark == FAIL for check in self.checks)

    @property
    def first(self) -> int:
        """Iterations of the first job; the run is resumed after them."""
        saves = self.config.checkpoint.every_n_iterations and self.config.checkpoint.optimizer
        return checkpoint_at(self.thin) if self.resume and saves else self.thin.pipeline.iterations

    @property
    def run_folder(self) -> Path:
        return run_folder(self.thin)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def prepare(self, folder: Path) -> None:
        """Ask slime's parser about the run as it is, derive what is rehearsed and make what it starts from. Raises
        ConfigError."""
        self.folder = folder
        config = self.config
        self.say(f"rehearsal of {self.file}: {method_and_order(config)}")
        if errors := settings_errors(config):
            raise ConfigError([f"{self.file}: {error}" for error in errors])
        thin = thin_settings(config, folder, self.sizes)
        self.thin, self.changes = thin.config, thin.changes
        if errors := settings_errors(self.thin):
            raise ConfigError([f"the rehearsal of {self.file} cannot be: {error}" for error in errors])
        refuse_without_checkouts(config)
        with self._timed("parser"):
            answer = ask_slime(config, run_folder(config))
        if answer.refusals:
            raise ConfigError([f"{self.file}: {line}" for line in answer.refusals])
        for finding in answer.findings():
            mark = finding.mark if finding.mark != "WARN" else FAIL
            self._found(Check("the run's own flags", "taken by slime's parser", finding.detail, mark))
        for change in self.changes:
            self.say(f"      {change.key}: {_short(change.was)} -> {_short(change.now)} ({change.why})")
        with self._timed("material"):
            is_own, self.words = make_material(config, self.thin, folder)
        self._found(Check("words", "the run's tokenizer", self.words, "OK" if is_own else NOTE))
        for finding in machine_findings(self.thin, self.run_folder):
            if finding.mark != "OK":
                self._found(Check(finding.what, "nothing to fix", finding.detail, finding.mark))
        if self.failed:
            self.say("not started: fix what failed first")

    def run(self) -> None:
        """Run slime, resume it, and check what was recorded."""
        if self.failed:
            return
        with self._timed("first job"):
            ended = self._launch(self.first, resume=False)
        if ended and self.first < self.thin.pipeline.iterations:
            with self._timed("resumed job"):
                self._launch(self.thin.pipeline.iterations, resume=True)
        for check in all_checks(self.thin, read_records(self.folder, self.run_folder), self.first):
            self._found(check)

    def _launch(self, iterations: int, resume: bool) -> bool:
        """Run slime up to an iteration, and note how it ended; returns whether it finished."""
        pipeline = self.thin.pipeline.model_copy(update={"iterations": iterations})
        thin = self.thin.model_copy(update={"pipeline": pipeline})
        plan = plan_slime_run(thin, self.file, self.run_folder, resume=resume)
        what = f"slime, whole, iterations {self.first + 1 if resume else 1} to {iterations}"
        try:
            ending = launch_job(plan, Where(skip_checks=True), overwrite=False, console=self.console)
        except KeyboardInterrupt:
            self._stop()
            raise
        if ending.status == "interrupted":
            self._stop()
            raise KeyboardInterrupt
        error = (ending.error or "").strip()
        self._found(Check(what, "finished", ending.status, "OK" if ending.status == "finished" else FAIL, error))
        return ending.status == "finished"

    def _stop(self) -> None:
        if self.run_folder.is_dir() and JobRecord.read(self.run_folder):
            with undisturbed():
                stop_job(self.run_folder, Console(quiet=True))

    def _found(self, check: Check) -> None:
        self.checks.append(check)
        line = f"{check.what}: {check.found}" if check.found else f"{check.what}: {check.expected}"
        self.console.print(f"[{COLOURS[check.mark]}]{check.mark:4}[/]  ", end="")
        self.console.print(line, markup=False)
        if check.mark == FAIL and check.expected:
            self.say(f"      expected: {check.expected}")
        if check.remark:
            self.say(f"      {check.remark}")

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self.times[name] = round(time.monotonic() - begun, 1)

    # ------------------------------------------------------------------------------------------------ what is kept

    def as_json(self) -> dict[str, Any]:
        """Return the findings, for programs."""
        return {
            "file": str(self.file),
            "name": self.config.name,
            "method": method_and_order(self.config),
            "words": self.words,
            "held": not self.failed,
            "checks": [vars(check) for check in self.checks],
            "changes": [vars(change) for change in self.changes],
            "seconds": self.times,
            "time_of_the_run": duration_lines(self.config),
            "left": LEFT,
        }

    def keep(self, folder: Path) -> None:
        """Write the findings and the run's rows and log."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(dump_config(self.config), encoding="utf-8")
        (folder / "thin.yaml").write_text(dump_config(self.thin), encoding="utf-8")
        for name in ("log.txt", "metrics.jsonl", "eval.jsonl", "times.jsonl"):
            if (self.run_folder / name).is_file():
                shutil.copyfile(self.run_folder / name, folder / name)
        (folder / "rehearsal.json").write_text(json.dumps(self.as_json(), indent=1, default=str), encoding="utf-8")

    def tell_result(self, folder: Path) -> None:
        """Print the last lines."""
        count = sum(check.mark == FAIL for check in self.checks)
        held = sum(check.mark == "OK" for check in self.checks)
        self.say(f"{held} checks held, {count} did not; {sum(self.times.values()) / 60:.1f} minutes")
        for line in (*duration_lines(self.config), LEFT):
            self.say(line)
        self.say(f"kept in {folder}: rehearsal.json, thin.yaml, rows and log")


def refuse_without_checkouts(config: SlimeConfig) -> None:
    """Raise ConfigError, with the commands, where slime or Megatron-LM is not on this machine."""
    wanted = {"cluster.slime_dir": config.cluster.slime_dir, "cluster.megatron_dir": config.cluster.megatron_dir}
    parts = {"cluster.slime_dir": "slime", "cluster.megatron_dir": "megatron"}
    if missing := [f"{key} is {path}" for key, path in wanted.items() if not (Path(path) / parts[key]).is_dir()]:
        raise ConfigError(
            [
                f"a rehearsal needs slime's and Megatron-LM's checkouts, and {' and '.join(missing)}, which is not "
                "there: sat-slime prepare slime --out DIR, then --set cluster.slime_dir=DIR/slime --set "
                "cluster.megatron_dir=DIR/Megatron-LM"
            ]
        )


def _short(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
