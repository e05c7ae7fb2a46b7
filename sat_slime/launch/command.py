"""Makes of a slime run's configuration what is sent: slime's command, its environment, and the plugin's file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sat_slime.config.method_section import build_method
from sat_slime.config.plugin_file import CALLED
from sat_slime.config.rules import recompute_is_spared
from sat_slime.config.slime_schema import FlagValue, PluginConfig, SlimeConfig, is_sent
from sat_slime.launch.small_run import PACKAGE, SITE, is_small, small_environment, small_flags

DRIVER = "sat_slime.plugin.driver"
"""The module that a run starts, in place of slime's training scripts."""
PLUGIN_FILE = "sat_slime.yaml"
"""The file in the run's folder that --custom-config-path names."""

PLUGIN_FLAGS = {name.replace("_", "-"): value for name, value in CALLED.items()}
"""Flags by which slime calls the plugin, besides --custom-config-path with the plugin's settings."""

GOVERNED = {
    flag: key
    for key, flags in {
        "method.denominator": "use-rollout-logprobs keep-old-actor",
        "method.opsm": "use-opsm",
        "method.opsm.delta": "opsm-delta",
        "method.tis": "use-tis tis-clip-low custom-tis-function-path",
        "method.tis.cap": "tis-clip",
        "method.r3": "use-routing-replay use-rollout-routing-replay sglang-enable-return-routed-experts",
        "method.base (where ppo is the clip alone, with the advantages of GRPO)": "advantage-estimator",
        "method.clip.eps_low (and eps_high: without --eps-clip-high slime takes one for both)": "eps-clip",
        "method.clip.dual": "eps-clip-c",
        "loss.kl_coef (in the loss, by low_var_kl)": "kl-coef use-kl-loss kl-loss-coef kl-loss-type",
        "loss.reduction": "calculate-per-token-loss",
        "pipeline.lag": "update-weights-interval",
        "pipeline.mode": "rollout-function-path eval-function-path data-source-path",
        "pipeline.optimizer_steps_per_rollout": "num-steps-per-rollout",
        "pipeline.iterations": "num-epoch",
        "slime.rollout-num-gpus (training and generation have GPUs of their own)": "colocate",
        "slime.save": "load",
        "slime.sglang-dp-size": "sglang-data-parallel-size",
        "slime.sglang-pp-size": "sglang-pipeline-parallel-size",
        # slime takes none of these from the command line, but makes them itself
        "slime.rollout-num-gpus-per-engine": "sglang-tp-size sglang-tensor-parallel-size",
        "slime.hf-checkpoint": "sglang-model-path sglang-model",
        "seed": "sglang-random-seed",
    }.items()
    for flag in flags.split()
}
"""Flags that only the named setting may give, also where it leaves them out; besides those of `_ours`."""

FIXED = ""
"""Stands in place of a setting where a flag is in every command."""


class SlimeCommand(NamedTuple):
    """Exactly what is sent to start a run."""

    command: list[str]
    env: dict[str, str]
    files: dict[str, str]
    """Text of each file that the command reads, by its path."""


class Argument(NamedTuple):
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


def slime_command(config: SlimeConfig, run_dir: Path) -> SlimeCommand:
    """Return the command of a run, for where slime is installed. run_dir: its folder."""
    words = [word for argument in slime_arguments(config, run_dir) for word in argument.words()]
    files = {str(run_dir / PLUGIN_FILE): plugin_settings_text(config, run_dir)}
    return SlimeCommand(["python3", "-m", DRIVER, *words], environment(config, run_dir), files)


def run_folder(config: SlimeConfig) -> Path:
    """Return the run's folder, as an absolute path: workers have other working directories."""
    return Path(os.path.abspath(Path(config.output_dir).expanduser() / config.name))


def checkpoint_folder(config: SlimeConfig, run_dir: Path) -> Path:
    """Return the folder where the run saves checkpoints, and from which it goes on."""
    return Path(config.checkpoint.folder) if config.checkpoint.folder else run_dir / "checkpoints"


def plugin_settings_text(config: SlimeConfig, run_dir: Path) -> str:
    """Return the plugin's settings as YAML. slime reads them with yaml.safe_load, which takes a float without a point
    for text. Clip radii are not among them: on slime they are its own flags, such as --eps-clip."""
    settings = PluginConfig(method=config.method, driver=config.pipeline, run_dir=str(run_dir))
    sections = {"sat_slime": settings.model_dump(mode="json", exclude={"method": {"clip"}})}
    return yaml.safe_dump(sections, sort_keys=False)


def environment(config: SlimeConfig, run_dir: Path) -> dict[str, str]:
    """Return the environment of the job and all its workers, without secrets: they are in the cluster's environment."""
    cluster = config.cluster
    folders = [*cluster.python_path, cluster.megatron_dir, cluster.slime_dir]
    if is_small(config):
        # This package comes last: a megatron-core beside it must not be found before Megatron-LM's checkout.
        folders = [str(SITE), *folders, str(PACKAGE.parent)]
    env = {
        "PYTHONPATH": os.pathsep.join(folders),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # Megatron's order of kernels with tensor parallelism relies on it
        "NCCL_NVLS_ENABLE": "1",  # cluster.env has 0 where GPUs are not linked by NVLink
    }
    if config.slime.get("use-tensorboard"):
        env["TENSORBOARD_DIR"] = str(run_dir / "tensorboard")
    context, longest = config.rollout.context_tokens, config.max_positions
    if context and longest and context > longest:
        env["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    if is_small(config):
        env |= small_environment(config)
    return {**env, **cluster.env}


REFUSED = {
    "custom-config-path": "the plugin's file stands there, and keys of yours reach your functions by cluster.env",
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


def governed_flags(config: SlimeConfig) -> dict[str, str]:
    """Return the setting that alone gives a flag, by each such flag; FIXED where it is in every command."""
    return {name: key for name, _, key in _ours(config, run_folder(config))} | GOVERNED


def slime_arguments(config: SlimeConfig, run_dir: Path) -> list[Argument]:
    """Return every flag of the run. Flags that are false or unset are left out."""
    ours = [Argument(*flag) for flag in _ours(config, run_dir) if is_sent(flag[1])]
    flags = _following(config, run_dir)
    # slime.save that is unset is the run's own folder, also where it takes the place of another
    flags |= {name: value for name, value in config.slime.items() if name != "save" or is_sent(value)}
    off = () if config.checkpoint.every_n_iterations else OF_CHECKPOINTS
    off += () if config.eval.every_n_iterations else OF_EVALUATION
    sent = {name: value for name, value in flags.items() if is_sent(value) and name not in off}
    return [*ours, *(Argument(name, value, f"slime.{name}") for name, value in sent.items())]


OF_CHECKPOINTS: tuple[str, ...] = ("save", "load", "save-interval", "no-save-optim")
OF_EVALUATION = (
    *("eval-interval", "eval-prompt-data", "n-samples-per-eval-prompt", "eval-max-response-len"),
    *("eval-temperature", "eval-top-p", "eval-top-k"),
)
"""Flags that are left out where a run has no checkpoints, and no evaluations."""


def _following(config: SlimeConfig, run_dir: Path) -> dict[str, Any]:
    """Return the flags that follow from others, unless the section slime gives them."""
    # slime starts from --ref-load while this folder has no checkpoint, and otherwise goes on from the newest one.
    parallel = config.train.tensor_parallel > 1
    flags: dict[str, Any] = {"save": str(run_dir / "checkpoints"), "sequence-parallel": parallel}
    if config.train.recompute == "full":
        flags |= {"recompute-method": "uniform", "recompute-num-layers": 1}
    if config.slime.get("use-tensorboard"):  # TENSORBOARD_DIR names the folder; slime wants a project, too
        flags |= {"tb-project-name": "sat_slime", "tb-experiment-name": config.name}
    if config.slime.get("use-wandb"):
        flags |= {"wandb-group": config.name, "disable-wandb-random-suffix": True}
    if config.cluster.device != "cpu":
        flags["attention-backend"] = "flash"
    return flags | small_flags(config) if is_small(config) else flags


def _ours(config: SlimeConfig, run_dir: Path) -> Iterator[tuple[str, Any, str]]:
    """Yield the flags of our own settings as of Argument, with those that are false or unset."""
    method, loss, pipeline, clip = build_method(config.method), config.loss, config.pipeline, config.method.clip
    steps = pipeline.optimizer_steps_per_rollout
    yield "num-gpus-per-node", config.cluster.gpus_per_node, "cluster.gpus_per_node"
    yield "seed", config.seed, "seed"
    yield "rollout-seed", config.seed, "seed"
    yield "num-rollout", pipeline.iterations, "pipeline.iterations"
    yield "global-batch-size", config.rollout.responses_per_iteration // steps, "pipeline.optimizer_steps_per_rollout"
    if pipeline.mode == "streaming":  # of evaluations, too: slime takes that function where no other is named
        yield "rollout-function-path", "sat_slime.plugin.streaming.generate_rollout", "pipeline.mode"
        yield "data-source-path", "sat_slime.plugin.streaming.StreamingDataSource", "pipeline.mode"
    if config.checkpoint.every_n_iterations:
        yield "load", str(checkpoint_folder(config, run_dir)), "slime.save"
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
    yield "use-rollout-logprobs", recompute_is_spared(config), "method.denominator"
    yield "use-rollout-routing-replay", method.has("r3"), "method.r3"
    yield from ((name, value, FIXED) for name, value in PLUGIN_FLAGS.items())
    yield "custom-config-path", str(run_dir / PLUGIN_FILE), FIXED
