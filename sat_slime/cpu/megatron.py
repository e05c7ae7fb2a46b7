"""Patches where Megatron-LM wants CUDA, Transformer Engine or Apex, beyond the torch that it sees (`cuda`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch


def compile_nothing(jit: Any) -> None:
    """Turns compilation off by Megatron's own switch: it would need a C++ compiler, and Dynamo's import takes
    seconds."""
    jit.disable_jit_fuser()


def keep_the_cpus_random_state(random: Any) -> None:
    """Has Megatron keep the CPU's random state: its own functions around torch.cuda keep that of the device."""
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


@contextlib.contextmanager
def types_named_cuda() -> Iterator[None]:
    """Inside, or in a function that this decorates, a tensor's type has the name that it has on a GPU:
    `torch.cuda.FloatTensor`. Megatron's optimizer tells parameters apart by that name."""
    real = torch.Tensor.type

    def type_on_gpu(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = real(tensor, *args, **kwargs)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    with mock.patch.object(torch.Tensor, "type", type_on_gpu):
        yield


def clip_gradients_on_cpu(clip_grads: Any) -> None:
    """Gives Megatron's clipping types named as on a GPU: it asserts that gradients are `torch.cuda.FloatTensor`."""
    clip_grads.clip_grad_by_total_norm_fp32 = types_named_cuda()(clip_grads.clip_grad_by_total_norm_fp32)


def optimize_on_cpu(distrib_optimizer: Any) -> None:
    """Makes the distributed optimizer, which slime always uses, work on a CPU: it sorts its parameters by the names of
    their types, and it resumes with torch's AdamW."""
    optimizer = distrib_optimizer.DistributedOptimizer
    optimizer.__init__ = types_named_cuda()(optimizer.__init__)
    resume_with_torch_adam(distrib_optimizer)


def resume_with_torch_adam(distrib_optimizer: Any) -> None:
    """Mends three faults that a resume meets where torch's AdamW stands in for Apex's. Megatron asks the optimizer for
    its step before a checkpoint is loaded, when AdamW has none. slime's patch of Megatron takes the step out of a
    checkpoint's tensors, since Apex has it in the parameter groups, but AdamW has it beside its moments. And in fp32
    the optimizer's parameters are views of the model's, into which Megatron copies as if they wanted no gradient."""
    optimizer_class = distrib_optimizer.DistributedOptimizer
    state_dict = optimizer_class.state_dict
    set_states = optimizer_class._set_main_param_and_optimizer_states

    def state_dict_with_steps(self: Any) -> Any:
        if not self.optimizer.state:
            self.init_state_fn(self.optimizer, self.config)
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    self.optimizer.state[parameter]["step"] = torch.tensor(0.0)
        return state_dict(self)

    def set_states_with_step(self: Any, parameter: Any, tensors: dict[str, Any]) -> Any:
        group, order = self.model_param_group_index_map[parameter]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        with torch.no_grad():
            return set_states(self, parameter, {"step": state["step"], **tensors} if "step" in state else tensors)

    optimizer_class.state_dict = state_dict_with_steps
    optimizer_class._set_main_param_and_optimizer_states = set_states_with_step


def dispatch_tokens_on_cpu(moe_utils: Any) -> None:
    """Mends two faults of the token dispatcher: it makes NumPy arrays of the sizes of its all-to-all only where they
    come from a GPU, but wants them everywhere; and the next one."""
    moe_utils.maybe_move_tensor_to_cpu = lambda tensor, as_numpy=False, record_stream=False: (
        tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
    )
    bind_te_gemm(moe_utils)


def bind_te_gemm(moe_utils: Any) -> None:
    """Binds what is bound only with Transformer Engine, and read without it."""
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
