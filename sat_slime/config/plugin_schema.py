"""The plugin's own settings inside a slime run: what is optimized, in which order, and what is reported.

slime hands them over as the one key `sat_slime` of its `--custom-config-path` file.
"""

from __future__ import annotations

from sat_slime.config.schema import MethodConfig, ScoresConfig, Section
from sat_slime.config.slime_schema import SlimePipelineConfig


class PluginConfig(Section):
    """The value of `sat_slime` in slime's custom configuration."""

    method: MethodConfig = MethodConfig()
    """The method that is optimized: a section as in every configuration here, or a name such as `sat-gspo-r3`."""
    driver: SlimePipelineConfig = SlimePipelineConfig()
    """The order that `sat_slime.plugin.driver` keeps. slime's own training scripts read none of it."""
    eval: ScoresConfig = ScoresConfig()
    """The numbers that are reported of an evaluation."""
    run_dir: str | None = None
    """Run folder for metrics.jsonl and eval.jsonl; unset: slime's own trackers alone."""
