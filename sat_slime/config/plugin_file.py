"""The plugin's file for a launch script of slime: `sat-slime init plugin` writes it, `sat-slime check` judges it.
slime's --custom-config-path sets each of its keys as an argument, before anything reads it: one flag for a method."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from sat_slime.config.finding import Finding, ok, settings_findings
from sat_slime.config.loader import PLUGIN_KEYS, read_section
from sat_slime.config.method_section import build_method
from sat_slime.config.rules import needs_versions, refused_method
from sat_slime.config.slime_schema import PluginConfig
from sat_slime.config.source import ConfigError
from sat_slime.objective import Method, named_method

KEY = PLUGIN_KEYS[0]
"""The key of the plugin's section in the file."""
CALLED = {
    "loss_type": "custom_loss",
    "custom_loss_function_path": "sat_slime.plugin.loss.policy_loss",
    "rollout_sample_hook_path": "sat_slime.plugin.rollout_hooks.on_sample",
    "custom_rollout_log_function_path": "sat_slime.plugin.rollout_hooks.log_rollout",
    "custom_eval_rollout_log_function_path": "sat_slime.plugin.rollout_hooks.log_eval",
}
"""slime's arguments by which it calls the plugin, in every run."""
IN_A_SCRIPT = {
    "custom_megatron_init_path": "sat_slime.plugin.train_hooks.install",
    "rollout_data_postprocess_path": "sat_slime.plugin.train_hooks.postprocess",
}
"""Further ones where slime's own training script runs. Our driver has a trainer of its own."""
R3 = ("use_rollout_routing_replay", "use_routing_replay")
"""slime's arguments for R3. It makes the second of the first before it reads the file."""
NOT_UNDER_CUSTOM_LOSS = {
    "use_tis": "slime leaves it out of a custom loss: use `tis: true` in the method",
    "use_opsm": "slime leaves it out of a custom loss: use `opsm: true` in the method",
    "custom_tis_function_path": "slime leaves it out of a custom loss: use `tis` or `base: icepop` in the method",
}
"""slime's arguments that it would silently ignore."""
MADE_BEFORE = {
    "eps_clip": "eps_clip_high",
    "num_steps_per_rollout": "global_batch_size",
    "eval_prompt_data": "eval_datasets",
    "eval_config": "eval_datasets",
    "dump_details": "save_debug_train_data",
    "load_debug_rollout_data": "debug_train_only",
    "n_samples_per_prompt": "grpo_std_normalization",
    "colocate": "offload_train",
}
"""slime's arguments of which it has made others when it reads the file, each with one of those."""
ONLY_OUR_DRIVER = (
    "which only this package's driver knows: start `-m sat_slime.plugin.driver` in the place of the script's training "
    "file, or take another method"
)
FILE = Path(__file__).parents[1] / "configs" / "plugin" / "sat.yaml"


def plugin_file(name: str) -> str:
    """Return a method's file as text. Raises ConfigError for an unknown name, or where no script can run it."""
    try:
        method = named_method(name)
    except ValueError as error:
        raise ConfigError(f"--method {name}: {error}") from None
    if errors := not_in_a_script(method):
        raise ConfigError(*(f"--method {name}: {error}" for error in errors))
    text = FILE.read_text(encoding="utf-8").replace("SAT-GSPO", method.label).replace("sat-gspo", name)
    return re.sub("^# (?=use_)", "", text, flags=re.MULTILINE) if method.has("r3") else text


def read_plugin(value: Any) -> PluginConfig:
    """Return the checked value of the key `sat_slime`. Raises ConfigError with a line for every fault."""
    if value is None:
        missing = f"no key '{KEY}' with a value in the file of --custom-config-path"
        raise ConfigError(f"{missing}: `sat-slime init plugin` writes such a file")
    values = {"method": value} if isinstance(value, str) else value
    return read_section(PluginConfig, values, f"{KEY} in --custom-config-path")


def not_in_a_script(method: Method) -> list[str]:
    """Return a line for everything that keeps a method from slime's own training scripts."""
    is_split = method.denominator == "checkpoint"
    over = f"{method.name} is over the weights that generated each batch" if is_split else None
    return [f"{reason}, {ONLY_OUR_DRIVER}" for reason in (over, needs_versions(method)) if reason]


def in_words(method: Method) -> str:
    """Return what a method is: `method sat-gspo, threshold over the step, denominator rollout`."""
    over = f"threshold over the {'micro-batch' if method.scope == 'microbatch' else 'step'}, " if method.scope else ""
    return f"method {method.name}, {over}denominator {method.denominator}"


def is_plugin_file(file: Path) -> bool:
    """Return whether a file is one of these, and not a run's."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except Exception:  # of many kinds; load_config says what is wrong with the file
        return False
    return isinstance(values, Mapping) and not values.keys().isdisjoint(PLUGIN_KEYS)


def plugin_findings(file: Path, flags: Iterable[str]) -> Iterator[Finding]:
    """Yield what is wrong with the file, whatever script it is given to, or that it is sound. flags: those of slime,
    with dashes: a key that is close to one and none of them is doubted; any other may be of the script's own code."""
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    try:
        method = build_method(read_plugin(values.get(KEY)).method)
    except ConfigError as error:
        yield from settings_findings(error.errors)
        return
    section = values[KEY] if isinstance(values[KEY], Mapping) else {}
    # One with `driver` is of a job of our driver.
    reasons = [] if "driver" in section else not_in_a_script(method)
    errors = [f"{KEY}.method: {reason}" for reason in reasons]
    # The script may make several steps of a rollout, but where a threshold is of the step.
    always = refused_method(method, 1 if method.scope == "step" else 2)
    errors += [f"{KEY}.{line}" for line in always]
    warnings = [f"{KEY}.{line}" for line in refused_method(method, 1) if line not in always]
    for key, value in (CALLED | IN_A_SCRIPT).items():
        given, in_list = values.get(key), key == "rollout_sample_hook_path"  # a text slime reads by its letters
        paths = given if isinstance(given, list) else [given]
        mistaken = any(str(path).startswith("sat_slime.") and path != value for path in paths)
        if not given or mistaken or (key == "loss_type" and given != value) or (in_list and isinstance(given, str)):
            right = [value if mistaken else given or value] if in_list else value
            errors.append(f"{key} is {given or 'not set'}: set it to {right}")
    if method.has("r3") != all(values.get(key) is True for key in R3):
        both = " and ".join(R3)
        fault = f"r3: set {both} to true" if method.has("r3") else f"no r3: leave out {both}, or add -r3 to it"
        errors.append(f"{KEY}.method has {fault}")
    for key, remedy in NOT_UNDER_CUSTOM_LOSS.items():
        if values.get(key):
            errors.append(f"{key} is set: {remedy}, and leave this out")
    for key, made in MADE_BEFORE.items():
        if key in values and made not in values:
            before = f"{key} is set and {made} is not, which slime has made before it reads this"
            errors.append(f"{before}: give {key} in the script")
    for key, flag in (("iterations", "num-rollout"), ("optimizer_steps_per_rollout", "global-batch-size")):
        if key in (section.get("driver") or {}):
            warnings.append(f"{KEY}.driver.{key} is set, and the driver goes by the script's --{flag}: leave it out")
    folder = section.get("run_dir")
    if folder and not folder.startswith(("/", "~")):
        warnings.append(f"{KEY}.run_dir is {folder}, and workers have other working directories: write it in full")
    names = [KEY, *(flag.removeprefix("--").replace("-", "_") for flag in flags)]
    for key in (key for key in map(str, values) if key not in names):
        close = difflib.get_close_matches(key, names, n=1, cutoff=0.8)
        if close and close[0] not in (f"no_{key}", f"disable_{key}"):  # flags that set this argument to false
            warnings.append(f"{key} is no flag of slime's, which sets it all the same; did you mean {close[0]}?")
    yield from settings_findings(errors, warnings)
    if not errors:
        yield ok("plugin", f"{method.label}: {in_words(method)}")
