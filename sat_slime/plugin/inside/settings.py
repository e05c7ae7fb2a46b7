"""The plugin's settings among slime's arguments: its own section, and the flags of slime that mean the same."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from sat_slime.config.loader import read_section
from sat_slime.config.method_section import build_method, section_name
from sat_slime.config.plugin_schema import PluginConfig
from sat_slime.config.slime_checks import needs_versions, not_on_slime
from sat_slime.config.source import ConfigError
from sat_slime.objective import Method, check_method
from sat_slime.plugin.inside import versions

KEY = "sat_slime"
"""The key of the plugin's section in slime's --custom-config-path file."""
DRIVEN = "sat_slime_driven"
"""The argument by which our driver marks a run as its own."""
PUSH_METRICS = "sat_slime_push_metrics"
"""Key under which metrics of a push reach the trainer's ranks, in what slime calls the external data of a batch."""
_CACHE = "_sat_slime_settings"

_NOT_UNDER_CUSTOM_LOSS = {
    "use_tis": "slime leaves it out of a custom loss: use `tis: true` in the method",
    "use_opsm": "slime leaves it out of a custom loss: use `opsm: true` in the method",
    "custom_tis_function_path": "slime leaves it out of a custom loss: use `tis` or `base: icepop` in the method",
    "use_score_centering": "slime refuses it with a custom loss: leave it out, or this plugin's loss",
}
"""Flags that slime would silently ignore."""


@dataclass(frozen=True)
class _Settings:
    """The settings that were read from slime's arguments; they are kept on the arguments.

    Megatron pickles its arguments into every checkpoint. This is pickled as None, so that a checkpoint names no class
    of this package and can be loaded by a version with other modules; whoever unpickles the arguments reads them anew.
    """

    config: PluginConfig
    method: Method

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


def plugin_config(args: Namespace) -> PluginConfig:
    """Return the checked value of `args.sat_slime`. Raises ConfigError with a line for every fault."""
    return _settings(args).config


def plugin_method(args: Namespace) -> Method:
    """Return the method of `args.sat_slime`; where it sets no clip radii, slime's flags do.

    Raises:
        ConfigError: faults of the section, and disagreements between it and slime's flags; a line each.
    """
    return _settings(args).method


def steps_per_rollout(args: Namespace) -> int:
    """Return the optimizer steps that slime makes of one rollout batch."""
    return max(1, args.rollout_batch_size * args.n_samples_per_prompt // args.global_batch_size)


def reads_engine(method: Method) -> bool:
    """Return whether a method reads the log-probs of the engines."""
    return method.denominator in ("rollout", "a3po") or bool(method.weights or method.gates)


def _settings(args: Namespace) -> _Settings:
    cached = getattr(args, _CACHE, None)
    if cached is None:
        config = _read(getattr(args, KEY, None))
        cached = _Settings(config, _method(args, config))
        setattr(args, _CACHE, cached)
    return cached


def _read(value: Any) -> PluginConfig:
    if value is None:
        raise ConfigError(
            [f"no key '{KEY}' in the file of --custom-config-path: add one, such as `{KEY}: {{method: sat-gspo-r3}}`"]
        )
    if isinstance(value, str):
        value = {"method": value}
    return read_section(PluginConfig, value, f"{KEY} in --custom-config-path")


def _method(args: Namespace, config: PluginConfig) -> Method:
    method, errors = build_method(config.method), []
    region = method.trust_region
    if region is not None:
        flags = {
            "eps_low": ("eps_clip", args.eps_clip),
            "eps_high": ("eps_clip_high", args.eps_clip_high),
            "dual": ("eps_clip_c", args.eps_clip_c),
        }
        in_section = config.method.clip.model_fields_set
        for field, (flag, value) in flags.items():
            ours = getattr(region, field)
            if field in in_section and ours != value:
                errors.append(
                    f"{KEY}.method.clip.{field} is {ours}, but slime's --{flag.replace('_', '-')} is {value}: give "
                    "them one value, or leave the first out"
                )
        method = dataclasses.replace(
            method,
            trust_region=dataclasses.replace(region, **{field: value for field, (_, value) in flags.items()}),
        )
    for flag, remedy in _NOT_UNDER_CUSTOM_LOSS.items():
        if getattr(args, flag, None):
            errors.append(f"--{flag.replace('_', '-')} is set: {remedy}")
    if method.routing_replay and not getattr(args, "use_rollout_routing_replay", False):
        errors.append(f"{KEY}.method has r3, but slime's --use-rollout-routing-replay is off: add it")
    if getattr(args, "use_rollout_routing_replay", False) and not method.routing_replay:
        errors.append(f"slime's --use-rollout-routing-replay is on, but {KEY}.method.r3 is false: set it to true")
    top_p = args.rollout_top_p
    if method.top_p_replay and top_p == 1:
        errors.append(f"{KEY}.method has top_p_replay, but slime's --rollout-top-p is 1: there is no mask to replay")
    if top_p != 1 and not method.top_p_replay:
        errors.append(
            f"slime's --rollout-top-p is {top_p}, with which it replays the engine's mask, but "
            f"{KEY}.method.top_p_replay is false: set it to true"
        )
    if reason := not_on_slime(method):
        errors.append(f"{KEY}.method: {reason}")
    keeps = getattr(args, DRIVEN, False) or getattr(args, "keep_old_actor", False)
    if method.denominator == "checkpoint" and not keeps:
        errors.append(f"{KEY}.method.denominator is checkpoint: add slime's --keep-old-actor, which keeps its weights")
    if method.denominator == "checkpoint" and args.use_rollout_logprobs:
        errors.append(
            f"{KEY}.method.denominator is checkpoint, but --use-rollout-logprobs spares the forward pass that scores "
            "the generating weights: leave that flag out"
        )
    steps = steps_per_rollout(args)
    if method.denominator == "trainer" and steps > 1 and args.use_rollout_logprobs:
        errors.append(
            f"{KEY}.method.denominator is trainer with {steps} optimizer steps per rollout, but --use-rollout-logprobs "
            "spares the forward pass at their start: leave that flag out"
        )
    if method.judge and method.threshold_is_of_the_step and steps > 1:
        scope = f"{KEY}.method.{section_name(method, method.judge)}.scope"
        errors.append(
            f"{scope} is step with {steps} optimizer steps per rollout: the threshold is taken before the first of "
            "them and would be stale for the others; use one step per rollout, or scope microbatch"
        )
    errors += _missing_facts(args, config, method)
    try:
        check_method(method, steps)
    except ValueError as error:
        errors.append(f"{KEY}.method: {error}")
    if errors:
        raise ConfigError(errors)
    return method


_FACT_HOOKS = {
    "custom_megatron_init_path": "sat_slime.plugin.train_hooks.install",
    "rollout_data_postprocess_path": "sat_slime.plugin.train_hooks.postprocess",
    "custom_rollout_log_function_path": "sat_slime.plugin.rollout_hooks.log_rollout",
}
"""Flags of a launch script with the hooks by which lags and rewards reach the loss; our driver needs the last alone."""


def _missing_facts(args: Namespace, config: PluginConfig, method: Method) -> list[str]:
    """Return a line for everything that keeps lags and rewards from a method that needs them."""
    needs = needs_versions(method)
    if needs is None:
        return []
    errors = []
    if not versions.are_steps(args, config.hooks):
        errors.append(
            f"{needs}, and they are unknown with {KEY}.hooks.version_by_step false, or with a push by disk: set it to "
            "true, and leave out --update-weight-transport disk"
        )
    built_in = list(_FACT_HOOKS)[:2] if getattr(args, DRIVEN, False) else []
    for flag, hook in _FACT_HOOKS.items():
        if flag not in built_in and getattr(args, flag, None) is None:
            errors.append(f"{needs}, which a hook tells: add --{flag.replace('_', '-')} {hook}, or one that calls it")
    return errors
