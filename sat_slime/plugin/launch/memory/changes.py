"""Finds the cheapest change of settings with which a run fits the memory that there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sat_slime.config.slime_checks import slime_config_errors
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.plugin.launch.memory.memory_table import ENGINE, HOST, TRAINING, Row, engine_room_mark, rows
from sat_slime.plugin.launch.memory.needs import least_tokens
from sat_slime.plugin.launch.memory.sizes import Sizes

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
        """The settings with this change."""
        sections: dict[str, dict[str, Any]] = {}
        for key, value in self.values:
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        update = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
        return config.model_copy(update=update)


def cheapest_fit(config: SlimeConfig, there: Sizes, what: str) -> tuple[Change | None, Change | None]:
    """The cheapest change with which a row has room, no other has less than it should, and the settings no new fault;
    for a row that fails, if that costs too much, the cheapest with which nothing fails.

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
    """A change of each kind or none, in every combination, the cheapest first, and of equally cheap ones the shortest;
    at least one."""
    combined = [Change()]
    for kind in options:
        combined = [first + second for first in combined for second in (Change(), *kind)]
    return sorted((one for one in combined if one.values), key=lambda change: (change.cost, len(change.values)))


def _training_options(config: SlimeConfig) -> list[list[Change]]:
    """Changes of each kind with what they cost: fewer tokens at a time least, more GPUs most."""
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
    """More tensor parallelism; experts without parallelism of their own must be cut alike (slime_checks)."""
    cut = config.model.is_moe and config.train.expert_parallel == 1
    return _change("tensor_parallel", ranks, cost) + Change(
        (("train.expert_tensor_parallel", ranks),) if cut else (), 0
    )


def _experts(config: SlimeConfig, ranks: int, cost: float) -> Change:
    """More expert parallelism, in place of that within an expert."""
    uncut = config.train.expert_tensor_parallel == 1
    return _change("expert_parallel", ranks, cost) + Change(() if uncut else (("train.expert_tensor_parallel", 1),))


def _more_gpus(config: SlimeConfig) -> list[Change]:
    """The rest of the node, then whole nodes: slime fills one before it takes the next."""
    train, node = config.train, config.cluster.gpus_per_node
    places = [(1, node)] if train.nodes == 1 and train.gpus_per_node < node else []
    places += [(nodes, node) for nodes in _doubled(train.nodes, 8 * train.nodes)]
    changes = []
    for index, (nodes, gpus) in enumerate(places):
        values = {"nodes": nodes, "gpus_per_node": gpus}
        other = tuple((f"train.{name}", value) for name, value in values.items() if getattr(train, name) != value)
        changes.append(Change(other, 20 * (index + 1)))
    return changes


def _engine_options(config: SlimeConfig) -> list[list[Change]]:
    """The share of its GPUs, and more of them."""
    rollout = config.rollout
    shares = sorted(FRACTIONS, key=lambda share: abs(share - rollout.memory_fraction))
    more = _doubled(rollout.gpus_per_engine, rollout.gpus)
    return [
        [Change((("rollout.memory_fraction", share),), 1 + i) for i, share in enumerate(shares)],
        [Change((("rollout.gpus_per_engine", n),), 3 + 2 * i) for i, n in enumerate(more)],
    ]


def _doubled(number: int, most: int) -> list[int]:
    """Twice the number and four times, up to `most`."""
    return [n for n in (2 * number, 4 * number) if n <= most]
