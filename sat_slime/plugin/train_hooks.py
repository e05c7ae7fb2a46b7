"""Hooks in slime's trainer, in every rank's process.

slime takes them by --custom-megatron-init-path (install) and --rollout-data-postprocess-path (postprocess).
docs/slime-hooks.md says what each is for.

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

import torch
import torch.distributed as dist
from torch import Tensor

from sat_slime.config.plugin import HooksConfig
from sat_slime.plugin import evaluations, routing_check, step_metrics, step_quantile, versions
from sat_slime.plugin.old_actor import OldActorBackuper
from sat_slime.plugin.patching import wrap_once
from sat_slime.plugin.probe import probe_slime
from sat_slime.plugin.settings import plugin_config, steps_per_rollout
from sat_slime.plugin.step_files import record_metrics

logger = logging.getLogger(__name__)

TRAINER = "slime.backends.megatron_utils.actor"
"""Module of slime's MegatronTrainRayActor."""


@dataclass
class _State:
    """Of the one trainer of this process."""

    actor: Any = None
    """slime's MegatronTrainRayActor."""
    steps: int = 0
    """Optimizer steps that the weights have had, those before a resume included."""
    pushed: int | None = None
    """Those of the weights that the engines were last sent, where versions are steps."""
    has_pushed: bool = False
    evaluates_last: bool = False
    facts: dict[str, float] = field(default_factory=dict)
    lags: list[int] | None = None
    token_lags: list[Tensor] | None = None
    routing: dict[str, float] = field(default_factory=dict)
    """Verdict on the routes of this batch, made before it is trained on."""
    late_routing: dict[str, float] = field(default_factory=dict)
    """On those of the batch before, made when it had been trained on."""


_state = _State()


def install(args: Namespace) -> None:
    """Installs the hooks that are on, each told in the log of rank 0. slime calls it on every rank, before the model is
    built.

    Raises:
        RuntimeError: this slime is not known; a line for every difference.
        ConfigError: `args.sat_slime` has faults.
    """
    global _state
    config = plugin_config(args)
    found = _calling_trainer()
    if found is None:
        logger.info("sat_slime: no trainer calls, so there is nothing to hook into")
        return
    actor, names = found
    if actor.role != "actor" or actor is _state.actor:
        return
    if problems := probe_slime():
        raise RuntimeError("\n".join(problems))
    _state = _State(actor=actor)
    tell = _teller(actor)
    hooks = config.hooks
    _follow_steps(names)
    _wrap_training(args)
    _wrap_loading(args, hooks, tell)
    evaluates_first, _state.evaluates_last = _evaluates(args, hooks, tell)
    _follow_pushes(args, names, versions.are_steps(args, hooks), evaluates_first)
    if versions.are_steps(args, hooks):
        tell("version_by_step", "versions of weights are their optimizer steps")
    elif hooks.version_by_step:
        tell("version_by_step", "left out: a push by disk needs consecutive versions; lag stays unknown", is_on=False)
    if getattr(args, "use_rollout_routing_replay", False):
        if hooks.narrow_routed_experts:
            routing_check.accept_narrow_routes()
            tell("narrow_routed_experts", "routes are replayed from a narrow type (slime issue 2384)")
        if hooks.check_routed_experts:
            routing_check.watch()
            tell("check_routed_experts", "replayed routes are held against the routers' own")
    if config.run_dir is not None:
        record_metrics(config.run_dir)


def postprocess(args: Namespace, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """After slime's forward passes over a batch and before it is trained on: the verdict on its routes, the batch's
    numbers for the metrics, the quantile of the step.

    Raises:
        RuntimeError: the replayed routes are not those of the tokens.
    """
    if _checks_routes(args):
        _state.routing = routing_check.verdict(rollout_id, must_have_replayed=False)
        _state.facts |= _state.routing
    step_metrics.set_rollout_facts(_state.facts)
    step_quantile.postprocess(args, rollout_id, rollout_data, actor=_state.actor)


def rollout_facts() -> dict[str, float]:
    """Numbers of the rollout batch in training, the same on all ranks: reward/mean, response/length_mean,
    tokens/response_total; lag/mean, lag/min, lag/max, lag/generation_mean and lag/queue_mean over tokens at its first
    optimizer step, where known; routing/agreement under R3. Empty before the first."""
    return dict(_state.facts)


def lags() -> list[int] | None:
    """Optimizer steps between the generating weights and those at the first step on this batch, for each sample of
    this rank; None where unknown. A response of several weights counts from the oldest."""
    return _state.lags


def token_lags() -> list[Tensor] | None:
    """(T,) lags of the response tokens of each sample of this rank, in optimizer steps as for `lags`; None where
    unknown. Where only the oldest version of a response is known it counts for all of its tokens."""
    return _state.token_lags


def _calling_trainer() -> tuple[Any, dict[str, Any]] | None:
    """The trainer whose `init` is running, and the names that its methods see."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == TRAINER and "self" in frame.f_locals:
            return frame.f_locals["self"], frame.f_globals
        frame = frame.f_back
    return None


def _teller(actor: Any) -> Callable[..., None]:
    def tell(hook: str, what: str, is_on: bool = True) -> None:
        if actor._rank == 0:
            logger.info("sat_slime: hook %s is %s: %s", hook, "on" if is_on else "off", what)

    return tell


def _follow_steps(names: dict[str, Any]) -> None:
    """Learns from slime's loading of the checkpoint how many steps the weights have had."""

    def around(build: Callable[..., Any]) -> Callable[..., Any]:
        def initialize_model_and_optimizer(args: Namespace, role: str = "actor") -> Any:
            *built, loaded_rollout_id = build(args, role)
            start = args.start_rollout_id if args.start_rollout_id is not None else loaded_rollout_id + 1
            _state.steps = start * steps_per_rollout(args)
            return *built, loaded_rollout_id

        return initialize_model_and_optimizer

    wrap_once(names, "initialize_model_and_optimizer", around)


def _wrap_training(args: Namespace) -> None:
    def around(train: Callable[..., Any]) -> Callable[..., Any]:
        def train_actor(rollout_id: int, rollout_data: dict[str, Any], *positional: Any, **keywords: Any) -> Any:
            _begin(args, rollout_data)
            steps = len(rollout_data["num_microbatches"])
            trained = train(rollout_id, rollout_data, *positional, **keywords)
            _state.steps += steps
            if _checks_routes(args) and "routing/agreement" not in _state.routing:
                # No forward pass before training replayed: the next batch reports what this one showed.
                _state.late_routing = routing_check.verdict(rollout_id, must_have_replayed=True)
            if _state.evaluates_last and rollout_id == args.num_rollout - 1:
                evaluations.after_last(_state.actor, args, rollout_id)
            return trained

        return train_actor

    wrap_once(_state.actor, "train_actor", around)


def _checks_routes(args: Namespace) -> bool:
    replays = getattr(args, "use_rollout_routing_replay", False)
    return _state.actor is not None and replays and plugin_config(args).hooks.check_routed_experts


def _wrap_loading(args: Namespace, hooks: HooksConfig, tell: Callable[..., None]) -> None:
    """Side models: reference, teacher, old actor. slime loads them into the model that it trains, and pushes that."""
    actor = _state.actor
    defers = hooks.checkpoint_denominator and args.keep_old_actor and args.update_weights_interval > 1
    if hooks.ref_weights_first:
        tell("ref_weights_first", "the actor's weights return after each side model (slime issue 1695)")
    if defers:
        tell("checkpoint_denominator", "old_actor follows a push once the batch in flight is scored")

    def around(load: Callable[[str, str], None]) -> Callable[[str, str], None]:
        def load_other_checkpoint(model_tag: str, path: str) -> None:
            load(model_tag, path)
            if hooks.ref_weights_first and model_tag != "actor":
                actor._switch_model("actor")
            if defers and model_tag == "old_actor":
                actor.weights_backuper = OldActorBackuper(actor.weights_backuper)

        return load_other_checkpoint

    wrap_once(actor, "load_other_checkpoint", around)


def _follow_pushes(args: Namespace, names: dict[str, Any], numbers: bool, evaluates_first: bool) -> None:
    """numbers: a push carries the steps of its weights; slime adds one to the version at its begin."""

    def around(push: Callable[[Any], None]) -> Callable[[Any], None]:
        def update_weights(updater: Any) -> None:
            if numbers:
                updater.weight_version = _state.steps - 1
            push(updater)
            if numbers:
                _state.pushed = _state.steps
            is_first, _state.has_pushed = not _state.has_pushed, True
            if evaluates_first and is_first and _state.steps == 0:
                evaluations.before_first(_state.actor, args)

        return update_weights

    for name in ("UpdateWeightFromDistributed", "UpdateWeightFromTensor"):
        wrap_once(names[name], "update_weights", around)


def _evaluates(args: Namespace, hooks: HooksConfig, tell: Callable[..., None]) -> tuple[bool, bool]:
    """Whether the initial weights are to be evaluated, and the final ones."""
    if getattr(args, "eval_interval", None) is None:
        return False, False
    wanted = {"evaluate_first": hooks.evaluate_first, "evaluate_last": hooks.evaluate_last}
    possible = evaluations.can_push(args)
    for hook in [hook for hook, is_on in wanted.items() if is_on]:
        which = "initial" if hook == "evaluate_first" else "final"
        left_out = "left out: slime's driver has a part in a push, or engines share GPUs with the trainer"
        tell(hook, f"the {which} weights are evaluated" if possible else left_out, is_on=possible)
    return possible and hooks.evaluate_first, possible and hooks.evaluate_last


def _begin(args: Namespace, rollout_data: dict[str, Any]) -> None:
    """Before a batch is scored: its lag and numbers; which weights stand below the ratio."""
    routing_check.begin_rollout()
    made_by = versions.unload(rollout_data)
    lengths = rollout_data["response_lengths"]
    _state.lags = _state.token_lags = None
    if made_by is not None:
        _state.lags = [_state.steps - version.oldest for version in made_by]
        _state.token_lags = [
            _state.steps - _token_versions(one, length) for one, length in zip(made_by, lengths, strict=True)
        ]
    _state.routing = {}
    _state.facts = _state.late_routing | _reduced_facts(lengths, _state.token_lags)
    rewards = rollout_data.get("raw_reward")  # of the whole batch
    if rewards and all(isinstance(reward, (int, float)) for reward in rewards):
        _state.facts["reward/mean"] = sum(rewards) / len(rewards)
    _state.late_routing = {}
    backuper = getattr(_state.actor, "weights_backuper", None)
    if isinstance(backuper, OldActorBackuper):
        oldest = _state.steps - _state.facts["lag/max"] if "lag/max" in _state.facts else None
        backuper.batch_is_of_pushed_weights = oldest is not None and oldest == _state.pushed


def _token_versions(made_by: versions.Carried, length: int) -> Tensor:
    """(T,) versions of a response's tokens."""
    parts = made_by.parts or ((length, made_by.oldest),)
    return torch.repeat_interleave(
        torch.tensor([version for _, version in parts]), torch.tensor([tokens for tokens, _ in parts])
    )


def _reduced_facts(lengths: list[int], lags: list[Tensor] | None) -> dict[str, float]:
    """Over all ranks. Those of tensor, pipeline and context parallelism hold the same samples."""
    known = torch.cat(lags or [torch.zeros(0)]).double()
    last = torch.cat([lag[-1:].expand(len(lag)) for lag in lags or []] or [torch.zeros(0)]).double()
    sums = torch.tensor([len(lengths), sum(lengths), len(known), known.sum(), last.sum()], dtype=torch.float64)
    extremes = torch.tensor([torch.inf, torch.inf], dtype=torch.float64)
    if len(known):
        extremes = torch.stack([known.min(), -known.max()])
    replicas = 1
    if dist.is_initialized():
        from megatron.core import mpu
        from slime.utils.distributed_utils import get_gloo_group

        dist.all_reduce(sums, group=get_gloo_group())
        dist.all_reduce(extremes, op=dist.ReduceOp.MIN, group=get_gloo_group())
        replicas = dist.get_world_size() // mpu.get_data_parallel_world_size(with_context_parallel=False)
    n, tokens, n_known, lag, queue = sums.tolist()
    facts = {"response/length_mean": tokens / max(n, 1), "tokens/response_total": tokens / replicas}
    if n_known == tokens > 0:
        low, minus_high = extremes.tolist()
        facts |= {"lag/mean": lag / tokens, "lag/min": low, "lag/max": -minus_high}
        facts |= {"lag/generation_mean": (lag - queue) / tokens, "lag/queue_mean": queue / tokens}
    return facts
