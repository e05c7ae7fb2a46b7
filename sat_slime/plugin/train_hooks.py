"""The hooks by which the plugin's file (`sat-slime init plugin`) acts in slime's trainer, in the process of every rank.

slime calls `install` (--custom-megatron-init-path) before it builds the model, and `postprocess`
(--rollout-data-postprocess-path) between its forward passes over a batch and the training on it. Under our own driver,
whose trainer is inside/actor.py, they have nothing to do.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from torch import Tensor

from sat_slime.plugin.compat import probe_slime
from sat_slime.plugin.inside import trainer_state
from sat_slime.plugin.inside.routing_check import Agreement
from sat_slime.plugin.inside.settings import DRIVEN, plugin_config, settle_flags
from sat_slime.plugin.inside.step_files import record_metrics
from sat_slime.plugin.inside.trainer_state import TrainerState, announcer, prepare


def install(args: Namespace) -> None:
    """Judges the settings before anything is built, sets those of slime's flags that follow from the method, and puts
    the hooks that are on in their places. Rank 0 logs the method.

    Raises:
        ConfigError: `args.sat_slime` has faults, or does not go with the script's flags; a line for every fault.
        RuntimeError: this slime is not known; a line for every difference.
    """
    if getattr(args, DRIVEN, False):
        return
    settle_flags(args)
    if problems := probe_slime(own_script=True):
        raise RuntimeError("\n".join(problems))
    prepare(args, TrainerState(), announcer(getattr(args, "rank", 0) == 0))


def postprocess(args: Namespace, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """Judges the routes that were replayed since the batch before, and takes the batch's numbers for the metrics and
    its threshold for the loss.

    Raises:
        RuntimeError: the replayed routes are not those of the tokens.
    """
    if getattr(args, DRIVEN, False):
        return
    if (run_dir := plugin_config(args).run_dir) is not None:
        record_metrics(run_dir)
    state = trainer_state.current()
    state.begin(rollout_data)
    state.scored(args, rollout_id, rollout_data, must_have_replayed=state.steps > 0)
    state.agreement = Agreement()
    state.steps += len(rollout_data["num_microbatches"])


def rollout_facts() -> dict[str, float]:
    """Return metrics of the rollout batch in training, the same on all ranks: reward/mean, response/length_mean,
    tokens/response_total; under our driver lag/mean, lag/min, lag/max, lag/generation_mean and lag/queue_mean over
    tokens at its first optimizer step; routing/agreement under R3. Empty before the first batch."""
    return dict(trainer_state.current().batch_metrics)


def lags() -> list[int] | None:
    """Return the optimizer steps between the generating weights and those at the first step on this batch, for each
    sample of this rank; None where unknown. Where several weights generated a response, the oldest count."""
    return trainer_state.current().lags


def token_lags() -> list[Tensor] | None:
    """Return the (T,) lags of the response tokens of each sample of this rank, in optimizer steps as for `lags`; None
    where unknown. Where only the oldest version of a response is known it counts for all of its tokens."""
    return trainer_state.current().token_lags
