"""A request that goes to a rollout engine, and the response that comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class GenerationRequest:
    """One response to be sampled."""

    request_id: str
    """An id that is unique within a run: a response is counted once, however often its request had to be sent."""
    prompt_ids: tuple[int, ...]
    """Prompt tokens."""
    max_new_tokens: int
    temperature: float
    """0 is greedy."""
    seed: int
    """Seed of this response's sampling, passed to the engine."""
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Response:
    """One validated response, or the part of one that an engine had when it was interrupted. T output tokens after P
    prompt tokens."""

    request_id: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    """(T,) output tokens, the stop token included."""
    log_probs: np.ndarray
    """(T,) float32: log mu of each output token, under the engine's softmax at the sampling temperature."""
    routed_experts: np.ndarray | None
    """(P + T - 1, layers, top-k) unsigned: experts of each forwarded token; None from a dense model."""
    finish_reason: Literal["stop", "length", "abort"]
    """`abort`: this is a part, which may have no tokens at all."""
    versions: np.ndarray
    """(T,) int64: optimizer updates of the weights that generated each token, as the engine reported them."""
    reward: float = 0.0
    """The verdict on it, once its batch is graded."""
    advantage: float = 0.0
    """Its reward among those of its group, once its batch is graded."""

    @property
    def weight_version(self) -> int:
        """Optimizer updates of the weights that generated its last token."""
        return int(self.versions.max())
