"""The plugin's own settings inside a slime run: what is optimized, and which of slime's faults are handled.

slime hands them over as the one key `sat_slime` of its `--custom-config-path` file.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from sat_slime.config.method_section import method_switches
from sat_slime.config.schema import MethodConfig, NonNegativeInt, PositiveInt, ScoresConfig, Section


class HooksConfig(Section):
    """Hooks that the plugin installs into slime at run time. Each tells in the log that it is on."""

    ref_weights_first: bool = True
    """Push the actor's weights to the engines after a start or a resume, whatever model was loaded last: with a KL loss
    the reference model is, and slime would broadcast that one (slime issue 1695)."""
    version_by_step: bool = True
    """Number the weights that are pushed by their optimizer steps, so that lag and evaluation are attributed by the
    version that came back with each response."""
    narrow_routed_experts: bool = True
    """Keep routed experts in one byte each from the moment they arrive, in two above 256 experts (slime issue 2384)."""
    share_routed_experts: bool = True
    """Keep routed experts once on a node, in Ray's object store, from their arrival to their last replay (slime issue
    2384). It needs the three hooks around it."""
    check_routed_experts: bool = True
    """Refuse replayed experts that do not belong to the tokens trained: length, layers, range, off by one."""
    evaluate_first: bool = True
    """Evaluate the initial weights, before the first rollout of a new run."""
    evaluate_last: bool = True
    """Evaluate the final weights: push them after the last rollout and evaluate."""


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
    """The same as checkpoint.keep of a run: newest checkpoints that are kept."""
    from_iteration: PositiveInt | None = None
    """The same as checkpoint.from_iteration of a run: its checkpoints up to there are another run's, and stay."""


class PluginConfig(Section):
    """The value of `sat_slime` in slime's custom configuration."""

    method: MethodConfig = MethodConfig()
    """The method that is optimized: a section as in every configuration here, or a name such as `sat-gspo-r3`."""
    hooks: HooksConfig = HooksConfig()
    """Hooks into slime."""
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
