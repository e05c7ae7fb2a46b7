"""A stream's groups in a checkpoint are the folder `queue_ROLLOUT`, which is there in full or not at all.

It holds queue.json, queue.safetensors and the checksums of both; nothing in it is pickled. Long lists of numbers, such
as tokens and log-probs, and tensors, such as routes, are in queue.safetensors; all else of slime's samples is in
queue.json, under the names of its `Sample.to_dict`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sat_slime.config.checksums import checksum_faults, in_words, written_whole

SCHEMA = "sat_slime.queue/2"
GROUPS = ("waiting", "prompts")
MANY = 16
"""Lists of at least so many numbers are kept as tensors."""


def write_queue(folder: Path, waiting: list[Any], prompts: list[Any], unreported: dict[str, Any]) -> None:
    """Writes groups of slime's samples: the groups that wait, and the prompts of the groups in generation. unreported:
    the lengths of responses `finished` and `dropped`, and the number `aborted`, that no batch has reported yet.

    Raises:
        TypeError: a sample holds something that the files cannot hold; the message says where.
        OSError: the files could not be written.
    """
    tensors: dict[str, Tensor] = {}
    groups = {
        name: [_encode(group, f"{name}.{i}", tensors) for i, group in enumerate(groups)]
        for name, groups in zip(GROUPS, (waiting, prompts), strict=True)
    }
    with written_whole(folder) as unfinished:
        save_file(tensors, unfinished / "queue.safetensors")
        (unfinished / "queue.json").write_text(json.dumps({"schema": SCHEMA, **groups, "untold": unreported}))


def read_queue(folder: Path, sample_class: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Reads what `write_queue` wrote.

    Args:
        sample_class: slime's Sample.

    Raises:
        ValueError: the files are damaged or not of this kind; one line that names the folder and the remedy.
    """
    try:
        meta = _verified(folder)
        tensors = load_file(folder / "queue.safetensors")
        waiting, prompts = ([_decode(group, tensors, sample_class) for group in meta[name]] for name in GROUPS)
        untold = meta["untold"]
        unreported: dict[str, Any] = {name: [int(n) for n in untold[name]] for name in ("finished", "dropped")}
        unreported["aborted"] = int(untold["aborted"])
    except Exception as error:  # damage to JSON, tensors or samples may raise anything
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{folder} is damaged ({why}): go on from an earlier checkpoint (sat-slime launch RUN --resume-from "
            "ITERATION), or delete the folder, and the prompts that waited or were in generation are skipped"
        ) from error
    return waiting, prompts, unreported


def _verified(folder: Path) -> dict[str, Any]:
    """Return the content of queue.json, once the files are found to be as written. Raises ValueError, OSError or
    KeyError."""
    if faults := checksum_faults(folder):
        raise ValueError(in_words(faults))
    meta: dict[str, Any] = json.loads((folder / "queue.json").read_text())
    if meta["schema"] != SCHEMA:
        raise ValueError(f"schema {meta['schema']}, not {SCHEMA}")
    return meta


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return the value as JSON. What JSON cannot hold becomes an object with one key, which says its kind."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": path}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        tensors[path] = torch.from_numpy(np.array(value))
        return {"array": path}
    if isinstance(value, (list, tuple)):
        kind = {int: torch.int64, float: torch.float64}.get(type(value[0])) if len(value) >= MANY else None
        if kind and len({type(item) for item in value}) == 1:
            tensors[path] = torch.tensor(value, dtype=kind)
            return {"numbers": path}
        items = [_encode(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(item, f"{path}.{key}", tensors) for key, item in value.items()}}
    if hasattr(value, "to_dict"):
        return {"sample": _encode(value.to_dict(), path, tensors)["dict"]}
    raise TypeError(f"the queue cannot be saved: {path} of a sample is a {type(value).__name__}")


def _decode(value: Any, tensors: dict[str, Tensor], sample_class: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors, sample_class) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return tensors[content].numpy()
    if kind == "numbers":
        return tensors[content].tolist()
    if kind == "tuple":
        return tuple(_decode(item, tensors, sample_class) for item in content)
    fields = {key: _decode(item, tensors, sample_class) for key, item in content.items()}
    if kind == "sample":
        return sample_class.from_dict(fields)
    if kind == "dict":
        return fields
    raise ValueError(f"unknown kind {kind!r}")
