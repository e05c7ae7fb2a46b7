"""The optimizer of a trainer rank: AdamW on fp32 masters, and the step that keeps to TRPO's constraint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from sat_slime.config.schema import TrainConfig
from sat_slime.embedded.trainer import parallel
from sat_slime.embedded.trainer.policy import PolicyState
from sat_slime.objective import StepConstraint, backtrack, divergence_metrics


class MasterOptimizer:
    """AdamW on the masters: fp32 copies of the policy's weights. In fp32 a master is the policy's parameter itself.

    The methods that step are collective.
    """

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
    def step(self, number: int, lr_factor: float = 1.0) -> float:
        """Clips and applies the gradients that Megatron has summed; returns their global norm before clipping.

        Args:
            number: the optimizer step's, for an error.
            lr_factor: on the learning rate, of this step alone.

        Raises:
            FloatingPointError: the gradient is not finite; the weights are then still those of the step before.
        """
        square = self._global_square()
        norm = float(square.sqrt())
        if not torch.isfinite(square):
            raise FloatingPointError(
                f"the gradient of optimizer step {number} is not finite: start another run with a lower train.lr"
            )
        scale = min(1.0, self._train.grad_clip / (norm + 1e-6))
        torch._foreach_mul_([master.grad for master in self.masters if master.grad is not None], scale)
        for group in self._adamw.param_groups:
            group["lr"] = self._train.lr * lr_factor
        self._adamw.step()
        # In fp32 a master is the parameter and its gradient Megatron's own buffer: backward must not add to that too.
        self._adamw.zero_grad(set_to_none=True)
        self._give_to_policy()
        return norm

    def _global_square(self) -> Tensor:
        """Return the gradient's squared norm over all ranks, where a parameter that several ranks hold counts once.
        Gives the masters their gradients."""
        world = dist.get_world_size()
        square = torch.zeros((), device=parallel.device())
        for (_, parameter), master in zip(self._policy.named_parameters, self.masters, strict=True):
            gradient = parameter.main_grad.to(master.dtype)
            if not getattr(parameter, "allreduce", True):  # Megatron's mark of a parameter cut by expert parallelism
                copies = world // self._train.expert_parallel
            elif getattr(parameter, "tensor_model_parallel", False):
                copies = self._train.data_parallel
            else:
                copies = world
            square += gradient.square().sum() / copies
            master.grad = gradient
        dist.all_reduce(square)
        return square

    def constrained_step(
        self, number: int, lr_factor: float, constraint: StepConstraint, divergence: Callable[[], Tensor]
    ) -> tuple[float, dict[str, float]]:
        """Takes a step and halves it until TRPO's constraint stands.

        AdamW's moments keep the whole gradient, whatever becomes of the step.

        Args:
            number, lr_factor: as in `step`.
            divergence: measures the divergence of the policy's current weights from mu at this rank's states.

        Returns:
            The gradient's norm, and trpo/*.

        Raises:
            FloatingPointError: as `step`.
        """
        before = divergence()
        old = [master.detach().clone() for master in self.masters]
        norm = self.step(number, lr_factor)
        new = [master.detach().clone() for master in self.masters]
        after = before

        @torch.no_grad()
        def move(scale: float) -> None:
            for master, start, end in zip(self.masters, old, new, strict=True):
                master.copy_(torch.lerp(start, end, scale))  # exact at both ends
            self._give_to_policy()

        def stands() -> bool:
            nonlocal after
            after = divergence()
            # All ranks decide together, tensor-parallel copies too: none may decide otherwise than another.
            return constraint.stands(before, after, dist.group.WORLD)

        scale, halvings = backtrack(constraint, move, stands)
        metrics = divergence_metrics(before, after if scale else before, dist.group.WORLD)
        return norm, {**metrics, "trpo/step_scale": scale, "trpo/backtracks": halvings}

    # -------------------------------------------------------------------------------------------------- checkpoints

    def save(self, folder: Path) -> None:
        """Writes this rank's masters and AdamW's state into an existing folder."""
        tensors = {}
        for (name, _), master in zip(self._policy.named_parameters, self.masters, strict=True):
            tensors[f"{name}/weight"] = master.detach()
            tensors |= {f"{name}/{key}": value for key, value in self._adamw.state.get(master, {}).items()}
        save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, _rank_file(folder))

    @torch.no_grad()
    def load(self, folder: Path, updates: int) -> None:
        """Restores what `save` wrote after so many updates, and gives the policy its weights, bit for bit."""
        tensors = load_file(_rank_file(folder), device=str(parallel.device()))
        for (name, parameter), master in zip(self._policy.named_parameters, self.masters, strict=True):
            master.copy_(tensors.pop(f"{name}/weight"))
            parameter.copy_(master)
            state = {key: tensors[f"{name}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq") if updates}
            if state:
                self._adamw.state[master] = state


def _rank_file(folder: Path) -> Path:
    return folder / f"rank-{dist.get_rank()}.safetensors"
