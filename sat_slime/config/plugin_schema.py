"""The plugin's own settings inside a slime run: what is optimized, in which order, and what is reported.

slime hands them over as the one key `sat_slime` of its `--custom-config-path` file.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from sat_slime.config.method_section import method_switches
from sat_slime.config.schema import MethodConfig, NonNegativeInt, PositiveInt, ScoresConfig, Section


class DriverConfig(Section):
    """The order that `sat_slime.plugin.driver` keeps. slime's own training scripts read none of it."""

    mode: Literal["batch", "streaming"] = "batch"
    """The same as pipeline.mode of a run."""
    lag: NonNegativeInt = 1
    """The same as pipeline.lag of a run: rollouts per push of the weights; 0: synchronous."""
    max_staleness: NonNegativeInt = 8
    """The same as pipeline.max_staleness of a run: bound on the lag of every token in mode streaming, in optimizer
    steps."""
    over_age: Literal["drop", "wait"] = "drop"
    """The same as pipeline.over_age of a run."""
    canary: Literal["none", "warn", "stop"] = "none"
    """The same as pipeline.canary of a run."""
    keep: PositiveInt | None = None
    """The same as pipeline.keep_checkpoints of a run: newest checkpoints that are kept."""
    from_iteration: PositiveInt | None = None
    """The same as pipeline.from_iteration of a run: its checkpoints up to there are another run's, and stay."""


class PluginConfig(Section):
    """The value of `sat_slime` in slime's custom configuration."""

    method: MethodConfig = MethodConfig()
    """The method that is optimized: a section as in every configuration here, or a name such as `sat-gspo-r3`."""
    driver: DriverConfig = DriverConfig()
    """The order of generation, training and pushes."""
    eval: ScoresConfig = ScoresConfig()
    """The numbers that are reported of an evaluation."""
    run_dir: str | None = None
    """Run folder for metrics.jsonl and eval.jsonl; unset: slime's own trackers alone."""

    @model_validator(mode="before")
    @classmethod
    def _named_method(cls, value: Any) -> Any:
        """`method: sat-gspo-r3` stands for its switches."""
        if isinstance(value, dict) and isinstance(value.get("method"), str):
            value = {**value, "method": method_switches(value["method"])}
        return value
