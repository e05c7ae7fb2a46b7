"""Says of each kind of memory whether a run fits, and what helps where it does not."""

from __future__ import annotations

from collections.abc import Iterator

from sat_slime.config.finding import Finding, ok, warn
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.plugin.launch.memory.changes import Change, cheapest_fit
from sat_slime.plugin.launch.memory.engine import engine_kv_tokens
from sat_slime.plugin.launch.memory.memory_table import (
    ENGINE,
    HOST,
    STORE,
    TRAINING,
    Row,
    engine_reserve,
    engine_room_mark,
    gib,
    percent,
    rows,
)
from sat_slime.plugin.launch.memory.needs import longest_tokens
from sat_slime.plugin.launch.memory.sizes import Sizes

TYPICAL_TOKENS = (2048, 8192)
"""Lengths of a response with which requests of an engine are counted, besides the longest."""
SHM = "/dev/shm"


def memory_findings(config: SlimeConfig, there: Sizes) -> Iterator[Finding]:
    """A finding for each kind of memory: needed, there, the share, and what helps where it does not fit."""
    judged = rows(config, there)
    if not judged:
        yield warn(HOST, "model.architecture does not tell the model's size: memory is not checked")
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
    """What a row needs after a change, the GPUs if it takes more, and other rows that are then full."""
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
    """Whether an engine's KV cache holds the requests that are sent to it, if their responses are short."""
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
    """Whether Ray can keep its object store where it wants to; a node whose /dev/shm is too small by itself is told by
    plugin/launch/nodes.py."""
    shm, store = there.shm, there.store
    if shm and store and store.bytes > shm.bytes:
        yield warn(
            SHM,
            f"{gib(shm.bytes)} GiB ({shm.source}), less than Ray's object store of {gib(store.bytes)}, which is then "
            "on disk: start containers with a larger one, or Ray with a smaller --object-store-memory",
        )
