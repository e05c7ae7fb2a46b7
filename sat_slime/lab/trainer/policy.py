"""The weights of the trainer: those in training, those of the reference model, and those that generated."""

from __future__ import annotations

from pathlib import Path

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from torch import Tensor

from sat_slime.config.schema import LabConfig
from sat_slime.lab.trainer.hf_weights import load_hf, save_hf
from sat_slime.lab.trainer.model import build_model


class PolicyState:
    """All weights of the trainer."""

    def __init__(self, config: LabConfig) -> None:
        """Builds the models with random weights; `load` and `load_reference` fill them."""
        self._config = config
        model = build_model(config.model, config.train, config.task.vocab_size, routing_replay=True)
        self.model = DistributedDataParallel(
            model.config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=False),
            model,
        )
        self.reference: torch.nn.Module | None = None
        """The model that the loss's KL compares with; None where the loss has no KL."""
        if config.loss.kl_coef:
            # It routes freely, as the reference forward of slime does, also under R3.
            self.reference = build_model(config.model, config.train, config.task.vocab_size).requires_grad_(False)
        self.named_parameters = list(self.model.module.named_parameters())
        self.generating: dict[int, list[Tensor]] = {}
        """The weights of pi_l, which the rollout engines were given, by version; only those that are still in use."""

    def load(self, folder: Path) -> None:
        """Reads the policy's weights from a Hugging Face folder. Raises ValueError where they do not fit the model."""
        load_hf(self.model.module, self._config.model, self._config.task.vocab_size, folder)

    def load_reference(self, folder: Path) -> None:
        """Reads the reference model's weights, where the loss has a KL term. Raises ValueError as `load`."""
        if self.reference is not None:
            load_hf(self.reference, self._config.model, self._config.task.vocab_size, folder)

    def export(self, folder: Path, version: int) -> None:
        """Writes the current weights for the rollout engines, and remembers them as those of pi_l."""
        save_hf(self.model.module, self._config.model, self._config.task.vocab_size, self._config.task.eos_id, folder)
        self._remember(self.copy(), version)

    def remember(self, folder: Path, version: int) -> None:
        """Remembers weights that were exported before a resume as those of pi_l again."""
        current = self.copy()
        self.load(folder)
        self._remember(self.copy(), version)
        self.set(current)

    def _remember(self, weights: list[Tensor], version: int) -> None:
        self.generating[version] = weights
        for old in sorted(self.generating)[: -self._config.pipeline.weights_in_use]:
            del self.generating[old]

    def copy(self) -> list[Tensor]:
        """Return a copy of the policy's current weights."""
        return [parameter.detach().clone() for _, parameter in self.named_parameters]

    @torch.no_grad()
    def set(self, weights: list[Tensor]) -> None:
        """Gives the policy these weights, which are in the order of `named_parameters`."""
        for (_, parameter), weight in zip(self.named_parameters, weights, strict=True):
            parameter.copy_(weight)
