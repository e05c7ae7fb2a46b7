"""What runs of both runtimes share: how their settings are read, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from sat_slime.cli.terminal import short
from sat_slime.config import LabConfig, SlimeConfig, method_label
from sat_slime.config.jsonl import number
from sat_slime.config.loader import RunConfig

Settings = TypeVar("Settings", LabConfig, SlimeConfig)


@dataclass(frozen=True)
class Plan(Generic[Settings]):
    """A run that can start."""

    config: Settings
    folder: Path
    """Of a run of slime absolute, since the job's processes have other working directories."""
    resume: bool = False
    resume_from: int | None = None
    """The iteration of the checkpoint to go on from, 0 for the beginning; None: the newest checkpoint."""


def optimizer_steps(config: RunConfig) -> int:
    """Return how many optimizer steps the whole run takes."""
    return config.pipeline.iterations * config.pipeline.optimizer_steps_per_rollout


def title(name: str, config: RunConfig) -> str:
    """Return the heading of a run's view."""
    return f"{name} · {method_label(config.method.model_dump())} · lag {config.pipeline.lag}"


def method_and_order(config: RunConfig) -> str:
    """Return the method and the order of the loop, in words."""
    order = f"lag {config.pipeline.lag}" if config.pipeline.lag else "synchronous"
    return f"{method_label(config.method.model_dump())}, {order}"


def how_long(config: RunConfig) -> str:
    """Return how long a run is, in words."""
    return f"{config.pipeline.iterations} iterations, {optimizer_steps(config)} optimizer steps"


def status_lines(
    config: RunConfig, state: str, noted: Mapping[str, Any], newest: Mapping[str, Any], checkpoint: str | None
) -> list[str]:
    """Return the first lines of a run's status.

    Args:
        state, checkpoint: the run's state and its newest checkpoint, in words.
        noted: state.json of the run.
        newest: metrics of its newest optimizer step; empty before the first.
    """
    ended = noted.get("ended") if noted.get("status") not in ("running", "killed") else None
    steps = optimizer_steps(config)
    progress = [f"step {newest.get('step')} of {steps}" if newest else f"no optimizer step of {steps} yet"]
    for label, key in (("reward", "reward/mean"), ("d_pi", "mismatch/d_pi")):
        if (value := number(newest, key)) == value:
            progress.append(f"{label} {value:.4g}")
    return [
        f"run         {config.name}: {method_label(config.method.model_dump())}, lag {config.pipeline.lag}",
        f"state       {state}",
        f"started     {noted.get('last_started', 'never')}" + (f", ended {ended}" if ended else ""),
        f"progress    {', '.join(progress)}",
        f"checkpoint  {checkpoint or 'none yet'}",
    ]


def report_line(folder: Path) -> str:
    """Write a run's report and return whether it collapsed, what looked unhealthy and where the page is, a line each;
    or why there is none, which may not hide how the run ended, nor end it otherwise."""
    try:
        from sat_slime.report.run import health, verdict, write_report  # which imports all that draws
        from sat_slime.runs.reading import load_run

        page, run = short(write_report(folder)), load_run(folder)
        collapsed = [sentence for sentence in verdict(run) if sentence.startswith("Collapsed")]
        return "\n".join([*collapsed, *health(run), f"report: {page}"])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of vl_convert's is no Exception
        reason = message_of(error).splitlines()[0]
        return f"no report: {reason}; when that is fixed: sat-slime report {short(folder)}"


def message_of(error: BaseException) -> str:
    """Return what an error says: its message where that speaks for itself, else with its type before it."""
    message = str(error).strip()
    if message and isinstance(error, (RuntimeError, OSError, ValueError)):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
