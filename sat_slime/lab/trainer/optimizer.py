"""The optimizer of the trainer: AdamW on fp32 masters, and the step that keeps to TRPO's constraint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sat_slime.config.schema import TrainConfig
from sat_slime.lab.trainer import parallel
from sat_slime.lab.trainer.policy import PolicyState
from sat_slime.objective.method import TRPO

FILE = "trainer.safetensors"
"""The file of a checkpoint with masters and AdamW's state."""


class MasterOptimizer:
    """AdamW on the masters: fp32 copies of the policy's weights. In fp32 a master is the policy's parameter itself."""

    def __init__(self, train: TrainConfig, policy: PolicyState) -> None:
        self._train = train
        self._policy = policy
        self.masters = [
            torch.nn.Parameter(p.detach().float().clone()) if p.dtype != torch.float32 else p
            for _, p in policy.named_parameters
        ]
        self._adamw = torch.optim.AdamW(
            [
                {"params": [m for m in self.masters if m.dim() > 1], "weight_decay": train.weight_decay},
                {"params": [m for m in self.masters if m.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=train.lr,
            betas=(train.adam_beta1, train.adam_beta2),
            eps=train.adam_eps,
            fused=True,
        )

    @torch.no_grad()
    def take_from_policy(self) -> None:
        """Gives the masters the policy's weights."""
        for (_, parameter), master in zip(self._policy.named_parameters, self.masters, strict=True):
            if master is not parameter:
                master.copy_(parameter)

    @torch.no_grad()
    def _give_to_policy(self) -> None:
        for (_, parameter), master in zip(self._policy.named_parameters, self.masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    # ------------------------------------------------------------------------------------------------------- a step

    @torch.no_grad()
    def step(self, number: int, loss: Tensor) -> float:
        """Clips and applies the gradients that Megatron has summed; returns their norm before clipping.

        Args:
            number: the optimizer step's, for an error.
            loss: 0-dim.

        Raises:
            FloatingPointError: the gradient or the loss is not finite; the weights are then still those of the step
                before.
        """
        square = self._square(loss)
        norm = float(square.sqrt())
        if not torch.isfinite(square):
            raise FloatingPointError(
                f"the loss or the gradient of optimizer step {number} is not finite: start another run with a lower "
                "train.lr"
            )
        scale = min(1.0, self._train.grad_clip / (norm + 1e-6))
        torch._foreach_mul_([master.grad for master in self.masters if master.grad is not None], scale)
        self._adamw.step()
        # In fp32 a master is the parameter and its gradient Megatron's own buffer: backward must not add to that too.
        self._adamw.zero_grad(set_to_none=True)
        self._give_to_policy()
        return norm

    def _square(self, loss: Tensor) -> Tensor:
        """Return the gradient's squared norm; NaN where the loss is not finite. Gives the masters their gradients."""
        square = (loss - loss).float()
        for (_, parameter), master in zip(self._policy.named_parameters, self.masters, strict=True):
            gradient = parameter.main_grad.to(master.dtype)
            square += gradient.square().sum()
            master.grad = gradient
        return square

    def constrained_step(
        self, number: int, loss: Tensor, constraint: TRPO, divergence: Callable[[], Tensor]
    ) -> tuple[float, dict[str, float]]:
        """Takes a step and halves it until TRPO's constraint accepts it.

        AdamW's moments keep the whole gradient, whatever becomes of the step.

        Args:
            number, loss: as in `step`.
            divergence: measures the divergence of the policy's current weights from mu at every state.

        Returns:
            The gradient's norm, and trpo/*.

        Raises:
            FloatingPointError: as `step`.
        """
        before = divergence()
        old = [master.detach().clone() for master in self.masters]
        norm = self.step(number, loss)
        new = [master.detach().clone() for master in self.masters]
        scale, after = 1.0, divergence()
        for halvings in range(constraint.max_backtracks + 1):
            if constraint.accepts(before, after):
                break
            scale = scale / 2 if halvings < constraint.max_backtracks else 0.0
            self._place(old, new, scale)
            after = divergence() if scale else before
        return norm, {**_divergence_metrics(before, after), "trpo/step_scale": scale, "trpo/backtracks": halvings}

    @torch.no_grad()
    def _place(self, old: list[Tensor], new: list[Tensor], scale: float) -> None:
        """Puts the weights at old + scale (new - old)."""
        for master, start, end in zip(self.masters, old, new, strict=True):
            master.copy_(torch.lerp(start, end, scale))  # exact at both ends
        self._give_to_policy()

    # -------------------------------------------------------------------------------------------------- checkpoints

    def save(self, folder: Path) -> None:
        """Writes the masters and AdamW's state into an existing folder."""
        tensors = {}
        for (name, _), master in zip(self._policy.named_parameters, self.masters, strict=True):
            tensors[f"{name}/weight"] = master.detach()
            tensors |= {f"{name}/{key}": value for key, value in self._adamw.state.get(master, {}).items()}
        save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, folder / FILE)

    @torch.no_grad()
    def load(self, folder: Path, updates: int) -> None:
        """Restores what `save` wrote after so many updates, and gives the policy its weights, bit for bit."""
        tensors = load_file(folder / FILE, device=str(parallel.device()))
        for (name, parameter), master in zip(self._policy.named_parameters, self.masters, strict=True):
            master.copy_(tensors.pop(f"{name}/weight"))
            parameter.copy_(master)
            state = {key: tensors[f"{name}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq") if updates}
            if state:
                self._adamw.state[master] = state


def _divergence_metrics(before: Tensor, after: Tensor) -> dict[str, float]:
    """Return trpo/tv_mean and trpo/tv_max of the step that was made, and those of the weights before it; 0 without
    states."""
    both = torch.stack([before, after]).double()
    largest = both.amax(1) if both.shape[1] else both.new_zeros(2)
    (was, now), n = both.sum(1).tolist(), max(both.shape[1], 1)
    return {
        "trpo/tv_mean_before": was / n,
        "trpo/tv_mean": now / n,
        "trpo/tv_max_before": float(largest[0]),
        "trpo/tv_max": float(largest[1]),
    }
