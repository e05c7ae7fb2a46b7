"""Patches slime for a machine without a GPU: the CPU becomes an accelerator, and a newer torch and NumPy will do."""

from __future__ import annotations

import asyncio
import contextlib
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
JOINED = {"input_ids", "sampling_params", "return_logprob", "return_routed_experts"}
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

    def forwarding(name: str) -> Any:
        return lambda self, *args, **kwargs: self._fwd(name, *args, **kwargs)

    for name in NEWER_COLLECTIVES:
        if name not in vars(groups.ReloadableProcessGroup):
            setattr(groups.ReloadableProcessGroup, name, forwarding(name))


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
    waiting: dict[Any, list[tuple[dict[str, Any], asyncio.Future[Any]]]] = {}
    sending: set[asyncio.Task[None]] = set()

    async def join(url: str, payload: dict[str, Any], **more: Any) -> Any:
        same = {name: value for name, value in payload.items() if name not in ("input_ids", "sampling_params")}
        if not {"input_ids", "sampling_params"} <= payload.keys() <= JOINED or any(more.values()):
            return await post(url, payload, **more)
        key, answer = (url, *payload["input_ids"], *same.items()), asyncio.get_running_loop().create_future()
        if key not in waiting:
            waiting[key] = []
            sending.add(task := asyncio.create_task(send(key, url, same)))
            task.add_done_callback(sending.discard)
        waiting[key].append((payload, answer))
        return await answer

    async def send(key: Any, url: str, same: dict[str, Any]) -> None:
        await asyncio.sleep(0)  # until the tasks that are about to post have done so
        requests = waiting.pop(key)
        columns = {name: [payload[name] for payload, _ in requests] for name in ("input_ids", "sampling_params")}
        try:
            replies = await post(url, same | columns)
            if not isinstance(replies, list) or len(replies) != len(requests):
                raise RuntimeError(f"SGLang answered {len(requests)} requests with {str(replies)[:200]}")
        except Exception as error:
            replies = [error] * len(requests)
        for (_, answer), reply in zip(requests, replies, strict=True):
            if answer.done():  # cancelled meanwhile
                continue
            if isinstance(reply, Exception):
                answer.set_exception(reply)
            else:
                answer.set_result(reply)

    rollout.post = join
