"""Checks what a run of slime needs of its machine: files, data and disk. It uses no GPU."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.slime_schema import SlimeConfig, SlimeModelConfig
from sat_slime.plugin.launch import cpu_run
from sat_slime.plugin.launch.command import checkpoint_folder
from sat_slime.plugin.launch.memory.elements import parameters
from sat_slime.plugin.launch.memory.memory_needs import BF16, FP32, GIB
from sat_slime.plugin.launch.named_files import named_findings, reason_of
from sat_slime.plugin.launch.saved import newest_iteration
from sat_slime.plugin.launch.stop_tokens import stop_findings

SCRIPT = "train.py"
"""A file by which slime's checkout is recognized, in every version."""

CONFIG_KEYS = {
    "num-layers": ("num_hidden_layers",),
    "hidden-size": ("hidden_size",),
    "ffn-hidden-size": ("intermediate_size",),
    "num-attention-heads": ("num_attention_heads",),
    "num-query-groups": ("num_key_value_heads",),
    "kv-channels": ("head_dim",),
    "vocab-size": ("vocab_size",),
    "num-experts": ("num_experts", "n_routed_experts", "num_local_experts"),
    "moe-router-topk": ("num_experts_per_tok",),
    "moe-ffn-hidden-size": ("moe_intermediate_size",),
    "rotary-base": ("rope_theta",),
}
"""Flags of the architecture, each with its names in a Hugging Face config.json."""


OF_KINDS = {"qk-layernorm": ("qwen3", "qwen3_moe"), "add-qkv-bias": ("qwen2", "qwen2_moe")}
"""Flags that a model_type of config.json needs: without one Megatron skips its weights in the checkpoint."""


def machine_findings(config: SlimeConfig, run_folder: Path) -> Iterator[Finding]:
    """Yield findings of every check of this machine, one after another."""
    yield from source_findings(config, {"cluster.slime_dir": SCRIPT, "cluster.megatron_dir": "megatron/training"})
    if config.cluster.device == "cpu":
        yield from _cpu_findings(config)
    yield from hf_findings(config)
    yield from stop_findings(config)
    yield from _megatron_checkpoint(config)
    yield from named_findings(config)
    yield _disk(config, run_folder)


# ---------------------------------------------------------------------------------------------------------- files


def source_findings(config: SlimeConfig, parts: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings on whether the checkouts are there. parts: the file or folder that each setting's folder must
    have."""
    on_cpu = config.cluster.device == "cpu"
    other = "make one: sat-slime prepare slime --out FOLDER" if on_cpu else "run in slime's image"
    for key, part in parts.items():
        name = key.removeprefix("cluster.")
        folder = getattr(config.cluster, name)
        what = name.removesuffix("_dir")
        if (Path(folder) / part).exists():
            yield ok(what, folder)
        else:
            yield fail(what, f"{key} is {folder}: no {part} is in it; set it to the checkout, or {other}")


def _cpu_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield findings on what a run without a GPU needs of this machine's Python and of Megatron's checkout."""
    missing = list(cpu_run.missing_packages())
    yield from (fail("package", f"{package} {problem}") for package, problem in missing)
    if not missing:
        yield ok("packages", "all that slime imports on a CPU")
    file, mark = cpu_run.MEGATRON_PATCH
    path = Path(config.cluster.megatron_dir) / file
    if path.is_file() and mark not in path.read_text(encoding="utf-8"):
        patch = Path(config.cluster.slime_dir) / "docker" / "patch" / "latest" / "megatron.patch"
        yield fail("megatron", f"slime's patch is not in it: git -C {config.cluster.megatron_dir} apply {patch}")


def hf_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield findings on the Hugging Face checkpoint: its files, and whether the model section fits its config.json."""
    what, path = "checkpoint", config.model.hf_checkpoint
    if path is None:
        return  # the check of the settings says that it is missing
    folder = Path(path)
    if not folder.is_dir():
        yield fail(what, f"model.hf_checkpoint is {path}: there is no such folder; download the weights there")
        return
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield fail(what, f"model.hf_checkpoint is {path}: its config.json cannot be read ({reason_of(error)})")
        return
    missing = [name for name in _weight_files(folder) if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield fail(what, f"model.hf_checkpoint is {path}: {missing[0]}{more} is not there; download it again")
    elif not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        yield fail(what, f"model.hf_checkpoint is {path}: it has no tokenizer; download it again")
    else:
        yield ok(what, path)
    yield from template_findings(config, folder)
    problems = [*model_mismatches(config.model, values), *_quantization(config, values)]
    yield from (fail("model", problem) for problem in problems)
    if not problems:
        yield ok("model", f"as in {folder / 'config.json'}")


def _quantization(config: SlimeConfig, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line where weights are to be quantized: SGLang then turns them into a form of its own, which no push of
    bf16 weights fits."""
    value = config.extra_args.get("sglang-quantization")
    if value and not values.get("quantization_config"):
        yield (
            f"extra_args.sglang-quantization is {value}, but the checkpoint's config.json has no quantization_config, "
            "and the trainer pushes bf16 weights: leave it out, or name a quantized model.hf_checkpoint"
        )


def template_findings(config: SlimeConfig, folder: Path) -> Iterator[Finding]:
    """Yield findings on whether the tokenizer has the chat template that the prompts are wrapped in, and its
    arguments."""
    if not config.data.chat_template or not (folder / "tokenizer_config.json").is_file():
        return
    text = chat_template(folder)
    if not text:
        yield fail(
            "template",
            f"data.chat_template is true, but the tokenizer in {folder} has no chat template: set it to false, or name "
            "a model that has one",
        )
        return
    for name in config.data.chat_template_args:
        if name not in text:
            yield warn(
                "template", f"data.chat_template_args.{name} is no variable of the tokenizer's template: leave it out"
            )


def chat_template(folder: Path) -> str:
    """Return the text of a tokenizer's chat templates; empty where it has none."""
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except OSError:
        pass
    for name in ("chat_template.json", "tokenizer_config.json"):
        try:
            template = json.loads((folder / name).read_text(encoding="utf-8")).get("chat_template")
        except (OSError, ValueError, AttributeError):
            continue
        if template:
            return template if isinstance(template, str) else json.dumps(template)
    return ""


def _weight_files(folder: Path) -> list[str]:
    """Return the weight files that must be there: those of the checkpoint's index. Without an index any file of weights
    will do, and `model.safetensors` is asked for only where there is none."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError):
            return [index.name]
    return [] if any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")) else ["model.safetensors"]


def model_mismatches(model: SlimeModelConfig, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every contradiction between the model section and a Hugging Face config.json."""
    inner = values.get("text_config")  # a model that sees images has its text model there
    values = inner if isinstance(inner, Mapping) else values
    rope = values.get("rope_parameters")
    rope = rope if isinstance(rope, Mapping) else {}
    for flag, names in CONFIG_KEYS.items():
        value_set = model.architecture.get(flag)
        name, in_config = next(
            ((name, value) for name in names if (value := values.get(name, rope.get(name))) is not None), ("", None)
        )
        if flag == "num-experts" and bool(value_set) != bool(in_config):
            kinds = ("an MoE model", "a dense one") if value_set else ("a dense model", "an MoE model")
            yield f"model.architecture is {kinds[0]}, but the checkpoint's config.json is {kinds[1]}: describe that one"
        elif value_set is not None and in_config is not None and float(value_set) != float(in_config):
            yield (
                f"model.architecture.{flag} is {value_set}, but the checkpoint's config.json has {name} {in_config}: "
                f"set it to {in_config}, or name another model.hf_checkpoint"
            )
    positions = values.get("max_position_embeddings")
    if model.max_positions and isinstance(positions, int) and model.max_positions != positions:
        yield (
            f"model.max_positions is {model.max_positions}, but the checkpoint's config.json has "
            f"max_position_embeddings {positions}: set it to {positions}"
        )
    kind = values.get("model_type")
    for flag, kinds in OF_KINDS.items():
        if kind in kinds and model.architecture and not model.architecture.get(flag):
            yield (
                f"model.architecture.{flag} is not set, but the checkpoint's config.json has model_type {kind}, and "
                "Megatron would load the rest without a word: set it to true"
            )
    tied, untie = values.get("tie_word_embeddings"), "untie-embeddings-and-output-weights"
    if isinstance(tied, bool) and tied == bool(model.architecture.get(untie)):
        yield (
            f"model.architecture.{untie} is {'true' if tied else 'not set'}, but the checkpoint's config.json has "
            f"tie_word_embeddings {str(tied).lower()}: {'leave it out' if tied else 'set it to true'}"
        )


def _megatron_checkpoint(config: SlimeConfig) -> Iterator[Finding]:
    what, path = "weights", config.model.megatron_checkpoint
    if path is None:
        return
    if (newest := newest_iteration(Path(path))) is not None:
        folder = Path(path) / ("release" if newest == "release" else f"iter_{int(newest):07d}")
        if folder.is_dir():
            yield ok(what, str(folder))
        else:
            yield fail(
                what, f"model.megatron_checkpoint is {path}: it names {folder.name}, which is not there; convert again"
            )
    elif (Path(path) / "config.json").is_file() and config.cluster.device == "cpu":
        yield ok(what, f"{path}, in Hugging Face's format")
    elif (Path(path) / "config.json").is_file():
        yield warn(what, f"{path} holds Hugging Face weights: not every slime and model can start from them")
    else:
        yield fail(
            what,
            f"model.megatron_checkpoint is {path}: no converted checkpoint is there; make it (sat-slime prepare model)",
        )


# ----------------------------------------------------------------------------------------------------------- disk


def _gib(count: float) -> str:
    return f"{count / GIB:,.0f} GiB"


def checkpoint_bytes(config: SlimeConfig) -> float:
    """Return the bytes of one checkpoint: weights in bf16, and master weights and two moments in fp32."""
    return parameters(config.model) * float(BF16 + (3 * FP32 if config.checkpoint.optimizer else 0))


def checkpoints_on_disk(config: SlimeConfig) -> int:
    """Return the most checkpoints of a run that lie on the disk at once: an old one is deleted once the newer one is
    whole."""
    every, keep = config.checkpoint.every_n_iterations, config.checkpoint.keep
    saved = -(-config.pipeline.iterations // every) if every else 0
    return saved if keep is None else min(saved, keep + 1)


def _disk(config: SlimeConfig, run_folder: Path) -> Finding:
    what, parent = "disk", existing_parent(checkpoint_folder(config, run_folder))
    if not os.access(parent, os.W_OK | os.X_OK) or not parent.is_dir():
        key = "checkpoint.folder" if config.checkpoint.folder else "output_dir"
        return fail(what, f"{parent} cannot be written: choose another {key}")
    free, size = shutil.disk_usage(parent).free, checkpoint_bytes(config)
    count, keep = checkpoints_on_disk(config), config.checkpoint.keep
    if count and size > free:
        return fail(
            what,
            f"{_gib(free)} free at {parent}, less than one checkpoint ({_gib(size)}): choose another "
            "checkpoint.folder, or checkpoint.every_n_iterations 0 for none",
        )
    needs = f"{count} checkpoints of {_gib(size)}, {_gib(count * size)} in all"
    if count * size > free:
        kept = f"checkpoint.keep is {keep or 'unset'}, and the run needs {needs}"
        lower = f"set checkpoint.keep to {max(int(free // size) - 1, 1)}, or " if free >= 2 * size else ""
        return warn(what, f"{_gib(free)} free at {parent}, but {kept}: {lower}choose another checkpoint.folder")
    if count and (kind := filesystem(parent)) in ("tmpfs", "ramfs"):
        key = "checkpoint.folder" if config.checkpoint.folder else "output_dir"
        return warn(
            what,
            f"{parent} is a {kind}: checkpoints of {_gib(size)} would take host memory, and be gone with the machine: "
            f"choose another {key}",
        )
    return ok(what, f"{_gib(free)} free at {parent}; {needs}")


def filesystem(path: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    """Return the kind of the file system that holds `path`; None where the machine does not tell."""
    try:
        lines = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    within = [(len(fields[1]), fields[2]) for fields in lines if path.resolve().is_relative_to(fields[1])]
    return max(within, default=(0, None))[1]


def existing_parent(path: Path) -> Path:
    """Return `path`, or the nearest folder above it that exists."""
    path = path.expanduser().absolute()
    while not path.exists():
        path = path.parent
    return path
