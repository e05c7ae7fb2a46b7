"""Checks the Hugging Face checkpoint of a run: its files, whether the model's flags fit it, its chat template, and
that responses end: by the token with which the template ends a turn, which must be one of those on which SGLang stops.
The tokenizer and its template are transformers': no code of the checkpoint runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.jsonl import parse_object
from sat_slime.config.slime_schema import SlimeConfig, SlimeModelConfig
from sat_slime.runs.reading import section

CONFIG_KEYS = {
    "num-layers": ("num_hidden_layers",),
    "hidden-size": ("hidden_size",),
    "ffn-hidden-size": ("intermediate_size",),
    "num-attention-heads": ("num_attention_heads",),
    "num-query-groups": ("num_key_value_heads",),
    "kv-channels": ("head_dim",),
    "vocab-size": ("vocab_size",),
    "num-experts": ("num_experts", "n_routed_experts", "num_local_experts"),
    "moe-router-topk": ("num_experts_per_tok",),
    "moe-ffn-hidden-size": ("moe_intermediate_size",),
    "rotary-base": ("rope_theta",),
}
"""Flags of the architecture, each with its names in a Hugging Face config.json."""
OF_KINDS = {"qk-layernorm": ("qwen3", "qwen3_moe"), "add-qkv-bias": ("qwen2", "qwen2_moe")}
"""Flags that a model_type of config.json needs: without one Megatron skips its weights in the checkpoint."""


def is_the_laptops(config: SlimeConfig) -> bool:
    """Return whether a run has the laptop's task, whose model and prompts `sat-slime prepare laptop` makes."""
    return config.data.reward == "sat_slime.plugin.task_reward.reward"


def hf_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield findings on the Hugging Face checkpoint: its files, and whether the model's flags fit its config.json."""
    what, path = "checkpoint", config.model.hf_checkpoint
    if path is None:
        return  # the check of the settings says that it is missing
    folder, named = Path(path), f"slime.hf-checkpoint is {path}"
    if not os.path.isdir(folder):
        make = "An id of the hub is not taken: download the weights (`hf download OWNER/NAME --local-dir DIR`)"
        if is_the_laptops(config):
            make = "Make it, and the prompts, with sat-slime prepare laptop (--out FOLDER)"
        yield fail(what, f"{named}: there is no such folder. {make} and set it to their folder")
        return
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        yield fail(what, f"{named}: its config.json cannot be read ({reason_of(error)})")
        return
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weights = _read(index).get("weight_map")
        files = set(weights.values()) if isinstance(weights, dict) else {index.name}
        missing = sorted(name for name in files if not (folder / name).is_file() or name == index.name)
    else:  # any file of weights will do
        there = any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
        missing = [] if there else ["model.safetensors"]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield fail(what, f"{named}: {missing[0]}{more} is not there or damaged; download it again")
    elif not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        yield fail(what, f"{named}: it has no tokenizer; download it again")
    else:
        yield ok(what, path)
    problems = list(model_mismatches(config.model, values))
    quantized = config.slime.get("sglang-quantization")
    if quantized and not values.get("quantization_config"):
        fault = f"slime.sglang-quantization is {quantized}, but the checkpoint's config.json has no quantization_config"
        why = "SGLang makes a form of its own of the weights, which no push of bf16 weights fits"
        problems.append(f"{fault}: {why}: leave it out, or name a quantized slime.hf-checkpoint")
    yield from [fail("model", problem) for problem in problems] or [ok("model", f"as in {folder / 'config.json'}")]


def checkpoint_bits(path: str | None) -> int:
    """Return the bits of a weight in the layers of a Hugging Face checkpoint: those of its quantization, of which 8 is
    the usual; 16 without any, and where the folder is not here."""
    quantization = _read(Path(path) / "config.json").get("quantization_config") if path else None
    bits = re.search(r'bits": (\d+)', json.dumps(quantization))
    return int(bits[1]) if bits else 8 if quantization else 16


def model_mismatches(model: SlimeModelConfig, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every contradiction between the model's flags and a Hugging Face config.json."""
    values = {**values, **section(values, "text_config")}
    both = {**section(values, "rope_parameters"), **values}
    described = {f"slime.{flag}": (model.flags.get(flag), names) for flag, names in CONFIG_KEYS.items()}
    described["max_positions"] = (model.max_positions, ("max_position_embeddings",))
    for key, (ours, names) in described.items():
        name = next((name for name in names if both.get(name) is not None), "")
        theirs = both.get(name)
        if key == "slime.num-experts" and bool(ours) != bool(theirs):
            kinds = ("an MoE model", "a dense one") if ours else ("a dense model", "an MoE model")
            yield f"the model of slime is {kinds[0]}, but the checkpoint's config.json is {kinds[1]}: describe that one"
        elif ours is not None and theirs is not None and ours != theirs:
            remedy = f"set it to {theirs}, or name another slime.hf-checkpoint"
            yield f"{key} is {ours}, but the checkpoint's config.json has {name} {theirs}: {remedy}"
    kind = values.get("model_type")
    for flag, kinds in OF_KINDS.items():
        if kind in kinds and model.layers and not model.flags.get(flag):
            theirs = f"the checkpoint's config.json has model_type {kind}"
            why = f"{theirs}, and Megatron would load the rest without a word"
            yield f"slime.{flag} is not set, but {why}: set it to true"
    tied, untie = values.get("tie_word_embeddings"), "untie-embeddings-and-output-weights"
    if isinstance(tied, bool) and tied != model.tied_embeddings:
        ours, remedy = ("true", "leave it out") if tied else ("not set", "set it to true")
        theirs = f"the checkpoint's config.json has tie_word_embeddings {str(tied).lower()}"
        yield f"slime.{untie} is {ours}, but {theirs}: {remedy}"


WHAT = "stop tokens"
QUESTION, ANSWER, NEXT = "SatSlimeQuestion", "SatSlimeAnswer", "SatSlimeNext"
"""What the messages say that are put into the template."""


class TurnEnd(NamedTuple):
    """What follows an answer in the chat template."""

    text: str
    token: str = ""
    """The first of the tokenizer's added tokens in it; empty where there is none."""
    number: int = -1
    by_itself: bool = True
    """Whether it follows an answer that nothing follows; else it is how the next turn begins."""


def stop_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield findings on the chat template: whether there is one, with its arguments, and whether SGLang stops where it
    ends a turn; and on slime.rollout-stop-token-ids."""
    path, given = config.model.hf_checkpoint, config.rollout.stop_token_ids
    if path is None or not _read(Path(path) / "config.json") or not any(Path(path).glob("tokenizer*")):
        return  # the check of the checkpoint says so
    try:
        tokenizer = read_tokenizer(Path(path))
    except Exception as error:  # whatever a broken file, or transformers that is missing, raises
        yield warn(WHAT, f"the tokenizer cannot be read here ({_said(error)}): look whether responses end")
        return
    stops, texts = stop_tokens(Path(path), tokenizer) | set(given), config.slime.get("rollout-stop") or []
    texts = texts if isinstance(texts, list) else [str(texts)]
    listed = ", ".join(map(str, sorted(stops)))
    on = f"it stops on {listed or 'no token'}"
    if not config.data.chat_template:
        told = "SGLang stops on no token, and responses run to the limit: set slime.rollout-stop-token-ids"
        yield ok(WHAT, f"SGLang stops on {listed}") if stops or texts else warn(WHAT, told)
        return
    if not tokenizer.chat_template:
        fault = f"slime.apply-chat-template is true, but {path} has no chat template"
        remedy = "put the model's chat_template.jinja there, or set slime.apply-chat-template to false"
        yield fail(WHAT, f"{fault}: {remedy}")
        return
    for name in config.data.chat_template_args:
        if name not in str(tokenizer.chat_template):
            told = f"slime.apply-chat-template-kwargs.{name} is no variable of the template: leave it out"
            yield warn("template", told)
    try:
        end = turn_end(tokenizer, config.data.chat_template_args)
    except Exception as error:  # a template may raise anything
        told = f"where the chat template ends a turn is not known ({_said(error)})"
        yield warn(WHAT, f"{told}: look whether responses end; {on}")
        return
    if not end.token:
        ends = f"with {end.text!r}, which is no token" if end.text.strip() else "with nothing"
        yield warn(WHAT, f"the chat template ends a turn {ends}: look whether responses end; {on}")
    elif end.number in stops or any(text in end.token for text in texts):
        yield ok(WHAT, f"SGLang stops on {listed}")
    else:
        says = "ends a turn with" if end.by_itself else "ends no turn by itself and starts the next with"
        # Others than special tokens right behind the answer may be part of a layout.
        special = getattr(tokenizer.added_tokens_decoder.get(end.number), "special", True)
        mark = fail if special and end.by_itself and end.text.lstrip().startswith(end.token) else warn
        fault = f"slime.rollout-stop-token-ids is {given or 'unset'}, and the chat template {says} {end.token}"
        yield mark(WHAT, f"{fault} ({end.number}), on which SGLang does not stop ({on}): add {end.number}")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def read_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a Hugging Face folder, by transformers; no code of the checkpoint runs."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def stop_tokens(folder: Path, tokenizer: Any) -> Set[int]:
    """Return the tokens on which SGLang stops by itself: those of config.json, generation_config.json and the tokenizer
    (ModelConfig._get_hf_eos_token_id, attach_additional_stop_token_ids)."""
    config = _read(folder / "config.json")
    named = [
        config.get("eos_token_id", section(config, "text_config").get("eos_token_id")),
        _read(folder / "generation_config.json").get("eos_token_id") or None,  # SGLang takes 0 there for none
        tokenizer.eos_token_id,
        tokenizer.get_added_vocab().get("<|eom_id|>"),
    ]
    listed = (value if isinstance(value, list) else [value] for value in named)
    return {number for numbers in listed for number in numbers if type(number) is int}


def turn_end(tokenizer: Any, arguments: Mapping[str, Any]) -> TurnEnd:
    """Return what follows an answer in the chat template. arguments: slime.apply-chat-template-kwargs. Raises
    ValueError where the template leaves the answer out, and what the template raises."""
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    chats = (turns, [*turns, {"role": "user", "content": NEXT}])
    texts = [str(tokenizer.apply_chat_template(chat, tokenize=False, **arguments)) for chat in chats]
    if ANSWER not in texts[0]:
        raise ValueError("it leaves the answer out")
    alone, followed = (text.rpartition(ANSWER)[2].partition(NEXT)[0] for text in texts)
    added = tokenizer.get_added_vocab()
    pattern = re.compile("|".join(map(re.escape, sorted(filter(str.strip, added), key=len, reverse=True))) or r"(?!)")
    for text, by_itself in ((alone, True), (followed, False)):
        if match := pattern.search(text):
            return TurnEnd(text, match[0], added[match[0]], by_itself)
    return TurnEnd(alone if alone.strip() else followed)


def _read(file: Path) -> dict[str, Any]:
    try:
        return parse_object(file.read_bytes()) or {}
    except OSError:
        return {}


def reason_of(error: Exception) -> str:
    """Return why a file cannot be read, in a line."""
    return str(getattr(error, "strerror", None) or error).splitlines()[0]
