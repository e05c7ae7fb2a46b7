"""The design space as the code has it: the stabilizers with formula and source, and one method in full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sat_slime.config import ConfigError
from sat_slime.config.method_section import MethodConfig, key_of, section_name
from sat_slime.config.section import meanings
from sat_slime.objective import (
    DENOMINATORS,
    PAPER_METHODS,
    Clip,
    Method,
    Stabilizer,
    check_method,
    method_names,
    named_method,
)
from sat_slime.objective.method import VARIANTS, bases, switches

ROOMS = {
    "clips": "Clips: beyond an interval a token keeps no gradient; and what sets the interval",
    "sat": "SAT: it contracts the interval of a clip",
    "gates": "Gates: they drop tokens, beside a clip or in its place",
    "weights": "Weights: a factor on what the clip leaves",
    "penalties": "Penalties: a function of the ratio in place of the clip",
    "scores": "Scores: a weight on A log π, without gradient, in place of the clip",
    "method": "Around the loss: denominator, forward pass, optimizer step",
}
"""The heading of each of the objective's modules, in the order of the table."""
LEGEND = """\
r = π / denominator, rho its geometric mean over the response, d = log r, k = π_proximal / μ
π: the policy in training, μ: the rollout engine's, both on the sampled token"""


def show_table(console: Console) -> None:
    """Print the stabilizers, then the names of methods and how others are written."""
    kinds = [*bases(), *switches()]
    width = max(len(_written(kind)) for kind in kinds)
    for room, heading in ROOMS.items():
        table = Table.grid(padding=(0, 2))
        table.add_column(width=width)
        table.add_column()
        for kind in kinds:
            if kind.__module__.rpartition(".")[2] == room:
                table.add_row(Text(_written(kind)), Text(_sentence(kind)))
        console.print(Group(Text(heading, style="bold"), table, Text()))
    plain: Any = {"markup": False, "highlight": False}
    console.print(f"{LEGEND}\n", **plain)
    console.print(f"Named methods, the first {len(PAPER_METHODS)} of them the paper's:", **plain)
    console.print(_words(method_names()))
    console.print("\nAny base with what stands beside it is a method too, as sat-gspo-mis-geo-r3:", **plain)
    console.print(_words(["sat-", "BASE", *(f"-{kind.name}" for kind in switches() if kind.place == "suffix")]))
    console.print(
        "in this order; a base may be left out where it is grpo.\n\n"
        "Where to start: grpo, with the radius for your lag; sat-gspo where the base is gspo at 0.2: "
        "docs/choosing.md. sat-gspo-r3 is the paper's method.\n\n"
        "  sat-slime methods NAME               one in full, with its parameters\n"
        "  sat-slime launch FILE --method NAME  run one\n"
        "  sat-slime replay DUMP --methods all  what each would have done to a dump",
        **plain,
    )


def _written(kind: type[Stabilizer]) -> str:
    variants = [name for name, (stem, _) in VARIANTS.items() if stem == kind.name]
    return {"base": ", ".join([kind.name, *variants]), "prefix": f"{kind.name}-BASE"}.get(
        kind.place, f"BASE-{kind.name}"
    )


def _sentence(kind: type[Stabilizer]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _words(words: list[str]) -> Padding:
    """Return words with blanks between them, indented; none is broken at its hyphens."""
    return Padding(Text(" ".join(words)), (0, 0, 0, 2))


def show_method(name: str, console: Console) -> None:
    """Print a method, or what is switched on beside one. Raises ConfigError where there is none of that name."""
    beside = {kind.name: kind for kind in switches()}
    if name in beside:
        kind = beside[name]
        key = f"method.{key_of(kind)}"
        console.print(Text.assemble((name, "bold"), f"  {_sentence(kind)}"))
        console.print(_pairs([("switched on", f"{key}: true, or {_written(kind)} as the method's name")]))
        _show_parameters(console, list(_fields(key, kind())))
        return
    try:
        method = named_method(name)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    console.print(Text.assemble((name, "bold"), f"  {method.label}"))
    try:
        check_method(method)
    except ValueError as error:
        console.print(_pairs([("refused", str(error))]))
        return
    runs_on = "slime" if method.top_p_replay else "lab, slime"
    console.print(
        _pairs(
            [
                *((stabilizer.title(), _sentence(type(stabilizer))) for stabilizer in method.stabilizers),
                ("denominator", f"{method.denominator}: {DENOMINATORS[method.denominator]}"),
                ("needs", ", ".join(["rollout log-probs", *method.needs])),
                ("runs on", runs_on),
            ]
        )
    )
    _show_parameters(console, list(_parameters(method)))


def _pairs(pairs: list[tuple[str, str]]) -> Padding:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for key, value in pairs:
        table.add_row(key, Text(value))
    return Padding(table, (0, 0, 0, 2))


def _parameters(method: Method) -> Iterator[tuple[str, str, str]]:
    """Yield (key, default, meaning) of what a configuration can set."""
    if method.clip:
        yield from _fields("method.clip", method.clip)
    # SAT first: it is the clip's
    for stabilizer in sorted(method.stabilizers, key=lambda stabilizer: stabilizer.place != "prefix"):
        yield from _fields(f"method.{section_name(method, stabilizer)}", stabilizer)
    yield "method.denominator", method.denominator, meanings(MethodConfig)["denominator"].replace("`", "")


def _fields(section: str, settings: Clip | Stabilizer) -> Iterator[tuple[str, str, str]]:
    unread = settings.unread if isinstance(settings, Stabilizer) else ()
    for name, meaning in meanings(type(settings)).items():
        if name not in unread:
            value = getattr(settings, name)
            yield f"{section}.{name}", "unset" if value is None else str(value), meaning


def _show_parameters(console: Console, parameters: list[tuple[str, str, str]]) -> None:
    if not parameters:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("parameter", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    for key, value, meaning in parameters:
        table.add_row(key, value, Text(" ".join(meaning.split())))
    console.print()
    console.print(table)
