"""Looks for faults in a file of prompts, row by row."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sat_slime.prompts import PromptError
from sat_slime.prompts.labels import label_faults, same_answer
from sat_slime.prompts.overlap import Problems
from sat_slime.prompts.set_rows import label_text, read_parquet
from sat_slime.prompts.text import digest, normalize, strip_instruction
from sat_slime.prompts.tokenizer import ChatTokenizer
from sat_slime.reward import Mode, VerifierPool

KINDS = {
    "not JSON": "slime leaves such a line out, or ends with an error where it is not UTF-8",
    "missing key": "slime ends with an error",
    "empty prompt": "nothing to answer",
    "no prompt": "neither text nor messages with role and content",
    "no label": "it cannot be verified",
    "duplicate": "the same problem as an earlier row",
    "two labels": "the same problem as an earlier row, with another label",
    "too long": "slime leaves prompts above --rollout-max-prompt-len out",
    "label": "the verifier does not accept it",
    "in eval": "the same problem as one of the evaluation",
    "near eval": "holds half or more of a problem of the evaluation",
}
"""Each kind of fault and what it means, in the order in which they are shown."""
_BATCH = 512


@dataclass(frozen=True)
class Fault:
    """Something found in a row."""

    kind: str
    """One of KINDS."""
    row: int
    """The line of a JSON-lines file or the row of a parquet file; from 1."""
    detail: str


@dataclass(frozen=True)
class Settings:
    """Settings of what to look for, besides the faults that are looked for in every set."""

    input_key: str = "prompt"
    label_key: str = "label"
    mode: Mode = "prime_math"
    tokenizer: ChatTokenizer | None = None
    max_tokens: int | None = None


@dataclass
class FileFaults:
    """The faults of a file of prompts, and its number of rows."""

    rows: int
    faults: list[Fault]


@dataclass(frozen=True)
class _Prompt:
    row: int
    prompt: Any
    problem: str
    label: str | None


def check_file(path: Path, settings: Settings, pool: VerifierPool, evaluation: Path | None = None) -> FileFaults:
    """Looks for every fault in a file. Raises PromptError where it, or the evaluation's file, cannot be read at all."""
    found = FileFaults(0, [])
    first: dict[bytes, tuple[int, str | None]] = {}
    labels: dict[str, list[int]] = {}
    problems = None
    if evaluation is not None:
        ignored = FileFaults(0, [])
        problems = Problems((prompt.row, prompt.problem) for prompt in _prompts(evaluation, settings, ignored))
        if not ignored.rows:
            raise PromptError(f"{evaluation} has no rows: name another --eval")
    prompts = _prompts(path, settings, found)
    while batch := list(itertools.islice(prompts, _BATCH)):
        for prompt in batch:
            key = digest(normalize(prompt.problem))
            if key not in first:
                first[key] = (prompt.row, prompt.label)
            else:
                row, label = first[key]
                if label is None or prompt.label is None or same_answer(prompt.label, label, pool):
                    found.faults.append(Fault("duplicate", prompt.row, f"of {row}"))
                else:
                    found.faults.append(Fault("two labels", prompt.row, f"{prompt.label!r}; {label!r} in {row}"))
            if prompt.label is not None:
                labels.setdefault(prompt.label, []).append(prompt.row)
            if problems is not None and (overlap := problems.overlap(prompt.problem)) is not None:
                detail = f"row {overlap.of} of it" + ("" if overlap.same else f", {overlap.share:.0%} of its text")
                found.faults.append(Fault("in eval" if overlap.same else "near eval", prompt.row, detail))
        found.faults += _too_long(batch, settings)
    if found.rows == 0:
        raise PromptError(f"{path} has no rows: name another file")
    for label, detail in label_faults(labels, settings.mode, pool).items():
        found.faults += [Fault("label", row, f"{label[:60]!r}: {detail}") for row in labels[label]]
    order = list(KINDS)
    found.faults.sort(key=lambda fault: (order.index(fault.kind), fault.row))
    return found


def _prompts(path: Path, settings: Settings, found: FileFaults) -> Iterator[_Prompt]:
    """Yields the rows that can be looked at further; notes the faults of the others."""
    for number, row in _rows(path):
        found.rows += 1

        def note(kind: str, detail: str = "", number: int = number) -> None:
            found.faults.append(Fault(kind, number, detail))

        if row is None or not isinstance(row, dict):
            note("not JSON", "" if row is None else "JSON, but no object")
            continue
        if missing := [repr(key) for key in (settings.input_key, settings.label_key) if key not in row]:
            note("missing key", f"{' and '.join(missing)}; it has {', '.join(map(repr, row)) or 'none'}")
        prompt, label = row.get(settings.input_key), label_text(row.get(settings.label_key))
        if label is None and settings.label_key in row:
            note("no label", repr(row[settings.label_key])[:60])
        if settings.input_key not in row:
            continue
        text = _said(prompt)
        if prompt and text is None:
            note("no prompt", repr(prompt)[:60])
        elif not text or not (problem := strip_instruction(text)[0]):
            note("empty prompt", "only an instruction" if text else "")
        else:
            yield _Prompt(number, prompt, problem, label)


def _said(prompt: Any) -> str | None:
    """Return a prompt's text, or what all its messages say; None where it is neither text nor messages."""
    if isinstance(prompt, str):
        return prompt.strip()
    if not isinstance(prompt, list):
        return None
    said = []
    for message in prompt:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return None
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        if not isinstance(content, (str, list)):
            return None
        said += [text for text in texts if isinstance(text, str)]
    return "\n".join(said).strip()


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields rows as slime reads them: a broken line is None, and does not end the file."""
    if not path.is_file():
        raise PromptError(f"{path}: there is no such file")
    if path.suffix == ".parquet":
        yield from enumerate(read_parquet(path), 1)
        return
    if path.suffix != ".jsonl":
        raise PromptError(f"{path}: slime reads .jsonl and .parquet files: convert it")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield number, json.loads(line.decode("utf-8"))
                except (ValueError, RecursionError):
                    yield number, None


def _too_long(batch: Iterable[_Prompt], settings: Settings) -> Iterator[Fault]:
    tokenizer, most = settings.tokenizer, settings.max_tokens
    if tokenizer is None or most is None:
        return
    texts = [prompt.prompt if isinstance(prompt.prompt, str) else tokenizer.chat(prompt.prompt) for prompt in batch]
    for prompt, length in zip(batch, tokenizer.lengths(texts), strict=True):
        if length > most:
            yield Fault("too long", prompt.row, f"{length:,} tokens, above {most:,}")
