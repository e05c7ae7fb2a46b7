"""Checks the Hugging Face checkpoint of a run: its files, whether the model section fits it, its chat template, and
that responses end: by the token with which the template ends a turn, which must be one of those on which SGLang stops.

The checkpoint's files are read as JSON, and its template is rendered in jinja2's sandbox, as transformers does: no code
of the checkpoint runs, and neither transformers nor SGLang is imported.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.slime_schema import SlimeConfig, SlimeModelConfig
from sat_slime.launch.named_files import reason_of

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

WHAT = "stop tokens"
INNER_CONFIGS = ("thinker_config", "llm_config", "language_config", "text_config")
"""Where the config.json of a model that sees images has its text model."""
ALSO_STOPS = "<|eom_id|>"
"""An added token on which SGLang stops in every model that has it (attach_additional_stop_token_ids)."""
QUESTION, ANSWER, NEXT = "SatSlimeQuestion", "SatSlimeAnswer", "SatSlimeNext"
"""What the messages say that are put into the template."""
GENERATION = re.compile(r"(\{%-?\s*)(end)?generation(\s*-?%\})")
"""transformers' own block, which marks what the assistant says."""


def hf_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield findings on the Hugging Face checkpoint: its files, and whether the model section fits its config.json."""
    what, path = "checkpoint", config.model.hf_checkpoint
    if path is None:
        return  # the check of the settings says that it is missing
    folder = Path(path)
    if not folder.is_dir():
        yield fail(
            what,
            f"model.hf_checkpoint is {path}: there is no such folder. An id of the hub is not taken: download the "
            "weights (`hf download OWNER/NAME --local-dir DIR`) and set it to their folder",
        )
        return
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield fail(what, f"model.hf_checkpoint is {path}: its config.json cannot be read ({reason_of(error)})")
        return
    missing = [name for name in _weight_files(folder) if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield fail(what, f"model.hf_checkpoint is {path}: {missing[0]}{more} is not there; download it again")
    elif not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        yield fail(what, f"model.hf_checkpoint is {path}: it has no tokenizer; download it again")
    else:
        yield ok(what, path)
    problems = [*model_mismatches(config.model, values), *_quantization(config, values)]
    yield from (fail("model", problem) for problem in problems)
    if not problems:
        yield ok("model", f"as in {folder / 'config.json'}")


def _quantization(config: SlimeConfig, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line where weights are to be quantized: SGLang then turns them into a form of its own, which no push of
    bf16 weights fits."""
    value = config.slime.get("sglang-quantization")
    if value and not values.get("quantization_config"):
        yield (
            f"slime.sglang-quantization is {value}, but the checkpoint's config.json has no quantization_config, "
            "and the trainer pushes bf16 weights: leave it out, or name a quantized model.hf_checkpoint"
        )


def _weight_files(folder: Path) -> list[str]:
    """Return the weight files that must be there: those of the checkpoint's index. Without an index any file of weights
    will do, and `model.safetensors` is asked for only where there is none."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError):
            return [index.name]
    return [] if any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")) else ["model.safetensors"]


def model_mismatches(model: SlimeModelConfig, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every contradiction between the model section and a Hugging Face config.json."""
    inner = values.get("text_config")  # a model that sees images has its text model there
    values = inner if isinstance(inner, Mapping) else values
    rope = values.get("rope_parameters")
    rope = rope if isinstance(rope, Mapping) else {}
    for flag, names in CONFIG_KEYS.items():
        value_set = model.architecture.get(flag)
        name, in_config = next(
            ((name, value) for name in names if (value := values.get(name, rope.get(name))) is not None), ("", None)
        )
        if flag == "num-experts" and bool(value_set) != bool(in_config):
            kinds = ("an MoE model", "a dense one") if value_set else ("a dense model", "an MoE model")
            yield f"model.architecture is {kinds[0]}, but the checkpoint's config.json is {kinds[1]}: describe that one"
        elif value_set is not None and in_config is not None and float(value_set) != float(in_config):
            yield (
                f"model.architecture.{flag} is {value_set}, but the checkpoint's config.json has {name} {in_config}: "
                f"set it to {in_config}, or name another model.hf_checkpoint"
            )
    positions = values.get("max_position_embeddings")
    if model.max_positions and isinstance(positions, int) and model.max_positions != positions:
        yield (
            f"model.max_positions is {model.max_positions}, but the checkpoint's config.json has "
            f"max_position_embeddings {positions}: set it to {positions}"
        )
    kind = values.get("model_type")
    for flag, kinds in OF_KINDS.items():
        if kind in kinds and model.architecture and not model.architecture.get(flag):
            yield (
                f"model.architecture.{flag} is not set, but the checkpoint's config.json has model_type {kind}, and "
                "Megatron would load the rest without a word: set it to true"
            )
    tied, untie = values.get("tie_word_embeddings"), "untie-embeddings-and-output-weights"
    if isinstance(tied, bool) and tied == bool(model.architecture.get(untie)):
        yield (
            f"model.architecture.{untie} is {'true' if tied else 'not set'}, but the checkpoint's config.json has "
            f"tie_word_embeddings {str(tied).lower()}: {'leave it out' if tied else 'set it to true'}"
        )


# ------------------------------------------------------------------------------------------------------ stop tokens


class Token(NamedTuple):
    """A token that the tokenizer takes out of a text whole."""

    content: str
    number: int
    special: bool

    def __str__(self) -> str:
        return f"{self.content} ({self.number})"


@dataclass(frozen=True)
class Checkpoint:
    """The files of a Hugging Face folder, as far as they tell how a response ends."""

    vocabulary: int | None
    added: Mapping[str, Token]
    """The tokens that the tokenizer takes out of a text whole, by their contents."""
    stops: frozenset[int]
    """The tokens on which SGLang stops by itself."""
    template: str | None
    names: Mapping[str, str]
    """Special tokens by the names that the template has for them, such as eos_token."""
    own_code: bool
    """Whether the tokenizer is code of the checkpoint, which may have a chat template of its own."""


class TurnEnd(NamedTuple):
    """The text that follows an answer in the chat template, and the token in it."""

    token: Token | None
    """The first added token in it."""
    text: str
    by_itself: bool
    """Whether it follows an answer that nothing follows; else it is how the next turn begins."""


def stop_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield findings on the chat template: whether there is one, with its arguments, and whether SGLang stops where it
    ends a turn; and on rollout.stop_token_ids."""
    path = config.model.hf_checkpoint
    if path is None or not _read(Path(path) / "config.json") or not any(Path(path).glob("tokenizer*")):
        return  # the check of the checkpoint says so
    checkpoint = read_checkpoint(Path(path))
    given = config.rollout.stop_token_ids
    problems = [*_of_the_ids(given, checkpoint), *_of_the_template(config, checkpoint)]
    yield from problems
    if not problems:
        yield ok(WHAT, f"SGLang stops on {_listed(checkpoint.stops | set(given))}")


def _of_the_ids(given: list[int], checkpoint: Checkpoint) -> Iterator[Finding]:
    added = {token.number for token in checkpoint.added.values()}
    size = checkpoint.vocabulary
    for number in given:
        key = f"rollout.stop_token_ids has {number}"
        if number < 0 or (size is not None and number >= size):
            has = "token numbers start at 0" if size is None or number < 0 else f"the model has {size} tokens"
            yield fail(WHAT, f"{key}, but {has}: take the ids of this model's tokenizer")
        elif added and number not in added and number not in checkpoint.stops:
            yield warn(WHAT, f"{key}, which is no special token: responses end at the first {number}; leave it out")


def _of_the_template(config: SlimeConfig, checkpoint: Checkpoint) -> Iterator[Finding]:
    given, words = config.rollout.stop_token_ids, config.slime.get("rollout-stop")
    stops = checkpoint.stops | set(given)
    words = [word for word in (words if isinstance(words, list) else [words]) if isinstance(word, str) and word]
    on = f"it stops on {_listed(stops)}" if stops else "it stops on no token"
    if not config.data.chat_template:
        if not stops and not words:
            yield warn(WHAT, "SGLang stops on no token, and responses run to the limit: set rollout.stop_token_ids")
        return
    if checkpoint.template is None:
        mark = warn if checkpoint.own_code else fail  # code of the checkpoint is not run here
        yield mark(
            WHAT,
            f"data.chat_template is true, but {config.model.hf_checkpoint} has no chat template: put the model's "
            "chat_template.jinja there, or set data.chat_template to false",
        )
        return
    for name in config.data.chat_template_args:
        if name not in checkpoint.template:
            key = f"data.chat_template_args.{name}"
            yield warn("template", f"{key} is no variable of the tokenizer's template: leave it out")
    end = turn_end(checkpoint, config.data.chat_template_args)
    if isinstance(end, str):
        yield warn(WHAT, f"where the chat template ends a turn is not known ({end}): look whether responses end; {on}")
    elif end.token is None:
        ends = f"with {end.text!r}, which is no token" if end.text.strip() else "with nothing"
        yield warn(WHAT, f"the chat template ends a turn {ends}: look whether responses end; {on}")
    elif end.token.number not in stops and not any(word in end.token.content for word in words):
        key = f"rollout.stop_token_ids is {given or 'unset'}"
        says = "ends a turn with" if end.by_itself else "ends no turn by itself and starts the next with"
        # Others than special tokens right behind the answer may be part of a layout.
        mark = fail if end.token.special and end.by_itself and end.text.lstrip().startswith(end.token.content) else warn
        yield mark(
            WHAT,
            f"{key}, and the chat template {says} {end.token}, on which SGLang does not stop ({on}): add "
            f"{end.token.number}",
        )


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def turn_end(checkpoint: Checkpoint, arguments: Mapping[str, Any]) -> TurnEnd | str:
    """Return what follows an answer in the chat template, or why that is not known. arguments:
    data.chat_template_args."""
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    try:
        texts = [
            _render(checkpoint, messages, arguments) for messages in (turns, [*turns, {**turns[0], "content": NEXT}])
        ]
    except Exception as error:  # a template may raise anything
        return f"{type(error).__name__}: {error}".splitlines()[0]
    if ANSWER not in texts[0]:
        return "it leaves the answer out"
    alone, followed = (text.rpartition(ANSWER)[2].partition(NEXT)[0] for text in texts)
    contents = sorted(filter(str.strip, checkpoint.added), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, contents)) or r"(?!)")
    for text, by_itself in ((alone, True), (followed, False)):
        if match := pattern.search(text):
            return TurnEnd(checkpoint.added[match[0]], text, by_itself)
    return TurnEnd(None, alone if alone.strip() else followed, by_itself=True)


def _render(checkpoint: Checkpoint, messages: Sequence[Mapping[str, str]], arguments: Mapping[str, Any]) -> str:
    """Return the text of messages as transformers makes it, in its environment (render_jinja_template)."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    sandbox.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    sandbox.globals["raise_exception"] = refuse
    sandbox.globals["strftime_now"] = lambda layout: datetime.datetime.now().strftime(layout)
    source = GENERATION.sub(lambda m: f"{m[1]}{'endif' if m[2] else 'if true'}{m[3]}", checkpoint.template or "")
    values = {"tools": None, "documents": None, "add_generation_prompt": False, **checkpoint.names, **arguments}
    return sandbox.from_string(source).render(messages=messages, **values)


# ------------------------------------------------------------------------------------------------------ checkpoint


def read_checkpoint(folder: Path) -> Checkpoint:
    """Reads what there is; a file that is missing or broken says nothing."""
    config, generation, tokenizer, settings = (
        _read(folder / f"{name}.json") for name in ("config", "generation_config", "tokenizer", "tokenizer_config")
    )
    inner: dict[str, Any] = next((config[name] for name in INNER_CONFIGS if isinstance(config.get(name), dict)), {})
    added = _added_tokens(tokenizer, settings)
    names = {name: text for name, value in settings.items() if name.endswith("_token") and (text := _content(value))}
    model = tokenizer.get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    numbers = {
        **(words if isinstance(words, dict) else {}),
        **{token.content: token.number for token in added.values()},
    }
    stops = [
        config.get("eos_token_id", inner.get("eos_token_id")),
        # SGLang reads 0 in the generation config as none (ModelConfig._get_hf_eos_token_id).
        generation.get("eos_token_id") or None,
        numbers.get(names.get("eos_token", "")),
        added[ALSO_STOPS].number if ALSO_STOPS in added else None,
    ]
    size = config.get("vocab_size", inner.get("vocab_size"))
    return Checkpoint(
        size if isinstance(size, int) else None,
        added,
        frozenset(
            number for value in stops for number in (value if isinstance(value, list) else [value]) if _is_id(number)
        ),
        _chat_template(folder, settings),
        names,
        "auto_map" in settings,
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _content(value: object) -> str | None:
    """Return the text of a token, which stands there as itself or as what describes it."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) and value else None


def _added_tokens(tokenizer: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Token]:
    """Return the added tokens of tokenizer.json and of tokenizer_config.json, which has the last word."""
    listed, decoder = tokenizer.get("added_tokens"), settings.get("added_tokens_decoder")
    rows = [(row.get("id"), row) for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    if isinstance(decoder, dict):
        rows += [(int(key), row) for key, row in decoder.items() if key.isdigit() and isinstance(row, dict)]
    return {
        content: Token(content, number, bool(row.get("special")))
        for number, row in rows
        if _is_id(number) and (content := _content(row))
    }


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the template that slime's prompts get: a file of its own counts more than the one in
    tokenizer_config.json."""
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}
        template = named.get("default")
    return template if isinstance(template, str) and template.strip() else None
