"""Token dumps: the tokens of one optimizer step with all that its loss read, one safetensors file each.

`RUN/dumps/000017.safetensors` is the batch of iteration 17; with several optimizer steps per rollout the later ones are
`000017-2.safetensors` and so on. R responses stand in batch order, their N tokens in a row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

SCHEMA = "sat_slime.tokens/1"
"""The name of this format, in every file's metadata. A reader of another number refuses the file."""
FOLDER = "dumps"
"""The folder of the dumps in a run folder."""

RESPONSE_COLUMNS = {"lengths": np.int64, "prompt_index": np.int64, "rewards": np.float32}
"""Columns of (R,): response tokens; number of the prompt in its batch; reward."""
TOKEN_COLUMNS = {
    "tokens": np.int32,
    "mask": np.bool_,
    "log_probs": np.float32,
    "rollout_log_probs": np.float32,
    "advantages": np.float32,
    "versions": np.int32,
    "entropy": np.float32,
}
"""Columns of (N,): token id; whether it is active; log pi of the weights at the start of the step; log mu; advantage;
optimizer updates of the weights that generated the token; entropy of pi in nats."""

LEAST_LOG_PROB, MOST_LOG_PROB = -1000.0, 0.1
"""Nats. What is above 0 by less is rounding, of bfloat16 at worst. A softmax in fp32 is 0 from -104 on, so that nothing
that was sampled lies below; engines write -9999 for what they do not know, and a flipped bit makes 34 digits."""

_COLUMNS: dict[str, Any] = {**RESPONSE_COLUMNS, **TOKEN_COLUMNS}
_NAME = re.compile(r"(\d{6,})(?:-(\d+))?\.safetensors")


class DumpError(ValueError):
    """A file that is no whole token dump; the message names it and what is wrong."""


@dataclass(frozen=True)
class TokenDump:
    """One optimizer step's tokens. Arrays of RESPONSE_COLUMNS and TOKEN_COLUMNS, and what else was measured."""

    iteration: int
    """Rollout batches trained, this one included."""
    step: int
    """Optimizer updates made, this step included."""
    updates: int
    """Optimizer updates of the weights in training: those before this step."""
    method: str
    """Name of the method that trained."""
    temperature: float
    """Sampling temperature; all log-probs are of softmax(logits / temperature)."""

    lengths: np.ndarray
    prompt_index: np.ndarray
    rewards: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray
    log_probs: np.ndarray
    rollout_log_probs: np.ndarray
    advantages: np.ndarray
    versions: np.ndarray
    entropy: np.ndarray

    more: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Further columns (N, ...) by name, as far as they were measured, log-probs in nats:

    checkpoint_log_probs: the trainer under the weights that generated the token. proximal_log_probs: the denominator.
    Of a diagnosed step: log_probs_own_routing, log_probs_replayed: of the weights in training, with the trainer's own
    experts and with the engine's; checkpoint_log_probs_own_routing, checkpoint_log_probs_replayed: of the weights that
    generated; checkpoint_log_probs_engine_dtype: the latter in the engine's data type. expert_flips,
    checkpoint_expert_flips: (N, layers) uint8, 1 where the trainer's own experts differ from the engine's."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Further facts of the run."""
    left_out: tuple[str, ...] = ()
    """Sentences about tokens whose values cannot be; `mask` leaves them out."""


_FACTS: dict[str, type] = {"iteration": int, "step": int, "updates": int, "method": str, "temperature": float}


def dump_path(run: Path, iteration: int, part: int = 0) -> Path:
    """Return the path of an iteration's dump. part: which of its optimizer steps, from 0."""
    name = f"{iteration:06d}" + (f"-{part + 1}" if part else "")
    return run / FOLDER / f"{name}.safetensors"


def dump_paths(run: Path) -> list[Path]:
    """Return the dumps of a run folder in the order of their steps; none where it has none."""
    return [path for _, path in sorted(_numbered(run))]


def forget_dumps(run: Path, after: int) -> None:
    """Removes the dumps of iterations beyond `after`: a resumed run writes them again."""
    for (iteration, _), path in _numbered(run):
        if iteration > after:
            path.unlink()


def _numbered(run: Path) -> Iterator[tuple[tuple[int, int], Path]]:
    """Yield ((iteration, part), path) of each dump."""
    for path in (run / FOLDER).glob("*.safetensors"):
        if match := _NAME.fullmatch(path.name):
            yield (int(match[1]), int(match[2] or 1)), path


def write_dump(path: Path, dump: TokenDump) -> None:
    """Writes a file that is there whole or not at all.

    Raises:
        ValueError: a column has not the length that `lengths` tells.
        OSError: it cannot be written.
    """
    arrays = {name: np.ascontiguousarray(getattr(dump, name), kind) for name, kind in _COLUMNS.items()}
    arrays |= {name: np.ascontiguousarray(values) for name, values in dump.more.items()}
    if wrong := _wrong_shapes(arrays):
        raise ValueError(wrong)
    facts = {name: str(getattr(dump, name)) for name in _FACTS}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        save_file(arrays, part, metadata={**dump.metadata, "schema": SCHEMA, **facts})
        os.replace(part, path)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def read_dump(path: Path) -> TokenDump:
    """Reads a dump and checks it: nothing in the file is trusted or run.

    Raises:
        DumpError: the file is missing, torn, of another kind, or its columns contradict each other.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            if (schema := metadata.pop("schema", None)) != SCHEMA:
                what = f"has schema {schema!r:.60}" if schema else "names no schema"
                raise DumpError(f"{path} is no token dump that can be read here: it {what}, expected is {SCHEMA!r}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError, TypeError, KeyError) as error:  # the last two: numpy lacks its data type
        raise DumpError(f"{path} is no whole safetensors file: {error}") from error
    for name, kind in _COLUMNS.items():
        if name not in arrays:
            raise DumpError(f"{path} lacks the column {name} of {SCHEMA}")
        if name == "mask" and arrays[name].dtype.kind in "iuf":  # of another's hand: `usable` tells what is not 0 or 1
            continue
        if not np.can_cast(arrays[name].dtype, kind, "same_kind"):
            raise DumpError(f"{path}: {name} is of type {arrays[name].dtype}, expected is {np.dtype(kind)}")
        arrays[name] = arrays[name].astype(kind, copy=False)
    if wrong := _wrong_shapes(arrays):
        raise DumpError(f"{path}: {wrong}")
    facts: dict[str, Any] = {}
    for name, as_fact in _FACTS.items():
        try:
            facts[name] = as_fact(metadata[name])
        except (KeyError, ValueError) as error:
            what = f"{metadata.get(name)!r:.60}, not of type {as_fact.__name__}"
            raise DumpError(f"{path}: {name} is {what}") from error
    judged = {name: arrays[name] for name in ("log_probs", "rollout_log_probs", "advantages", "entropy")}
    judged |= {"rewards": np.repeat(arrays["rewards"], arrays["lengths"])}
    judged |= {"lag": facts["updates"] - arrays["versions"].astype(np.int64)}
    judged |= {name: a for name, a in arrays.items() if name not in _COLUMNS and a.ndim == 1 and a.dtype.kind == "f"}
    arrays["mask"], left_out = usable(arrays["mask"], arrays["lengths"], judged)
    more = {name: values for name, values in arrays.items() if name not in _COLUMNS}
    columns = {name: arrays[name] for name in _COLUMNS}
    rest = {key: value for key, value in metadata.items() if key not in _FACTS}
    return TokenDump(**facts, **columns, more=more, metadata=rest, left_out=tuple(left_out))


def usable(
    mask: np.ndarray, lengths: np.ndarray, columns: Mapping[str, np.ndarray], numbers: Sequence[int] | None = None
) -> tuple[np.ndarray, list[str]]:
    """Return (which tokens are active and have values that can be, a sentence about each column with others).

    Args:
        mask: (N,) bool, or numbers that should be 0 or 1.
        lengths: (R,) tokens of each response, sum N.
        columns: (N,) each. Columns of log-probs lie between LEAST_LOG_PROB and MOST_LOG_PROB, the lag is 0 or more,
            the others are finite.
        numbers: (R,) the names of the responses. Default: from 0 on.
    """
    active = mask == 1
    wrong = {"mask": ~np.isin(mask, (0, 1))}
    for name, values in columns.items():
        bad = ~np.isfinite(values)
        if name.endswith("log_probs") or "log_probs_" in name:
            bad |= (values > MOST_LOG_PROB) | (values < LEAST_LOG_PROB)
        elif name == "lag":
            bad |= values < 0
        wrong[name] = bad & active
    sentences = []
    ends = np.cumsum(lengths)
    for name, bad in wrong.items():
        if count := int(bad.sum()):
            token = int(np.argmax(bad))
            response = int(np.searchsorted(ends, token, side="right"))
            place = token - int(ends[response] - lengths[response])
            value = (mask if name == "mask" else columns[name])[token]
            more = f" and {count - 1} more" if count > 1 else ""
            number = response if numbers is None else numbers[response]
            sentences.append(f"{name} is {value:g} at response {number}, position {place}{more}: left out (from 0)")
            active = active & ~bad
    return active, sentences


def _wrong_shapes(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return which column contradicts `lengths`, in words; None where none does."""
    lengths = arrays["lengths"]
    if lengths.ndim != 1 or (lengths < 0).any():
        return f"lengths of shape {lengths.shape} are not one number of tokens, 0 or more, for each response"
    if (lengths > arrays["tokens"].size).any():  # their sum could wrap
        return f"lengths has {int(lengths.max())}, and there are {arrays['tokens'].size} tokens"
    responses, tokens = len(lengths), int(lengths.sum())
    for name, values in arrays.items():
        wanted = responses if name in RESPONSE_COLUMNS else tokens
        one_dimensional = name in RESPONSE_COLUMNS or name in TOKEN_COLUMNS
        if values.shape[:1] != (wanted,) or (one_dimensional and values.ndim != 1):
            return f"{name} has shape {values.shape}, but lengths tell {responses} responses of {tokens} tokens"
    return None
