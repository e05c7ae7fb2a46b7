"""Lags and rewards of the responses in training, which slime's micro-batch has no place for."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class ResponseFacts:
    """Facts of the responses of a batch, found by the tensor that holds a response's tokens.

    slime passes a fixed list of keys to the loss. The tensor with a response's tokens is among them, and is the same
    object in the batch and in each of its micro-batches.
    """

    def __init__(
        self,
        tokens: Sequence[Tensor] = (),
        lags: Sequence[Tensor] | None = None,
        rewards: Sequence[float] | None = None,
    ) -> None:
        """
        Args:
            tokens: slime's tokens of each response, prompt included.
            lags: for each response, (response tokens,) optimizer steps from the generating weights to those at the
                first step on its batch; None where they are unknown.
            rewards: reward of each response; None where they are unknown.
        """
        self._tokens = list(tokens)  # as long as they are kept, no other tensor has their ids
        self._index = {id(response): index for index, response in enumerate(tokens)}
        self._lags, self._rewards = lags, rewards
        self._steps = 0

    def count_step(self) -> None:
        """Counts an optimizer step: whatever follows it in the batch has a lag of one more."""
        self._steps += 1

    def lags_of(self, tokens: Sequence[Tensor]) -> list[Tensor]:
        """Return for each response its (response tokens,) lags at the optimizer step in progress. Raises RuntimeError
        where they were not told."""
        lags = self._lags
        return [lags[index] + self._steps for index in self._indices(tokens, "lags", lags) if lags is not None]

    def rewards_of(self, tokens: Sequence[Tensor]) -> list[float]:
        """Return the reward of each response. Raises RuntimeError where they were not told."""
        rewards = self._rewards
        return [rewards[index] for index in self._indices(tokens, "rewards", rewards) if rewards is not None]

    def _indices(self, tokens: Sequence[Tensor], name: str, values: Sequence[object] | None) -> list[int]:
        indices = [self._index.get(id(response)) for response in tokens]
        known = [index for index in indices if index is not None]
        if values is None or len(known) < len(indices):
            raise RuntimeError(
                f"the {name} of these responses were not told to the trainer: add --rollout-data-postprocess-path "
                "sat_slime.plugin.train_hooks.postprocess, or start sat_slime.plugin.driver"
            )
        return known
