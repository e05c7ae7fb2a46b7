"""Patches slime for a machine without a GPU: the CPU becomes an accelerator, and a newer torch and NumPy will do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from types import SimpleNamespace
from typing import Any

from sat_slime.cpu.cuda import CPU, MEMORY, returning, shown_torch

NEWER_COLLECTIVES = (
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
)
"""Names by which torch 2.13 calls the collectives of a group."""
EACH = {"input_ids", "sampling_params"}
"""What each of several requests that are posted together has of its own."""
JOINED = EACH | {"return_logprob", "return_routed_experts"}
"""What a request holds that is posted together with others."""


def register_cpu(accelerator: Any) -> None:
    """Makes the CPU an accelerator, by slime's own registry. v0.3.1 has no registry and asks torch.cuda."""
    from slime.utils.accelerator.base import Accelerator

    torch = shown_torch()
    answers = {
        "is_available": True,
        "device": CPU,
        "device_name": "cpu",
        "set_device": None,
        "current_device": "cpu",
        "device_count": 1,
        "synchronize": None,
        "current_stream": torch.cuda.current_stream(),
        "stream": contextlib.nullcontext(),
        "empty_cache": None,
        "mem_get_info": (MEMORY, MEMORY),
        "memory_allocated": 0,
        "memory_reserved": 0,
    }
    methods = {name: returning(answer) for name, answer in answers.items()}
    methods["autocast"] = lambda self, *args, **kwargs: torch.autocast("cpu", *args, **kwargs)
    names = {"name": "cpu", "device_type": "cpu", "communication_backend_name": "gloo"}
    cpu = type("CPUAccelerator", (Accelerator,), methods | names)

    # The backend is not just `gloo`: by these names slime knows the groups that it may have to end to free GPU memory.
    accelerator.register_accelerator("cpu", cpu, priority=1000, communication_backends=("cpu:gloo",))
    accelerator.set_accelerator(cpu())


def train_in_fp32(arguments: Any) -> None:
    """Makes Megatron's parameters fp32, as without Megatron's flag --bf16: slime sets `bf16 = not fp16` whatever the
    flags say."""
    set_defaults = arguments._set_default_megatron_args

    def set_defaults_in_fp32(args: Any) -> Any:
        args = set_defaults(args)
        args.bf16 = False
        return args

    arguments._set_default_megatron_args = set_defaults_in_fp32
    if hasattr(arguments, "set_default_megatron_args"):
        arguments.set_default_megatron_args = set_defaults_in_fp32


def accept_numpy_2(initialize: Any) -> None:
    """Lets slime start with NumPy 2: a module that uses one function of NumPy asserts version 1."""
    initialize.np = SimpleNamespace(__version__="1.", random=initialize.np.random)


def forward_newer_collectives(groups: Any) -> None:
    """Has slime's wrapper of process groups forward the collectives that torch 2.13 calls by new names. Without them a
    second training rank fails: `No backend type associated with device type cpu`."""
    wrapper = groups.ReloadableProcessGroup
    for name in NEWER_COLLECTIVES:
        if name not in vars(wrapper):
            setattr(wrapper, name, functools.partialmethod(wrapper._fwd, name))


def push_weights_by_gloo(distributed_utils: Any) -> None:
    """Has slime push weights by Gloo: v0.3.1 makes the group of a push with `nccl`, whatever --distributed-backend
    says."""
    distributed_utils.init_process_group = with_gloo(distributed_utils.init_process_group)


def with_gloo(make_group: Any) -> Any:
    """Return a function that makes process groups like `make_group`, but with Gloo where NCCL is asked for."""

    def make(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        return make_group("gloo" if backend == "nccl" else backend, *args, **kwargs)

    return make


def post_together(rollout: Any) -> None:
    """Has slime post the requests that its tasks make for a prompt at one moment as one, which SGLang answers by a
    list: 256 answers of the laptop's model take 0.8 core-seconds so, and 5 one by one. A request then waits for the
    longest answer beside it, which costs little where answers are as short as a CPU can afford."""
    post = rollout.post
    waiting: dict[Any, tuple[list[dict[str, Any]], asyncio.Task[list[Any]]]] = {}

    async def join(url: str, payload: dict[str, Any], **more: Any) -> Any:
        same = {name: value for name, value in payload.items() if name not in EACH}
        if not EACH <= payload.keys() <= JOINED or any(more.values()):
            return await post(url, payload, **more)
        key = (url, *payload["input_ids"], *same.items())
        if key not in waiting:
            waiting[key] = [], asyncio.create_task(send(key, url, same))
            # Else asyncio logs an error that nobody waits for, such as that of an engine which ends with the run.
            waiting[key][1].add_done_callback(lambda task: task.cancelled() or task.exception())
        requests, replies = waiting[key]
        place = len(requests)
        requests.append(payload)
        return (await asyncio.shield(replies))[place]  # who gives up does not end the others' request

    async def send(key: Any, url: str, same: dict[str, Any]) -> list[Any]:
        await asyncio.sleep(0)  # until the tasks that are about to post have done so
        requests, _ = waiting.pop(key)
        replies = await post(url, same | {name: [payload[name] for payload in requests] for name in EACH})
        if not isinstance(replies, list) or len(replies) != len(requests):
            raise RuntimeError(f"SGLang answered {len(requests)} requests with {str(replies)[:200]}")
        return replies

    rollout.post = join
