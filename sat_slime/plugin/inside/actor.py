"""slime's trainer with what asynchronous RL adds to it: a subclass that our driver gives to slime's training group.

It overrides methods that slime calls on its trainer, and replaces nothing of slime. Where slime calls a function of a
module, so that a method cannot do, docs/internals/slime.md says what is patched.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from slime.backends.megatron_utils.actor import MegatronTrainRayActor

from sat_slime.plugin.inside import versions
from sat_slime.plugin.inside.canary_scores import TrainerScores, score_canary
from sat_slime.plugin.inside.generating_weights import GeneratingWeights
from sat_slime.plugin.inside.settings import PUSH_METRICS, plugin_config, plugin_method, steps_per_rollout
from sat_slime.plugin.inside.step_files import record_metrics
from sat_slime.plugin.inside.trainer_state import TrainerState, announcer, prepare


class SatTrainRayActor(MegatronTrainRayActor):
    """One rank of the trainer. The version of weights is the number of optimizer steps that they have had."""

    def init(self, args: Namespace, role: str, *positional: Any, **keywords: Any) -> Any:
        """Does what slime's init does, and prepares ours; returns the rollout to begin with.

        Raises:
            ConfigError: `args.sat_slime` has faults.
        """
        config = plugin_config(args)
        start = super().init(args, role, *positional, **keywords)
        if args.debug_rollout_only or role != "actor":
            return start
        begins_with = start if args.start_rollout_id is None else args.start_rollout_id
        self.state = TrainerState(begins_with * steps_per_rollout(args))
        self.versions_are_steps = versions.are_steps(args)
        self.generating = GeneratingWeights(self) if plugin_method(args).denominator == "checkpoint" else None
        self._postprocess: Any = self.rollout_data_postprocess
        self.rollout_data_postprocess: Any = self._after_scoring
        prepare(args, self.state, announcer(self._rank == 0))
        if config.run_dir is not None:
            record_metrics(config.run_dir)
        if self._active_model_tag != "actor":
            self._switch_model("actor")  # else the first push would send the model loaded last (slime issue 1695)
        return start

    def update_weights(self) -> TrainerScores | None:
        """Sends the weights to the engines, under the number of optimizer steps that they have had. Return the canary's
        scores under them, on the rank that has them, if there is a canary."""
        if self.args.debug_train_only or self.args.debug_rollout_only:
            super().update_weights()
            return None
        if self.versions_are_steps:
            self.weight_updater.weight_version = self.state.steps - 1  # slime adds one as the push begins
        super().update_weights()
        if self.generating is not None:
            self.generating.pushed(self.state.steps)
        return score_canary(self) if plugin_config(self.args).driver.canary != "none" else None

    def train_actor(self, rollout_id: int, rollout_data: dict[str, Any], *positional: Any, **keywords: Any) -> Any:
        """Trains on a batch; its lag and numbers join the metrics of its optimizer steps."""
        self.state.begin(rollout_data)
        self.state.push_metrics = (keywords.get("external_data") or {}).get(PUSH_METRICS, {})
        steps = len(rollout_data["num_microbatches"])
        trained = super().train_actor(rollout_id, rollout_data, *positional, **keywords)
        self.state.trained(self.args, rollout_id, steps)
        return trained

    def compute_log_prob(
        self, data_iterator: Any, num_microbatches: list[int], store_prefix: str = "", **keywords: Any
    ) -> dict[str, Any]:
        """Return the log-probs of a batch under the model's weights. The pass without a prefix is for the denominator:
        where that is `checkpoint`, it runs under the weights that generated the batch."""
        if self.generating is None or store_prefix:
            return super().compute_log_prob(data_iterator, num_microbatches, store_prefix=store_prefix, **keywords)
        with self.generating.loaded(self.state.generated_by, self.state.steps):
            return super().compute_log_prob(data_iterator, num_microbatches, store_prefix=store_prefix, **keywords)

    def _after_scoring(self, args: Namespace, rollout_id: int, rollout_data: dict[str, Any]) -> None:
        self.state.scored(args, rollout_id, rollout_data, self)
        if self._postprocess is not None:
            self._postprocess(args, rollout_id, rollout_data)
