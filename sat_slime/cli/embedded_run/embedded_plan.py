"""The plan of a run of the embedded runtime: its settings, checked, its folder, and what it goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sat_slime.cli.embedded_run import engine_packages
from sat_slime.cli.embedded_run.checkpoint_choice import find_checkpoint
from sat_slime.config import (
    ConfigError,
    EmbeddedConfig,
    config_errors,
    config_warnings,
    dump_config,
    load_config,
    method_label,
)
from sat_slime.config.embedded_checks import responses_per_iteration
from sat_slime.config.section import changed_settings
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.log import tracker_error


@dataclass(frozen=True)
class EmbeddedPlan:
    """A run that can start."""

    config: EmbeddedConfig
    folder: Path
    resume: bool
    warnings: tuple[str, ...]
    resume_from: int | None = None
    """The iteration of the checkpoint to go on from, 0 for the beginning; None: the newest checkpoint."""


def plan_embedded_run(
    config: EmbeddedConfig, file: Path, folder: Path | None, resume: bool, resume_from: int | None = None
) -> EmbeddedPlan:
    """The run that the command line asks for, its settings checked. Raises ConfigError or RunFolderError.

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
    return EmbeddedPlan(config, folder, resume, tuple(config_warnings(config)), resume_from)


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


def describe(plan: EmbeddedPlan) -> str:
    """The resolved settings and what would be started."""
    config, train, rollout = plan.config, plan.config.train, plan.config.rollout
    responses = responses_per_iteration(config)
    steps = config.pipeline.iterations * config.pipeline.optimizer_steps_per_rollout
    longest = config.task.prompt_tokens + rollout.max_response_tokens
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
        saved = find_checkpoint(plan.folder, config, plan.resume_from, may_ask=False)
        lines.append(f"goes on     from {saved.path.name if saved else 'its beginning'}")
    if missing := engine_packages.missing_engines():
        lines.append(f"missing     {', '.join(missing)}: {engine_packages.INSTALL_ENGINES}")
    return "\n".join([dump_config(config), *(f"# {line}" for line in lines)])
