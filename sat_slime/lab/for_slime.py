"""A lab run's initial model and problems as files that slime takes, for `sat-slime prepare laptop`.

`OUT/model` is a Hugging Face folder with a tokenizer whose tokens are the characters, `OUT/prompts.jsonl` and
`OUT/held_out.jsonl` have a `prompt`, a `label` and the task in each line.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from sat_slime.config import ConfigError
from sat_slime.config.disk import written_whole
from sat_slime.config.loader import load_config, vary
from sat_slime.config.schema import LabConfig
from sat_slime.lab.batch import evaluation_requests, training_requests
from sat_slime.lab.initial_model import cached_model, is_model
from sat_slime.lab.process import TrainerProcess
from sat_slime.tasks.running_sums import Problem, RunningSums

ITERATIONS = 256
"""Iterations whose prompts are written, in the order in which a lab run draws them; the quick start has 240."""
PADDING, UNKNOWN = "<pad>", "<unk>"
"""The two tokens that are no character of the task; the model has never seen them."""
MADE = ("model", "prompts.jsonl", "held_out.jsonl")
"""What a folder holds."""


def lab_settings(file: Path | None, overrides: Sequence[str]) -> LabConfig:
    """Return the settings of a lab run's file, of the quick start where it is None, with these, KEY=VALUE each,
    over them. Raises ConfigError."""
    config = load_config(file, overrides) if file else vary(LabConfig(), [], overrides)
    if not isinstance(config, LabConfig):
        raise ConfigError(
            f"runtime is {config.runtime}, but model and problems are those of a lab run: name a file of one"
        )
    # Held-out problems are written whether or not the run evaluates, so the task has to have as many.
    return config.model_copy(update={"eval": config.eval.model_copy(update={"every_n_iterations": 1})})


def write_folder(config: LabConfig, folder: Path) -> None:
    """Writes everything or nothing; replaces what was there. Raises PartFailure where the warm-up fails."""
    model = cached_model(config)
    if not is_model(model):
        model.parent.mkdir(parents=True, exist_ok=True)
        with closing(TrainerProcess(config, model.parent / "warm-up.log", "warm-up")) as process:
            while process.call("warm_up", model) is not None:
                pass
    drawn = (problem for iteration in range(ITERATIONS) for problem in training_requests(config, iteration)[0])
    with written_whole(folder) as part:
        shutil.copytree(model, part / "model")
        write_tokenizer(config.task, part / "model")
        write_problems(config.task, drawn, part / "prompts.jsonl")
        write_problems(config.task, evaluation_requests(config, 0)[0], part / "held_out.jsonl")


def write_tokenizer(task: RunningSums, folder: Path) -> None:
    """Writes a tokenizer whose tokens are the task's characters, numbered by their places in its alphabet."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*task.alphabet, PADDING, UNKNOWN]
    words = models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=UNKNOWN)
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=task.eos, pad_token=PADDING, unk_token=UNKNOWN
    )
    wrapped.save_pretrained(folder)


def write_problems(task: RunningSums, problems: Iterable[Problem], file: Path) -> None:
    """Writes a line of JSON for each problem. It names the task, by which `sat_slime.plugin.task_reward` grades."""
    metadata = {"task": task.model_dump()}
    lines = (json.dumps({"prompt": row.prompt, "label": row.label, "metadata": metadata}) for row in problems)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
