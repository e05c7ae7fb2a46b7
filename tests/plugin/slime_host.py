"""Runs our driver on a model that is one number: how many optimizer steps its weights have had.

It drives slime's real MegatronTrainRayActor: its init, train_actor, update_weights, model switches and weight backups.
What needs a GPU or another process is replaced: the engine keeps the number that was pushed, a forward pass notes the
number, a step adds one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import torch

from sat_slime.config.plugin_schema import DriverConfig
from sat_slime.plugin import driver, rollout_hooks, step
from sat_slime.plugin.driver import Host
from sat_slime.plugin.step import TrainerState
from sat_slime.plugin.versions import Origin

REFERENCE = -1.0
"""The reference model's number."""


@dataclass
class Recorder:
    """What happened in a run, with the weights as numbers; `engine` are the weights that the engine generates with."""

    args: Namespace
    model: torch.Tensor
    engine: float = REFERENCE
    version: str = "default"
    batches: list[dict[str, Any]] = field(default_factory=list)
    pushes: list[tuple[str, float]] = field(default_factory=list)
    evaluations: list[tuple[int, str]] = field(default_factory=list)
    saved: list[tuple[str, int, int]] = field(default_factory=list)
    """What was saved, after which rollout, and how many batches had taken their prompts by that time."""

    def note(self, what: str, rollout_id: int) -> None:
        self.saved.append((what, rollout_id, len(self.batches)))

    def push(self, version: int) -> None:
        self.version, self.engine = str(version), self.model.item()
        self.pushes.append((self.version, self.engine))

    def generate(self, rollout_id: int, steps: int) -> dict[str, Any]:
        """A batch of one response for the trainer."""
        batch = {"rollout": rollout_id, "generated_by": self.engine, "scored_by": {}, "facts": {}}
        self.batches.append(batch)
        data = {"response_lengths": [3], "num_microbatches": [1] * steps, "raw_reward": [1.0], "batch": batch}
        data |= {"global_batch_sizes": [1] * steps}
        sample = types.SimpleNamespace(
            metadata={}, weight_versions=[self.version], response_length=3, rollout_routed_experts=None
        )
        rollout_hooks.log_rollout(rollout_id, self.args, [sample], {}, 0.0)
        if "round_number" in sample.metadata:  # as in slime's _convert_samples_to_train_data
            data["round_number"] = [sample.metadata["round_number"]]
        return data

    def evaluate(self, rollout_id: int) -> None:
        """Evaluates as slime's rollout manager does, as far as the version that each response has."""
        self.evaluations.append((rollout_id, self.version))

    def score(self, prefix: str, data: dict[str, Any]) -> None:
        data["batch"]["scored_by"][prefix] = self.model.item()

    def train(self, data: dict[str, Any], steps: int) -> None:
        data["batch"] |= {"trained": self.model.item(), "facts": dict(step.current().batch_metrics)}
        self.model += steps


def make_args(n: int, rollouts: int, start: int, *, reference: bool, **other: Any) -> Namespace:
    """slime's arguments of a run with a push every n rollouts; start > 0 makes it a resume."""

    class Args(Namespace):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            return None  # a flag that is not set

    args = Args()
    settings: dict[str, Any] = {
        "sat_slime": {"method": {"denominator": "checkpoint"}},
        "eps_clip": 0.2,
        "eps_clip_high": 0.2,
        "keep_old_actor": True,
        "rollout_top_p": 1.0,
        "update_weights_interval": n,
        "num_rollout": rollouts,
        "start_rollout_id": None if start else 0,
        "kl_coef": 0,
        "use_kl_loss": reference,
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 1,
        "global_batch_size": 4,
        "compute_advantages_and_returns": True,
        "update_weight_mode": "full",
        "update_weight_transport": "nccl",
        "update_weight_start_version": 0,
        "load": "actor",
        "ref_load": "reference",
        "num_gpus_per_node": 1,
        "vocab_size": 8,
        "model_name": "model",
        "loss_type": "custom_loss",
        "eval_interval": None,
        "num_layers": 1,
        "moe_layer_freq": 1,
        "distributed_timeout_minutes": 1,
    }
    for name, value in (settings | other).items():
        setattr(args, name, value)
    return args


def run_driver(monkeypatch: Any, args: Namespace, start: int, order: DriverConfig) -> Recorder:
    """Runs a whole run of our driver on slime's real trainer, as inside/actor.py extends it."""
    steps = args.rollout_batch_size * args.n_samples_per_prompt // args.global_batch_size
    recorder = Recorder(args, torch.tensor(float(start * steps)))
    (ours,) = import_slime("sat_slime.plugin.actor")
    monkeypatch.setattr(step, "_current", TrainerState())
    args.start_rollout_id, args.custom_megatron_init_path = start, "builtins.id"
    driver.take_over(args)
    actor = _real_actor(monkeypatch, args, recorder, start, recorder.model.item(), ours.SatTrainRayActor)
    actor.init(args, "actor", with_ref=args.use_kl_loss)
    trainers = types.SimpleNamespace(
        update_weights=actor.update_weights,
        async_train=lambda rollout_id, batch: actor.train(rollout_id, batch),
        save_model=lambda rollout_id, force_sync: recorder.note("weights", rollout_id),
    )
    manager = types.SimpleNamespace(
        generate=_remote(lambda rollout_id: recorder.generate(rollout_id, steps)),
        eval=_remote(recorder.evaluate),
        save=_remote(lambda rollout_id: recorder.note("data", rollout_id)),
    )
    monkeypatch.setattr(driver, "ray", local_ray)
    driver.train(Host(args, manager, trainers, None), order)
    return recorder


def import_slime(*names: str) -> list[types.ModuleType]:
    """Imports modules of the real slime that need something which a CPU machine lacks. Stand-ins for that are removed
    afterwards."""
    import torch._inductor.select_algorithm
    import torch.utils.flop_counter  # noqa: F401  both ask Triton for classes

    from sat_slime.rollout.sglang_on_cpu.absent import Absent, stand_in_for

    absent = ("torch_memory_saver", "triton", "pylatexenc", "IPython", "wandb", "torchvision", "zstandard")
    before = list(sys.meta_path)
    stand_in_for(*(name for name in absent if importlib.util.find_spec(name) is None))
    sys.meta_path.append(_MegatronTraining())
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.meta_path[:] = before
        for name in [name for name, module in sys.modules.items() if isinstance(module, Absent)]:
            del sys.modules[name]


class _MegatronTraining:
    """Stands for megatron.training, which is not part of the megatron-core on PyPI."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=True) if name.startswith("megatron.training") else None

    def create_module(self, spec: Any) -> Any:
        from sat_slime.rollout.sglang_on_cpu.absent import Absent

        return Absent(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


local_ray = types.SimpleNamespace(get=lambda result: result, wait=lambda results: (results, []))
"""Stands for ray: calls have returned before they are waited for."""


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _remote(function: Any) -> Any:
    return types.SimpleNamespace(remote=function)


def _real_actor(
    monkeypatch: Any, args: Namespace, recorder: Recorder, start: int, saved: float, cls: type | None = None
) -> Any:
    """slime's MegatronTrainRayActor, or `cls`, on a model that is one number; it is not initialized yet."""
    trainer, updaters, backuper = import_slime(
        "slime.backends.megatron_utils.actor",
        "slime.backends.megatron_utils.update_weight.update_weight_from_distributed",
        "slime.utils.tensor_backper",
    )

    def put(name: str, value: Any) -> None:
        monkeypatch.setattr(trainer, name, value, raising=False)

    fake_dist = types.SimpleNamespace(get_rank=lambda *_: 0, barrier=_nothing)
    mpu = {
        "get_virtual_pipeline_model_parallel_world_size": lambda: None,
        "get_data_parallel_world_size": lambda **_: 1,
        "get_context_parallel_world_size": lambda: 1,
    }
    calls = ("pause_generation", "flush_cache", "continue_generation")
    engine = types.SimpleNamespace(**{name: _remote(_nothing) for name in calls})
    engines = ([engine], None, 1, [1], [0], {})

    def load_checkpoint(*_: Any, **__: Any) -> tuple[int, int]:
        recorder.model.fill_(saved if args.load == "actor" else REFERENCE)
        return 0, 0

    def base_init(self: Any, args: Namespace, role: str, *_: Any) -> None:
        self.args, self.role = args, role

    def slime_init(args: Namespace) -> None:  # as slime.backends.megatron_utils.initialize.init does at its end
        from slime.utils.misc import load_function

        load_function(args.custom_megatron_init_path)(args)

    def forward_only(function: Any, args: Namespace, model: Any, data: Any, *_: Any, store_prefix: str, **__: Any):
        recorder.score(store_prefix, data)
        return {}

    def train(rollout_id: int, model: Any, optimizer: Any, scheduler: Any, data: Any, microbatches: list[int], *_: Any):
        recorder.train(data, len(microbatches))

    config = types.SimpleNamespace(from_pretrained=lambda *_, **__: types.SimpleNamespace())
    profiler = types.SimpleNamespace(on_init_end=_nothing, step=_nothing)
    log = types.SimpleNamespace(log_rollout_data=_nothing, log_perf_data=_nothing, save_debug_train_data=_nothing)
    monkeypatch.setattr(trainer.TrainRayActor, "init", base_init)
    for name, value in {
        **dict.fromkeys(("monkey_patch_torch_dist", "register_default_process_group", "clear_memory"), _nothing),
        **dict.fromkeys(("print_memory", "get_gloo_group", "compute_advantages_and_returns"), _nothing),
        **dict.fromkeys(("log_rollout_data", "log_perf_data"), _nothing),  # v0.3.1
        **dict.fromkeys(("train_metric_utils", "train_data_utils", "train_dump_utils"), log),
        "is_megatron_main_rank": lambda: False,
        "AutoConfig": config,
        "AutoTokenizer": config,
        "TrainProfiler": lambda args: profiler,
        "dist": fake_dist,
        "mpu": types.SimpleNamespace(**mpu),
        "ray": local_ray,
        "init": slime_init,
        "initialize_model_and_optimizer": lambda args, role: ([recorder.model], None, None, start - 1),
        "named_params_and_buffers": lambda args, model, **_: [("weight", recorder.model)],
        "load_checkpoint": load_checkpoint,
        "get_data_iterator": lambda data: data,
        "forward_only": forward_only,
        "train": train,
    }.items():
        put(name, value)

    pinless = types.SimpleNamespace(
        empty_like=lambda tensor, **_: torch.empty_like(tensor),
        device=torch.device,
        cuda=types.SimpleNamespace(synchronize=_nothing),
    )
    monkeypatch.setattr(backuper, "torch", pinless)
    monkeypatch.setattr(backuper, "accelerator", types.SimpleNamespace(synchronize=_nothing), raising=False)

    updater = updaters.UpdateWeightFromDistributed
    for name, value in {"dist": fake_dist, "ray": local_ray, "get_gloo_group": _nothing}.items():
        monkeypatch.setattr(updaters, name, value)

    def connect(self: Any, engines: Any, *_: Any, **__: Any) -> None:
        self.rollout_engines, self._is_pp_src_rank = engines, False

    monkeypatch.setattr(updater, "connect_rollout_engines", connect)
    monkeypatch.setattr(updater, "_send_weights", lambda self, bar: recorder.push(self.weight_version))
    monkeypatch.setattr(updater, "update_weights", updater.update_weights)  # it is restored when the test ends
    from_tensor = trainer.UpdateWeightFromTensor
    monkeypatch.setattr(from_tensor, "update_weights", from_tensor.update_weights)

    trainer.Timer().start_time.clear()  # all actors of this process share the timer
    actor = object.__new__(cls or trainer.MegatronTrainRayActor)
    actor._rank = 0
    actor._get_rollout_data = lambda data: data
    actor.rollout_manager = types.SimpleNamespace(
        get_updatable_engines_and_lock=_remote(lambda: engines),
        clear_updatable_num_new_engines=_remote(_nothing),
        eval=_remote(recorder.evaluate),
    )
    return actor


def facts_of_rank(layout: Any) -> tuple[dict[str, float], dict[str, float]]:
    """The facts of a batch on this rank, and of another batch, of which data-parallel rank 0 knows no versions."""
    from megatron.core import mpu
    from slime.utils import distributed_utils

    distributed_utils.init_gloo_group()
    state = TrainerState(steps=10)
    mine = [[10, 2], [9]][mpu.get_data_parallel_rank()]
    state.begin({"response_lengths": [4] * len(mine), "round_number": [Origin(version) for version in mine]})
    facts = dict(state.batch_metrics)
    state.begin({"response_lengths": [4]} | ({"round_number": [Origin(0)]} if mpu.get_data_parallel_rank() else {}))
    return facts, state.batch_metrics
