"""Checks that responses end: the token by which the chat template ends a turn, against those on which SGLang stops.

The checkpoint's files are read as JSON, and its template is rendered in jinja2's sandbox, as transformers does: no code
of the checkpoint runs, and neither transformers nor SGLang is imported.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.slime_schema import SlimeConfig

WHAT = "stop tokens"
INNER_CONFIGS = ("thinker_config", "llm_config", "language_config", "text_config")
"""Where the config.json of a model that sees images has its text model."""
ALSO_STOPS = "<|eom_id|>"
"""An added token on which SGLang stops in every model that has it (attach_additional_stop_token_ids)."""
QUESTION, ANSWER, NEXT = "SatSlimeQuestion", "SatSlimeAnswer", "SatSlimeNext"
"""What the messages say that are put into the template."""
GENERATION = re.compile(r"(\{%-?\s*)(end)?generation(\s*-?%\})")
"""transformers' own block, which marks what the assistant says."""


@dataclass(frozen=True)
class Token:
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
    added: tuple[Token, ...]
    stops: frozenset[int]
    """The tokens on which SGLang stops by itself."""
    template: str | None
    names: Mapping[str, str]
    """Special tokens by the names that the template has for them, such as eos_token."""
    own_code: bool
    """Whether the tokenizer is code of the checkpoint, which may have a chat template of its own."""


@dataclass(frozen=True)
class TurnEnd:
    """The text that follows an answer in the chat template, and the token in it."""

    token: Token | None
    """The first token of the tokenizer's added ones in it."""
    text: str
    by_itself: bool
    """Whether it follows an answer that nothing follows; else it is how the next turn begins."""


def stop_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield findings on whether SGLang stops where the chat template ends a turn, and on rollout.stop_token_ids."""
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
    added = {token.number for token in checkpoint.added}
    size = checkpoint.vocabulary
    for number in given:
        key = f"rollout.stop_token_ids has {number}"
        if number < 0 or (size is not None and number >= size):
            has = "token numbers begin at 0" if size is None or number < 0 else f"the model has {size} tokens"
            yield fail(WHAT, f"{key}, but {has}: take the ids of this model's tokenizer")
        elif added and number not in added and number not in checkpoint.stops:
            yield warn(WHAT, f"{key}, which is no special token: responses end at the first {number}; leave it out")


def _of_the_template(config: SlimeConfig, checkpoint: Checkpoint) -> Iterator[Finding]:
    given = config.rollout.stop_token_ids
    stops = checkpoint.stops | set(given)
    words = _words(config.extra_args.get("rollout-stop"))
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
    end = turn_end(checkpoint, config.data.chat_template_args)
    if isinstance(end, str):
        yield warn(WHAT, f"where the chat template ends a turn is not known ({end}): look whether responses end; {on}")
    elif end.token is None:
        ends = f"with {end.text!r}, which is no token" if end.text.strip() else "with nothing"
        yield warn(WHAT, f"the chat template ends a turn {ends}: look whether responses end; {on}")
    elif end.token.number not in stops and not any(word in end.token.content for word in words):
        key = f"rollout.stop_token_ids is {given or 'unset'}"
        says = "ends a turn with" if end.by_itself else "ends no turn by itself and begins the next with"
        # Others than special tokens right behind the answer may be part of a layout.
        mark = fail if end.token.special and end.by_itself and end.text.lstrip().startswith(end.token.content) else warn
        yield mark(
            WHAT,
            f"{key}, and the chat template {says} {end.token}, on which SGLang does not stop ({on}): add "
            f"{end.token.number}",
        )


def _words(value: object) -> list[str]:
    """Return slime's --rollout-stop: a text or several."""
    values = value if isinstance(value, list) else [value]
    return [word for word in values if isinstance(word, str) and word]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


# ------------------------------------------------------------------------------------------------------ checkpoint


def read_checkpoint(folder: Path) -> Checkpoint:
    """Reads what there is; a file that is missing or broken says nothing."""
    config, generation, tokenizer, settings = (
        _read(folder / f"{name}.json") for name in ("config", "generation_config", "tokenizer", "tokenizer_config")
    )
    inner: dict[str, Any] = next((config[name] for name in INNER_CONFIGS if isinstance(config.get(name), dict)), {})
    added = _added_tokens(tokenizer, settings, _read(folder / "added_tokens.json"))
    names = _special_names(_read(folder / "special_tokens_map.json")) | _special_names(settings)
    numbers = {token.content: token.number for token in added}
    # SGLang reads 0 in the generation config as none (ModelConfig._get_hf_eos_token_id).
    stops = {
        *_ids(config["eos_token_id"] if "eos_token_id" in config else inner.get("eos_token_id")),
        *(_ids(generation.get("eos_token_id")) if generation.get("eos_token_id") else ()),
    }
    if (eos := names.get("eos_token")) is not None and (number := _number(eos, numbers, tokenizer)) is not None:
        stops.add(number)
    if ALSO_STOPS in numbers:
        stops.add(numbers[ALSO_STOPS])
    size = config.get("vocab_size", inner.get("vocab_size"))
    return Checkpoint(
        size if isinstance(size, int) else None,
        added,
        frozenset(stops),
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


def _ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [number for number in values if isinstance(number, int) and not isinstance(number, bool)]


def _content(value: object) -> str | None:
    """Return the text of a token, which stands there as itself or as what describes it."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) and value else None


def _special_names(values: Mapping[str, Any]) -> dict[str, str]:
    names = {name: _content(value) for name, value in values.items() if name.endswith("_token")}
    return {name: content for name, content in names.items() if content is not None}


def _added_tokens(
    tokenizer: Mapping[str, Any], settings: Mapping[str, Any], plain: Mapping[str, Any]
) -> tuple[Token, ...]:
    """Return the tokens of tokenizer.json, of tokenizer_config.json, which has the last word, and of added_tokens.json,
    which does not say which are special."""
    listed = tokenizer.get("added_tokens")
    decoder = settings.get("added_tokens_decoder")
    rows = [
        *((row.get("id"), row) for _, row in _rows(dict(enumerate(listed)) if isinstance(listed, list) else None)),
        *((int(key), row) for key, row in _rows(decoder) if key.isdigit()),
    ]
    tokens = {content: Token(content, number, False) for content, number in plain.items() if isinstance(number, int)}
    for number, row in rows:
        if isinstance(number, int) and (content := _content(row)):
            tokens[content] = Token(content, number, bool(row.get("special")))
    return tuple(tokens.values())


def _rows(value: object) -> list[tuple[Any, dict[str, Any]]]:
    """Return the entries of a mapping that are mappings themselves."""
    return [(key, row) for key, row in value.items() if isinstance(row, dict)] if isinstance(value, dict) else []


def _number(content: str, added: Mapping[str, int], tokenizer: Mapping[str, Any]) -> int | None:
    """Return the number of a token: of the added ones, else in the vocabulary."""
    if content in added:
        return added[content]
    model = tokenizer.get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(words, list):  # a Unigram's pairs of token and score
        words = {pair[0]: number for number, pair in enumerate(words) if isinstance(pair, list) and pair}
    number = words.get(content) if isinstance(words, dict) else None
    return number if isinstance(number, int) else None


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


# -------------------------------------------------------------------------------------------------------- template


def turn_end(checkpoint: Checkpoint, arguments: Mapping[str, Any]) -> TurnEnd | str:
    """Return what follows an answer in the chat template, or why that is not known. arguments:
    data.chat_template_args."""
    try:
        render = _renderer(checkpoint, arguments)
        after = [_after_the_answer(render(messages)) for messages in (_turns(1), _turns(2))]
    except Exception as error:  # a template may raise anything
        return f"{type(error).__name__}: {error}".splitlines()[0]
    if after[0] is None:
        return "it leaves the answer out"
    added = sorted(
        (token for token in checkpoint.added if token.content.strip()), key=lambda token: -len(token.content)
    )
    by_content = {token.content: token for token in added}
    pattern = re.compile("|".join(re.escape(token.content) for token in added) or r"(?!)")
    for text, by_itself in ((after[0], True), (after[1] or "", False)):
        if match := pattern.search(text):
            return TurnEnd(by_content[match[0]], text, by_itself)
    return TurnEnd(None, after[0] if after[0].strip() else after[1] or "", True)


def _turns(questions: int) -> list[dict[str, str]]:
    """Return a question and its answer, and another question where two are asked for."""
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    return turns + [{"role": "user", "content": NEXT}] * (questions - 1)


def _after_the_answer(text: str) -> str | None:
    _, answer, rest = text.rpartition(ANSWER)
    return rest.partition(NEXT)[0] if answer else None


def _renderer(checkpoint: Checkpoint, arguments: Mapping[str, Any]) -> Callable[[list[dict[str, str]]], str]:
    """Renders messages as transformers does, in its environment (render_jinja_template)."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def as_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **layout)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    sandbox.filters["tojson"] = as_json
    sandbox.globals["raise_exception"] = refuse
    sandbox.globals["strftime_now"] = lambda layout: datetime.datetime.now().strftime(layout)
    source = GENERATION.sub(lambda m: f"{m[1]}{'endif' if m[2] else 'if true'}{m[3]}", checkpoint.template or "")
    template = sandbox.from_string(source)
    values = {"tools": None, "documents": None, "add_generation_prompt": False, **checkpoint.names, **arguments}
    return lambda messages: template.render(messages=messages, **values)
