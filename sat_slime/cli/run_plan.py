"""The command line becomes a run that can start: the file is read, the options are laid on, and the plan is
that of its runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sat_slime.config import ConfigError, LabConfig, config_errors, load_config, slime_config_errors
from sat_slime.config.loader import RunConfig, further_errors
from sat_slime.config.method_section import method_switches
from sat_slime.grid.state import GridFolder
from sat_slime.runs.folder import RunFolder, RunFolderError

if TYPE_CHECKING:
    from sat_slime.cli.lab_run.lab_plan import LabPlan
    from sat_slime.cli.slime_run.slime_plan import SlimePlan


def plan_run(
    file: Path,
    settings: Mapping[str, Any],
    overrides: Sequence[str],
    *,
    resume: bool,
    resume_from: int | None = None,
    look_for_slime: bool = False,
) -> LabPlan | SlimePlan:
    """Return the run that the command line asks for, checked. Raises ConfigError or RunFolderError.

    Args:
        file: a YAML file, or the folder of a run.
        settings: dotted key to value, of the options that stand for a setting.
        overrides: the texts of `--set`.
        resume_from: the iteration of the checkpoint to go on from, instead of the newest.
        look_for_slime: of a run of slime, hold its flags against the slime on this machine.
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
    if error := contradiction(settings):
        raise ConfigError([error])
    config = load_run(file, overrides, settings)
    if "name" in settings:
        folder = None
    if isinstance(config, LabConfig):
        from sat_slime.cli.lab_run.lab_plan import plan_lab_run

        return plan_lab_run(config, file, folder, resume, resume_from)
    from sat_slime.cli.slime_run.slime_plan import plan_slime_run

    return plan_slime_run(config, file, folder, resume, look_for_slime, resume_from)


def contradiction(settings: Mapping[str, Any]) -> str | None:
    """Return which option takes back what --method says, in words, or None."""
    name = settings.get("method")
    try:
        named = method_switches(name) if name is not None else {}
    except ValueError:
        return None  # told with all that is wrong with the settings
    for key in ("sat", "tis", "r3"):
        if named and named[key] and settings.get(f"method.{key}") is False:
            return f"--method {name} and --no-{key} contradict each other: leave one of them out"
    return None


def load_run(file: Path, overrides: Sequence[str], settings: Mapping[str, Any] | None = None) -> RunConfig:
    """Return a run's settings, as load_config reads them. A ConfigError also tells what the sections do not agree
    on."""
    try:
        return load_config(file, overrides, settings)
    except ConfigError as error:
        more = [f"{file}: {line}" for line in further_errors(error, _faults_of_settings)]
        raise ConfigError([*error.errors, *more]) from None


def _faults_of_settings(config: RunConfig) -> list[str]:
    """Return what settings_errors finds without looking at files and modules."""
    if isinstance(config, LabConfig):
        return config_errors(config)
    from sat_slime.launch.command import flag_errors

    return [*slime_config_errors(config), *flag_errors(config)]


def settings_errors(config: RunConfig) -> list[str]:
    """Return faults of a run's settings, each in one line."""
    if isinstance(config, LabConfig):
        return config_errors(config)
    from sat_slime.launch import checks

    return checks.settings_errors(config)
