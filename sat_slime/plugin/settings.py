"""The plugin's settings among slime's arguments: its own section, and the flags of slime that mean the same."""

from __future__ import annotations

import dataclasses
import logging
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sat_slime.config.method_section import build_method, section_name
from sat_slime.config.plugin_file import CALLED, KEY, NOT_UNDER_CUSTOM_LOSS, not_in_a_script, read_plugin
from sat_slime.config.rules import ONE_COPY, READ_BY_SLIME, needs_versions, refused_method, spares_recompute
from sat_slime.config.slime_schema import PluginConfig
from sat_slime.config.source import ConfigError
from sat_slime.objective import Method, compose
from sat_slime.objective.method import STABILIZERS
from sat_slime.plugin.versions import DRIVEN as DRIVEN

PUSH_METRICS = "sat_slime_push_metrics"
"""Key under which metrics of a push reach the trainer's ranks, in what slime calls the external data of a batch."""
_CACHE = "_sat_slime_settings"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Settings:
    """The settings that were read from slime's arguments, on which they are kept. Megatron pickles these into every
    checkpoint: so this is pickled as what torch.load takes with weights_only, and settings are read anew."""

    config: PluginConfig
    method: Method

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return OrderedDict, ()


def plugin_config(args: Namespace) -> PluginConfig:
    """Return the checked value of `args.sat_slime`. Raises ConfigError with a line for every fault."""
    return _settings(args).config


def plugin_method(args: Namespace) -> Method:
    """Return the method of `args.sat_slime`; where it sets no clip radii, slime's flags do. Raises ConfigError with a
    line for every fault of the section, and every disagreement between it and slime's flags."""
    return _settings(args).method


def settle_flags(args: Namespace) -> None:
    """Sets whether slime scores a batch before training on it: where the method, or slime itself, reads what it then
    has. A script that has slime read the engine's log-probs instead (--use-rollout-logprobs) keeps them, but for a
    threshold over the step, which is told. Raises ConfigError as `plugin_method` does."""
    method = build_method(read_plugin(getattr(args, KEY, None)).method)
    by_slime = [flag for flag in READ_BY_SLIME if getattr(args, flag.replace("-", "_"), None)]
    is_read, of_engine = by_slime and not args.use_rollout_logprobs, by_slime and args.use_rollout_logprobs
    is_recorded = getattr(args, "use_routing_replay", False) and not args.use_rollout_routing_replay  # R2's routes
    args.use_rollout_logprobs = takes_engines(args, method) and not (is_read or is_recorded)
    if of_engine and not args.use_rollout_logprobs and getattr(args, "rank", 0) == 0:
        logger.warning("sat_slime: --%s reads the trainer's log-probs, which %s needs", by_slime[0], method.name)
    if not getattr(args, DRIVEN, False):
        args.keep_old_actor = False  # slime would score a batch by that copy, which no denominator here is
    plugin_method(args)


def takes_engines(args: Namespace, method: Method) -> bool:
    """Return whether slime can take the engine's log-probs, and leave its own pass before training out."""
    own = getattr(args, "custom_generate_function_path", None)
    return spares_recompute(method, steps_per_rollout(args), own)


def steps_per_rollout(args: Namespace) -> int:
    """Return the optimizer steps that slime makes of one rollout batch."""
    responses = args.rollout_batch_size * args.n_samples_per_prompt
    return max(1, responses // (args.global_batch_size or responses))  # --debug-rollout-only leaves that unset


def _settings(args: Namespace) -> _Settings:
    cached = getattr(args, _CACHE, None)
    if not isinstance(cached, _Settings):
        config = read_plugin(getattr(args, KEY, None))
        cached = _Settings(config, _method(args, config))
        setattr(args, _CACHE, cached)
    return cached


def _method(args: Namespace, config: PluginConfig) -> Method:
    method, errors = build_method(config.method), []
    region = method.clip
    if region is not None:
        flags = {"eps_low": "eps_clip", "eps_high": "eps_clip_high", "dual": "eps_clip_c"}
        radii = {field: getattr(args, flag) for field, flag in flags.items()}
        wrong = {flags[field]: radius for field, radius in radii.items() if radius is not None and radius <= 0}
        errors += [f"--{flag.replace('_', '-')} is {radius}: set it above 0" for flag, radius in wrong.items()]
        for field in _written_clip(args):
            if (ours := getattr(region, field)) != radii[field]:
                flag = flags[field].replace("_", "-")
                errors.append(
                    f"{KEY}.method.clip.{field} is {ours}, but slime's --{flag} is {radii[field]}: give them one "
                    "value, or leave the first out"
                )
        method = dataclasses.replace(method, clip=dataclasses.replace(region, **radii))
    for flag, remedy in NOT_UNDER_CUSTOM_LOSS.items():
        if getattr(args, flag, None):
            errors.append(f"--{flag.replace('_', '-')} is set: {remedy}")
    if not getattr(args, "compute_advantages_and_returns", True):
        errors.append("--disable-compute-advantages-and-returns is set, and the loss reads advantages: leave it out")
    method, more = _with_replays(args, method)
    errors += more
    hook, steps = "custom_rollout_log_function_path", steps_per_rollout(args)
    if not getattr(args, DRIVEN, False):
        errors += [f"{KEY}.method: {line}" for line in not_in_a_script(method)]
    elif (needs := needs_versions(method)) and getattr(args, hook, None) is None:
        errors.append(f"{needs}, which a hook tells: add --{hook.replace('_', '-')} {CALLED[hook]}")
    if method.denominator == "checkpoint" and (config.driver.mode == "streaming" or vars(args).get("partial_rollout")):
        remedy = "leave out driver.mode streaming and --partial-rollout, or take a method over another"
        errors.append(f"{KEY}.method.denominator is checkpoint, but {ONE_COPY}: {remedy}")
    if method.judge and method.scope == "step" and steps > 1:
        scope = f"{KEY}.method.{section_name(method, method.judge)}.scope"
        errors.append(
            f"{scope} is step with {steps} optimizer steps per rollout: the threshold is taken before the first of "
            "them and would be stale for the others; use one step per rollout, or scope microbatch"
        )
    errors += [f"{KEY}.{line}" for line in refused_method(method, steps)]
    if errors:
        raise ConfigError(*errors)
    return method


def _written_clip(args: Namespace) -> Collection[str]:
    """Return the radii that the section itself sets."""
    section = getattr(args, KEY)
    method = section.get("method") if isinstance(section, Mapping) else None
    return method.get("clip") or () if isinstance(method, Mapping) else ()


def _with_replays(args: Namespace, method: Method) -> tuple[Method, list[str]]:
    """Return the method with what slime replays of the rollout, which its flags decide and no formula reads, and a line
    for a replay that the method names and slime cannot make."""
    errors = []
    replays = getattr(args, "use_rollout_routing_replay", False)
    if method.has("r3") and not replays:
        errors.append(
            f"{KEY}.method has r3, but slime's use_rollout_routing_replay is off: in the file set it and "
            "use_routing_replay to true, or leave r3 out of the method"
        )
    if replays and getattr(args, "num_experts", 1) is None:
        errors.append(
            "use_rollout_routing_replay is on, and the model has no experts whose choice could be replayed: leave it, "
            f"use_routing_replay and the method's r3 out of the file, as {KEY}: {{method: "
            f"{method.without('r3').name}}}"
        )
    if method.has("topp") and args.rollout_top_p == 1:
        errors.append(f"{KEY}.method has top_p_replay, but slime's --rollout-top-p is 1: there is no mask to replay")
    by_flags = {"r3": replays, "topp": args.rollout_top_p != 1}
    added = [STABILIZERS[name]() for name, on in by_flags.items() if on and not method.has(name)]
    if added:
        more = [*method.stabilizers[1:], *added]
        method = compose(method.base, more, denominator=method.denominator, clip=method.clip)
    return method, errors
