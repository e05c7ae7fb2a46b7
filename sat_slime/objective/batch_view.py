"""BatchView: what a gate, a weight or a penalty may read of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch

from .batch import TokenBatch
from .ratio import (
    Denominator,
    Ratio,
    bounded_ratio,
    denominator_log_probs,
    proximal_log_probs,
    sequence_max,
    sequence_mean,
    sequence_sum,
)


class BatchView:
    """One micro-batch of N tokens, to be read. All tensors are (N,), without gradient, and 0 (a ratio or a probability
    1) on inactive tokens, whose results nobody reads.

    pi is the policy in training, mu the rollout engine's, pi_proximal the trainer's policy that is held against mu: the
    denominator where that is not mu, else pi.
    """

    def __init__(
        self,
        batch: TokenBatch,
        denominator: Denominator,
        d: torch.Tensor,
        advantages: torch.Tensor,
        group: torch.distributed.ProcessGroup | None = None,
        unit: Ratio = "token",
    ) -> None:
        """batch: promoted. d: the method's log-ratio. group: context-parallel ranks that share the responses. unit:
        what d is the log-ratio of."""
        self.unit = unit
        """token: d is of the token itself; sequence: of its response."""
        self._batch, self._denominator, self.group = batch, denominator, group
        self.threshold: torch.Tensor | None = None
        """0-dim threshold of the method's Judge, where it has one."""
        self.radius_scale = 1.0
        """Factor on the clip radii of the method's RadiusControl, where it has one."""
        self._once: dict[Callable[[BatchView], torch.Tensor], torch.Tensor] = {}
        self.d = d.detach()
        """log r of the method: the token's or its response's, over the method's denominator."""
        self.advantages = advantages
        """A."""
        self._versions = self._read_versions()

    @property
    def known_threshold(self) -> torch.Tensor:
        """0-dim threshold of the method's Judge."""
        assert self.threshold is not None, "the method judges by a threshold"
        return self.threshold

    @property
    def mask(self) -> torch.Tensor:
        """Bool: the active tokens."""
        return self._batch.mask

    @property
    def n_active(self) -> int:
        """Active tokens."""
        return self._batch.n_active

    @property
    def lengths(self) -> torch.Tensor:
        """(responses,) int64: tokens of each response on this rank."""
        return self._batch.lengths_tensor

    @cached_property
    def ratio(self) -> torch.Tensor:
        """r = e^d."""
        return bounded_ratio(self.d)

    @cached_property
    def log_pi(self) -> torch.Tensor:
        """log pi."""
        return self._batch.active_or_zero(self._batch.log_probs.detach())

    @cached_property
    def log_mu(self) -> torch.Tensor:
        """log mu."""
        return self._batch.active_or_zero(self._batch.rollout_log_probs.detach())

    @cached_property
    def log_proximal(self) -> torch.Tensor:
        """log pi_proximal. Raises ValueError where that is pi_l and the batch has no log-probs of it."""
        return self._batch.active_or_zero(proximal_log_probs(self._denominator, self._batch))

    @cached_property
    def log_denominator(self) -> torch.Tensor:
        """log-probs of the denominator."""
        return self._batch.active_or_zero(denominator_log_probs(self._denominator, self._batch))

    @property
    def lags(self) -> torch.Tensor:
        """Optimizer updates between the weights that generated each token and those in training. Raises ValueError
        where the batch has none."""
        return self._batch.active_or_zero(self._batch.needed("lags"))

    @property
    def rewards(self) -> torch.Tensor:
        """Reward of each token's response. Raises ValueError where the batch has none."""
        return self._batch.active_or_zero(self._batch.needed("rewards"))

    @property
    def rollout_head(self) -> torch.Tensor:
        """(N, k) log-probs of the engine's likeliest tokens, 0 on inactive ones. Raises ValueError where the batch has
        none."""
        return self._batch.active_or_zero(self._batch.needed("heads"))

    @cached_property
    def mu(self) -> torch.Tensor:
        """mu, a probability."""
        return self.log_mu.exp()

    @cached_property
    def engine_ratio(self) -> torch.Tensor:
        """pi_proximal / mu, saturated where it is huge."""
        return bounded_ratio(self.engine_log_ratio)

    @cached_property
    def engine_log_ratio(self) -> torch.Tensor:
        """log pi_proximal - log mu."""
        return self.log_proximal - self.log_mu

    def check_unwritten(self, reader: str) -> None:
        """Raises ValueError where `reader` has written into a tensor: others read the same ones."""
        if self._versions != self._read_versions():
            raise ValueError(
                f"{reader} writes into the batch, which others read too: let it write into tensors of its own"
            )

    def _read_versions(self) -> tuple[int, ...]:
        """Return how often the tensors were written to in place; those that are computed from others never should
        be."""
        batch = self._batch
        given = (
            self.d,
            self.advantages,
            batch.log_probs,
            batch.rollout_log_probs,
            batch.proximal_log_probs,
            batch.mask,
        )
        computed = ["ratio", "mu", "engine_ratio", "engine_log_ratio"]
        if batch.n_active < len(batch.mask):  # else they are the batch's own
            computed += ["log_pi", "log_mu", "log_proximal", "log_denominator"]
        written = sum(self.__dict__[name]._version for name in computed if name in self.__dict__)
        return (*(column._version for column in given if column is not None), written)

    def sequence_mean(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean of the values over the active tokens of each response, on whatever ranks, at each of them."""
        return sequence_mean(values, self._batch, self.group)

    def sequence_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of the values over the active tokens of each response, on whatever ranks, at each of them,
        without gradient."""
        return sequence_sum(values, self._batch, self.group)

    def sequence_max(self, values: torch.Tensor) -> torch.Tensor:
        """Return the largest of the values at the active tokens of each response, on whatever ranks, at each of them.
        No gradient."""
        return sequence_max(values, self._batch, self.group)

    def once(self, compute: Callable[[BatchView], torch.Tensor]) -> torch.Tensor:
        """Return what a function makes of this view, computed at the first call."""
        if compute not in self._once:
            self._once[compute] = compute(self)
        return self._once[compute]
