"""Makes of a slime run's configuration what is sent: slime's command, its environment, and the plugin's file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sat_slime.config.method_section import build_method
from sat_slime.config.plugin_file import CALLED
from sat_slime.config.plugin_schema import DriverConfig, PluginConfig
from sat_slime.config.schema import ScoresConfig
from sat_slime.config.slime_checks import spares_recompute, uses_verifier
from sat_slime.config.slime_flags import is_sent
from sat_slime.config.slime_schema import DEFAULTS, FlagValue, SlimeConfig
from sat_slime.launch.cpu_run import cpu_arguments, cpu_environment, cpu_python_path
from sat_slime.launch.flags import KnownFlags, recorded_flags, unknown_flags

DRIVER = "sat_slime.plugin.driver"
"""The module that a run starts, in place of slime's training scripts."""

PLUGIN_FLAGS = {name.replace("_", "-"): value for name, value in CALLED.items()}
"""Flags by which slime calls the plugin, besides --custom-config-path with the plugin's settings."""

GOVERNED = {
    "use-rollout-logprobs": "method.denominator",
    "keep-old-actor": "method.denominator",
    "use-opsm": "method.opsm.enabled",
    "opsm-delta": "method.opsm.delta",
    "use-tis": "method.tis.enabled",
    "tis-clip": "method.tis.cap",
    "custom-tis-function-path": "method.tis.enabled",
    "use-routing-replay": "method.r3",
    "use-rollout-routing-replay": "method.r3",
    "eps-clip-c": "method.clip.dual",
    "kl-coef": "loss.kl_coef",
    "use-kl-loss": "loss.kl_coef",
    "calculate-per-token-loss": "loss.reduction",
    "update-weights-interval": "pipeline.lag",
    "rollout-function-path": "pipeline.mode",
    "eval-function-path": "pipeline.mode",
    "data-source-path": "pipeline.mode",
    "num-steps-per-rollout": "pipeline.optimizer_steps_per_rollout",
    "num-epoch": "pipeline.iterations",
    "colocate": "rollout.nodes and rollout.gpus_per_node (training and generation have GPUs of their own)",
    "rm-type": "data.reward",
    "custom-rm-path": "data.reward",
    "sequence-parallel": "train.tensor_parallel",
    "kl-loss-coef": "loss.kl_coef",
    "kl-loss-type": "loss.kl_coef",
    "recompute-granularity": "train.recompute",
    "save": "checkpoint.folder",
    "save-interval": "checkpoint.every_n_iterations",
    "no-save-optim": "checkpoint.optimizer",
    "eval-interval": "eval.every_n_iterations",
    "eval-prompt-data": "eval.prompts",
    "n-samples-per-eval-prompt": "eval.samples_per_problem",
    "eval-max-response-len": "eval.max_response_tokens",
    "eval-temperature": "eval.temperature",
    "eval-top-p": "eval.top_p",
    "eval-top-k": "eval.top_k",
    "rollout-max-context-len": "rollout.context_tokens (slime drops prompts by the flag, and ends no response)",
    "use-tensorboard": "logging.tensorboard",
    "use-wandb": "logging.wandb_project",
    "wandb-project": "logging.wandb_project",
    # slime takes none of these from the command line, but makes them itself
    "sglang-tp-size": "rollout.gpus_per_engine",
    "sglang-tensor-parallel-size": "rollout.gpus_per_engine",
    "sglang-model-path": "model.hf_checkpoint",
    "sglang-model": "model.hf_checkpoint",
    "sglang-random-seed": "seed",
    "sglang-enable-return-routed-experts": "method.r3",
}
"""Flags that only the named setting may give; where it leaves them out, the section slime may not give them either."""

MAY_BE_GONE = {"use-fault-tolerance": "slime after its pull request 2391 always replaces engines that died"}
"""Flags that are left out where slime no longer has them, since it then does without a flag what they ask for. The
value says so."""

STREAMING = {
    "rollout-function-path": "sat_slime.plugin.streaming.generate_rollout",
    "data-source-path": "sat_slime.plugin.streaming.StreamingDataSource",
}
"""Flags that say where rollouts come from in mode streaming. Evaluations come from there, too: slime takes that
function where no other is named."""

FIXED = ""
"""Stands in place of a setting where a flag is in every command."""


@dataclass(frozen=True)
class SlimeCommand:
    """Exactly what is sent to start a run."""

    command: list[str]
    env: dict[str, str]
    files: dict[str, str]
    """Text of each file that the command reads, by its path."""


@dataclass(frozen=True)
class Argument:
    """A flag of the command, without its dashes, with the setting that it comes from; FIXED where there is none."""

    name: str
    value: FlagValue
    key: str

    def words(self) -> list[str]:
        """Return the words of the flag on the command line."""
        if self.value is True:
            return [f"--{self.name}"]
        values = self.value if isinstance(self.value, list) else [self.value]
        return [f"--{self.name}", *(str(value) for value in values)]


def slime_command(config: SlimeConfig, run_dir: Path | None = None, known: KnownFlags | None = None) -> SlimeCommand:
    """Return the command of a run, which is started where slime is installed.

    Args:
        run_dir: the run's folder; default: `output_dir/name` in the working directory.
        known: flags of the slime that runs; default: the recorded ones of all versions.
    """
    run_dir = run_dir or run_folder(config)
    words = [word for argument in slime_arguments(config, run_dir, known) for word in argument.words()]
    return SlimeCommand(
        command=["python3", "-m", DRIVER, *words],
        env=environment(config, run_dir),
        files={str(plugin_file(run_dir)): plugin_settings_text(config, run_dir)},
    )


def run_folder(config: SlimeConfig) -> Path:
    """Return the run's folder, as an absolute path: workers have other working directories."""
    return Path(os.path.abspath(Path(config.output_dir).expanduser() / config.name))


def plugin_file(run_dir: Path) -> Path:
    """Return the file that --custom-config-path names."""
    return run_dir / "sat_slime.yaml"


def checkpoint_folder(config: SlimeConfig, run_dir: Path) -> Path:
    """Return the folder where the run saves checkpoints, and from which it goes on."""
    return Path(config.checkpoint.folder) if config.checkpoint.folder else run_dir / "checkpoints"


def plugin_settings_text(config: SlimeConfig, run_dir: Path) -> str:
    """Return the plugin's settings as YAML. slime reads them with yaml.safe_load, which takes a float without a point
    for text. Clip radii are not among them: on slime they are its own flags, such as --eps-clip."""
    scores = ScoresConfig(repeats=config.eval.repeats, k=config.eval.k)
    pipeline = config.pipeline
    driver = DriverConfig(
        mode=pipeline.mode,
        lag=pipeline.lag,
        max_staleness=pipeline.max_staleness,
        over_age=pipeline.over_age,
        canary=pipeline.canary,
        keep=config.checkpoint.keep,
        from_iteration=config.checkpoint.from_iteration,
    )
    settings = PluginConfig(method=config.method, driver=driver, eval=scores, run_dir=str(run_dir))
    sections = {"sat_slime": settings.model_dump(mode="json", exclude={"method": {"clip"}})}
    if uses_verifier(config):
        sections["sat_slime_verifier"] = config.verifier.model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(sections, sort_keys=False)


def environment(config: SlimeConfig, run_dir: Path) -> dict[str, str]:
    """Return the environment of the job and all its workers. It has no secrets: jobs find them in the cluster's
    environment."""
    cluster = config.cluster
    on_cpu = cluster.device == "cpu"
    folders = [*cluster.python_path, cluster.megatron_dir, cluster.slime_dir]
    env = {
        "PYTHONPATH": os.pathsep.join(cpu_python_path(folders) if on_cpu else folders),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # Megatron's order of kernels with tensor parallelism relies on it
        "NCCL_NVLS_ENABLE": "1" if cluster.nvlink else "0",
    }
    if config.logging.tensorboard:
        env["TENSORBOARD_DIR"] = str(run_dir / "tensorboard")
    context, longest = config.rollout.context_tokens, config.model.max_positions
    if context and longest and context > longest:
        env["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    if on_cpu:
        env |= cpu_environment(config)
    return {**env, **cluster.env}


REFUSED = {
    "use-score-centering": "slime refuses --use-score-centering with every loss but its own, and so with this plugin's",
    "sglang-trust-remote-code": "slime always gives it to SGLang",
    "sglang-skip-server-warmup": "slime always gives it to SGLang",
    "sglang-enable-memory-saver": "the engines have GPUs of their own, and keep their memory",
    **dict.fromkeys(
        (
            *("sglang-host", "sglang-port", "sglang-nccl-port", "sglang-dist-init-addr"),
            *("sglang-nnodes", "sglang-node-rank", "sglang-base-gpu-id", "sglang-gpu-id-step"),
        ),
        "slime places the engines, and gives each its own",
    ),
}
"""Flags that no setting stands for, with the reason why they may not be given."""


def flag_errors(config: SlimeConfig, known: KnownFlags | None = None) -> list[str]:
    """Return a line for every flag of the run that slime would not take as it is meant, with the setting that it comes
    from.

    known: slime's flags; default: the recorded ones.
    """
    known = known or recorded_flags()
    arguments = slime_arguments(config, run_folder(config), known)
    of_settings = {
        argument.name: argument
        for argument in _arguments(config, run_folder(config))
        if argument.key != _extra(argument.name)
    }
    errors: list[str] = []
    for name in config.slime:
        if name in REFUSED:
            errors.append(f"{_extra(name)}: {REFUSED[name]}: leave this out")
            continue
        key = GOVERNED.get(name) or (of_settings[name].key if name in of_settings else None)
        flag = known.by_name.get(f"--{name}")
        if key == FIXED and not (flag and flag.repeatable):
            errors.append(
                f"{_extra(name)}: the command always has {' '.join(of_settings[name].words())}: leave this out"
            )
        elif key and key != FIXED:
            errors.append(f"{_extra(name)}: --{name} follows from {key}: set that, and leave this out")
    judged = {line.partition(":")[0] for line in errors}
    others = [argument for argument in arguments if argument.key not in judged]
    words = [word for argument in others for word in argument.words()]
    keys = {f"--{argument.name}": argument.key for argument in others}
    governed = {
        f"--{name}": key for name, key in ({n: argument.key for n, argument in of_settings.items()} | GOVERNED).items()
    }
    return errors + unknown_flags(words, known, keys, governed)


def slime_arguments(config: SlimeConfig, run_dir: Path, known: KnownFlags | None = None) -> list[Argument]:
    """Return every flag of the run, in the order of slime's own scripts. Flags that are false or unset are left out,
    and those of MAY_BE_GONE that this slime lacks.

    known: flags of the slime that runs; default: the recorded ones of all versions.
    """
    known = known or recorded_flags()
    sent = [argument for argument in _arguments(config, run_dir) if is_sent(argument.value)]
    return [argument for argument in sent if argument.name not in MAY_BE_GONE or f"--{argument.name}" in known.by_name]


def _arguments(config: SlimeConfig, run_dir: Path) -> list[Argument]:
    """Return every flag of the run, with those that are false or unset."""
    parts = (
        _cluster(config),
        _model(config),
        _checkpoint(config, run_dir),
        _data(config),
        _rollout(config),
        _eval(config),
        _parallelism(config),
        _optimizer(config),
        _objective(config),
        _plugin(run_dir),
        _logging(config),
        cpu_arguments(config) if config.cluster.device == "cpu" else (),
        _own_flags(config),
    )
    return [Argument(*argument) for part in parts for argument in part]


Part = Iterator[tuple[str, Any, str]]
"""Flags, each with its value and the setting that it comes from."""


def _own_flags(config: SlimeConfig) -> Part:
    """Yield the flags under `slime`, after those of DEFAULTS that nothing else gives."""
    taken = {*config.slime, *config.model.architecture}
    if config.cluster.device == "cpu":
        taken.add("attention-backend")  # of cpu_arguments
    given = {name: value for name, value in DEFAULTS.items() if name not in taken} | config.slime
    yield from ((name, value, _extra(name)) for name, value in given.items())


def _extra(name: str) -> str:
    return f"slime.{name}"


def _cluster(config: SlimeConfig) -> Part:
    yield "actor-num-nodes", config.train.nodes, "train.nodes"
    yield "actor-num-gpus-per-node", config.train.gpus_per_node, "train.gpus_per_node"
    yield "rollout-num-gpus", config.rollout.gpus, "rollout.gpus_per_node"
    yield "rollout-num-gpus-per-engine", config.rollout.gpus_per_engine, "rollout.gpus_per_engine"
    yield "num-gpus-per-node", config.cluster.gpus_per_node, "cluster.gpus_per_node"
    yield "seed", config.seed, "seed"


def _model(config: SlimeConfig) -> Part:
    for name, value in config.model.architecture.items():
        yield name, value, f"model.architecture.{name}"
    yield "hf-checkpoint", config.model.hf_checkpoint, "model.hf_checkpoint"
    yield "ref-load", config.model.megatron_checkpoint, "model.megatron_checkpoint"


def _checkpoint(config: SlimeConfig, run_dir: Path) -> Part:
    checkpoint = config.checkpoint
    if not checkpoint.every_n_iterations:
        return
    # slime starts from --ref-load while this folder has no checkpoint, and otherwise goes on from the newest one.
    folder = str(checkpoint_folder(config, run_dir))
    yield "load", folder, "checkpoint.folder"
    yield "save", folder, "checkpoint.folder"
    yield "save-interval", checkpoint.every_n_iterations, "checkpoint.every_n_iterations"
    yield "no-save-optim", not checkpoint.optimizer, "checkpoint.optimizer"


def _data(config: SlimeConfig) -> Part:
    data = config.data
    yield "prompt-data", data.prompts, "data.prompts"
    yield "input-key", data.input_key, "data.input_key"
    yield "label-key", data.label_key, "data.label_key"
    yield "apply-chat-template", data.chat_template, "data.chat_template"
    template_args = json.dumps(data.chat_template_args) if data.chat_template_args else None
    yield "apply-chat-template-kwargs", template_args, "data.chat_template_args"
    is_path = bool(data.reward and "." in data.reward)
    yield "custom-rm-path" if is_path else "rm-type", data.reward, "data.reward"


def _rollout(config: SlimeConfig) -> Part:
    rollout, steps = config.rollout, config.pipeline.optimizer_steps_per_rollout
    yield "num-rollout", config.pipeline.iterations, "pipeline.iterations"
    if config.pipeline.mode == "streaming":
        for name, value in STREAMING.items():
            yield name, value, "pipeline.mode"
    yield "rollout-batch-size", rollout.prompts_per_iteration, "rollout.prompts_per_iteration"
    yield "n-samples-per-prompt", rollout.samples_per_prompt, "rollout.samples_per_prompt"
    yield "global-batch-size", rollout.responses_per_iteration // steps, "pipeline.optimizer_steps_per_rollout"
    yield "rollout-max-prompt-len", rollout.max_prompt_tokens, "rollout.max_prompt_tokens"
    yield "rollout-max-response-len", rollout.max_response_tokens, "rollout.max_response_tokens"
    yield "rollout-temperature", rollout.temperature, "rollout.temperature"
    yield "rollout-top-p", rollout.top_p, "rollout.top_p"
    yield "rollout-top-k", rollout.top_k, "rollout.top_k"
    yield "rollout-stop-token-ids", rollout.stop_token_ids, "rollout.stop_token_ids"
    yield "rollout-seed", config.seed, "seed"
    yield "sglang-mem-fraction-static", rollout.memory_fraction, "rollout.memory_fraction"
    yield "sglang-context-length", rollout.context_tokens, "rollout.context_tokens"
    yield "sglang-allow-auto-truncate", rollout.end_at_context, "rollout.end_at_context"
    yield "sglang-server-concurrency", rollout.concurrent_requests, "rollout.concurrent_requests"
    yield "use-fault-tolerance", rollout.fault_tolerance, "rollout.fault_tolerance"


def _eval(config: SlimeConfig) -> Part:
    evaluation = config.eval
    if not evaluation.every_n_iterations:
        return
    yield "eval-interval", evaluation.every_n_iterations, "eval.every_n_iterations"
    yield "eval-prompt-data", [word for pair in evaluation.prompts.items() for word in pair], "eval.prompts"
    samples = evaluation.samples_per_problem * evaluation.repeats
    yield "n-samples-per-eval-prompt", samples, "eval.samples_per_problem"
    yield "eval-max-response-len", evaluation.max_response_tokens, "eval.max_response_tokens"
    yield "eval-temperature", evaluation.temperature, "eval.temperature"
    yield "eval-top-p", evaluation.top_p, "eval.top_p"
    yield "eval-top-k", evaluation.top_k, "eval.top_k"


def _parallelism(config: SlimeConfig) -> Part:
    train = config.train
    yield "tensor-model-parallel-size", train.tensor_parallel, "train.tensor_parallel"
    yield "sequence-parallel", train.tensor_parallel > 1, "train.tensor_parallel"
    yield "pipeline-model-parallel-size", train.pipeline_parallel, "train.pipeline_parallel"
    yield "context-parallel-size", train.context_parallel, "train.context_parallel"
    yield "expert-model-parallel-size", train.expert_parallel, "train.expert_parallel"
    yield "expert-tensor-parallel-size", train.expert_tensor_parallel, "train.expert_tensor_parallel"
    yield "use-dynamic-batch-size", True, FIXED
    yield "max-tokens-per-gpu", train.max_tokens_per_gpu, "train.max_tokens_per_gpu"
    if train.recompute != "none":
        yield "recompute-granularity", train.recompute, "train.recompute"
    if train.recompute == "full":
        yield "recompute-method", "uniform", "train.recompute"
        yield "recompute-num-layers", 1, "train.recompute"
    yield "attention-dropout", 0.0, FIXED  # Megatron's default is 0.1
    yield "hidden-dropout", 0.0, FIXED


def _optimizer(config: SlimeConfig) -> Part:
    train = config.train
    yield "optimizer", "adam", FIXED
    yield "lr", train.lr, "train.lr"
    yield "lr-decay-style", "constant", FIXED
    # Without it Megatron refuses to go on with another number of iterations, on which a constant rate does not depend.
    yield "override-opt_param-scheduler", True, FIXED
    for name in ("optimizer-cpu-offload", "overlap-cpu-optimizer-d2h-h2d", "use-precision-aware-optimizer"):
        yield name, train.optimizer_offload, "train.optimizer_offload"


def _objective(config: SlimeConfig) -> Part:
    method, loss, clip = build_method(config.method), config.loss, config.method.clip
    yield "advantage-estimator", "gspo" if method.ratio == "sequence" else "grpo", "method.base"
    yield "eps-clip", clip.eps_low, "method.clip.eps_low"
    yield "eps-clip-high", clip.eps_high, "method.clip.eps_high"
    yield "eps-clip-c", clip.dual, "method.clip.dual"
    if loss.kl_coef:
        yield "use-kl-loss", True, "loss.kl_coef"
        yield "kl-loss-coef", loss.kl_coef, "loss.kl_coef"
        yield "kl-loss-type", "low_var_kl", "loss.kl_coef"
    yield "entropy-coef", loss.entropy_coef, "loss.entropy_coef"
    yield "calculate-per-token-loss", loss.reduction == "token_mean", "loss.reduction"
    spares = spares_recompute(method, config.pipeline.optimizer_steps_per_rollout)
    yield "use-rollout-logprobs", spares, "method.denominator"
    yield "use-rollout-routing-replay", method.routing_replay, "method.r3"


def _plugin(run_dir: Path) -> Part:
    for name, value in PLUGIN_FLAGS.items():
        yield name, value, FIXED
    yield "custom-config-path", str(plugin_file(run_dir)), FIXED


def _logging(config: SlimeConfig) -> Part:
    logging = config.logging
    if logging.tensorboard:
        # TENSORBOARD_DIR names the folder; slime wants a project, too.
        yield "use-tensorboard", True, "logging.tensorboard"
        yield "tb-project-name", "sat_slime", "logging.tensorboard"
        yield "tb-experiment-name", config.name, "name"
    if logging.wandb_project:
        yield "use-wandb", True, "logging.wandb_project"
        yield "wandb-project", logging.wandb_project, "logging.wandb_project"
        yield "wandb-group", config.name, "name"
        yield "disable-wandb-random-suffix", True, "logging.wandb_project"


def as_json(sent: SlimeCommand) -> Mapping[str, Any]:
    """Return `{"command": [...], "env": {...}, "files": {...}}`."""
    return {"command": sent.command, "env": sent.env, "files": sent.files}
