"""slime's dumps of rollouts (--save-debug-rollout-data): what was sampled, before the trainer saw any of it.

All versions write the same: `rollout_id` and `samples`, a dict for each sample with the fields of slime's `Sample`.
Newer slime writes a `.straw.json` in its place where the path ends so. Files are read as those of training are: nothing
in them is run. Samples are Python lists of numbers, so that a file takes several times its size in memory while it is
read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sat_slime.report.dumps.step_batch import DumpFault
from sat_slime.report.dumps.straw_archive import SUFFIX, read_archive
from sat_slime.report.dumps.train_dump import load_payload


@dataclass(frozen=True)
class Sampled:
    """One sample, as far as a check-up looks at it."""

    group: int | None
    """The prompt's number; None where the rollout function gives none."""
    reward: float | None
    """None where it is no number: a model with several scores, or a reward that is still to come."""
    length: int
    """Tokens of the response, those of tools included."""
    status: str
    """completed, truncated, aborted, failed or pending."""
    versions: tuple[int, ...]
    """Weights that generated it, in the order of the requests; empty where the engine named none."""
    fingerprint: bytes
    """Equal for equal responses."""
    removed: bool
    """Left out of training."""
    log_probs: bool
    """The engine's log-probs are there."""


def read_samples(path: Path, reward_key: str | None = None) -> tuple[int, list[Sampled]]:
    """Return (rollout, samples) of a file. reward_key: slime's --reward-key, for rewards that are dicts. Raises
    DumpFault."""
    payload = read_archive(path) if path.name.endswith(SUFFIX) else load_payload(path)
    samples = payload.get("samples")
    if not isinstance(samples, list) or not isinstance(payload.get("rollout_id"), int):
        raise DumpFault("it is no dump of --save-debug-rollout-data: it holds no samples")
    try:
        return payload["rollout_id"], list(_sampled(samples, reward_key))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DumpFault(f"its samples are not those of slime ({type(error).__name__} {error!s:.120})") from error


def is_evaluation(path: Path) -> bool:
    """Say whether a file is of an evaluation, by the name that slime gives it."""
    return re.search(r"(?:^|[._-])eval_\d+", path.name) is not None


def _sampled(samples: Sequence[Mapping[str, Any]], reward_key: str | None) -> Iterator[Sampled]:
    for sample in samples:
        length = int(sample["response_length"])
        yield Sampled(
            group=sample.get("group_index"),
            reward=_reward(sample.get("reward"), reward_key),
            length=length,
            status=str(sample["status"]),
            versions=tuple(int(text) for text in sample.get("weight_versions") or () if str(text).isdigit()),
            fingerprint=_fingerprint(sample["tokens"], length),
            removed=bool(sample.get("remove_sample")),
            log_probs=sample.get("rollout_log_probs") is not None,
        )


def _reward(reward: Any, key: str | None) -> float | None:
    if isinstance(reward, Mapping):
        numbers = [value for value in reward.values() if isinstance(value, int | float)]
        reward = reward.get(key) if key is not None else numbers[0] if len(numbers) == 1 else None
    return float(reward) if isinstance(reward, int | float) else None


def _fingerprint(tokens: Any, length: int) -> bytes:
    ids = tokens.numpy() if isinstance(tokens, torch.Tensor) else np.asarray(tokens)
    return hashlib.blake2b(ids[len(ids) - length :].astype(np.int64).tobytes(), digest_size=16).digest()
