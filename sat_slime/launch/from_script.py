"""Writes a run's YAML from a slime launch script: `sat-slime init from-script run.sh`.

The run trains by the script's own objective, so that another method is a change of `method` alone. A flag that a
setting of ours governs becomes that setting; any other stays slime's. What cannot be carried over is a line to write by
hand, at the head of the file and on the terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sat_slime.config.slime_schema import DEFAULTS, SlimeConfig
from sat_slime.config.source import ConfigError, parse_value
from sat_slime.launch.command import GOVERNED, PLUGIN_FLAGS, REFUSED
from sat_slime.launch.flags import Flag, recorded_flags
from sat_slime.launch.script_reader import MARK, TRAINERS, Script, Word, trainer_in
from sat_slime.launch.secrets import secret_names

STEPS = "pipeline.optimizer_steps_per_rollout"
OURS: Mapping[str, tuple[str, Any]] = {
    "num-gpus-per-node": ("cluster.gpus_per_node", None),
    "seed": ("seed", None),
    "num-rollout": ("pipeline.iterations", None),
    "update-weights-interval": ("pipeline.lag", None),
    "num-steps-per-rollout": (STEPS, None),
    "advantage-estimator": ("method.base", None),
    "use-rollout-logprobs": ("method.denominator", "rollout"),
    "eps-clip": ("method.clip.eps_low", None),
    "eps-clip-high": ("method.clip.eps_high", None),
    "eps-clip-c": ("method.clip.dual", None),
    "use-tis": ("method.tis", True),
    "tis-clip": ("method.tis.cap", None),
    "use-opsm": ("method.opsm", True),
    "opsm-delta": ("method.opsm.delta", None),
    "use-rollout-routing-replay": ("method.r3", True),
    "kl-loss-coef": ("loss.kl_coef", None),
    "entropy-coef": ("loss.entropy_coef", None),
    "calculate-per-token-loss": ("loss.reduction", "token_mean"),
}
"""The setting that each flag becomes, with its value where the flag has none."""
GOVERNS = {"global-batch-size": STEPS, "rollout-seed": "seed", "custom-config-path": "method"}
GOVERNS |= GOVERNED | dict.fromkeys(PLUGIN_FLAGS, "method")
"""Further flags that follow from a setting of ours."""
AS_SLIMES = frozenset(
    {
        *("actor-num-nodes", "rollout-num-gpus", "rollout-temperature", "rollout-top-p", "rollout-top-k"),
        *("sglang-server-concurrency", "tensor-model-parallel-size", "pipeline-model-parallel-size"),
        *("context-parallel-size", "expert-model-parallel-size", "optimizer", "lr", "adam-beta1", "adam-eps"),
        *("clip-grad", "n-samples-per-eval-prompt", "override-opt_param-scheduler", "use-tensorboard"),
    }
)
"""Flags that a run here has by default and that may stay where a script has not: slime's own default is the same, or
they change nothing of what is computed. Any other one is then left out."""


@dataclass
class Given:
    """A flag of the script, with its words and place."""

    words: list[str]
    place: str


class _Run:
    """The settings of the run as they are found."""

    def __init__(self, script: Script):
        self.script = script
        self.flags: dict[str, Given] = {}
        self.settings: dict[str, tuple[Any, str]] = {}
        """Dotted key to value, and the place in the script that it is from."""

    def by_hand(self, place: str, text: str) -> None:
        self.script.notes.append(f"{place}: {' '.join(text.split())}")

    def readable(self, name: str, value: str, place: str, key: str, where: str = "") -> bool:
        """Return whether a value can be carried over; what cannot be is told."""
        if secret_names({name.removeprefix("--"): value}):
            self.by_hand(place, f"{name} is a secret: set it in the cluster's environment")
        elif MARK.search(value):
            why = self.script.why(value)
            self.by_hand(place, f"{name} {MARK.sub('...', value)}: {why}: set {key} by hand{where}")
        else:
            return True
        return False

    def word(self, name: str) -> str:
        return " ".join(self.flags[name].words) if name in self.flags else ""

    def whole(self, name: str) -> int:
        """Return the value of a flag that is a whole number, 0 for any other."""
        return int(self.word(name)) if self.word(name).isdigit() else 0


def from_script(path: Path) -> tuple[str, list[str]]:
    """Return a run's YAML and what is to be written by hand, a line each with the script's line.

    Raises:
        ConfigError: there is no such file, or nothing in it starts slime.
    """
    try:
        script = Script(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {error}"]) from None
    start = trainer_in(script.command)
    if start is None:
        none = f"{path}: nothing in it starts `python3 {TRAINERS[0]}` or `python3 {TRAINERS[1]}` of slime"
        raise ConfigError([none, *script.notes])
    trainer, run = script.command[start], _Run(script)
    flags, stray = _flags(script.command[start + 1 :])
    for word in stray:
        run.by_hand(word.place, f"{script.why(word.text)}: write its flags by hand")
    for name, given in flags.items():
        key = OURS[name][0] if name in OURS else GOVERNS.get(name, f"slime.{name}")
        if run.readable(f"--{name}", " ".join(given.words), given.place, key):
            run.flags[name] = given
    absent = {*DEFAULTS, "sequence-parallel", "attention-backend"} - AS_SLIMES - run.flags.keys()
    _order(run, trainer)
    _method(run)
    for at, word in enumerate(script.command[:start]):
        option, equals, text = word.text.partition("=")
        if option == "--runtime-env-json":
            _environment(run, text if equals else script.command[at + 1].text, word.place)
    _slimes_own(run)
    run.settings |= {f"slime.{name}": (False, "") for name in sorted(absent)}
    script.notes.sort(key=lambda note: int((re.findall(r":(\d+): ", note) or [0])[0]))
    return _text(path, run), script.notes


def _flags(words: list[Word]) -> tuple[dict[str, Given], list[Word]]:
    """Return the flags, and words that cannot be read where no flag takes them: they may be flags themselves."""
    known = recorded_flags().by_name
    flags: dict[str, Given] = {}
    stray: list[Word] = []
    name, most = "", 0
    for word in words:
        if re.fullmatch(r"\||&|[012&]?>.*", word.text):
            break  # what follows says where the output goes
        if word.text.startswith("--"):
            name, equals, value = word.text[2:].partition("=")
            flag = known.get(f"--{name}", Flag(f"--{name}"))
            name = flag.name[2:]
            most = flag.values if isinstance(flag.values, int) else len(words)
            before = flags[name].words if name in flags and flag.repeatable else []
            flags[name] = Given([*before, *([value] if equals else [])], word.place)
        elif MARK.fullmatch(word.text) and (not name or len(flags[name].words) >= most):
            stray.append(word)
        elif name:
            flags[name].words.append(word.text)
    return flags, stray


def _order(run: _Run, trainer: Word) -> None:
    """Put the order of generation and training, and the GPUs of each."""
    flags, settings = run.flags, run.settings
    settings["pipeline.lag"] = int(trainer.text.endswith("train_async.py")), trainer.place
    if settings["pipeline.lag"][0] == 0:
        flags.pop("update-weights-interval", None)
    if "fully_async_rollout" in run.word("rollout-function-path"):
        place = flags.pop("rollout-function-path").place
        settings["pipeline.mode"] = "streaming", place
        run.by_hand(place, "slime bounds no staleness here, and a run here does: see pipeline.max_staleness")
    batch, responses = (
        run.whole("global-batch-size"),
        run.whole("rollout-batch-size") * run.whole("n-samples-per-prompt"),
    )
    if batch and responses:
        settings[STEPS] = max(responses // batch, 1), flags.pop("global-batch-size").place
    if "num-steps-per-rollout" in flags:
        flags.pop("global-batch-size", None)
    if colocate := flags.pop("colocate", None):
        run.by_hand(
            colocate.place,
            "--colocate: training and generation have GPUs of their own here, as many again: divide them by "
            "slime.actor-num-gpus-per-node and slime.rollout-num-gpus",
        )
    if colocate or "rollout-num-gpus" not in flags:
        gpus = (run.whole("actor-num-nodes") or 1) * (run.whole("actor-num-gpus-per-node") or 8)
        flags["rollout-num-gpus"] = Given([str(gpus)], (colocate or trainer).place)
    if run.word("load").rstrip("/") == run.word("save").rstrip("/"):
        flags.pop("load", None)


def _method(run: _Run) -> None:
    """Put what ours governs; the objective is slime's unless the script says otherwise."""
    flags, settings = run.flags, run.settings
    base = flags.get("advantage-estimator", Given(["grpo"], ""))
    if base.words not in (["grpo"], ["gspo"]):
        run.by_hand(
            flags.pop("advantage-estimator").place, f"--advantage-estimator {' '.join(base.words)}: set method.base"
        )
    settings |= {"method.base": ("grpo", ""), "method.denominator": ("trainer", ""), "loss.kl_coef": (0, "")}
    if "custom-tis-function-path" in flags:
        flags.pop("use-tis", None)
    for switch, value in (("use-tis", "tis-clip"), ("use-opsm", "opsm-delta"), ("use-kl-loss", "kl-loss-coef")):
        if switch not in flags:
            flags.pop(value, None)
        elif value in flags and switch != "use-kl-loss":
            flags.pop(switch)  # what has settings is on
    kind = flags.pop("kl-loss-type", None)
    used = flags.pop("use-kl-loss", None)
    if used and run.word("kl-loss-coef").strip("0.") and (kind is None or kind.words not in (["low_var_kl"], ["k3"])):
        words = "k1, which is slime's default" if kind is None else " ".join(kind.words)
        run.by_hand((kind or used).place, f"--kl-loss-type {words}: here it is always low_var_kl")
    if not run.word("kl-coef").strip("0."):
        flags.pop("kl-coef", None)
    if "seed" not in flags and "rollout-seed" in flags:
        flags["seed"] = flags.pop("rollout-seed")
    if "eps-clip" in flags:
        flags.setdefault("eps-clip-high", flags["eps-clip"])
    for name in [name for name in flags if name in OURS]:
        given = flags.pop(name)
        key, value = OURS[name]
        settings[key] = _value(name, given) if value is None else value, given.place


def _environment(run: _Run, text: str, place: str) -> None:
    """Put the job's environment, without secrets and what every run here has."""
    try:
        others = json.loads(text)
        variables = {str(name): str(value) for name, value in others.pop("env_vars", {}).items()}
    except (ValueError, AttributeError, TypeError):
        run.by_hand(place, "the job's environment cannot be read: write it by hand below cluster.env")
        return
    if others:
        run.by_hand(place, f"runtime environment: write {', '.join(others)} by hand below cluster.runtime_env")
    for name, value in variables.items():
        key = "cluster.python_path" if name == "PYTHONPATH" else f"cluster.env.{name}"
        if not run.readable(name, value, place, key, " where it is needed"):
            continue
        if name == "PYTHONPATH":
            folders = [folder for folder in value.split(":") if folder]
            for folder in [folder for folder in folders if "megatron" in folder.lower()][:1]:
                folders.remove(folder)
                run.settings["cluster.megatron_dir"] = folder, place
            if folders:
                run.settings[key] = folders, place
        elif (name, value) not in (("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("NCCL_NVLS_ENABLE", "1")):
            run.settings[key] = value, place


def _slimes_own(run: _Run) -> None:
    for name, given in run.flags.items():
        flag, value = f"--{name} {' '.join(given.words)}".strip(), _value(name, given)
        if name in REFUSED:
            run.by_hand(given.place, f"{flag} is left out: {REFUSED[name]}")
        elif name in GOVERNS:
            run.by_hand(given.place, f"{flag} follows from {GOVERNS[name]} here: set that")
        else:
            try:
                SlimeConfig(slime={name: value})
                run.settings[f"slime.{name}"] = value, given.place
            except ValidationError as error:
                message = error.errors()[0]["msg"].removeprefix("Value error, ")
                run.by_hand(given.place, f"{flag}: {message}: set slime.{name} by hand")


def _value(name: str, given: Given) -> Any:
    """Return the value of a flag: numbers where slime's parser takes numbers, a list where it takes several."""
    flag = recorded_flags().by_name.get(f"--{name}", Flag(name))
    try:
        values = [{"int": int, "float": float}.get(flag.type or "", str)(word) for word in given.words]
    except ValueError:
        values = list(given.words)
    many = len(values) > 1 or flag.values not in (0, 1, "?")
    return values if many else values[0] if values else True


def _yaml(value: Any) -> str:
    """Return a value in YAML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, float) and parse_value(f"{value:g}") == value:
        return f"{value:g}".replace("e-0", "e-")
    return str(yaml.safe_dump([value], default_flow_style=True, width=10**9, allow_unicode=True)).strip()[1:-1]


def _text(path: Path, run: _Run) -> str:
    """Return the file: what to write by hand, and each setting with the script's line."""
    lines = [
        f"# The run that {path.name} starts, as `sat-slime init from-script` reads it. It trains by the script's own",
        "# objective: for SAT add `sat: true` below method, with `denominator: rollout`. What is false without a line",
        "# number is not in the script, and a run here has it by default.",
    ]
    if notes := run.script.notes:
        lines += ["#", "# By hand:", *(f"# - {note}" for note in notes)]
    lines += ["runtime: slime", f"name: {re.sub(r'[^A-Za-z0-9._-]+', '-', path.stem).lstrip('._-') or 'run'}"]
    tree: dict[str, Any] = {"method": {}, "loss": {}, "pipeline": {}, "cluster": {}, "slime": {}}
    for key, entry in run.settings.items():
        *sections, last = key.split(".", 1) if key.startswith("slime.") else key.split(".")
        below = tree
        for section in sections:
            below = below.setdefault(section, {})
        below[last] = entry

    def write(tree: Mapping[str, Any], indent: str) -> None:
        for key, entry in tree.items():
            if isinstance(entry, dict):
                lines.extend([*([] if indent else [""]), f"{indent}{key}:"])
                write(entry, indent + "  ")
            else:
                value, place = entry
                lines.append(f"{indent}{key}: {_yaml(value)}" + (f"  # {place}" if place else ""))

    write({section: below for section, below in tree.items() if below}, "")
    return "\n".join(lines) + "\n"
