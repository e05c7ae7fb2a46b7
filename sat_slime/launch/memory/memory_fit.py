"""Holds what a run needs of each kind of memory against what there is."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from sat_slime.config.finding import Finding, ok, warn
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.memory.elements import parameters
from sat_slime.launch.memory.memory_needs import (
    GIB,
    MIB,
    Need,
    engine_kv_tokens,
    engine_need,
    host_need,
    least_tokens,
    longest_tokens,
    store_need,
    training_need,
    weight_copies,
)
from sat_slime.launch.memory.memory_sizes import Size, Sizes

TIGHT = 0.9
"""Share of what there is above which a run is warned: what is not counted needs room."""
RAY_KILLS = 0.95
"""Share of a host's memory above which Ray kills workers (RAY_memory_usage_threshold)."""
TRAINING, ENGINE, HOST, STORE = "training GPU", "engine GPU", "host memory", "object store"
ROWS = (TRAINING, ENGINE, HOST, STORE)
"""What is judged, in the order of the table."""


@dataclass(frozen=True)
class Row:
    """One kind of memory: what is needed, and what there is to be used of it."""

    what: str
    need: Need
    size: Size | None
    """What there is; None: unknown."""
    part: float = 1.0
    """Share of it that may be used."""

    @property
    def usable(self) -> float:
        return max(self.part * self.size.bytes - self.size.taken, 1.0) if self.size else float("inf")

    @property
    def share(self) -> float:
        return self.need.total / self.usable

    @property
    def mark(self) -> str:
        """FAIL, WARN or OK. What depends on the length of responses is counted at its most, and so is worth a warning.
        Ray writes to disk what its store cannot hold."""
        if self.need.certain > self.usable and self.what != STORE:
            return "FAIL"
        return "WARN" if self.share > TIGHT else "OK"

    @property
    def sums(self) -> str:
        """`57 of 79 GiB, 72 % (node 10.0.0.1)`."""
        if self.size is None:
            return f"{gib(self.need.total)} GiB"
        return f"{gib(self.need.total)} of {gib(self.usable)} GiB, {percent(self.share)} ({self.size.source})"

    @property
    def text(self) -> str:
        return f"{self.sums}: {self.need.text}"


def gib(count: float) -> str:
    """Return a number of GiB as people read it."""
    return f"{count / GIB:,.{1 if count < 10 * GIB else 0}f}"


def percent(share: float) -> str:
    """Return a share of 1 in percent."""
    return f"{100 * share:.0f} %"


def rows(config: SlimeConfig, there: Sizes, kinds: Collection[str] = ROWS) -> list[Row]:
    """Return what is judged of a run; nothing where the sizes of its model lack. A run on a CPU has memory of one
    kind."""
    if not parameters(config.model):
        return []
    on_gpus = config.cluster.device == "gpu"
    judged = []
    if on_gpus and TRAINING in kinds:
        judged.append(Row(TRAINING, training_need(config), there.gpu))
    if on_gpus and ENGINE in kinds:
        judged.append(Row(ENGINE, engine_need(config), there.gpu, config.rollout.memory_fraction))
    if HOST in kinds:
        judged.append(Row(HOST, host_need(config), there.host, RAY_KILLS))
    if on_gpus and STORE in kinds:
        known = [size for size in (there.store, there.shm) if size]
        smaller = min(known, key=lambda size: size.bytes) if there.store else None
        judged.append(Row(STORE, store_need(config), smaller))
    return judged


def engine_reserve(config: SlimeConfig, gpu_bytes: float) -> tuple[float, float]:
    """Return the bytes that SGLang itself would leave free on a GPU, and those among them that it cannot do without:
    all but the activations of a prefill (sglang/srt/server_args.py: chunk, batches with CUDA graphs, and 1.5 and 2 MiB
    for each of them, by the size of the GPU)."""
    by_size = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (160, 8192, 256, 512))
    chunk, few, many = next((row[1:] for row in by_size if gpu_bytes < row[0] * GIB), (16384, 512, 512))
    gpus = config.rollout.gpus_per_engine
    must = 512 + 2 * (few if gpus < 4 else many) + gpus / 8 * 1024
    return (must + 1.5 * chunk) * MIB, must * MIB


def engine_room_mark(config: SlimeConfig, there: Sizes) -> str:
    """Return FAIL, WARN or OK by what an engine leaves free of its GPUs: half of what SGLang itself would is enough,
    since the paper's 0.85 leaves that; without what it must have it cannot start."""
    left = (1 - config.rollout.memory_fraction) * there.gpu.bytes
    whole, must = engine_reserve(config, there.gpu.bytes)
    return "FAIL" if left < must else "WARN" if left < whole / 2 else "OK"


def table(judged: Iterable[Row]) -> list[str]:
    """Return a line for each kind of memory: needed, there, percent, and the parts of what is needed, in GiB."""
    lines = [f"{'GiB':12}  {'needs':>6}  {'has':>6}  {'%':>4}"]
    for row in judged:
        has = (gib(row.usable), f"{100 * row.share:.0f}") if row.size else ("?", "")
        source = f" ({row.size.source})" if row.size else ""
        lines.append(f"{row.what:12}  {gib(row.need.total):>6}  {has[0]:>6}  {has[1]:>4}  {row.need.text}{source}")
    return lines


# ----------------------------------------------------------------------------------------------------------- findings


TYPICAL_TOKENS = (2048, 8192)
"""Lengths of a response with which requests of an engine are counted, besides the longest."""
SHM = "/dev/shm"


def memory_findings(config: SlimeConfig, there: Sizes) -> Iterator[Finding]:
    """Yield a finding for each kind of memory: needed, there, the share, and what helps where it does not fit."""
    judged = rows(config, there)
    if not judged:
        yield warn(HOST, "model.architecture does not give the model's size: memory is not checked")
        return
    for row in judged:
        if row.size is None:
            if row.what == HOST:
                yield warn(HOST, f"how much there is is not known here; a training node needs {row.text}")
        elif row.mark == "OK":
            yield ok(row.what, row.text)
        else:
            detail = f"{_needed(row)}: {_remedy(config, row)}"
            yield Finding(row.mark, row.what, detail, row.size.is_of_settings)
    if config.cluster.device == "gpu":
        yield from _room_of_engine(config, there)
        yield from _requests(config, there)
        yield from _shared_memory(there)


def _needed(row: Row) -> str:
    assert row.size
    limits = {
        TRAINING: f"a GPU's {gib(row.usable)}",
        ENGINE: f"the {gib(row.usable)} that rollout.memory_fraction gives an engine of a GPU's {gib(row.size.bytes)}",
        HOST: f"the {gib(row.usable)} of a node's {gib(row.size.bytes)} at which Ray kills",
        STORE: f"{gib(row.usable)}",
    }
    needs = "needs" if row.mark == "FAIL" or row.need.certain == row.need.total else "needs up to"
    of = f"{gib(row.need.total)} GiB of {limits[row.what]}"
    return f"{needs} {of}, {percent(row.share)} ({row.size.source}; {row.need.text})"


def _remedy(config: SlimeConfig, row: Row) -> str:
    """Return which settings make the two largest parts of what is needed smaller."""
    if row.what == STORE:
        return "Ray writes the rest to disk, which is slow: start it with a larger --object-store-memory and /dev/shm"
    if config.cluster.device == "cpu":
        return "take a smaller batch or model, or another machine"
    lowered = _lowered_by(config, row.what)
    largest = sorted(row.need.parts, key=lambda part: -part.size)[:2]
    return "what lowers the largest parts: " + "; ".join(f"{part.name} by {lowered[part.name]}" for part in largest)


def _lowered_by(config: SlimeConfig, what: str) -> dict[str, str]:
    """Return by each part's name the settings that lower it, from those that cost least."""
    train, least = config.train, least_tokens(config)
    if what == ENGINE:
        shares = "more rollout.gpus_per_engine or rollout.memory_fraction"
        return {"weights": shares, "KV of the longest response": f"fewer rollout.max_response_tokens, {shares}"}
    batch = "fewer rollout.prompts_per_iteration or rollout.max_response_tokens, or more train.nodes"
    if what == HOST:
        copies = f"{weight_copies(config)} copies of the weights"
        return {
            copies: "loss.kl_coef 0, a denominator other than checkpoint, or more train.nodes",
            "optimizer": "train.optimizer_offload false where the GPUs have room, or more train.nodes",
            "batch": batch,
            "routed experts": batch,
        }
    cuts = ["train.tensor_parallel", "train.pipeline_parallel"] + ["train.expert_parallel"] * config.model.is_moe
    held = f"more {' or '.join(cuts)}"
    fewer = "more train.context_parallel or train.tensor_parallel"
    if train.max_tokens_per_gpu > least:  # a longer sample is a micro-batch of its own
        fewer = f"train.max_tokens_per_gpu down to {least}, {fewer}"
    of_tokens = fewer if train.recompute == "full" else f"train.recompute full, {fewer}"
    return {
        "weights": held,
        "gradients": held,
        "optimizer": f"train.optimizer_offload true, which takes host memory, {held}",
        "batch": batch,
        "layer inputs": of_tokens,
        "activations": of_tokens,
        "a layer": of_tokens,
        "logits": fewer,
    }


def _room_of_engine(config: SlimeConfig, there: Sizes) -> Iterator[Finding]:
    mark = engine_room_mark(config, there)
    if mark == "OK":
        return
    share, gpu = config.rollout.memory_fraction, there.gpu.bytes
    reserve, _ = engine_reserve(config, gpu)
    most = math.floor(100 * (1 - reserve / 2 / gpu)) / 100
    detail = (
        f"rollout.memory_fraction is {share}, which leaves {gib((1 - share) * gpu)} GiB of a GPU for CUDA graphs and "
        f"prefills, where SGLang itself would leave {gib(reserve)}: set it to at most {most}"
    )
    yield Finding(mark, ENGINE, detail, there.gpu.is_of_settings)


def _requests(config: SlimeConfig, there: Sizes) -> Iterator[Finding]:
    """Warns where an engine's KV cache does not hold the requests that are sent to it, even if responses are short."""
    rollout = config.rollout
    tokens, longest = engine_kv_tokens(config, there.gpu.bytes), longest_tokens(config)
    sent = min(rollout.concurrent_requests, -(-rollout.responses_per_iteration // max(rollout.engines, 1)))
    lengths = [*(n for n in TYPICAL_TOKENS if n < longest), longest]
    held = [tokens // n for n in lengths]
    if not held[-1] or sent <= held[0]:
        return
    numbers = ", ".join(f"{count:,} of {length:,}" for count, length in zip(held, lengths, strict=True))
    yield warn(
        ENGINE,
        f"rollout.concurrent_requests is {rollout.concurrent_requests}, but the KV cache of an engine, {tokens:,} "
        f"tokens, holds {numbers} tokens; SGLang lets others wait, or drops what they have and computes it again: set "
        f"it to {held[min(1, len(held) - 1)]}",
    )


def _shared_memory(there: Sizes) -> Iterator[Finding]:
    """Warns where Ray cannot keep its object store where it wants to."""
    shm, store = there.shm, there.store
    if shm and store and store.bytes > shm.bytes:
        yield warn(
            SHM,
            f"{gib(shm.bytes)} GiB ({shm.source}), less than Ray's object store of {gib(store.bytes)}, which is then "
            "on disk: start containers with a larger one, or Ray with a smaller --object-store-memory",
        )
