"""Holds what a run needs of each kind of memory against what there is, and finds the cheapest change of settings with
which it fits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sat_slime.config.finding import Finding, ok, warn
from sat_slime.config.slime_checks import slime_config_errors
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.plugin.launch.memory.elements import parameters
from sat_slime.plugin.launch.memory.memory_needs import (
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
)
from sat_slime.plugin.launch.memory.memory_sizes import Size, Sizes

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


# ------------------------------------------------------------------------------------------------ the cheapest change


BADNESS = {"OK": 0, "WARN": 1, "FAIL": 2}
ROOM_IS_WORTH = 6.0
"""The cost that a change may have above that of the first which fits, if it leaves room everywhere."""
FRACTIONS = (0.6, 0.7, 0.75, 0.8, 0.85, 0.88)


@dataclass(frozen=True)
class Change:
    """Settings of another value, by key."""

    values: tuple[tuple[str, Any], ...] = ()
    cost: float = 0
    """How much slower a run gets, in no unit: changes are tried in this order."""

    def __add__(self, other: Change) -> Change:
        return Change((*self.values, *other.values), self.cost + other.cost)

    @property
    def text(self) -> str:
        """`set train.tensor_parallel to 4 and ...`."""
        shown = (f"{key} to {str(value).lower() if isinstance(value, bool) else value}" for key, value in self.values)
        return "set " + " and ".join(shown)

    def of(self, config: SlimeConfig) -> SlimeConfig:
        """Return the settings with this change."""
        sections: dict[str, dict[str, Any]] = {}
        for key, value in self.values:
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        update = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
        return config.model_copy(update=update)


def cheapest_fit(config: SlimeConfig, there: Sizes, what: str) -> tuple[Change | None, Change | None]:
    """Return the cheapest change with which a row has room, no other has less than it should, and the settings no new
    fault; for a row that fails, if that costs too much, the cheapest with which nothing fails.

    Args:
        what: the row. An engine has settings of its own; those of the trainer decide the other rows.

    Returns:
        The change, or None; and where there is none the one that comes nearest.
    """
    kinds = (ENGINE,) if what == ENGINE else (TRAINING, HOST)
    before = _marks(config, there, rows(config, there, kinds))
    faults = set(slime_config_errors(config))

    def sound(changed: SlimeConfig) -> bool:
        return set(slime_config_errors(changed)) <= faults

    fits: Change | None = None
    nearest: Change | None = None
    least = float("inf")
    for change in combinations(_engine_options(config) if what == ENGINE else _training_options(config)):
        if fits and change.cost > fits.cost + ROOM_IS_WORTH:
            break
        changed = change.of(config)
        judged = rows(changed, there, kinds)
        after = _marks(changed, there, judged)
        if "FAIL" in after.values():
            worst = max(row.need.certain / row.usable for row in judged)
            if worst < least and sound(changed):
                nearest, least = change, worst
            continue
        room = after[what] == "OK" and not _worse(before, after)
        if (room or (before[what] == "FAIL" and fits is None)) and sound(changed):
            if room:
                return change, None
            fits = change
    return fits, None if fits else nearest


def _marks(config: SlimeConfig, there: Sizes, judged: Sequence[Row]) -> dict[str, str]:
    marks = {row.what: row.mark for row in judged}
    return marks | {"room": engine_room_mark(config, there)} if ENGINE in marks else marks


def _worse(before: dict[str, str], after: dict[str, str]) -> bool:
    return any(BADNESS[after[what]] > BADNESS[before[what]] for what in before)


def combinations(options: Sequence[Sequence[Change]]) -> list[Change]:
    """Return a change of each kind or none, in every combination, the cheapest first, and of equally cheap ones the
    shortest; at least one."""
    combined = [Change()]
    for kind in options:
        combined = [first + second for first in combined for second in (Change(), *kind)]
    return sorted(
        (change for change in combined if change.values), key=lambda change: (change.cost, len(change.values))
    )


def _training_options(config: SlimeConfig) -> list[list[Change]]:
    """Return changes of each kind with what they cost: fewer tokens at a time least, more GPUs most."""
    train, model = config.train, config.model
    halves = {max(train.max_tokens_per_gpu >> n, least_tokens(config)) for n in (1, 2)}
    fewer = sorted((n for n in halves if n < train.max_tokens_per_gpu), reverse=True)
    order = ("none", "selective", "full")
    less = order[order.index(train.recompute) + 1 :]
    return [
        [_change("max_tokens_per_gpu", n, cost=1 + index) for index, n in enumerate(fewer)],
        [_change("optimizer_offload", not train.optimizer_offload, cost=0 if train.optimizer_offload else 4)],
        [_change("recompute", how, cost=3 + index) for index, how in enumerate(less)],
        [_tensor(config, n, 2 + 2 * index) for index, n in enumerate(_doubled(train.tensor_parallel, 8))],
        [_experts(config, n, 2 + index) for index, n in enumerate(_doubled(train.expert_parallel, model.experts))],
        [_change("context_parallel", n, cost=3 + 2 * i) for i, n in enumerate(_doubled(train.context_parallel, 8)[:1])],
        _more_gpus(config),
    ]


def _change(name: str, value: Any, cost: float) -> Change:
    return Change(((f"train.{name}", value),), cost)


def _tensor(config: SlimeConfig, ranks: int, cost: float) -> Change:
    """Return more tensor parallelism; experts without parallelism of their own must be cut alike (slime_checks)."""
    cut = config.model.is_moe and config.train.expert_parallel == 1
    return _change("tensor_parallel", ranks, cost) + Change(
        (("train.expert_tensor_parallel", ranks),) if cut else (), 0
    )


def _experts(config: SlimeConfig, ranks: int, cost: float) -> Change:
    """Return more expert parallelism, in place of that within an expert."""
    uncut = config.train.expert_tensor_parallel == 1
    return _change("expert_parallel", ranks, cost) + Change(() if uncut else (("train.expert_tensor_parallel", 1),))


def _more_gpus(config: SlimeConfig) -> list[Change]:
    """Return the rest of the node, then whole nodes: slime fills one before it takes the next."""
    train, node = config.train, config.cluster.gpus_per_node
    sizes = [(1, node)] if train.nodes == 1 and train.gpus_per_node < node else []
    sizes += [(nodes, node) for nodes in _doubled(train.nodes, 8 * train.nodes)]
    changes = []
    for index, (nodes, gpus) in enumerate(sizes):
        values = {"nodes": nodes, "gpus_per_node": gpus}
        other = tuple((f"train.{name}", value) for name, value in values.items() if getattr(train, name) != value)
        changes.append(Change(other, 20 * (index + 1)))
    return changes


def _engine_options(config: SlimeConfig) -> list[list[Change]]:
    """Return the share of its GPUs, and more of them."""
    rollout = config.rollout
    shares = sorted(FRACTIONS, key=lambda share: abs(share - rollout.memory_fraction))
    more = _doubled(rollout.gpus_per_engine, rollout.gpus)
    return [
        [Change((("rollout.memory_fraction", share),), 1 + i) for i, share in enumerate(shares)],
        [Change((("rollout.gpus_per_engine", n),), 3 + 2 * i) for i, n in enumerate(more)],
    ]


def _doubled(number: int, most: int) -> list[int]:
    """Return twice the number and four times, up to `most`."""
    return [n for n in (2 * number, 4 * number) if n <= most]


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
            detail = f"{_needed(row)}: {_remedy(config, there, row)}"
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


def _remedy(config: SlimeConfig, there: Sizes, row: Row) -> str:
    if row.what == STORE:
        return "Ray writes the rest to disk, which is slow: start it with a larger --object-store-memory and /dev/shm"
    if config.cluster.device == "cpu":
        return "take a smaller batch or model, or another machine"
    change, nearest = cheapest_fit(config, there, row.what)
    if change:
        return f"{change.text} (then {_after(config, there, row.what, change)})"
    if row.mark == "WARN":
        return "no change of the trainer's parallelism or optimizer gives more room; watch it"
    if nearest is None:
        return "no other parallelism of this model on these GPUs helps: take larger ones"
    return (
        f"nothing that was tried fits; nearest is: {nearest.text} ({_after(config, there, row.what, nearest)}); "
        "take larger ones"
    )


def _after(config: SlimeConfig, there: Sizes, what: str, change: Change) -> str:
    """Return what a row needs after a change, the GPUs if it takes more, and other rows that are then full."""
    changed = change.of(config)
    kinds = (ENGINE,) if what == ENGINE else (TRAINING, HOST)
    after = rows(changed, there, kinds)
    full = [f"{row.what} {percent(row.share)}" for row in after if row.what != what and row.mark != "OK"]
    of_row = next(row for row in after if row.what == what)
    room = f", {percent(of_row.share)}" if of_row.mark != "OK" else ""
    gpus = changed.train.world_size + changed.rollout.gpus
    more = [f"{gpus} GPUs in all"] if gpus > config.train.world_size + config.rollout.gpus else []
    return "; ".join([f"{gib(of_row.need.total)} GiB{room}", *more, *full])


def _room_of_engine(config: SlimeConfig, there: Sizes) -> Iterator[Finding]:
    mark = engine_room_mark(config, there)
    if mark == "OK":
        return
    share, gpu = config.rollout.memory_fraction, there.gpu.bytes
    change, _ = cheapest_fit(config, there, ENGINE)
    remedy = change.text if change else "take larger GPUs, or more of them for an engine"
    detail = (
        f"rollout.memory_fraction is {share}, which leaves {gib((1 - share) * gpu)} GiB of a GPU for CUDA graphs and "
        f"prefills, where SGLang itself would leave {gib(engine_reserve(config, gpu)[0])}: {remedy}"
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
    """Warns where Ray cannot keep its object store where it wants to; of a node whose /dev/shm is too small by itself
    plugin/launch/nodes.py warns."""
    shm, store = there.shm, there.store
    if shm and store and store.bytes > shm.bytes:
        yield warn(
            SHM,
            f"{gib(shm.bytes)} GiB ({shm.source}), less than Ray's object store of {gib(store.bytes)}, which is then "
            "on disk: start containers with a larger one, or Ray with a smaller --object-store-memory",
        )
