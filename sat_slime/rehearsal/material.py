"""Makes what a rehearsal starts from: the run's own tokenizer, prompts, and a thin model with random weights."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.config.source import ConfigError
from sat_slime.launch.hf_checkpoint import read_tokenizer, reason_of, stop_tokens, turn_end
from sat_slime.launch.machine import SLICE, first_rows
from sat_slime.models.families import Weight

SCRIPT = "\\boxed{"
"""What a response says before its answer."""
TAIL = "}"
FILLERS = (" so", " then", " we", " get")
"""Words before that."""
SCALE = 8.0
"""How far a step of the script stands out of the residual stream."""
CERTAIN = 1e4
"""How much likelier a step of the script is than all other words together."""
INSIDE, BEHIND_ATTENTION, BEHIND_FEED_FORWARD = 1.5, 0.15, 0.7
"""Gains of random matrices: those that read the residual stream, and those that write into it."""
ROWS_READ = 20_000
"""Rows of a file of prompts that are looked at."""


def make_material(run: SlimeConfig, thin: SlimeConfig, folder: Path) -> None:
    """Writes the rehearsal's model, tokenizer and prompts into its folder. The settings of the run say where the last
    two are, `thin` the rest. Raises ConfigError where the tokenizer is not on this machine."""
    model = folder / "model"
    model.mkdir(parents=True)
    copy_tokenizer(run, model)
    (folder / "rollouts").mkdir()
    count, keys = 2 * thin.rollout.prompts_per_iteration, (run.data.input_key, run.data.label_key or "label")
    lines = _short_lines(run.data.prompts, *keys)[:count]
    lines = lines or [_made(run, number, *keys) for number in range(count)]
    answers = list(dict.fromkeys(str(line.get(keys[1])) for line in lines))
    _write_lines(folder / "prompts.jsonl", lines)
    keys = run.slime.get("eval-input-key") or keys[0], run.slime.get("eval-label-key") or keys[1]
    for name, file in thin.eval.prompts.items():
        lines = _short_lines(run.eval.prompts.get(name), *keys)[:1]
        _write_lines(Path(file), lines or [_made(run, 99, *keys)])
    stop = stop_token(thin, model)
    write_model(thin, model, script_tokens(model, answers, stop), stop)


TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "generation_config.json"),
)
"""Files of a Hugging Face folder that are its tokenizer's, its template and its stop tokens."""


def copy_tokenizer(run: SlimeConfig, out: Path) -> None:
    """Copies the run's tokenizer into a model's folder. Raises ConfigError where it is not on this machine, or
    transformers is not."""
    for name in TOKENIZER_FILES:
        if os.path.isfile(file := Path(run.model.hf_checkpoint or "") / name):  # Path's raises where it may not look
            shutil.copyfile(file, out / name)
    try:
        read_tokenizer(out)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}, which a rehearsal needs: pip install '.[lab,slime]' in a checkout") from error
    except Exception as error:  # whatever a broken file raises
        here = f"slime.hf-checkpoint is {run.model.hf_checkpoint}: no tokenizer can be read there ({reason_of(error)})"
        make = "hf download OWNER/NAME --exclude '*.safetensors' --local-dir DIR"
        raise ConfigError(f"{here}: download the model's ({make}) and set it to DIR") from error


def _made(run: SlimeConfig, number: int, input_key: str, label_key: str) -> dict[str, Any]:
    first, second = 1 + number % 2, 1 + number % 3
    text = f"What is {first} + {second}? Put the number into \\boxed{{}}."
    prompt = [{"role": "user", "content": text}] if run.data.chat_template else text
    return {input_key: prompt, label_key: str(first + second)}


def _short_lines(prompts: str | None, input_key: str, label_key: str) -> list[dict[str, Any]]:
    """Return the shortest rows of a prompt file whose answer is one digit, else the shortest of all; none where the
    file is not there, or cannot be read for want of pyarrow."""
    file = Path(SLICE.sub("", prompts or ""))
    if not os.path.isfile(file):
        return []
    try:
        first = first_rows(file, ROWS_READ) or []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({reason_of(error)}): mend it, or name another") from error
    rows = [row for row in first if isinstance(row, dict) and input_key in row]
    rows.sort(key=lambda row: len(str(row[input_key])))
    digits = [row for row in rows if re.fullmatch(r"\s*\d\s*", str(row.get(label_key)))]
    return digits[:64] if len(digits) >= 4 else rows[:64]


def _write_lines(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    # Escaped, since half a character cannot be written; as text what parquet has and JSON has not, such as dates.
    file.write_text("".join(json.dumps(line, default=str) + "\n" for line in lines), encoding="utf-8")


def stop_token(thin: SlimeConfig, model: Path) -> int | None:
    """Return the token with which the model is to end a response: the chat template's, else the tokenizer's."""
    tokenizer = read_tokenizer(model)
    if thin.data.chat_template:
        with contextlib.suppress(Exception):  # a template may raise anything
            if (end := turn_end(tokenizer, thin.data.chat_template_args)).token:
                return end.number
    return min(stop_tokens(model, tokenizer), default=None)


def script_tokens(model: Path, answers: Sequence[str], stop: int | None) -> list[list[int]]:
    """Return what responses say, a step each with its choices: words, \\boxed{, one of the answers, }, the end."""
    tokenizer = read_tokenizer(model)

    def first(*texts: str) -> list[int]:
        """Return the first tokens of the texts that have any, each once."""
        encoded = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return list(dict.fromkeys(int(tokens[0]) for tokens in encoded if tokens))

    said = tokenizer.encode(SCRIPT, add_special_tokens=False)
    return [
        first(*FILLERS),
        *([token] for token in said),
        first(*answers[:8]) or first("1"),
        first(TAIL),
        *[[stop]] * (stop is not None),
    ]


def write_model(thin: SlimeConfig, folder: Path, script: Sequence[Sequence[int]], stop: int | None) -> None:
    """Writes random weights, and a config.json, in Hugging Face's format.

    The embedding and the output layer say what comes next: a token's embedding has a direction of its step of the
    script, and the rows of the next step's tokens are along it. So responses are words, an answer that is right now and
    then, and an end, and rewards differ; some reach the limit before their end. With tied embeddings one matrix cannot
    say that, and all are random.
    """
    import torch
    from safetensors.torch import save_file

    model = replace(thin.model, max_positions=thin.model.max_positions or 32768)
    tokenizer = read_tokenizer(folder)
    vocab_size = model.vocab_size or 1 + max(tokenizer.get_vocab().values())  # where slime takes the checkpoint's
    family = model.resolved_family
    assert family is not None
    torch.manual_seed(thin.seed)
    tensors: dict[str, torch.Tensor] = {}
    for weight in family.weights(model, vocab_size):
        for name, shape in weight.tensors.items():
            layers = range(model.layers) if "{layer}" in name else range(1)
            for layer in layers:
                for expert in range(max(weight.experts, 1)) if "{expert}" in name else range(1):
                    tensors[name.format(layer=layer, expert=expert)] = _random(torch, shape, weight, model.layers)
    embedding, output = tensors["model.embed_tokens.weight"], tensors.get("lm_head.weight")
    if output is not None:
        _follow(embedding, output, script, words=max(4, thin.rollout.max_response_tokens))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    end = min(stop_tokens(folder, tokenizer), default=stop or 0)
    config = family.hf_config(model, vocab_size, end, "float32")
    config["transformers_version"] = "4.51.0"  # without one transformers takes every tokenizer for a faulty Mistral's
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _random(torch: Any, shape: tuple[int, ...], weight: Weight, layers: int) -> Any:
    """Return random weights with which every layer says something: wrong positions, or an expert less, change log-probs
    by several percent, and the script is still followed."""
    if "layernorm" in weight.megatron:
        return torch.ones(shape)
    ends = any(part in weight.megatron for part in ("linear_proj", "linear_fc2"))
    gain = INSIDE if not ends else BEHIND_ATTENTION if "linear_proj" in weight.megatron else BEHIND_FEED_FORWARD
    return torch.randn(shape) * (gain / math.sqrt(shape[-1] * (layers if ends else 1)))


def _follow(embedding: Any, output: Any, script: Sequence[Sequence[int]], words: int) -> None:
    """Writes the script into the two matrices: step 0 also follows every token that is in none, and itself, so that it
    has `words` tokens on average; what layers add makes that about words^0.85."""
    hidden = embedding.shape[1]
    length = math.sqrt(hidden)  # of a vector behind the last norm
    certain = math.log(len(embedding) * CERTAIN)
    output *= 0.1
    embedding[:, 0] += SCALE
    for step, tokens in enumerate(script[:-1] if len(script) > 1 else []):
        embedding[tokens, 0] -= SCALE if step else 0.0
        embedding[tokens, step] += SCALE if step else 0.0
        following = script[step + 1]
        output[following, step] += (certain - math.log(len(following))) / length
    output[list(script[0]), 0] += (certain - math.log(len(script[0])) + math.log(words - 1)) / length
