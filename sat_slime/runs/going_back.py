"""A run goes on from a checkpoint: with which settings, and what can be done where the checkpoint is damaged. To go
back to an older one drops what was trained after it, so it is done only where it is asked for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import sat_slime
from sat_slime.config import ConfigError, load_config
from sat_slime.config.jsonl import number, read_rows
from sat_slime.config.loader import RunConfig
from sat_slime.config.section import changed_since, differences, kept_settings
from sat_slime.runs.folder import RunFolder, RunFolderError

Config = TypeVar("Config", bound=RunConfig)


def settings_before(config: Config, path: Path) -> Config:
    """Return the settings that the run in `path` has, which is to go on with `config`. Raises RunFolderError where
    there is none, ConfigError where it is one of another runtime, or settings differ that a run keeps."""
    if not path.exists():
        raise RunFolderError(f"there is no run {path} to resume: start it without --resume or --resume-from")
    saved = load_config(RunFolder.open(path).config)
    if not isinstance(saved, type(config)):
        raise ConfigError(f"{path}: a run of runtime {saved.runtime}, not of {config.runtime}: choose another --name")
    if changed := changed_since(kept_settings(saved), config):
        raise ConfigError(
            f"{path}: a resumed run keeps its settings, but these differ: {changed}; leave them as they were, or "
            "start another run with --name X"
        )
    return saved


def refuse_other_settings(
    where: Path | str, noted: Mapping[str, Any], version: str, config: RunConfig, resume_from: int | None, newest: int
) -> None:
    """Raise ConfigError where a run would go on with other settings than were noted, or with another version of this
    package, which a checkpoint that is named with --resume-from may.

    Args:
        where: what was made with them, for the message.
        noted: the settings as config.section.kept_settings gives them; empty where nothing was noted.
        newest: iterations in the checkpoint to go on from.
    """
    if changed := changed_since(noted, config):
        raise ConfigError(
            f"{where} was made with other settings than config.yaml has now: {changed}; put them back there, or "
            "start another run with --name X"
        )
    if version and version != sat_slime.__version__ and resume_from is None:
        raise ConfigError(
            f"{where} was made by sat_slime {version}, and this is {sat_slime.__version__}: go on with that one, "
            f"or, if the run may change with it, with --resume-from {newest}"
        )


def refuse_lost(folder: Path, config: RunConfig, checkpoints: Path) -> None:
    """Raise ConfigError where a run without a checkpoint must have had one that was not set aside."""
    rows = read_rows(RunFolder(folder).metrics)
    steps = config.pipeline.optimizer_steps_per_rollout
    trained = max((int(number(row, "step", 0)) for row in rows), default=0) // steps
    every = load_config(RunFolder(folder).config).checkpoint.every_n_iterations  # a row comes before its checkpoint
    was_left = checkpoints.is_dir() and (trained <= every or not every or any(checkpoints.glob("*.aside")))
    if trained and not was_left:
        what = f"{checkpoints} holds no checkpoint, and {trained} iterations were trained: is its disk mounted?"
        raise damaged(folder, config, what, trained, 0)


def damaged(folder: Path, config: RunConfig, what: str, iteration: int, whole: int) -> ConfigError:
    """Return the error of a run whose checkpoint is damaged: what going back to a whole one costs, and how it is done.

    Args:
        config: the settings that the command line asks for.
        what: the damage, in a line.
        iteration: that of the damaged checkpoint.
        whole: that of the whole checkpoint to take instead; 0: there is none, and the run begins again.
    """
    steps = config.pipeline.optimizer_steps_per_rollout
    rows = read_rows(RunFolder(folder).metrics)
    last = max([iteration, *(-(-row["step"] // steps) for row in rows if isinstance(row.get("step"), int))])
    before = " before it" if whole < iteration else ""
    where = f"iteration {whole}, the newest whole checkpoint{before}" if whole else "only its start"
    again = f"iterations {whole + 1} to {last} are trained again, and their rows, samples and dumps are dropped"
    changed = differences(load_config(RunFolder(folder).config), config)
    # Name and place differ where the run was moved.
    settings = [f"{key}={json.dumps(new)}" for key, _, new in changed if key not in ("name", "output_dir")]
    command = ["sat-slime", "launch", str(folder), "--resume-from", str(whole)]
    command += [word for setting in settings for word in ("--set", setting)]
    cost = f"which costs this: {again}" if last > whole else "which costs nothing"
    return ConfigError(f"{what}; the run can go on from {where}, {cost}; to do so: {shlex.join(command)}")


def instead_of(damaged: int, there: Iterable[int]) -> list[int]:
    """Return the checkpoints in the order in which they are offered in place of a damaged one: first it and those
    before it, then those after it, always the newest first."""
    return sorted(there, key=lambda number: (number > damaged, -number))


def refuse_unknown(wanted: int | None, checkpoints: Path, there: Collection[int]) -> None:
    """Raise ConfigError where the checkpoint to go on from is none of those that are there."""
    if wanted and wanted not in there:
        known = ", ".join(map(str, there)) or "none"
        raise ConfigError(f"--resume-from {wanted}: {checkpoints} has no checkpoint of that iteration, but: {known}")
