"""slime's trainer with what asynchronous RL adds to it: a subclass that our driver gives to slime's training group.
Where slime calls a function of a module, so that a method cannot do, compat.py says what is replaced."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from slime.backends.megatron_utils.actor import MegatronTrainRayActor

from sat_slime.plugin.canary import TrainerScores, score_canary
from sat_slime.plugin.settings import PUSH_METRICS, plugin_config, plugin_method, steps_per_rollout
from sat_slime.plugin.step import TrainerState, prepare

TAG = "sat_slime_generating"
"""Name of the copy of pushed weights, in host memory among slime's own backups, that denominator `checkpoint` needs."""


class SatTrainRayActor(MegatronTrainRayActor):
    """One rank of the trainer. The version of weights is the number of optimizer steps that they have had."""

    def init(self, args: Namespace, role: str, *positional: Any, **keywords: Any) -> Any:
        """Does what slime's init does, and prepares ours; returns the rollout to begin with."""
        start = super().init(args, role, *positional, **keywords)
        if args.debug_rollout_only or role != "actor":
            return start
        begins_with = start if args.start_rollout_id is None else args.start_rollout_id
        self.state = TrainerState(begins_with * steps_per_rollout(args))
        self.pushed: int | None = None
        """Version of the weights that the engines were sent last, in optimizer steps."""
        self._kept: int | None = None
        """Version of the weights under TAG."""
        self._postprocess: Any = self.rollout_data_postprocess
        self.rollout_data_postprocess: Any = self._after_scoring
        prepare(args, self.state)
        if self._active_model_tag != "actor":
            self._switch_model("actor")  # else the first push would send the model loaded last (slime issue 1695)
        return start

    def update_weights(self) -> TrainerScores | None:
        """Sends the weights to the engines, under the number of optimizer steps that they have had. Return the canary's
        scores under them, on the rank that has them, if there is a canary."""
        if self.args.debug_train_only or self.args.debug_rollout_only:
            super().update_weights()
            return None
        self.weight_updater.weight_version = self.state.steps - 1  # slime adds one as the push begins
        super().update_weights()
        self.pushed = self.state.steps
        return score_canary(self) if plugin_config(self.args).driver.canary != "none" else None

    def train_actor(self, rollout_id: int, rollout_data: dict[str, Any], *positional: Any, **keywords: Any) -> Any:
        """Trains on a batch; its lag and numbers join the metrics of its optimizer steps."""
        self.state.begin(rollout_data)
        self.state.push_metrics = (keywords.get("external_data") or {}).get(PUSH_METRICS, {})
        steps = len(rollout_data["num_microbatches"])
        trained = super().train_actor(rollout_id, rollout_data, *positional, **keywords)
        self.state.steps += steps
        return trained

    def compute_log_prob(
        self, data_iterator: Any, num_microbatches: list[int], store_prefix: str = "", **keywords: Any
    ) -> dict[str, Any]:
        """Return the log-probs of a batch under the model's weights. The pass without a prefix is for the denominator:
        where that is `checkpoint`, it runs under the weights that generated the batch. Raises RuntimeError where they
        are not kept."""
        own, generated_by = self.state.steps, self.state.generated_by
        if store_prefix or plugin_method(self.args).denominator != "checkpoint":
            return super().compute_log_prob(data_iterator, num_microbatches, store_prefix=store_prefix, **keywords)
        if generated_by is None or generated_by not in (own, self._kept):
            generator = "several versions, or an unknown one," if generated_by is None else f"version {generated_by}"
            raise RuntimeError(
                f"denominator checkpoint: {generator} generated this batch, and the weights kept here are of version "
                f"{self._kept}: it needs batches of one version that is among the last two pushes"
            )
        if generated_by != own:
            self._switch_model(TAG)
        scored: dict[str, Any] = super().compute_log_prob(data_iterator, num_microbatches, **keywords)
        if generated_by != own:
            self._switch_model("actor")
        # A batch in flight at a push is of the weights of the push before. So the copy is replaced when that batch has
        # been scored: the trainer has made no step since and still holds what it pushed.
        if self.pushed == own != self._kept:
            self.weights_backuper.backup(TAG)
            self._kept = own
        return scored

    def _after_scoring(self, args: Namespace, rollout_id: int, rollout_data: dict[str, Any]) -> None:
        if self._postprocess is not None:  # it may mask tokens, which the threshold then leaves out
            self._postprocess(args, rollout_id, rollout_data)
        self.state.scored(args, rollout_data, self)
