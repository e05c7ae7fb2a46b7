"""Records in the processes of a rehearsal what its checks want to know: a file of JSON lines for each trainer rank, and
one for each rank of an engine.

It wraps our own trainer's methods and SGLang's loading of a model, and nothing of them changes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

FOLDER = "SAT_SLIME_REHEARSAL"
"""Environment variable with the folder of the records; nothing is recorded where it is unset."""


def _write(name: str, row: dict[str, Any]) -> None:
    file = Path(os.environ[FOLDER]) / f"{name}.jsonl"
    with file.open("a", encoding="utf-8") as text:
        text.write(json.dumps({"time": time.time(), **row}) + "\n")


# ------------------------------------------------------------------------------------------------------------ trainer


def record_trainer(module: Any) -> None:
    """Wraps the methods of the trainer that `module`, sat_slime.plugin.actor, defines."""
    actor = module.SatTrainRayActor
    actor.init = _after(actor.init, _initialized)
    actor.train_actor = _after(actor.train_actor, _trained)
    actor.save_model = _after(actor.save_model, _saved)
    actor.update_weights = _after(actor.update_weights, _pushed)


def _after(method: Callable[..., Any], record: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Return the method, which then writes a row with how long it took and what `record` says of its arguments."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = _batch(*args) if record is _trained else {}  # training takes routes out of the batch
        begun = time.monotonic()
        result = method(self, *args, **kwargs)
        seconds = time.monotonic() - begun
        if getattr(self, "role", "actor") == "actor":
            _write(f"rank-{self._rank}", {"seconds": seconds, **record(self, *args, **kwargs), **batch})
        return result

    return call


def _initialized(self: Any, *_: Any, **__: Any) -> dict[str, Any]:
    import ray
    from megatron.core import mpu

    return {
        "event": "initialized",
        "rank": self._rank,
        "node": ray.util.get_node_ip_address(),
        "tensor": mpu.get_tensor_model_parallel_rank(),
        "pipeline": mpu.get_pipeline_model_parallel_rank(),
        "context": mpu.get_context_parallel_rank(),
        "data": mpu.get_data_parallel_rank(),
        "expert": mpu.get_expert_model_parallel_rank(),
        "copies": {
            tag: _elements(self.weights_backuper.get(tag).values()) for tag in self.weights_backuper.backup_tags
        },
        "state": _digest(self),
        "steps": self.state.steps,
    }


def _trained(self: Any, *_: Any, **__: Any) -> dict[str, Any]:
    return {"event": "trained", "elements": rank_elements(self.model, self.optimizer)}


def rank_elements(model: Sequence[Any], optimizer: Any) -> dict[str, int]:
    """Return the elements that a rank holds, as `launch/memory.py` counts them.

    Args:
        model: the parts of the model, each in Megatron's DistributedDataParallel.
        optimizer: Megatron's, with distributed optimizers in it whose state is there.

    Returns:
        `weights`, and `master`, `exp_avg` and `exp_avg_sq` of the optimizer. Parameters in fp32 need no `master`.
    """
    counts = {
        "weights": sum(parameter.numel() for part in model for parameter in part.parameters()),
        "master": 0,
        "exp_avg": 0,
        "exp_avg_sq": 0,
    }
    for distributed in getattr(optimizer, "chained_optimizers", [optimizer]):
        masters = [
            *(copy for group in distributed.shard_fp32_from_float16_groups for copy in group if copy is not None),
            *getattr(distributed.optimizer, "param_to_fp32_param", {}).values(),  # offloaded
        ]
        counts["master"] += sum(copy.numel() for copy in masters)
        for state in distributed.optimizer.state.values():
            for moment in ("exp_avg", "exp_avg_sq"):
                counts[moment] += state[moment].numel() if moment in state else 0
    return counts


def _batch(rollout_id: int, batch: dict[str, Any], *_: Any) -> dict[str, Any]:
    from sat_slime.plugin.r3 import received

    routes = received(batch.get("rollout_routed_experts") or [])
    return {
        "rollout": rollout_id,
        "responses": len(batch["tokens"]),
        "tokens": sum(len(tokens) for tokens in batch["tokens"]),
        "micro_batches": list(batch.get("num_microbatches") or []),
        "route_bytes": sum(layer.numel() * layer.element_size() for layer in routes) if routes else 0,
    }


def _saved(self: Any, rollout_id: int, *_: Any, **__: Any) -> dict[str, Any]:
    return {"event": "saved", "rollout": rollout_id, "state": _digest(self)}


def _pushed(self: Any, *_: Any, **__: Any) -> dict[str, Any]:
    return {"event": "pushed", "steps": self.state.steps}


def _elements(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _digest(self: Any) -> str:
    """Return a checksum of the weights and of the optimizer's state on this rank."""
    import torch

    digest = hashlib.sha256()
    tensors = [parameter for part in self.model for _, parameter in part.named_parameters()]
    for distributed in getattr(self.optimizer, "chained_optimizers", [self.optimizer]):
        for group in distributed.optimizer.param_groups:
            for parameter in group["params"]:
                state = distributed.optimizer.state.get(parameter, {})
                tensors += [state[name] for name in sorted(state)]
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


# ------------------------------------------------------------------------------------------------------------ engines


def record_engine(module: Any) -> None:
    """Wraps the loading of a model in `module`, sglang.srt.model_executor.model_runner."""
    runner = module.ModelRunner
    load = runner.load_model

    @functools.wraps(load)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = load(self, *args, **kwargs)
        _write(
            f"engine-{self.server_args.host}-{self.server_args.port}-{self.tp_rank}",
            {
                "event": "loaded",
                "host": self.server_args.host,
                "port": self.server_args.port,
                "gpu": self.gpu_id,
                "tensor": self.tp_rank,
                "weights": _elements(parameter for _, parameter in self.model.named_parameters()),
            },
        )
        return result

    runner.load_model = load_model
