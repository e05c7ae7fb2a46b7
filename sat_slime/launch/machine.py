"""Checks what a run of slime needs of its machine, without a GPU: checkouts, checkpoints, prompts, reward, and disk."""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.command import checkpoint_folder
from sat_slime.launch.hf_checkpoint import hf_findings, is_the_laptops, reason_of, stop_findings
from sat_slime.launch.memory import BF16, FP32, gib, parameters
from sat_slime.launch.small_run import card_findings, cpu_findings
from sat_slime.prompts.text import list_in_text, odd_file, odd_label, odd_prompt
from sat_slime.runs.saved import newest_iteration, numbered

ROWS_READ = 3
"""Number of rows at the beginning of a data set whose keys are checked."""
SLICE = re.compile(r"@\[(-?\d*):(-?\d*)\]$")
"""slime takes FILE@[0:100] for a part of a file."""
REWARDS = ("dapo", "deepscaler", "f1", "gpqa", "ifbench", "math", "random", "remote_rm")
"""Names of slime's rules: the same in v0.3.1 and 624b824a8."""
REWARD_HUB = Path("slime", "rollout", "rm_hub", "__init__.py")
OUR_REWARDS, OF_OURS = "sat_slime.plugin.reward", ("default", "prime_math")
DOTTED_PATH = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
SCRIPT = "train.py"
"""A file by which slime's checkout is recognized, in every version."""


def machine_findings(config: SlimeConfig, run_folder: Path, resume: bool = False) -> Iterator[Finding]:
    """Yield findings of every check of this machine. resume: the run has begun, and its checkpoints are its own."""
    yield from source_findings(config, {"cluster.slime_dir": SCRIPT, "cluster.megatron_dir": "megatron/training"})
    if config.cluster.device == "cpu":
        yield from cpu_findings(config)
    elif config.cluster.share_gpu:
        yield from card_findings(config)
    yield from hf_findings(config)
    yield from stop_findings(config)
    yield from _megatron_checkpoint(config)
    yield from data_findings(config)
    yield from function_findings(config)
    if not resume and (fault := beginning_fault(config, run_folder)):
        yield fail("checkpoints", fault)
    yield _disk(config, run_folder, resume)


def source_findings(config: SlimeConfig, parts: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings on whether the checkouts are there. parts: what must be in each setting's folder."""
    other = "make one: scripts/get-slime.sh FOLDER" if config.cluster.device == "cpu" else "run in slime's image"
    for key, part in parts.items():
        name = key.removeprefix("cluster.")
        what, folder = name.removesuffix("_dir"), getattr(config.cluster, name)
        fault = f"{key} is {folder}: no {part} is in it; set it to the checkout, or {other}"
        # os.path, as below: where a folder may not be looked into, such as another user's /root, Path.exists raises
        yield ok(what, folder) if os.path.exists(Path(folder) / part) else fail(what, fault)


def _megatron_checkpoint(config: SlimeConfig) -> Iterator[Finding]:
    what, path = "weights", config.model.megatron_checkpoint
    if path is None:
        return
    if (newest := newest_iteration(Path(path))) is not None:
        folder = Path(path) / (f"iter_{newest - 1:07d}" if newest else "release")
        fault = f"slime.ref-load is {path}: it names {folder.name}, which is not there; convert again"
        yield ok(what, str(folder)) if folder.is_dir() else fail(what, fault)
    elif os.path.isfile(Path(path) / "config.json") and config.cluster.device == "cpu":
        yield ok(what, f"{path}, in Hugging Face's format")
    elif os.path.isfile(Path(path) / "config.json"):
        yield warn(what, f"{path} holds Hugging Face weights: not every slime and model can start from them")
    else:
        tool = "sat-slime prepare laptop" if is_the_laptops(config) else "slime's tools/convert_hf_to_torch_dist.py"
        yield fail(what, f"slime.ref-load is {path}: no converted checkpoint is there; make it ({tool})")


def beginning_fault(config: SlimeConfig, run_folder: Path) -> str | None:
    """Return why a new run may not begin with its folder of checkpoints, from whose newest slime would go on."""
    folder = checkpoint_folder(config, run_folder)
    if not config.checkpoint.every_n_iterations or folder.absolute().is_relative_to(run_folder.absolute()):
        return None  # slime is given no folder, or one that is emptied
    if not (found := newest_iteration(folder)):
        return None
    iterations = config.pipeline.iterations
    return (
        f"slime.save is {folder}, with a run's checkpoint of iteration {found}, from which slime would go on, with "
        f"{max(iterations - found, 0)} of pipeline.iterations {iterations} left: name an empty folder, or set it to "
        "null; for those weights alone, name the folder in slime.ref-load"
    )


def data_findings(config: SlimeConfig) -> Iterator[Finding]:
    data, flags = config.data, config.slime
    sets = {"slime.prompt-data": (data.prompts, "", data.input_key, data.label_key)} if data.prompts else {}
    if config.eval.every_n_iterations:
        keys = "eval-", flags.get("eval-input-key") or data.input_key, flags.get("eval-label-key") or data.label_key
        sets |= {f"slime.eval-prompt-data ({name})": (file, *keys) for name, file in config.eval.prompts.items()}
    for key, (file, of_key, input_key, label_key) in sets.items():
        problem = data_problem(file, of_key, input_key, label_key, config)
        yield fail("data", f"{key} is {file}: {problem}") if problem else ok("data", file)
    needed, path = config.rollout.prompts_per_iteration, Path(data.prompts or "")
    if path.suffix == ".jsonl" and os.path.isfile(path) and os.access(path, os.R_OK):
        with path.open(encoding="utf-8", errors="replace") as lines:
            rows = sum(1 for _ in itertools.islice(filter(str.strip, lines), needed))
        if 0 < rows < needed:
            few = f"slime.prompt-data has {rows} rows, fewer than slime.rollout-batch-size {needed}"
            remedy = f"add prompts, or set slime.rollout-batch-size to {rows}"
            yield warn("data", f"{few}: a batch has some prompts twice; {remedy}")


def data_problem(file: str, of_key: str, input_key: str, label_key: str | None, config: SlimeConfig) -> str | None:
    """Return why slime could not read the first rows of a data set, or use a prompt or label of them, or None. of_key:
    how the flags begin that name its keys, in front of `input-key`."""
    path, part = Path(SLICE.sub("", file)), SLICE.search(file)
    if not os.path.isfile(path):
        made = "prepare laptop` makes it" if is_the_laptops(config) else "data prepare` makes the paper's"
        return f"there is no such file; `sat-slime {made}"
    if path.suffix not in (".jsonl", ".parquet"):
        return "slime reads .jsonl and .parquet files; convert it"
    try:
        if what := odd_file(path):
            return what
        rows = first_rows(path, ROWS_READ)
        if part and path.suffix == ".jsonl":
            start, end = (int(bound) if bound else None for bound in part.groups())
            with path.open(encoding="utf-8") as lines:
                count = sum(map(bool, map(str.strip, lines)))
            if not range(count)[start:end]:
                why = f"no row of the file is in the part {part[0]}"
                return f"{why}, and slime would wait for prompts for ever; name another"
    except (OSError, ValueError) as error:
        return f"it cannot be read ({reason_of(error)})"
    if not rows:
        return None if rows is None else "it has no rows"
    faults = (_row_fault(row, number, of_key, input_key, label_key, config) for number, row in enumerate(rows, 1))
    return next(filter(None, faults), None)


def _row_fault(
    row: Any, number: int, of_key: str, input_key: str, label_key: str | None, config: SlimeConfig
) -> str | None:
    if not isinstance(row, dict):
        return f"row {number} is not a JSON object"
    unset = "" if of_key else " (null: rows have none)"  # then rows to evaluate have that of the prompts
    for setting, key in (("input-key", input_key), (f"label-key{unset}", label_key)):
        if key is not None and key not in row:
            return f"row {number} has no key {key!r} but {', '.join(map(repr, row))}; set slime.{of_key}{setting}"
    prompt, label = row[input_key], None if label_key is None else row[label_key]
    asks, said = f"{input_key!r} of row {number}", f"{label_key!r} of row {number} is {label!r}"
    if config.data.chat_template or not config.slime.get("custom-generate-function-path"):  # which may read any
        if not isinstance(prompt, (str, list)):
            return f"{asks} is neither text nor a list of messages"
        if isinstance(prompt, list) and not config.data.chat_template:
            return f"{asks} is a list of messages: set slime.apply-chat-template to true"
        if what := odd_prompt(prompt, config.data.chat_template):
            return f"{asks}: {what}"
    what = odd_label(label)
    verified = (config.data.function or "").startswith("sat_slime.plugin.reward.")
    if verified and label_key is None:
        return "slime.label-key is null, and the verifier compares with labels: name the key that they have"
    if verified and (isinstance(list_in_text(label), (type(None), list, dict)) or not str(label).strip()):
        what = "it is not one text or number for the verifier to compare with: write one, or leave the row out"
    return what and f"{said}: {what}"


def first_rows(path: Path, count: int) -> list[Any] | None:
    """Return the first rows of a data set; None where nothing here reads its format. Raises OSError or ValueError."""
    if path.suffix == ".jsonl":
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in itertools.islice(filter(str.strip, lines), count)]
    if importlib.util.find_spec("pyarrow") is None:
        return None
    from pyarrow import parquet

    return next((list(rows.to_pylist()) for rows in parquet.ParquetFile(path).iter_batches(batch_size=count)), [])


def reward_errors(config: SlimeConfig) -> list[str]:
    """Return a line where slime.rm-type names a rule that slime has not, or a server without its address, which it
    would say at the first reward. The rules are those of the slime in cluster.slime_dir, else the recorded ones."""
    reward = config.data.reward
    rule = (reward or "").removeprefix("boxed_")
    if rule == "remote_rm" and not config.slime.get("rm-url"):
        return [f"slime.rm-type is {reward}: set slime.rm-url to http://HOST:PORT of the server that is to be asked"]
    if reward is None or "." in reward or rule in (rules := slime_rewards(Path(config.cluster.slime_dir))):
        return []
    close = difflib.get_close_matches(rule, rules, n=1) or ["math"]
    remedy = f"{OUR_REWARDS}.{reward}" if reward in OF_OURS else close[0]
    return [f"slime.rm-type is {reward}, and slime's rules are {', '.join(rules)}: set it to {remedy}"]


def slime_rewards(slime_dir: Path) -> tuple[str, ...]:
    """Return the rules of slime's reward hub by name; the recorded ones where it is not there."""
    try:
        text = (slime_dir / REWARD_HUB).read_text(encoding="utf-8")
    except OSError:
        return REWARDS
    return tuple(sorted(set(re.findall(r'rm_type == "(\w+)"', text)))) or REWARDS


def function_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield the functions of the settings whose module is nowhere where the job's Python looks. Nothing is imported
    here; what is in a module the nodes of a cluster tell by import."""
    cluster = config.cluster
    named = {f"slime.{flag}": value for flag, value in config.slime.items() if flag.endswith("-path")}
    folders = [*cluster.python_path, cluster.megatron_dir, cluster.slime_dir, *sys.path]
    for key, path in named.items():
        if not isinstance(path, str) or not DOTTED_PATH.match(path):
            continue
        module, _, _ = path.rpartition(".")
        top, *inner = module.split(".")
        if top == "slime" and not os.path.isdir(cluster.slime_dir):
            continue  # the machine's findings say that slime is not here
        spec = PathFinder.find_spec(top, folders) or importlib.util.find_spec(top)
        for name in inner:
            spec = PathFinder.find_spec(name, spec.submodule_search_locations or []) if spec else None
        if spec is None:
            remedy = "correct it, or add its folder to cluster.python_path"
            yield fail("code", f"{key} is {path}: there is no module {module}; {remedy}")


def checkpoint_bytes(config: SlimeConfig) -> float:
    """Return the bytes of one checkpoint: weights in bf16, and master weights and two moments in fp32."""
    return parameters(config.model) * float(BF16 + (0 if config.checkpoint.without_optimizer else 3 * FP32))


def _disk(config: SlimeConfig, run_folder: Path, resume: bool) -> Finding:
    folder = checkpoint_folder(config, run_folder)
    what, parent = "disk", existing_parent(folder)
    key = "slime.save" if config.checkpoint.folder else "output_dir"
    if not os.access(parent, os.W_OK | os.X_OK) or not parent.is_dir():
        return fail(what, f"{parent} cannot be written: choose another {key}")
    free, size = shutil.disk_usage(parent).free, checkpoint_bytes(config)
    every, keep = config.checkpoint.every_n_iterations, config.pipeline.keep_checkpoints
    count = -(-config.pipeline.iterations // every) if every else 0
    count = count if keep is None else min(count, keep + 1)  # an old one is deleted once the newer one is whole
    count = max(count - resume * len(numbered(folder)), min(count, 1))
    room = f"{gib(free)} GiB free at {parent}"
    if count and not size:
        return warn(what, f"{room}; the size of a checkpoint of this model is not counted here")
    if count and size > free:
        remedy = "choose another slime.save, or slime.save-interval 0 for none"
        return fail(what, f"{room}, less than one checkpoint ({gib(size)} GiB): {remedy}")
    needs = f"{count} checkpoints of {gib(size)} GiB, {gib(count * size)} GiB in all"
    if count * size > free:
        kept = f"pipeline.keep_checkpoints is {keep or 'unset'}, and the run needs {needs}"
        lower = f"set pipeline.keep_checkpoints to {max(int(free // size) - 1, 1)}, or " if free >= 2 * size else ""
        return warn(what, f"{room}, but {kept}: {lower}choose another slime.save")
    return ok(what, f"{room}; {needs}")


def existing_parent(path: Path) -> Path:
    """Return `path`, or the nearest folder above it that exists."""
    path = path.expanduser().absolute()
    return next(each for each in (path, *path.parents) if os.path.exists(each))
