"""The model and the prompts of configs/slime/laptop.yaml, which the first launch makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sat_slime.cli.terminal import say
from sat_slime.config import ConfigError, SlimeConfig, config_errors
from sat_slime.config.disk import is_replaceable

LAPTOP = Path("~/.cache/sat_slime/laptop").expanduser()
"""The folder in which configs/slime/laptop.yaml looks for its model and prompts."""
REWARD = "sat_slime.plugin.task_reward.reward"
"""slime.custom-rm-path of a run that is for this model."""
MODEL, PROMPTS, HELD_OUT = "model", "prompts.jsonl", "held_out.jsonl"
"""The names of what is made in the folder."""


def make_laptop(folder: Path, overwrite: bool, file: Path | None = None, overrides: Sequence[str] = ()) -> None:
    """Write the warmed-up model of a lab run, from its cache if it is there, and its problems, as slime reads
    them.

    file: the run's; None: the quick start. overrides: its settings as KEY=VALUE, such as those of another task. Raises
    ConfigError."""
    from sat_slime.lab.for_slime import lab_settings

    if faults := config_errors(lab_settings(file, overrides)):
        raise ConfigError(faults)
    if folder.exists() and not overwrite:
        raise ConfigError([f"{folder} is there already: --overwrite makes it anew, --out names another"])
    if not is_replaceable(folder, (MODEL, PROMPTS, HELD_OUT)):
        raise ConfigError([f"{folder} holds something else than such a model and its prompts: --out names another"])
    # In a process of its own, since it makes Megatron's process groups.
    program = [sys.executable, "-W", "ignore", "-m", "sat_slime.lab.for_slime", str(folder)]
    program += [*overrides, *(["--file", str(file)] if file else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(program, capture_output=True, text=True, env=environment)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        raise ConfigError([f"{folder} could not be made ({reason}): scripts/setup.sh installs what it needs"])


def missing_laptop(config: SlimeConfig) -> Path | None:
    """Return the folder that has to be made before a run, or None. It is that of a run with the reward of a task whose
    model is FOLDER/model and whose prompts are in FOLDER too, where there is no FOLDER yet."""
    if config.data.reward != REWARD or not (config.model.hf_checkpoint and config.data.prompts):
        return None
    folder = Path(config.model.hf_checkpoint).parent
    asked = (Path(config.model.hf_checkpoint), Path(config.data.prompts))
    return folder if asked == (folder / MODEL, folder / PROMPTS) and not folder.exists() else None


def is_quick_starts(config: SlimeConfig) -> bool:
    """Return whether the quick start's model and prompts are for a run: they have no tool, and no generate function."""
    return not config.slime.get("custom-generate-function-path")


def make_missing_laptop(config: SlimeConfig, console: Console) -> None:
    """Make the folder of missing_laptop, where there is one. Raises ConfigError."""
    if (folder := missing_laptop(config)) and is_quick_starts(config):
        say(console, f"making the model and the prompts in {folder}, once ...")
        make_laptop(folder, overwrite=False)


def without_laptop(config: SlimeConfig, folder: Path) -> SlimeConfig:
    """Return the settings without the files that will be made in `folder`, for checks of what has to be there
    already."""
    made = {str(folder / name) for name in (MODEL, PROMPTS, HELD_OUT)}
    gone = {name: None for name in ("hf-checkpoint", "ref-load", "prompt-data") if config.slime.get(name) in made}
    sets = [word for name, file in config.eval.prompts.items() if file not in made for word in (name, file)]
    return config.with_flags({**gone, "eval-prompt-data": sets})
