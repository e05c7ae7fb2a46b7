"""The plan of a run of the lab runtime: its settings, checked, its folder, and what it goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sat_slime.cli.lab_run import engine_packages
from sat_slime.cli.run_words import length_line, method_line
from sat_slime.config import (
    ConfigError,
    LabConfig,
    config_errors,
    config_warnings,
    dump_config,
)
from sat_slime.config.lab_checks import responses_per_iteration
from sat_slime.lab import checkpoint
from sat_slime.lab.checkpoint import Checkpoint
from sat_slime.lab.initial_model import cached_model, initial_faults, is_model, lost_initial
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.going_back import (
    damaged,
    instead_of,
    lost_checkpoints,
    no_such_checkpoint,
    refuse_other_settings,
    settings_before,
)
from sat_slime.runs.log import tracker_error


@dataclass(frozen=True)
class LabPlan:
    """A run that can start."""

    config: LabConfig
    folder: Path
    resume: bool
    warnings: tuple[str, ...]
    resume_from: int | None = None
    """The iteration of the checkpoint to go on from, 0 for the beginning; None: the newest checkpoint."""


def plan_lab_run(
    config: LabConfig, file: Path, folder: Path | None, resume: bool, resume_from: int | None = None
) -> LabPlan:
    """Return the run that the command line asks for, its settings checked. Raises ConfigError or RunFolderError.

    folder: the folder of an existing run, wherever it was moved to; None: output_dir/name.
    resume_from: the iteration of the checkpoint to go on from, instead of the newest.
    """
    errors = config_errors(config)
    if message := tracker_error(config.logging.wandb_project):
        errors.append(message)
    if errors:
        raise ConfigError([f"{file}: {error}" for error in errors])
    if folder is None:
        folder = Path(config.output_dir).expanduser() / config.name
    if resume:
        _check_resume(config, folder)
    return LabPlan(config, folder, resume, tuple(config_warnings(config)), resume_from)


def _check_resume(config: LabConfig, path: Path) -> None:
    """Raise ConfigError or RunFolderError unless the run in `path` can go on with these settings."""
    before, after = settings_before(config, path).pipeline.iterations, config.pipeline.iterations
    finished = RunFolder(path).state().get("status") == "finished"
    if after < before or (finished and after == before):
        state = f"is finished after {before} iterations" if finished else f"was planned for {before} iterations"
        raise ConfigError([f"{path}: the run {state}; to go on, name more: --set pipeline.iterations={before * 2}"])


def describe(plan: LabPlan) -> str:
    """Return the resolved settings and what would be started."""
    config, train, rollout = plan.config, plan.config.train, plan.config.rollout
    responses = responses_per_iteration(config)
    longest = config.task.prompt_tokens + rollout.max_response_tokens
    lines = [
        method_line(config),
        f"trainer     {train.dtype}",
        f"engines     {rollout.engines} SGLang server(s), {rollout.dtype}",
        f"batch       {rollout.prompts_per_iteration} prompts x {rollout.samples_per_prompt} samples = {responses} "
        f"responses, at most {responses * longest:,} tokens an iteration",
        length_line(config),
        f"folder      {plan.folder}",
    ]
    if plan.resume:
        saved = find_checkpoint(plan.folder, config, plan.resume_from)
        lines.append(f"goes on     from {saved.path.name if saved else 'its start'}")
    if missing := engine_packages.missing_engines():
        lines.append(f"missing     {', '.join(missing)}: {engine_packages.INSTALL_ENGINES}")
    return "\n".join([dump_config(config), *(f"# {line}" for line in lines)])


def find_checkpoint(folder: Path, config: LabConfig, wanted: int | None) -> Checkpoint | None:
    """Return the checkpoint that a lab run goes on from, its files held against their checksums; None: from the
    beginning.

    Args:
        config: the settings that the run is to go on with.
        wanted: the iteration of the checkpoint to go on from, 0 for the beginning; None: the newest checkpoint.

    Raises:
        ConfigError: files are damaged; the message says what is whole, what going back to it costs, and the command.
    """

    checkpoints = RunFolder(folder).checkpoints
    there = checkpoint.numbered(checkpoints)
    if wanted and wanted not in there:
        raise no_such_checkpoint(wanted, checkpoints, list(there))
    number = max(there, default=0) if wanted is None else wanted
    if number == 0:
        if wanted is None and (lost := lost_checkpoints(folder, config, checkpoints)):
            raise damaged(folder, config, *lost, 0)
        return None
    try:
        saved = checkpoint.verified(there[number])
    except checkpoint.DamagedCheckpoint as damage:
        whole = checkpoint.first_whole(there[n] for n in instead_of(number, there) if n != number)
        raise damaged(folder, config, str(damage), number, whole.state.iteration if whole else 0) from None
    _check_made_with(config, saved, wanted)
    _check_initial(folder, config, saved)
    return saved


def _check_made_with(config: LabConfig, saved: Checkpoint, wanted: int | None) -> None:
    """Hold the settings, this package and the prompts against those that a checkpoint was made with. Raises
    ConfigError."""
    state = saved.state
    refuse_other_settings(saved.path, state.settings, state.version, config, wanted, state.iteration)
    if state.prompts and state.prompts != checkpoint.made_with(config, state.iteration)["prompts"]:
        raise ConfigError(
            [
                f"{saved.path}: the task {config.task.name} now makes other prompts than when this was saved: put its "
                "code and NumPy's version back, or start another run with --name X"
            ]
        )


def _check_initial(folder: Path, config: LabConfig, saved: Checkpoint) -> None:
    """Hold the initial model against the checksums in the checkpoint. Raises ConfigError where it is another one, or
    where it is missing and the cache, from which it would be copied again, holds another one. Where the cache has none
    either, a resume warms it up again and compares it then."""

    initial, cached = folder / "initial", cached_model(config)
    faults = initial_faults(saved, initial) if is_model(initial) else None
    if faults == {}:
        return
    if is_model(cached) and initial_faults(saved, cached):
        raise ConfigError([lost_initial(initial, cached)])
    if faults:
        again = f"copies it again from the cache ({cached})" if is_model(cached) else "warms it up again"
        damage = checkpoint.DamagedCheckpoint(initial, faults)
        raise ConfigError([f"{damage}; delete {initial}, and a resume {again}"])
