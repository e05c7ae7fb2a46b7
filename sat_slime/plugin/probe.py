"""Is this a slime that the plugin knows? Read from slime's source files, so that a launcher without a GPU can ask too.

slime has no version to ask for: its package says nothing and setup.py lags behind. What is compared is what the plugin
leans on: functions that it calls or wraps, with their parameters, and places in slime that must call what is wrapped.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

KNOWN = "v0.3.1 up to main of 2026-08-21, commit 624b824a8"

_TRAINER = "backends/megatron_utils/actor.py"
_PUSHES = "backends/megatron_utils/update_weight/"

_PARAMETERS: dict[str, dict[str, str]] = {
    "backends/megatron_utils/loss.py": {
        "loss_function": "args batch num_microbatches step_global_batch_size logits",
        "get_log_probs_and_entropy": "logits args unconcat_tokens total_lengths response_lengths with_entropy",
        "get_rollout_top_p_logprob_kwargs": "args batch",
        "vanilla_tis_function": "args pg_loss train_log_probs rollout_log_probs loss_masks",
        "policy_loss_function": "args batch logits sum_of_sample_mean",
    },
    "backends/megatron_utils/cp_utils.py": {
        "get_sum_of_sample_mean": "total_lengths response_lengths loss_masks sample_denoms calculate_per_token_loss",
        "all_gather_with_cp": "tensor total_length response_length",
        "slice_log_prob_with_cp": "log_prob total_length response_length",
        "_pad_routed_experts": "experts pad num_experts",
    },
    "utils/ppo_utils.py": {
        "compute_approx_kl": "log_probs log_probs_base kl_loss_type importance_ratio",
        "compute_gspo_kl": "full_log_probs full_old_log_probs local_log_probs loss_masks",
    },
    _TRAINER: {
        "MegatronTrainRayActor.train_actor": "self rollout_id rollout_data external_data",
        "MegatronTrainRayActor.load_other_checkpoint": "self model_tag path",
        "MegatronTrainRayActor.compute_log_prob": "self data_iterator num_microbatches store_prefix",
        "MegatronTrainRayActor._switch_model": "self target_tag",
        "MegatronTrainRayActor.update_weights": "self",
    },
    "backends/megatron_utils/model.py": {"initialize_model_and_optimizer": "args role"},
    "backends/megatron_utils/initialize.py": {"init": "args"},
    "utils/tensor_backper.py": {
        "_TensorBackuperNormal.backup": "self tag",
        "_TensorBackuperNormal.restore": "self tag",
    },
    "utils/routing_replay.py": {
        "get_routing_replay_compute_topk": "old_compute_topk",
        "RoutingReplay.pop_forward": "self",
        "RoutingReplay.pop_backward": "self",
        "RoutingReplay.clear_all_forward": "",
    },
    "ray/rollout.py": {"RolloutManager.eval": "self rollout_id"},
    "rollout/sample_hooks.py": {"apply_rollout_sample_hooks": "args value kwargs"},
    "utils/distributed_utils.py": {"get_gloo_group": ""},
}
"""File: function: parameters in order. Others must have defaults."""

_CALLS: dict[str, dict[str, tuple[str, ...]]] = {
    _TRAINER: {
        "MegatronTrainRayActor.init": (
            "init(args)",
            "initialize_model_and_optimizer(args, role)",
            "self.load_other_checkpoint('ref', args.ref_load)",
            "self.load_other_checkpoint('old_actor', args.load)",
        ),
        "MegatronTrainRayActor.train": ("self.train_actor(rollout_id, rollout_data, external_data=external_data)",),
        "MegatronTrainRayActor.train_actor": (
            "self._switch_model('old_actor' if self.args.keep_old_actor else 'actor')",
            "self._switch_model('actor')",
            "self.rollout_data_postprocess(self.args, rollout_id, rollout_data)",
        ),
        "MegatronTrainRayActor._switch_model": ("self.weights_backuper.restore(target_tag)",),
        "MegatronTrainRayActor.update_weights": (
            "self.weight_updater.update_weights()",
            "self.weights_backuper.backup('old_actor')",
        ),
    },
    f"{_PUSHES}update_weight_from_distributed.py": {
        "UpdateWeightFromDistributed.update_weights": ("self.weight_version += 1",)
    },
    f"{_PUSHES}update_weight_from_tensor.py": {"UpdateWeightFromTensor.update_weights": ("self.weight_version += 1",)},
    "backends/megatron_utils/initialize.py": {"init": ("custom_init(args)",)},
    "backends/megatron_utils/model.py": {
        "train_one_step": (
            "partial(loss_function, args, batch, num_microbatches, step_global_batch_size)",
            "'rollout_mask_sums'",
        ),
        "train": ("logging_utils.log(args, log_dict, step_key='train/step')",),
    },
    "ray/train_actor.py": {"TrainRayActor.set_rollout_manager": ("self.rollout_manager = rollout_manager",)},
    "ray/rollout.py": {"RolloutManager._split_train_data_by_dp": ("'round_number'", "'rollout_mask_sums'")},
    "utils/types.py": {"Sample._apply_meta_info": ("self.weight_versions.append", "self.rollout_routed_experts")},
}
"""File: function: what its body must have in it, as ast.unparse writes it."""

_REDUCERS = ("observability/train_metric_utils.py", "backends/megatron_utils/cp_utils.py")
"""Where `reduce_train_step_metrics` is: on main, in v0.3.1."""


def probe_slime(root: Path | None = None) -> list[str]:
    """What of this slime the plugin does not know, a line each; nothing if all is well.

    Args:
        root: folder of the package `slime`; the importable one if not given.
    """
    root = _package() if root is None else root
    if root is None:
        return ["slime is not importable here: install it (pip install -e SLIME --no-deps), or add it to PYTHONPATH"]
    if not (root / _TRAINER).exists():
        return [f"the package slime at {root} is not THUDM's: PyPI has another of that name; uninstall it"]
    rollout = (root / "ray/rollout.py").read_text()
    if "rollout_mask_sums" not in rollout or not (root / "rollout/sample_hooks.py").exists():
        return [f"slime at {root} is too old, from before v0.3.1: check out v0.3.1 or newer"]
    return [f"slime at {root} is not one that this plugin knows ({KNOWN}): {what}" for what in _differences(root)]


def _package() -> Path | None:
    try:
        spec = importlib.util.find_spec("slime")
    except ValueError:  # in sys.modules without one
        return None
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(places[0]) if places else None


def _differences(root: Path) -> Iterator[str]:
    read = functools.cache(lambda name: _functions(root / name))
    for file, functions in _PARAMETERS.items():
        for function, expected in functions.items():
            if (found := read(file).get(function)) is None:
                yield f"{file} has no {function}"
            elif not _accepts(found.args, expected.split()):
                yield f"{file}: {function} takes ({ast.unparse(found.args)}), not ({', '.join(expected.split())})"
    for file, calls in _CALLS.items():
        for function, needed in calls.items():
            if (found := read(file).get(function)) is None:
                yield f"{file} has no {function}"
                continue
            body = ast.unparse(found)
            yield from (f"{file}: {function} has no `{call}`" for call in needed if call not in body)
    if not any("reduce_train_step_metrics" in read(file) for file in _REDUCERS):
        yield f"neither {' nor '.join(_REDUCERS)} has reduce_train_step_metrics"


def _functions(path: Path) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods of a module by name; none if it is missing."""
    if not path.exists():
        return {}
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for node in ast.parse(path.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {
            prefix + function.name: function
            for function in inner
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
    return found


def _accepts(parameters: ast.arguments, expected: list[str]) -> bool:
    """Whether a call with the expected parameters fits."""
    positional = parameters.posonlyargs + parameters.args
    optional = {one.arg for one in positional[len(positional) - len(parameters.defaults) :]}
    optional |= {
        one.arg
        for one, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
        if default is not None
    }
    rest = [one.arg for one in (parameters.vararg, parameters.kwarg) if one is not None]
    names = [one.arg for one in positional + parameters.kwonlyargs] + rest
    known = [name for name in names if name in expected]
    return known == expected and set(names) - set(expected) <= optional | set(rest)
