"""Holds what a run needs of each kind of memory against what there is."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.plugin.launch.memory.elements import parameters
from sat_slime.plugin.launch.memory.engine import GIB, MIB, engine_weights_bytes, kv_bytes_per_token
from sat_slime.plugin.launch.memory.needs import (
    Need,
    Part,
    host_need,
    longest_tokens,
    micro_batch_tokens,
    store_need,
    training_need,
)
from sat_slime.plugin.launch.memory.sizes import Size, Sizes

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
        return self.part * self.size.bytes if self.size else float("inf")

    @property
    def share(self) -> float:
        return self.need.total / self.usable

    @property
    def mark(self) -> str:
        """What depends on the length of responses is counted at its most, and so is worth a warning. Ray writes to disk
        what its store cannot hold."""
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
    """A number of GiB as people read it."""
    return f"{count / GIB:,.{1 if count < 10 * GIB else 0}f}"


def percent(share: float) -> str:
    """A share of 1 in percent."""
    return f"{100 * share:.0f} %"


def rows(config: SlimeConfig, there: Sizes, kinds: Collection[str] = ROWS) -> list[Row]:
    """What is judged of a run; nothing where the sizes of its model lack. A run on a CPU has memory of one kind."""
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


def engine_need(config: SlimeConfig) -> Need:
    """What an engine's GPU must hold within `rollout.memory_fraction`; SGLang fills the rest with its KV cache."""
    longest = longest_tokens(config) * kv_bytes_per_token(config)
    return Need((Part("weights", engine_weights_bytes(config)), Part("KV of the longest response", longest)))


def engine_reserve(config: SlimeConfig, gpu_bytes: float) -> tuple[float, float]:
    """Bytes that SGLang itself would leave free on a GPU, and those among them that it cannot do without: all but the
    activations of a prefill (sglang/srt/server_args.py: chunk, batches with CUDA graphs, and 1.5 and 2 MiB for each of
    them, by the size of the GPU)."""
    by_size = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (160, 8192, 256, 512))
    chunk, few, many = next((row[1:] for row in by_size if gpu_bytes < row[0] * GIB), (16384, 512, 512))
    gpus = config.rollout.gpus_per_engine
    must = 512 + 2 * (few if gpus < 4 else many) + gpus / 8 * 1024
    return (must + 1.5 * chunk) * MIB, must * MIB


def engine_room_mark(config: SlimeConfig, there: Sizes) -> str:
    """Whether an engine leaves enough of its GPUs free: half of what SGLang itself would, since the paper's 0.85 does
    so; without what it must have it cannot start."""
    left = (1 - config.rollout.memory_fraction) * there.gpu.bytes
    whole, must = engine_reserve(config, there.gpu.bytes)
    return "FAIL" if left < must else "WARN" if left < whole / 2 else "OK"


def table(judged: Iterable[Row]) -> list[str]:
    """A line for each kind of memory: needed, there, percent, and the parts of what is needed, in GiB."""
    lines = [f"{'GiB':12}  {'needs':>6}  {'has':>6}  {'%':>4}"]
    for row in judged:
        has = (gib(row.usable), f"{100 * row.share:.0f}") if row.size else ("?", "")
        source = f" ({row.size.source})" if row.size else ""
        lines.append(f"{row.what:12}  {gib(row.need.total):>6}  {has[0]:>6}  {has[1]:>4}  {row.need.text}{source}")
    return lines


def training_memory_text(config: SlimeConfig) -> str:
    """`at least 41 GiB on a training GPU at 16,384 tokens: weights 4, gradients 8, ...`."""
    need = training_need(config)
    at = f"on a training GPU at {micro_batch_tokens(config):,} tokens"
    return f"at least {need.total / GIB:.0f} GiB {at}: {need.text}"
