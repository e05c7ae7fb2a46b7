"""The pages of the methods: the table of all, and for each module of the objective its stabilizers in full."""

from __future__ import annotations

from collections.abc import Iterator

from sat_slime.config.method_section import has_settings, key_of, section_of
from sat_slime.objective import Stabilizer, compose_method, method_names
from sat_slime.objective.method import STABILIZERS, VARIANTS
from sat_slime.objective.metrics import metrics_of

from .markdown import code, page, table
from .settings import settings_table

ROOMS = {
    "clips": ("Clips", "A clip takes the gradient of tokens whose ratio has left an interval."),
    "sat": ("SAT", "SAT contracts the interval of a clip."),
    "gates": ("Gates", "A gate drops tokens, or all tokens of a response, beside a clip or in its place."),
    "weights": ("Weights", "A weight is a factor on what the clip leaves of a token."),
    "scores": ("Scores", "A score form is w A log π with a weight w without gradient, in place of the clip."),
    "penalties": ("Penalties", "A penalty is a smooth function of the ratio, in place of the clip."),
    "method": ("Around the surrogate", "In the forward pass, the denominator, or the optimizer's step."),
}
"""Title and introduction of each page, by the module of its stabilizers."""
SYMBOLS = """\
r = π / denominator, rho its geometric mean over the response, d = log r, A the advantage; π is the policy in training,
μ the rollout engine's, both on the sampled token; k = π_proximal / μ, π_proximal the trainer's policy that is compared
with μ."""
INTRODUCTION = f"""\
Every base that a method can be built on, then what is switched on beside one: `sat-BASE` before it, the others behind
it, in this order. Each name leads to its settings.

{SYMBOLS}

`ratio` is what a base's r is of, `interval` whether it has PPO's interval,
[`method.clip`](configuration/method.md#methodclip). [Choosing](../choosing.md) says when to take which,
[the objective](../objective.md) how they become a loss, [sources](../internals/sources.md) what was run beside them."""


def overview() -> str:
    """The page of all methods."""
    rows = [_overview_row(kind) for kind in STABILIZERS.values()]
    named = ["## Named methods", f"The paper's thirteen first: {', '.join(map(code, method_names()))}."]
    head = ["name", "ratio", "denominator", "interval", "formula and source"]
    return page("Methods", INTRODUCTION, "## Stabilizers", table(head, rows), *named)


def _overview_row(kind: type[Stabilizer]) -> list[str]:
    name = f"[`{_written(kind)}`](methods/{_room(kind)}.md#{kind.name})"
    if kind.place != "base":
        return [name, "", "", "", _sentence(kind)]
    method = compose_method(kind.name)
    return [name, method.ratio, method.denominator, "clip" if method.clip else "none", _sentence(kind)]


def _sentence(kind: type[Stabilizer]) -> str:
    return " ".join((kind.__doc__ or "").split()).replace("|", "\\|")


def _written(kind: type[Stabilizer]) -> str:
    """How a method's name has it."""
    return {"base": "{}", "prefix": "{}-BASE", "suffix": "BASE-{}"}[kind.place].format(kind.name)


def _room(kind: type[Stabilizer]) -> str:
    return kind.__module__.rpartition(".")[2]


def room(name: str) -> str:
    """The page of one module."""
    title, introduction = ROOMS[name]
    blocks = [block for kind in STABILIZERS.values() if _room(kind) == name for block in _stabilizer(kind)]
    return page(title, f"{introduction} [All methods](../methods.md).\n\n{SYMBOLS}", *blocks)


def _stabilizer(kind: type[Stabilizer]) -> Iterator[str]:
    yield f"## {kind.name}"
    switched = "" if kind.place == "base" else f", switched on by `method.{key_of(kind)}: true`"
    yield f"Written {code(_written(kind))}{switched}. {' '.join((kind.__doc__ or '').split())}"
    for variant, (stem, settings) in VARIANTS.items():
        if stem == kind.name:
            yield f"{code(variant)} is it with {', '.join(code(f'{key}: {value}') for key, value in settings.items())}."
    if metrics := [name for metric in metrics_of(kind) for name in metric.names]:
        yield f"It measures {', '.join(map(code, metrics))} ([metrics](../metrics.md))."
    if has_settings(kind):
        yield f"Settings, below `method.{key_of(kind)}`:"
        yield settings_table(section_of(kind), leave_out=["enabled"], up="../../")
