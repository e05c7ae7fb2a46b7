"""Checks what a run of slime needs of its machine: files, data, memory and disk. It uses no GPU."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.method_reading import build_method
from sat_slime.config.slime_schema import SlimeConfig, SlimeModelConfig
from sat_slime.plugin.launch import cpu
from sat_slime.plugin.launch.command import checkpoint_folder

GIB = 2**30
SCRIPT = "train.py"
"""A file by which slime's checkout is recognized, in every version."""
BF16, FP32 = 2, 4
"""Bytes of a number."""
ROWS_READ = 3
"""Number of rows at the beginning of a data set whose keys are checked."""
PROMPT_TOKENS = 1024
"""The length in tokens that a prompt is taken to have where rollout.max_prompt_tokens is unset."""
ROUTE_COPIES_IN_FLIGHT = 3
"""Copies of a batch's routed experts besides the trainer's: of the batch in training and of the one in flight in the
rollout manager, and of one of them in Ray's object store."""

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


def machine_findings(config: SlimeConfig, run_folder: Path) -> Iterator[Finding]:
    """Findings of every check of this machine, one after another."""
    yield from source_findings(config, {"cluster.slime_dir": SCRIPT, "cluster.megatron_dir": "megatron/training"})
    if config.cluster.device == "cpu":
        yield from _cpu_findings(config)
    yield from hf_findings(config)
    yield from _megatron_checkpoint(config)
    yield from _data(config)
    yield memory_finding(config, host_memory())
    yield _disk(config, run_folder)


# ---------------------------------------------------------------------------------------------------------- files


def source_findings(config: SlimeConfig, parts: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on whether the checkouts are there. parts: the file or folder that each setting's folder must have."""
    for key, part in parts.items():
        name = key.removeprefix("cluster.")
        folder = getattr(config.cluster, name)
        what = name.removesuffix("_dir")
        if (Path(folder) / part).exists():
            yield ok(what, folder)
        else:
            yield fail(what, f"{key} is {folder}: no {part} is in it; set it to the checkout, or run in slime's image")


def _cpu_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Findings on what a run without a GPU needs of this machine's Python and of Megatron's checkout."""
    missing = list(cpu.missing_packages())
    yield from (fail("package", f"{package} {problem}") for package, problem in missing)
    if not missing:
        yield ok("packages", "all that slime imports on a CPU")
    file, mark = cpu.MEGATRON_PATCH
    path = Path(config.cluster.megatron_dir) / file
    if path.is_file() and mark not in path.read_text(encoding="utf-8"):
        patch = Path(config.cluster.slime_dir) / "docker" / "patch" / "latest" / "megatron.patch"
        yield fail("megatron", f"slime's patch is not in it: git -C {config.cluster.megatron_dir} apply {patch}")


def hf_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Findings on the Hugging Face checkpoint: its files, and whether the model section fits its config.json."""
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
        yield fail(what, f"model.hf_checkpoint is {path}: its config.json cannot be read ({_reason(error)})")
        return
    missing = [name for name in _weight_files(folder) if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield fail(what, f"model.hf_checkpoint is {path}: {missing[0]}{more} is not there; download it again")
    elif not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        yield fail(what, f"model.hf_checkpoint is {path}: it has no tokenizer; download it again")
    else:
        yield ok(what, path)
    problems = list(model_mismatches(config.model, values))
    yield from (fail("model", problem) for problem in problems)
    if not problems:
        yield ok("model", f"as in {folder / 'config.json'}")


def _weight_files(folder: Path) -> list[str]:
    """Weight files that must be there: those of the checkpoint's index. Without an index any file of weights will do,
    and `model.safetensors` is asked for only where there is none."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError):
            return [index.name]
    return [] if any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")) else ["model.safetensors"]


def model_mismatches(model: SlimeModelConfig, values: Mapping[str, Any]) -> Iterator[str]:
    """A line for every contradiction between the model section and a Hugging Face config.json."""
    inner = values.get("text_config")  # a model that sees images has its text model there
    values = inner if isinstance(inner, Mapping) else values
    rope = values.get("rope_parameters")
    rope = rope if isinstance(rope, Mapping) else {}
    for flag, names in CONFIG_KEYS.items():
        ours = model.architecture.get(flag)
        name, theirs = next(
            ((name, found) for name in names if (found := values.get(name, rope.get(name))) is not None), ("", None)
        )
        if flag == "num-experts" and bool(ours) != bool(theirs):
            kinds = ("an MoE model", "a dense one") if ours else ("a dense model", "an MoE model")
            yield f"model.architecture is {kinds[0]}, but the checkpoint's config.json is {kinds[1]}: describe that one"
        elif ours is not None and theirs is not None and float(ours) != float(theirs):
            yield (
                f"model.architecture.{flag} is {ours}, but the checkpoint's config.json has {name} {theirs}: set it to "
                f"{theirs}, or name another model.hf_checkpoint"
            )
    positions = values.get("max_position_embeddings")
    if model.max_positions and isinstance(positions, int) and model.max_positions != positions:
        yield (
            f"model.max_positions is {model.max_positions}, but the checkpoint's config.json has "
            f"max_position_embeddings {positions}: set it to {positions}"
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


def newest_iteration(folder: Path) -> str | None:
    """The name of the newest checkpoint in Megatron's folder: a number or `release`; None where there is none."""
    try:
        text = (folder / "latest_checkpointed_iteration.txt").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if text == "release" or text.isdigit() else None


# ----------------------------------------------------------------------------------------------------------- data


def _data(config: SlimeConfig) -> Iterator[Finding]:
    sets = {"data.prompts": config.data.prompts}
    if config.eval.every_n_iterations:
        sets |= {f"eval.prompts.{name}": file for name, file in config.eval.prompts.items()}
    for key, file in sets.items():
        if file is None:
            continue
        if problem := data_problem(file, config.data.input_key, config.data.label_key):
            yield fail("data", f"{key} is {file}: {problem}")
        else:
            yield ok("data", file)


def data_problem(file: str, input_key: str, label_key: str) -> str | None:
    """The reason why slime could not read the first rows of a data set, or None."""
    path = Path(re.sub(r"@\[-?\d*:-?\d*\]$", "", file))  # slime takes FILE@[0:100] for a part of a file
    if not path.is_file():
        return "there is no such file; `sat-slime data prepare` makes the paper's"
    if path.suffix not in (".jsonl", ".parquet"):
        return "slime reads .jsonl and .parquet files; convert it"
    try:
        rows = _first_rows(path)
    except (OSError, ValueError) as error:
        return f"it cannot be read ({_reason(error)})"
    if rows is None:
        return None
    if not rows:
        return "it has no rows"
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            return f"row {number} is not a JSON object"
        for setting, key in (("input_key", input_key), ("label_key", label_key)):
            if key not in row:
                return f"row {number} has no key {key!r} but {', '.join(map(repr, row))}; set data.{setting}"
        if not isinstance(row[input_key], (str, list)):
            return f"{input_key!r} of row {number} is neither text nor a list of messages"
    return None


def _first_rows(path: Path) -> list[Any] | None:
    """The first rows of a data set; None where nothing is installed that reads its format."""
    if path.suffix == ".jsonl":
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in itertools.islice(filter(str.strip, lines), ROWS_READ)]
    if importlib.util.find_spec("pyarrow") is None:
        return None
    from pyarrow import parquet

    for batch in parquet.ParquetFile(path).iter_batches(batch_size=ROWS_READ):
        return list(batch.to_pylist())
    return []


# --------------------------------------------------------------------------------------------------------- memory


def host_memory() -> int | None:
    """Bytes of memory that this machine, or the container that this process is in, has."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(file).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if limit.isdigit():
            physical = min(physical, int(limit))
    return physical


def weight_copies(config: SlimeConfig) -> int:
    """How many copies of the weights slime keeps in pinned host memory: the actor, the KL's reference, and for
    denominator `checkpoint` the weights that generated (a queue of two where they are replaced every iteration)."""
    copies = 1 + (config.loss.kl_coef > 0)
    if build_method(config.method).denominator == "checkpoint":
        copies += 2 if config.pipeline.lag <= 1 else 1
    return copies


def weights_bytes(config: SlimeConfig) -> float:
    """Bytes of one bf16 copy of the weights on one training node, over all of its ranks. Ranks that differ only in
    their data hold the same weights; experts are cut by their own parallelism."""
    model, train = config.model, config.train
    experts = 3 * model.layers * model.hidden_size * model.expert_ffn_size * model.experts
    dense_ranks = train.tensor_parallel * train.pipeline_parallel
    expert_ranks = train.expert_tensor_parallel * train.expert_parallel * train.pipeline_parallel
    dense = (model.parameters - experts) * train.world_size / dense_ranks
    return BF16 * (dense + experts * train.world_size / expert_ranks) / train.nodes


def optimizer_bytes(config: SlimeConfig) -> float:
    """Bytes of the offloaded optimizer on one training node: master weights, gradients and two moments in fp32, which
    data-parallel ranks divide among them."""
    return 4 * FP32 * config.model.parameters / config.train.nodes if config.train.optimizer_offload else 0.0


def routes_bytes(config: SlimeConfig) -> float:
    """Bytes of one copy of a batch's routed experts when every response has its full length. slime holds int32; the
    hook keeps the smallest type that numbers the experts."""
    model, rollout = config.model, config.rollout
    if not (config.method.r3 and model.is_moe):
        return 0.0
    width = (1 if model.experts <= 2**8 else 2) if config.hooks.narrow_routed_experts else 4
    tokens = (rollout.max_prompt_tokens or PROMPT_TOKENS) + rollout.max_response_tokens
    responses = rollout.prompts_per_iteration * rollout.samples_per_prompt
    return float(width * model.layers * model.experts_per_token * tokens * responses)


def memory_finding(config: SlimeConfig, available: int | None, node: str = "") -> Finding:
    """The finding on whether a training node with `available` bytes of host memory can hold the run."""
    what = "memory"
    if not config.model.parameters:
        return warn(what, "model.architecture does not tell the model's size: host memory is not checked")
    copies, weights, optimizer = weight_copies(config), weights_bytes(config), optimizer_bytes(config)
    # Each rank fetches the whole batch of its data-parallel group.
    in_trainer = config.train.world_size / config.train.nodes / max(config.train.data_parallel, 1)
    routes = routes_bytes(config) * (ROUTE_COPIES_IN_FLIGHT + in_trainer)
    held = copies * weights + optimizer
    parts = [f"{copies} copies of the weights {_gib(copies * weights)}"]
    parts += [f"offloaded optimizer {_gib(optimizer)}"] if optimizer else []
    parts += [f"routed experts up to {_gib(routes)}"] if routes else []
    needs = ", ".join(parts)
    if available is None:
        return warn(what, f"host memory is not known here; a training node needs {needs}")
    has = f"{node + ' has ' if node else ''}{_gib(available)} of host memory"
    if held > available:
        remedy = "more nodes" + (", or train.optimizer_offload false" if optimizer else "")
        return fail(what, f"{has}, less than a training node needs ({needs}): {remedy}")
    if held + routes > available:
        return warn(what, f"{has}, less than a training node may need with responses of full length ({needs})")
    return ok(what, f"{has}; {needs}")


def _gib(count: float) -> str:
    return f"{count / GIB:,.0f} GiB"


# ----------------------------------------------------------------------------------------------------------- disk


def checkpoint_bytes(config: SlimeConfig) -> float:
    """Bytes of one checkpoint: weights in bf16, and master weights and two moments in fp32."""
    return config.model.parameters * float(BF16 + (3 * FP32 if config.checkpoint.optimizer else 0))


def _disk(config: SlimeConfig, run_folder: Path) -> Finding:
    what, parent = "disk", existing_parent(checkpoint_folder(config, run_folder))
    if not os.access(parent, os.W_OK | os.X_OK) or not parent.is_dir():
        key = "checkpoint.folder" if config.checkpoint.folder else "output_dir"
        return fail(what, f"{parent} cannot be written: choose another {key}")
    free, one = shutil.disk_usage(parent).free, checkpoint_bytes(config)
    every = config.checkpoint.every_n_iterations
    count = -(-config.pipeline.iterations // every) if every else 0
    if count and one > free:
        return fail(
            what,
            f"{_gib(free)} free at {parent}, less than one checkpoint ({_gib(one)}): choose another checkpoint.folder, "
            "or checkpoint.every_n_iterations 0 for none",
        )
    if count * one > free:
        return warn(
            what,
            f"{_gib(free)} free at {parent}, but slime keeps all of the run's {count} checkpoints of {_gib(one)}: "
            "delete old ones as it goes, or raise checkpoint.every_n_iterations",
        )
    return ok(what, f"{_gib(free)} free at {parent}; {count} checkpoints of {_gib(one)}")


def existing_parent(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    path = path.expanduser().absolute()
    while not path.exists():
        path = path.parent
    return path


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).splitlines()[0]
