"""Hooks in slime's trainer, in the process of every rank, for users' own launch scripts.

slime takes them by --custom-megatron-init-path (install) and --rollout-data-postprocess-path (postprocess). Under our
own driver they have nothing to do: its trainer is inside/actor.py. docs/internals/slime-hooks.md says what each is for.

Nothing is patched in slime's class: Ray calls the methods that it copied into a class of its own when the worker
loaded it. So `install` finds the trainer that called it and wraps what that instance calls itself.
"""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor

from sat_slime.config.plugin_schema import HooksConfig
from sat_slime.plugin.inside import trainer_state, versions
from sat_slime.plugin.inside.generating_weights import OldActorBackuper
from sat_slime.plugin.inside.settings import DRIVEN, plugin_config, steps_per_rollout
from sat_slime.plugin.inside.slime_access import wrap_once
from sat_slime.plugin.inside.trainer_state import TrainerState
from sat_slime.plugin.probe import probe_slime

logger = logging.getLogger(__name__)

TRAINER = "slime.backends.megatron_utils.actor"
"""The module that slime's MegatronTrainRayActor is in."""


@dataclass
class _State:
    """The state of the hooks of this process, which has one trainer."""

    actor: Any = None
    """slime's MegatronTrainRayActor; None as long as no hooks are installed in it."""
    trainer: TrainerState = field(default_factory=TrainerState)
    pushed: int | None = None
    """Optimizer steps of the weights of the last push; None where versions are not steps."""
    has_pushed: bool = False
    evaluates_last: bool = False


_state = _State()


def install(args: Namespace) -> None:
    """Installs the hooks that are on, and names each in the log of rank 0. slime calls it on every rank, before the
    model is built. Under our driver it does nothing.

    Raises:
        RuntimeError: this slime is not known; a line for every difference.
        ConfigError: `args.sat_slime` has faults.
    """
    global _state
    config = plugin_config(args)
    if getattr(args, DRIVEN, False):
        return
    caller = _calling_trainer()
    if caller is None:
        logger.info("sat_slime: no trainer calls, so there is nothing to hook into")
        return
    actor, names = caller
    if actor.role != "actor" or actor is _state.actor:
        return
    if problems := probe_slime(own_script=True):
        raise RuntimeError("\n".join(problems))
    _state = _State(actor=actor)
    announce = trainer_state.announcer(actor._rank == 0)
    hooks = config.hooks
    trainer_state.prepare(args, _state.trainer, announce)
    _follow_checkpoints(names, args)
    _wrap_training(args)
    _wrap_loading(args, hooks, announce)
    evaluates_first, _state.evaluates_last = _evaluates(args, hooks, announce)
    _follow_pushes(args, names, versions.are_steps(args, hooks), evaluates_first)


def postprocess(args: Namespace, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """Judges the routes of a batch, and takes its numbers for the metrics and the quantile of the step. slime calls it
    after its forward passes over the batch and before it trains on it. Under our driver it does nothing.

    Raises:
        RuntimeError: the replayed routes are not those of the tokens.
    """
    if not getattr(args, DRIVEN, False):
        _state.trainer.scored(args, rollout_id, rollout_data, _state.actor)


def rollout_facts() -> dict[str, float]:
    """Return metrics of the rollout batch in training, the same on all ranks: reward/mean, response/length_mean,
    tokens/response_total; lag/mean, lag/min, lag/max, lag/generation_mean and lag/queue_mean over tokens at its first
    optimizer step, where known; routing/agreement under R3. Empty before the first batch."""
    return dict(trainer_state.current().batch_metrics)


def lags() -> list[int] | None:
    """Return the optimizer steps between the generating weights and those at the first step on this batch, for each
    sample of this rank; None where unknown. Where several weights generated a response, the oldest count."""
    return trainer_state.current().lags


def token_lags() -> list[Tensor] | None:
    """Return the (T,) lags of the response tokens of each sample of this rank, in optimizer steps as for `lags`; None
    where unknown. Where only the oldest version of a response is known it counts for all of its tokens."""
    return trainer_state.current().token_lags


def _calling_trainer() -> tuple[Any, dict[str, Any]] | None:
    """Return the trainer whose `init` is running, and the names that its methods see."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == TRAINER and "self" in frame.f_locals:
            return frame.f_locals["self"], frame.f_globals
        frame = frame.f_back
    return None


def _follow_checkpoints(names: dict[str, Any], args: Namespace) -> None:
    """Learns from slime's loading of the checkpoint how many steps the weights have had, and what the clip radii
    follow."""

    def initialize(build: Callable[..., Any], args: Namespace, role: str = "actor") -> Any:
        *built, loaded_rollout_id = build(args, role)
        start = args.start_rollout_id if args.start_rollout_id is not None else loaded_rollout_id + 1
        _state.trainer.steps = start * steps_per_rollout(args)
        if start > 0:
            _state.trainer.radius.load(args, start - 1)
        return *built, loaded_rollout_id

    wrap_once(names, "initialize_model_and_optimizer", initialize)

    def save_with_radii(save: Callable[..., None], /, rollout_id: int, *positional: Any, **keywords: Any) -> None:
        save(rollout_id, *positional, **keywords)
        _state.trainer.radius.save(args, rollout_id)

    wrap_once(names, "save", save_with_radii)


def _wrap_training(args: Namespace) -> None:
    def train_actor(
        train: Callable[..., Any], /, rollout_id: int, rollout_data: dict[str, Any], *positional: Any, **keywords: Any
    ) -> Any:
        _state.trainer.begin(rollout_data)
        _note_in_flight()
        steps = len(rollout_data["num_microbatches"])
        trained = train(rollout_id, rollout_data, *positional, **keywords)
        _state.trainer.trained(args, rollout_id, steps)
        if _state.evaluates_last and rollout_id == args.num_rollout - 1:
            _evaluate_final(_state.actor, args, rollout_id)
        return trained

    wrap_once(_state.actor, "train_actor", train_actor)


def _note_in_flight() -> None:
    """Tells the keeper of `old_actor` whether the engines generated this batch before or after the last push."""
    backuper = getattr(_state.actor, "weights_backuper", None)
    if isinstance(backuper, OldActorBackuper):
        made_by = _state.trainer.generated_by
        backuper.batch_is_of_pushed_weights = made_by is not None and made_by == _state.pushed


def _wrap_loading(args: Namespace, hooks: HooksConfig, announce: Callable[..., None]) -> None:
    """Wraps the loading of side models (reference, teacher, old actor). slime loads them into the model that it trains
    and then pushes that, so the actor's weights return after each; and the copy of `old_actor` is deferred."""
    actor = _state.actor
    defers = (
        hooks.checkpoint_denominator and getattr(args, "keep_old_actor", False) and args.update_weights_interval > 1
    )
    if hooks.ref_weights_first:
        announce("ref_weights_first", "the actor's weights return after each side model (slime issue 1695)")
    if defers:
        announce("checkpoint_denominator", "old_actor follows a push once the batch in flight is scored")

    def load_other_checkpoint(load: Callable[[str, str], None], model_tag: str, path: str) -> None:
        load(model_tag, path)
        if hooks.ref_weights_first and model_tag != "actor":
            actor._switch_model("actor")
        if defers and model_tag == "old_actor":
            actor.weights_backuper = OldActorBackuper(actor.weights_backuper)

    wrap_once(actor, "load_other_checkpoint", load_other_checkpoint)


def _follow_pushes(args: Namespace, names: dict[str, Any], numbers: bool, evaluates_first: bool) -> None:
    """Numbers the pushes by optimizer steps, and evaluates inside the first one.

    Args:
        numbers: a push carries the steps of its weights; slime adds one to the version as the push begins.
        evaluates_first: the initial weights are evaluated.
    """

    def update_weights(push: Callable[[Any], None], updater: Any) -> None:
        if numbers:
            updater.weight_version = _state.trainer.steps - 1
        push(updater)
        if numbers:
            _state.pushed = _state.trainer.steps
        is_first, _state.has_pushed = not _state.has_pushed, True
        if evaluates_first and is_first and _state.trainer.steps == 0:
            _evaluate_initial(_state.actor, args)

    for name in ("UpdateWeightFromDistributed", "UpdateWeightFromTensor"):
        wrap_once(names[name], "update_weights", update_weights)


def _evaluates(args: Namespace, hooks: HooksConfig, announce: Callable[..., None]) -> tuple[bool, bool]:
    """Return whether the hooks evaluate the initial weights, and whether they evaluate the final ones."""
    if getattr(args, "eval_interval", None) is None:
        return False, False
    wanted = {"evaluate_first": hooks.evaluate_first, "evaluate_last": hooks.evaluate_last}
    possible = _can_push(args)
    for hook in [hook for hook, is_on in wanted.items() if is_on]:
        which = "initial" if hook == "evaluate_first" else "final"
        left_out = "left out: slime's driver has a part in a push, or engines share GPUs with the trainer"
        announce(hook, f"the {which} weights are evaluated" if possible else left_out, is_on=possible)
    return possible and hooks.evaluate_first, possible and hooks.evaluate_last


# ------------------------------------------------------------------------------------------------------ evaluations
#
# slime leaves out those of the initial weights under train_async.py, and of the final weights. The trainer asks for
# both, since it can push weights and knows slime's rollout manager: for the first inside the first push, when its
# driver waits and nothing generates, and for the last inside the last call of `train_actor`, when there is nothing to
# generate any more.


def _evaluate_initial(actor: Any, args: Namespace) -> None:
    """Evaluates the weights that the engines were just sent. Every rank calls it. Raises what the evaluation raises: it
    would fail later, too."""
    if actor._rank == 0 and not getattr(args, "skip_eval_before_train", False):
        logger.info("sat_slime: evaluating the initial weights")
        _evaluate(actor, args.start_rollout_id or 0)


def _evaluate_final(actor: Any, args: Namespace, rollout_id: int) -> None:
    """Pushes the final weights and evaluates them, as far as slime's driver will not do so. Every rank calls it."""
    ended = rollout_id + 1
    pushed = ended % (getattr(args, "update_weights_interval", None) or 1) == 0
    evaluated = ended % args.eval_interval == 0
    if pushed and evaluated:
        return
    actor.update_weights()
    if evaluated or actor._rank != 0:
        return
    logger.info("sat_slime: evaluating the final weights")
    try:
        _evaluate(actor, rollout_id)
    except Exception:  # slime still has to write the last checkpoint, which is worth more
        logger.exception("sat_slime: the final weights were not evaluated")


def _can_push(args: Namespace) -> bool:
    """Return whether the trainer can send weights while its driver waits for it: engines have GPUs of their own, and
    the driver takes no part in a push."""
    shares = any(getattr(args, name, None) for name in ("colocate", "offload_train", "offload_rollout"))
    by_disk = getattr(args, "update_weight_transport", "nccl") == "disk"
    return not shares and not by_disk and not getattr(args, "release_train", False)


def _evaluate(actor: Any, rollout_id: int) -> None:
    import ray

    ray.get(actor.rollout_manager.eval.remote(rollout_id))
