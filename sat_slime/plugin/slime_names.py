"""Every name of slime that the plugin touches, once: the probe, the tests and the reference read this table.

The fewer there are, the longer the plugin lives. A row says what the plugin needs, and in which form each version of
slime has it. The tests compare the table with the versions of which the whole tree was at hand. Of the newest version
only single files could be read, so its column says for each name what was read; nothing of it was run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

V031, MAIN, NEWEST = "v0.3.1", "624b824a8", "newest"
VERSIONS = {
    V031: "tag v0.3.1, commit a6272da0d, 2026-08-06",
    MAIN: "main of 2026-08-21, commit 624b824a8",
    NEWEST: "main after pull request 2391, of which single files of commits up to 0b0c277d were read",
}
"""The versions, each with what it stands for."""
KNOWN = "v0.3.1, main at 624b824a8, and main after pull request 2391 as far as its files were read"
"""The same in a message."""
BY_INTERVAL = "update_weights_interval"
"""A word in slime's trainer that the newest version lacks, and with it a script that the hooks could follow."""
SINCE_V031 = "rollout/sample_hooks.py"
"""A file that versions before v0.3.1 lack."""

TREE = "tree"
"""The name was found in the whole tree of the version."""
FORK = "fork"
"""The name was read in vllm-project/vime at 8c1c944b, slime's main with another engine, in lieu of slime's own file."""
UNREAD = "not read"
"""The name is taken to be there: neither it nor a caller of it could be read."""

Use = Literal["calls", "extends", "reads", "wraps", "is called by"]
Needed = Literal["always", "where slime has it", "in launch scripts of one's own", "with pipeline.canary"]


@dataclass(frozen=True)
class Form:
    """A name as one or several versions have it."""

    place: str
    """`module:name(parameters)`, where the module is one of the package `slime`. The parameters are those that the
    plugin gives or takes over, in order; others must have defaults. Without parentheses any parameters will do."""
    seen: Mapping[str, str]
    """How each version was seen: TREE, the commit of the file that was read, `called in FILE COMMIT`, FORK, UNREAD."""
    body: tuple[str, ...] = ()
    """Texts that its body must have in it, as ast.unparse writes them."""
    imported_by: str = ""
    """The module in whose names slime looks it up, where that is not its own."""

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]

    @property
    def looked_up_in(self) -> str:
        return self.imported_by or self.module

    @property
    def file(self) -> str:
        """The module's file, relative to the package's folder."""
        return self.module.replace(".", "/") + ".py"

    @property
    def name(self) -> str:
        """Name of the function or the class; of a method with its class."""
        return self.place.partition(":")[2].partition("(")[0]

    @property
    def parameters(self) -> list[str] | None:
        _, parenthesis, rest = self.place.partition("(")
        return rest.removesuffix(")").split() if parenthesis else None


@dataclass(frozen=True)
class Name:
    """A name that the plugin needs of slime, in one of its forms, the newest first."""

    use: Use
    why: str
    forms: tuple[Form, ...]
    needed: Needed = "always"


def _need(use: Use, why: str, *forms: Form, needed: Needed = "always") -> Name:
    return Name(use, why, forms, needed)


_calls, _extends, _reads = partial(_need, "calls"), partial(_need, "extends"), partial(_need, "reads")
_wraps, _is_called_by = partial(_need, "wraps"), partial(_need, "is called by")


def _all(place: str, newest: str, *body: str) -> Form:
    return Form(place, {V031: TREE, MAIN: TREE, NEWEST: newest}, body)


def _trees(place: str, *body: str) -> Form:
    return Form(place, {V031: TREE, MAIN: TREE}, body)


def _since_main(place: str, newest: str, *body: str) -> Form:
    return Form(place, {MAIN: TREE, NEWEST: newest}, body)


def _newest(place: str, newest: str, *body: str) -> Form:
    return Form(place, {NEWEST: newest}, body)


def _observed(use: Use, why: str, place: str, newest: str) -> Name:
    return _need(use, why, _since_main(f"observability.{place}", newest), Form(f"utils.{place}", {V031: TREE}))


_ACTOR = "backends.megatron_utils.actor:MegatronTrainRayActor"
_INIT = "backends.megatron_utils.initialize:init"
_LOSS = "backends.megatron_utils.loss"
_CP = "backends.megatron_utils.cp_utils"
_MODEL = "backends.megatron_utils.model"
_PUSH = "backends.megatron_utils.update_weight.update_weight_from_"
_GROUPS = "ray.placement_group"
_TRAINERS = "ray.actor_group:RayTrainGroup"
_MANAGER = "ray.rollout:RolloutManager"
_REPLAY = "utils.routing_replay"
_BACKUPS = "utils.tensor_backper"
_STEP_METRICS = "reduce_train_step_metrics"
_IN_TRAIN = "called in train.py"
"""train.py was read in slime's own text, of an unknown commit; its calls fit 13b347f8."""
_IN_ACTOR, _IN_LOSS, _IN_MODEL = (
    "called in actor.py d0a9ecfd",
    "called in loss.py 00c2d6db",
    "called in model.py d0a9ecfd",
)
_IN_STREAM, _SOURCE = "called in fully_async_rollout.py 17211d44", "data_source:RolloutDataSourceWithBuffer"
_OWN: Needed = "in launch scripts of one's own"
_IF: Needed = "where slime has it"
_CANARY: Needed = "with pipeline.canary"

_DRIVER = (
    _calls(
        "the arguments; in the newest a plan for restarts besides",
        _newest("utils.arguments:parse_args(return_restore_plan)", "0b0c277d"),
        _trees("utils.arguments:parse_args()"),
    ),
    _observed("calls", "the driver's log", "logging_utils:configure_logger()", _IN_TRAIN),
    _observed("calls", "trackers", "logging_utils:init_tracking(args)", _IN_TRAIN),
    _observed("calls", "trackers", "logging_utils:finish_tracking(args)", _IN_TRAIN),
    _wraps(
        "no two runs on a machine take the same port",
        _trees("utils.http_utils:is_port_available(port)"),
        needed=_IF,
    ),
    _calls("GPUs", _all(f"{_GROUPS}:create_placement_groups(args)", "13b347f8")),
    _calls(
        "rollout manager and engines",
        _newest(f"{_GROUPS}:create_rollout_manager(args restore_plan)", "13b347f8", "RolloutStartup("),
        _trees(f"{_GROUPS}:create_rollout_manager(args pg)"),
    ),
    _calls(
        "the trainer's ranks, of our class",
        _all(f"{_GROUPS}:create_training_models(args pgs rollout_manager actor_cls)", "13b347f8"),
    ),
    _calls(
        "trains on a batch",
        _all(f"{_TRAINERS}.async_train(self rollout_id rollout_data_ref external_data)", "13b347f8"),
    ),
    _calls("saves weights", _all(f"{_TRAINERS}.save_model(self rollout_id force_sync)", "13b347f8")),
    _calls("pushes weights", _all(f"{_TRAINERS}.update_weights(self)", "13b347f8")),
    *(
        _calls(why, _all(f"{_MANAGER}.{call}", "0b0c277d"))
        for why, call in (
            ("generates a batch", "generate(self rollout_id)"),
            ("evaluates the engines' weights", "eval(self rollout_id)"),
            ("saves the data position", "save(self rollout_id)"),
            ("--check-weight-update-equal", "check_weights(self action)"),
            ("ends the engines", "dispose(self)"),
        )
    ),
    _reads(
        "the canary's scores come back from the trainer's ranks",
        _trees(f"{_TRAINERS}.update_weights(self)", "return ray.get([actor.update_weights.remote()"),
        needed=_CANARY,
    ),
    _calls("the engines", _trees(f"{_MANAGER}.get_updatable_engines_and_lock(self)"), needed=_CANARY),
    _calls("their addresses", _trees("backends.sglang_utils.sglang_engine:SGLangEngine.get_url(self)"), needed=_CANARY),
    *(
        _calls(why, _newest(f"{_MANAGER}.{call}", "0b0c277d"), needed=_IF)
        for why, call in (
            ("the first push is done", "training_ready(self)"),
            ("a batch is trained on", "training_completed(self rollout_id)"),
            ("before a push", "pause_rollout_admission(self)"),
            ("after a push", "resume_rollout_admission(self was_paused)"),
        )
    ),
    _calls(
        "whether a rollout saves or evaluates",
        _all("utils.misc:should_run_periodic_action(rollout_id interval num_rollout_per_epoch num_rollout)", _IN_TRAIN),
    ),
)

_TRAINER = (
    _extends("one rank of the trainer", _all(_ACTOR, "d0a9ecfd")),
    _extends(
        "our state beside slime's; a reference model is not pushed",
        _all(
            f"{_ACTOR}.init(self args role)",
            "d0a9ecfd",
            "self._active_model_tag",
            "self.weights_backuper =",
            "self.weight_updater =",
            "self.rollout_data_postprocess =",
        ),
    ),
    _is_called_by(
        "it calls train_actor",
        _all(
            f"{_ACTOR}.train(self rollout_id rollout_data_ref external_data)",
            "d0a9ecfd",
            "self.train_actor(rollout_id, rollout_data, external_data=external_data)",
        ),
    ),
    _extends(
        "lag and numbers of a batch",
        _all(
            f"{_ACTOR}.train_actor(self rollout_id rollout_data external_data)",
            "d0a9ecfd",
            "self._switch_model('actor')",
            "self.compute_log_prob(",
            "self.rollout_data_postprocess(self.args, rollout_id, rollout_data)",
        ),
    ),
    _extends(
        "log-probs of the denominator",
        _all(f"{_ACTOR}.compute_log_prob(self data_iterator num_microbatches store_prefix)", "d0a9ecfd"),
    ),
    _extends(
        "a checkpoint holds what the clip radii follow",
        _all(f"{_ACTOR}.save_model(self rollout_id force_sync)", "d0a9ecfd"),
    ),
    _extends(
        "versions are optimizer steps",
        _all(f"{_ACTOR}.update_weights(self)", "d0a9ecfd", "self.weight_updater.update_weights()"),
    ),
    _calls(
        "weights of a backup into the model",
        _all(f"{_ACTOR}._switch_model(self target_tag)", "d0a9ecfd", "self.weights_backuper.restore(target_tag)"),
    ),
    _calls(
        "keeps weights in host memory",
        _newest(f"{_BACKUPS}:TensorBackuper.backup(self tag)", FORK, "copy_("),
        _trees(f"{_BACKUPS}:_TensorBackuperNormal.backup(self tag)", "copy_("),
    ),
    _calls(
        "brings them back",
        _newest(f"{_BACKUPS}:TensorBackuper.restore(self tag)", FORK, "copy_("),
        _trees(f"{_BACKUPS}:_TensorBackuperNormal.restore(self tag)", "copy_("),
    ),
    _reads(
        "a push adds one to the version",
        _all(
            f"{_PUSH}distributed:UpdateWeightFromDistributed.update_weights(self)",
            "d0a9ecfd",
            "self.weight_version += 1",
        ),
    ),
    _reads(
        "so does one to engines on the same GPUs",
        _all(f"{_PUSH}tensor:UpdateWeightFromTensor.update_weights(self)", UNREAD, "self.weight_version += 1"),
    ),
    _calls(
        "a forward pass of our own", _all("backends.megatron_utils.data:get_data_iterator(rollout_data)", _IN_ACTOR)
    ),
    _calls("numbers over all ranks", _all("utils.distributed_utils:get_gloo_group()", _IN_ACTOR)),
    _reads(
        "a step's metrics are logged",
        _all(f"{_MODEL}:train", "d0a9ecfd", "logging_utils.log(args, log_dict, step_key='train/step')"),
    ),
    _observed("wraps", "slime's numbers into metrics.jsonl", "logging_utils:log(args metrics step_key)", _IN_MODEL),
    _wraps(
        "metrics that are no means",
        _since_main(f"observability.train_metric_utils:{_STEP_METRICS}", _IN_MODEL),
        Form(f"{_CP}:{_STEP_METRICS}", {V031: TREE}, imported_by=_MODEL),
    ),
)

_OBJECTIVE = (
    _is_called_by(
        "the objective, --custom-loss-function-path",
        _all(
            f"{_LOSS}:loss_function(args batch num_microbatches step_global_batch_size logits)",
            "00c2d6db",
            "load_function(args.custom_loss_function_path)",
            "func(args, batch, logits, sum_of_sample_mean)",
        ),
    ),
    _reads(
        "what is in a batch",
        _all(
            f"{_MODEL}:train_one_step",
            "d0a9ecfd",
            "partial(loss_function, args, batch, num_microbatches, step_global_batch_size)",
            "'rollout_mask_sums'",
        ),
    ),
    _calls(
        "log pi and entropy",
        _all(
            f"{_LOSS}:get_log_probs_and_entropy"
            "(logits args unconcat_tokens total_lengths response_lengths with_entropy)",
            "00c2d6db",
        ),
    ),
    _calls("the engine's top-p mask", _all(f"{_LOSS}:get_rollout_top_p_logprob_kwargs(args batch)", "00c2d6db")),
    _calls(
        "log-probs for slime's debug dump",
        _since_main(f"{_LOSS}:_maybe_capture_log_probs(batch log_probs)", "00c2d6db"),
        needed=_IF,
    ),
    _calls("GSPO", _all(f"{_CP}:all_gather_with_cp(tensor total_length response_length)", _IN_LOSS)),
    _calls(
        "context parallelism", _all(f"{_CP}:slice_log_prob_with_cp(log_prob total_length response_length)", _IN_LOSS)
    ),
    _calls(
        "KL to the reference",
        _all("utils.ppo_utils:compute_approx_kl(log_probs log_probs_base kl_loss_type importance_ratio)", _IN_LOSS),
    ),
    _calls(
        "GSPO's ratio",
        _all("utils.ppo_utils:compute_gspo_kl(full_log_probs full_old_log_probs local_log_probs loss_masks)", _IN_LOSS),
    ),
    _calls("functions by dotted path", _all("utils.misc:load_function(path)", _IN_LOSS)),
)

_ROUTES = (
    _wraps(
        "replayed routes against the routers' own",
        _all(f"{_REPLAY}:get_routing_replay_compute_topk(old_compute_topk)", "1eec71f8"),
    ),
    _wraps("routes in narrow types", _all(f"{_REPLAY}:RoutingReplay.pop_forward(self)", "1eec71f8")),
    _wraps("routes in narrow types", _all(f"{_REPLAY}:RoutingReplay.pop_backward(self)", "1eec71f8")),
    _calls("a forward pass of our own", _all(f"{_REPLAY}:RoutingReplay.clear_all_forward()", "1eec71f8")),
    _wraps("routes of a reply, narrow or not", _trees("utils.types:Sample._apply_meta_info"), needed=_IF),
    _wraps(
        "narrow routes stay narrow",
        Form(
            "utils.misc:decode_int32_meta_array(meta_info keys)",
            {V031: TREE, MAIN: TREE},
            imported_by="utils.types",
        ),
        needed=_IF,
    ),
    _wraps(
        "routes pass no JSON parser",
        _trees("utils.http_utils:_post(client url payload)", "response.aread()", "json.loads("),
        needed=_IF,
    ),
    _wraps("a log-prob that is null", _trees("utils.types:_to_float_list(values)"), needed=_IF),
    _wraps("routes stay where they are", _trees(f"{_REPLAY}:RoutingReplay.record(self top_indices)"), needed=_IF),
    _wraps(
        "the layout of a micro-batch's rows",
        Form(
            f"{_CP}:prepare_routed_experts_for_routing_replay",
            {V031: TREE, MAIN: TREE},
            imported_by="backends.megatron_utils.actor",
        ),
        needed=_IF,
    ),
    _wraps(
        "padding of narrow routes; the newest already counts it in wide integers",
        _trees(f"{_CP}:_pad_routed_experts(experts pad num_experts)"),
        needed=_IF,
    ),
)

_ROLLOUT = (
    _observed("calls", "the x axis of slime's trackers", "metric_utils:compute_rollout_step(args rollout_id)", UNREAD),
    _is_called_by(
        "each sample as it arrives",
        _all("rollout.sample_hooks:apply_rollout_sample_hooks(args value kwargs)", "fef68167"),
    ),
    _reads(
        "weight versions and routes of a sample",
        _all(
            "utils.types:Sample._apply_meta_info", UNREAD, "self.weight_versions.append", "self.rollout_routed_experts"
        ),
    ),
    _reads(
        "what of a sample reaches the trainer",
        _newest(
            "data.batch_builder:BatchBuilder.split_by_dp(self data)",
            "13b347f8",
            "'round_number'",
            "'rollout_mask_sums'",
        ),
        _trees(f"{_MANAGER}._split_train_data_by_dp(self data)", "'round_number'", "'rollout_mask_sums'"),
    ),
    _calls(
        "evaluation, --eval-function-path",
        _all(
            "rollout.sglang_rollout:generate_rollout(args rollout_id data_source evaluation)",
            "named in arguments.py 0b0c277d",
        ),
    ),
    _calls("tasks with a tool", _all("rollout.sglang_rollout:generate(args sample sampling_params)", UNREAD)),
    _extends("prompts in mode streaming", _newest(f"data.{_SOURCE}", "13b347f8"), _trees(f"rollout.{_SOURCE}")),
    *(
        _calls("mode streaming", _all(place, newest))
        for place, newest in (
            ("rollout.sglang_rollout:generate_and_rm_group(args group sampling_params evaluation)", _IN_STREAM),
            ("rollout.sglang_rollout:GenerateState", _IN_STREAM),
            ("rollout.base_types:RolloutFnTrainOutput", "called in rollout.py 0b0c277d"),
            ("rollout.base_types:RolloutFnEvalOutput", UNREAD),
            ("utils.async_utils:run(coro)", _IN_STREAM),
            ("utils.http_utils:get(url)", UNREAD),
            ("utils.http_utils:get_rollout_num_engines(args)", _IN_STREAM),
        )
    ),
)

_OWN_SCRIPTS = (
    _is_called_by("--custom-megatron-init-path", _trees(f"{_INIT}(args)", "custom_init(args)"), needed=_OWN),
)

PARTS: Mapping[str, tuple[Name, ...]] = {
    "The driver": _DRIVER,
    "The trainer": _TRAINER,
    "The objective": _OBJECTIVE,
    "Routes (R3)": _ROUTES,
    "The rollout": _ROLLOUT,
    "Hooks in launch scripts of one's own": _OWN_SCRIPTS,
}
NAMES = tuple(name for part in PARTS.values() for name in part)
