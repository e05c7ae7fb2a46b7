"""A run goes on from a checkpoint: with which settings, and what can be done where the checkpoint is damaged.

To go back to an older one drops what was trained after it, so it is done only where it is asked for.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sat_slime.config import ConfigError, load_config
from sat_slime.config.loader import RunConfig
from sat_slime.config.section import changed_settings, differences
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.rows import read_rows

Config = TypeVar("Config", bound=RunConfig)


def settings_before(config: Config, path: Path) -> Config:
    """Return the settings that the run in `path` has, which is to go on with `config`.

    Raises:
        RunFolderError: there is no such run.
        ConfigError: it is one of another runtime, or settings differ that a run keeps.
    """
    if not path.exists():
        raise RunFolderError(f"there is no run {path} to resume: start it without --resume or --resume-from")
    saved = load_config(RunFolder.open(path).config)
    if not isinstance(saved, type(config)):
        raise ConfigError([f"{path}: a run of runtime {saved.runtime}, not of {config.runtime}: choose another --name"])
    if changed := changed_settings(saved, config):
        raise ConfigError([f"{path}: {changed}"])
    return saved


@dataclass(frozen=True)
class GoingBack:
    """The remedy for a run whose checkpoint is damaged."""

    folder: Path
    config: RunConfig
    """The settings that the command line asks for."""
    damage: str
    damaged: int
    """Iterations of the damaged checkpoint."""
    fallback: int
    """Iterations of the whole checkpoint to take instead; 0: there is none, and the run begins again."""
    asked: bool = False
    """True where the command line names the damaged one."""

    def explanation(self) -> str:
        """Return what is damaged, what is whole, and what going back to it costs."""
        return f"{self.damage}; the run can go on from {self._where()}, {self._cost()}"

    def _where(self) -> str:
        if not self.fallback:
            return "only its start"
        before = f" before iteration {self.damaged}" if self.asked and self.fallback < self.damaged else ""
        return f"iteration {self.fallback}, its newest whole checkpoint{before}"

    def _cost(self) -> str:
        steps = self.config.pipeline.optimizer_steps_per_rollout
        rows = read_rows(RunFolder(self.folder).metrics)
        trained = [-(-row["step"] // steps) for row in rows if isinstance(row.get("step"), int)]
        first, last = self.fallback + 1, max([self.damaged, *trained])
        if last < first:
            return "which costs nothing"
        again = f"iteration {last} is" if last == first else f"iterations {first} to {last} are"
        return f"which costs this: {again} trained again, and their rows, samples and dumps are dropped"

    def command(self) -> str:
        """Return the command that goes back, with the settings that the command line changed."""
        saved = load_config(RunFolder(self.folder).config)
        settings = [
            f"{key}={json.dumps(new)}"
            for key, _, new in differences(saved, self.config)
            if key not in ("name", "output_dir")  # they differ where the run was moved
        ]
        words = ["sat-slime", "launch", str(self.folder), "--resume-from", str(self.fallback)]
        return shlex.join([*words, *(word for setting in settings for word in ("--set", setting))])

    def refusal(self) -> ConfigError:
        return ConfigError([f"{self.explanation()}; to do so: {self.command()}"])


def instead_of(damaged: int, there: Iterable[int]) -> list[int]:
    """Return the checkpoints in the order in which they are offered in place of a damaged one: first it and those
    before it, then those after it, always the newest first."""
    return sorted(there, key=lambda number: (number > damaged, -number))


def no_such_checkpoint(wanted: int, checkpoints: Path, there: list[int]) -> ConfigError:
    known = ", ".join(map(str, there)) or "none"
    return ConfigError([f"--resume-from {wanted}: {checkpoints} has no checkpoint of that iteration, but: {known}"])
