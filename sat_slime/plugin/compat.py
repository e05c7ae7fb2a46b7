"""Every name of slime that the plugin touches, a line each; whether a slime has them; and how they are reached.

The fewer there are, the longer the plugin lives. slime has no version to ask for: its package says nothing and setup.py
lags behind. So `probe_slime` compares names and parameters, and the few lines of slime on which a silent fault would
follow. It only reads source files, so that a launcher without a GPU can ask too.

Of slime's functions these are replaced at run time, by `wrap_once`; `upstream/` has what would end each:

    log                                        metrics.jsonl                    (slime calls a hook per training step)
    reduce_train_step_metrics                  minima, quantiles, R3's verdict  (a reduction for each metric)
    get_routing_replay_compute_topk            R3: routers against the replay   (slime checks what it replays)
    prepare_routed_experts_for_routing_replay  R3: a byte an expert             (issue 2384)
    RoutingReplay.pop_forward, pop_backward    the same, in v0.3.1 alone        (done in 624b824a8)
    generate                                   an interrupted response's limit (done in 624b824a8)
    is_port_available                          two runs on one machine          (slime claims the ports that it gives)
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from sat_slime.runs.ray_start import claim

KNOWN = "v0.3.1, main at 624b824a8, and main after pull request 2391 as far as its files were read"
"""The versions: of the first two everything is run by tests; of the last single files of commits up to 0b0c277d were
read, and nothing was run."""

# MODULE:NAME(PARAMETERS) of the package `slime`, the parameters those that the plugin gives or takes over, in order;
# others must have defaults. Without parentheses any will do. `in MODULE`: slime looks the name up there. Forms of one
# name are joined by |, the newest first.
_NEEDED = """
# The driver.
utils.arguments:parse_args(return_restore_plan) | utils.arguments:parse_args()
observability.logging_utils:configure_logger() | utils.logging_utils:configure_logger()
observability.logging_utils:init_tracking(args) | utils.logging_utils:init_tracking(args)
observability.logging_utils:finish_tracking(args) | utils.logging_utils:finish_tracking(args)
ray.placement_group:create_placement_groups(args)
ray.placement_group:create_rollout_manager(args restore_plan) | ray.placement_group:create_rollout_manager(args pg)
ray.placement_group:create_training_models(args pgs rollout_manager actor_cls)
ray.actor_group:RayTrainGroup.async_train(self rollout_id rollout_data_ref external_data)
ray.actor_group:RayTrainGroup.save_model(self rollout_id force_sync)
ray.actor_group:RayTrainGroup.update_weights(self)
ray.rollout:RolloutManager.generate(self rollout_id)
ray.rollout:RolloutManager.eval(self rollout_id)
ray.rollout:RolloutManager.save(self rollout_id)
ray.rollout:RolloutManager.check_weights(self action)
ray.rollout:RolloutManager.dispose(self)
ray.rollout:RolloutManager.get_updatable_engines_and_lock(self)
backends.sglang_utils.sglang_engine:SGLangEngine.get_url(self)
utils.misc:should_run_periodic_action(rollout_id interval num_rollout_per_epoch num_rollout)
# The trainer.
backends.megatron_utils.actor:MegatronTrainRayActor.init(self args role)
backends.megatron_utils.actor:MegatronTrainRayActor.train(self rollout_id rollout_data_ref external_data)
backends.megatron_utils.actor:MegatronTrainRayActor.train_actor(self rollout_id rollout_data external_data)
backends.megatron_utils.actor:MegatronTrainRayActor.compute_log_prob(self data_iterator num_microbatches store_prefix)
backends.megatron_utils.actor:MegatronTrainRayActor.save_model(self rollout_id force_sync)
backends.megatron_utils.actor:MegatronTrainRayActor.update_weights(self)
backends.megatron_utils.actor:MegatronTrainRayActor._switch_model(self target_tag)
utils.tensor_backper:TensorBackuper.backup(self tag) | utils.tensor_backper:_TensorBackuperNormal.backup(self tag)
backends.megatron_utils.update_weight.update_weight_from_distributed:UpdateWeightFromDistributed.update_weights(self)
backends.megatron_utils.data:get_data_iterator(rollout_data)
utils.distributed_utils:get_gloo_group()
observability.logging_utils:log(args metrics step_key) | utils.logging_utils:log(args metrics step_key)
observability.train_metric_utils:reduce_train_step_metrics \
    | backends.megatron_utils.cp_utils:reduce_train_step_metrics in backends.megatron_utils.model
# The objective.
backends.megatron_utils.loss:loss_function(args batch num_microbatches step_global_batch_size logits)
backends.megatron_utils.loss:get_log_probs_and_entropy\
(logits args unconcat_tokens total_lengths response_lengths with_entropy)
backends.megatron_utils.loss:get_rollout_top_p_logprob_kwargs(args batch)
backends.megatron_utils.cp_utils:all_gather_with_cp(tensor total_length response_length)
backends.megatron_utils.cp_utils:slice_log_prob_with_cp(log_prob total_length response_length)
utils.ppo_utils:compute_approx_kl(log_probs log_probs_base kl_loss_type importance_ratio)
utils.ppo_utils:compute_gspo_kl(full_log_probs full_old_log_probs local_log_probs loss_masks)
utils.misc:load_function(path)
# R3.
utils.routing_replay:get_routing_replay_compute_topk(old_compute_topk)
utils.routing_replay:RoutingReplay.pop_forward(self)
utils.routing_replay:RoutingReplay.pop_backward(self)
utils.routing_replay:RoutingReplay.clear_all_forward()
# The rollout.
observability.metric_utils:compute_rollout_step(args rollout_id) \
    | utils.metric_utils:compute_rollout_step(args rollout_id)
rollout.sample_hooks:apply_rollout_sample_hooks(args value kwargs)
data.batch_builder:BatchBuilder.split_by_dp(self data) | ray.rollout:RolloutManager._split_train_data_by_dp(self data)
rollout.sglang_rollout:generate_rollout(args rollout_id data_source evaluation)
rollout.sglang_rollout:generate(args sample sampling_params)
rollout.sglang_rollout:generate_and_rm_group(args group sampling_params evaluation)
rollout.sglang_rollout:GenerateState
data.data_source:RolloutDataSourceWithBuffer | rollout.data_source:RolloutDataSourceWithBuffer
rollout.base_types:RolloutFnTrainOutput
rollout.base_types:RolloutFnEvalOutput
utils.types:Sample
utils.async_utils:run(coro)
utils.http_utils:get_rollout_num_engines(args)
utils.http_utils:is_port_available(port)
"""
_WHERE_IT_IS = """
# What main after pull request 2391 wants to be asked, and what it does not have.
ray.rollout:RolloutManager.training_ready(self)
ray.rollout:RolloutManager.training_completed(self rollout_id)
ray.rollout:RolloutManager.pause_rollout_admission(self)
ray.rollout:RolloutManager.resume_rollout_admission(self was_paused)
backends.megatron_utils.loss:_maybe_capture_log_probs(batch log_probs)
backends.megatron_utils.cp_utils:prepare_routed_experts_for_routing_replay in backends.megatron_utils.actor
"""
_BODIES: Mapping[str, tuple[str, ...]] = {
    "MegatronTrainRayActor.train_actor": (
        "self._switch_model('actor')",
        "self.compute_log_prob(",
        "self.rollout_data_postprocess(self.args, rollout_id, rollout_data)",
    ),
    "UpdateWeightFromDistributed.update_weights": ("self.weight_version += 1",),
    "BatchBuilder.split_by_dp": ("'round_number'", "'rollout_mask_sums'"),
    "RolloutManager._split_train_data_by_dp": ("'round_number'", "'rollout_mask_sums'"),
}
"""What the body of a name must have in it, as ast.unparse writes it: without it versions, lags or denominators would be
wrong, and nothing would say so."""


class Form(NamedTuple):
    """A function or class, or a method with its class, as one or several versions of slime have it."""

    module: str
    name: str
    parameters: tuple[str, ...] | None
    looked_up_in: str
    """The module in whose names slime looks it up."""

    @property
    def file(self) -> str:
        """The module's file, relative to the package's folder."""
        return self.module.replace(".", "/") + ".py"


def _form(text: str) -> Form:
    place, _, other = text.strip().partition(" in ")
    module, _, called = place.partition(":")
    name, parenthesis, rest = called.partition("(")
    return Form(module, name, tuple(rest.removesuffix(")").split()) if parenthesis else None, other or module)


def _table(lines: str) -> list[tuple[Form, ...]]:
    return [tuple(map(_form, line.split(" | "))) for line in lines.splitlines() if line and line[0] != "#"]


NEEDED, OPTIONAL = _table(_NEEDED), _table(_WHERE_IT_IS)
"""The forms of each name that every run needs, and of those that are used in the versions that have them."""


@functools.cache
def is_newest() -> bool:
    """Return whether this slime is one after pull request 2391, which replays narrow routes itself."""
    return importlib.util.find_spec("slime") is not None and importlib.util.find_spec("slime.data") is not None


# ------------------------------------------------------------------------------------------------------- is it known

_TRAINER, _SINCE_V031 = "backends/megatron_utils/actor.py", "rollout/sample_hooks.py"
_BY_INTERVAL = "update_weights_interval"
"""A word in slime's trainer; main after pull request 2391 lacks it, and a script that our hooks can follow."""
Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def probe_slime(root: Path | None = None, *, own_script: bool = False) -> list[str]:
    """Return a line for every difference between this slime and those that the plugin knows; empty if all is well.
    root: folder of the package `slime`; unset: the one that can be imported. own_script: slime's own training script
    runs, with the plugin's hooks, and not the plugin's driver."""
    if root is None:
        spec = importlib.util.find_spec("slime")
        if spec is None or not spec.submodule_search_locations:
            return [
                "slime is not importable here: install it (pip install -e SLIME --no-deps), or add it to PYTHONPATH"
            ]
        root = Path(spec.submodule_search_locations[0])
    if not (root / _TRAINER).exists():
        return [f"the package slime at {root} is not THUDM's: PyPI has another of that name; uninstall it"]
    if not (root / _SINCE_V031).exists():
        return [f"slime at {root} is too old, from before v0.3.1: check out v0.3.1 or newer"]
    if own_script and _BY_INTERVAL not in (root / _TRAINER).read_text(encoding="utf-8"):
        return [
            f"slime at {root} has no asynchronous training script that the plugin knows (slime's pull "
            "request 2391): start `python3 -m sat_slime.plugin.driver` in its place, with the same flags"
        ]
    read = functools.cache(lambda file: _nodes(root / file))
    asked = [*NEEDED, *(forms for forms in OPTIONAL if any(form.name in read(form.file) for form in forms))]
    different = [what for forms in asked for what in _differences(forms, read)]
    return [f"slime at {root} is not one that this plugin knows ({KNOWN}): {what}" for what in different]


def _differences(forms: tuple[Form, ...], read: Callable[[str], Mapping[str, Node]]) -> list[str]:
    faults = [list(_faults(form, node)) for form in forms if (node := read(form.file).get(form.name)) is not None]
    if not faults:
        return [" and ".join(f"{form.file} has no {form.name}" for form in forms)]
    return min(faults, key=len)


def _faults(form: Form, node: Node) -> Iterator[str]:
    if form.parameters is not None and not (isinstance(node, ast.ClassDef) or _accepts(node.args, form.parameters)):
        yield f"{form.file}: {form.name} takes ({ast.unparse(node.args)}), not ({', '.join(form.parameters)})"
    body = _BODIES.get(form.name, ())
    source = ast.unparse(node) if body else ""
    yield from (f"{form.file}: {form.name} has no `{text}`" for text in body if text not in source)


def _nodes(path: Path) -> dict[str, Node]:
    """Return the functions, classes and methods of a module by name; empty if the file is missing."""
    definitions: dict[str, Node] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else ():
        if isinstance(node, Node):
            definitions[node.name] = node
        if isinstance(node, ast.ClassDef):
            definitions |= {f"{node.name}.{child.name}": child for child in node.body if isinstance(child, Node)}
    return definitions


def _accepts(parameters: ast.arguments, expected: tuple[str, ...]) -> bool:
    """Return whether a function with these parameters takes a call with the expected ones."""
    positional, by_name = parameters.posonlyargs + parameters.args, parameters.kwonlyargs
    mandatory = positional[: len(positional) - len(parameters.defaults)]
    mandatory += [one for one, default in zip(by_name, parameters.kw_defaults, strict=True) if default is None]
    known = [*positional, *by_name, parameters.vararg, parameters.kwarg]
    names = [one.arg for one in known if one is not None and one.arg in expected]
    return names == [*expected] and {one.arg for one in mandatory} <= {*expected}


# --------------------------------------------------------------------------------------------------- how it is reached

_MARK = "of_sat_slime"


@functools.cache
def locate(name: str) -> tuple[ModuleType, str]:
    """Return the module in which this slime looks up a function or class of the table, with its name there. Raises
    RuntimeError where slime has it in none of the places of the table."""
    places = [form.looked_up_in for forms in (*NEEDED, *OPTIONAL) for form in forms if form.name == name]
    for place in places:
        try:
            module = importlib.import_module(f"slime.{place}")
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("slime"):
                raise
            continue
        if hasattr(module, name):
            return module, name
    raise RuntimeError(
        f"slime has no {name} where it is known to be ({', '.join(f'slime.{place}' for place in places)}): "
        "this plugin supports v0.3.1 and newer"
    )


def slime_function(name: str) -> Any:
    """Return slime's function or class of that name. Raises RuntimeError as `locate` does."""
    module, name = locate(name)
    return getattr(module, name)


def wrap_once(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Puts `around` in the place of `owner.name`, which it gets before the arguments of each call; later calls of this
    do nothing."""
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(replacement, _MARK, True)
    setattr(owner, name, replacement)


OF_OTHERS = range(15_000, 16_000)
"""Ports left to slime runs that are not ours, which claim nothing: 16 engines take about 550 of them."""


def claim_ports() -> None:
    """Has slime take only ports that can be claimed until this process ends. Each process of a run calls this first.
    An engine binds its port once its model is loaded. A run that starts meanwhile would be given the same, and slime
    takes whatever engine answers there for its own."""
    wrap_once(*locate("is_port_available"), lambda look, port: port not in OF_OTHERS and look(port) and claim(port))
