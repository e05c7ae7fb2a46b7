"""The pages of the methods: the table of all, and for each room of the package its stabilizers in full."""

from __future__ import annotations

from collections.abc import Iterator

from sat_slime.config.method_section import has_settings, key_of, section_of
from sat_slime.objective import Row, Stabilizer, compose_method, method_names
from sat_slime.objective.method import Method, base_names
from sat_slime.objective.metrics import metrics_of
from sat_slime.objective.stabilizers import STABILIZERS, switches

from .markdown import code, page, table
from .settings import settings_table

ROOMS = {
    "clips": (
        "Clips and SAT",
        "A clip takes the gradient of tokens whose ratio has left an interval. SAT contracts that interval.",
    ),
    "gates": ("Gates", "A gate drops tokens, or all tokens of a response, beside a clip or in its place."),
    "weights": ("Weights", "A weight is a factor on what the clip leaves of a token."),
    "scores": ("Scores", "A score form is w A log π with a detached weight w, in place of the clip."),
    "penalties": ("Penalties", "A penalty is a smooth function of the ratio, in place of the clip."),
    "runtime": (
        "Around the surrogate",
        "What happens in the forward pass, in the denominator, or in the optimizer's step.",
    ),
}
"""Title and introduction of each room's page, by the folder of its stabilizers."""
SYMBOLS = """\
r = π / denominator, ρ its geometric mean over the response, d = log r, A the advantage; π is the policy in training,
μ the rollout engine's, both on the sampled token; k = π_proximal / μ, π_proximal the trainer's policy that is held
against μ."""
INTRODUCTION = f"""\
Every base that a method can be built on, then what is switched on beside one: `sat-BASE` before it, the others behind
it, in this order. Each name leads to its settings, its source, and what it goes with.

{SYMBOLS}

`ratio` is what a base's r is of, `interval` whether it has PPO's interval,
[`method.clip`](configuration/method.md#methodclip). [Choosing](../choosing.md) says when to take which,
[the objective](../objective.md) how they become a loss, [sources](../internals/sources.md) what was run beside them."""


def overview() -> str:
    """The page of all methods."""
    head = ["name", "ratio", "denominator", "interval", "formula"]
    rows = [*(_base_row(compose_method(name)) for name in base_names()), *map(_switch_row, switches())]
    named = ["## Named methods", f"The paper's thirteen first: {', '.join(map(code, method_names()))}."]
    return page("Methods", INTRODUCTION, "## Stabilizers", table(head, rows), *named)


def _base_row(method: Method) -> list[str]:
    interval = "clip" if method.trust_region else "none"
    name = _link(method.name, type(method.base))
    return [name, method.ratio, method.denominator, interval, method.rows[-1].formula]


def _switch_row(kind: type[Stabilizer]) -> list[str]:
    return [_link(_written(kind), kind), "", "", "", kind.row.formula]


def _link(name: str, kind: type[Stabilizer]) -> str:
    return f"[`{name}`](methods/{_room(kind)}.md#{kind.name})"


def _written(kind: type[Stabilizer]) -> str:
    """How a method's name has it."""
    return {"base": "{}", "prefix": "{}-BASE", "suffix": "BASE-{}"}[kind.place].format(kind.name)


def _room(kind: type[Stabilizer]) -> str:
    return kind.__module__.split(".")[-2]


def room(name: str) -> str:
    """The page of one room."""
    title, introduction = ROOMS[name]
    blocks = [block for kind in STABILIZERS.values() if _room(kind) == name for block in _stabilizer(kind)]
    return page(title, f"{introduction} [All methods](../methods.md).\n\n{SYMBOLS}", *blocks)


def _stabilizer(kind: type[Stabilizer]) -> Iterator[str]:
    yield f"## {kind.name}"
    own_row = "row" in vars(kind)
    title = kind.row.title if own_row else kind.name.upper()
    yield f"**{title}**, written {_names(kind)}. {' '.join((kind.__doc__ or '').split())}"
    if own_row:  # GRPO's is PPO's, as its docstring says
        yield _row(kind.row)
    for variant in kind.variants:
        name = code(f"{kind.name}-{variant.name}")
        yield f"**{variant.row.title}**, written {name}, is it with {_settings(variant.settings)}:"
        yield _row(variant.row)
    if metrics := [name for metric in metrics_of(kind) for name in metric.names]:
        yield f"It measures {', '.join(map(code, metrics))} ([metrics](../metrics.md))."
    if has_settings(kind):
        yield f"Settings, below `method.{key_of(kind)}`:"
        yield settings_table(section_of(kind), leave_out=["enabled"], up="../../")


def _names(kind: type[Stabilizer]) -> str:
    name = code(_written(kind))
    if kind.place == "base":
        return name
    return f"{name}, switched on by `method.{key_of(kind)}: true`"


def _settings(settings: object) -> str:
    assert isinstance(settings, dict)
    return ", ".join(code(f"{name}: {value}") for name, value in settings.items())


def _row(row: Row) -> str:
    """A row of the design space, a line for each of its columns."""
    pairs = [
        ("formula", row.formula),
        ("unit", row.unit),
        ("judged by", row.discriminator),
        ("constraint", row.constraint),
        ("weight", row.weight),
        ("direction", row.direction),
        ("needs", row.needs),
        ("not with", row.excludes),
        ("source", row.source),
    ]
    return table(["", ""], pairs)
