"""The design space as the code has it: the table of stabilizers, and one method in full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sat_slime.config import ConfigError
from sat_slime.config.method_section import MethodConfig, has_settings, key_of, section_name, section_of
from sat_slime.config.slime_checks import not_on_slime
from sat_slime.objective import (
    DENOMINATORS,
    PAPER_METHODS,
    Clip,
    Method,
    Row,
    Stabilizer,
    base_names,
    check_method,
    compose_method,
    method_names,
    named_method,
)
from sat_slime.objective.stabilizers import rows, switches

COLUMNS = ("unit", "discriminator", "constraint", "weight", "direction")
FAMILIES = {
    "clip": "Clips: beyond an interval a token keeps no gradient",
    "trust region": "Trust regions: they change the interval of a clip",
    "gate": "Gates: they drop tokens, beside a clip or in its place",
    "weight": "Weights: a factor on what the clip leaves",
    "penalty": "Penalties: a function of the ratio in place of the clip",
    "score": "Scores: a detached weight on A log π in place of the clip",
    "proximal policy": "Proximal policies: they make up the denominator",
    "replay": "Replays: the trainer's forward pass takes the engine's choices",
    "constraint": "Constraints: they bound the optimizer step in place of the clip",
    "optimizer": "Optimizer: the learning rate of a step",
}
"""The heading of each family, in the order of the table."""
LEGEND = """\
r = π / denominator, ρ its geometric mean over the response, d = log r
π: the policy in training, μ: the rollout engine's, both on the sampled token"""


def show_table(console: Console) -> None:
    """Print the stabilizers by family, then the names of methods and how others are written."""
    sections = _by_family()
    widths = _widths(console.width, [cells for rows in sections.values() for cells in rows])
    for index, (family, cells) in enumerate(sections.items()):
        console.print(_section(FAMILIES.get(family, family), cells, widths, with_head=index == 0))
    plain: Any = {"markup": False, "highlight": False}
    console.print(f"{LEGEND}\n", **plain)
    console.print(f"Named methods, the first {len(PAPER_METHODS)} of them the paper's:", **plain)
    console.print(_words(method_names()))
    beside = switches()
    console.print("\nAny base with what stands beside it is a method too, as sat-gspo-mis-geo-r3:", **plain)
    console.print(_words([*(f"{kind.name}-" for kind in beside if kind.place == "prefix"), "BASE",
                          *(f"-{kind.name}" for kind in beside if kind.place == "suffix")]))  # fmt: skip
    console.print(
        "in this order; a base may be left out where it is grpo.\n\n"
        "Where to start: grpo, the most accurate at small lags in our runs; docs/choosing.md says what to take at "
        "which lag. sat-gspo-r3 is the paper's method.\n\n"
        "  sat-slime methods NAME               one in full, with its parameters\n"
        "  sat-slime launch FILE --method NAME  run one\n"
        "  sat-slime replay DUMP --methods all  what each would have done to a dump",
        **plain,
    )


def _by_family() -> dict[str, list[tuple[str, ...]]]:
    """Return (name, unit, what it is judged by, weight) of each stabilizer, by family."""
    table = rows()
    named: dict[tuple[str, str], list[str]] = {}
    for base in map(compose_method, base_names()):
        part = base.base.part if base.base.part in table else base.parts[0]  # GRPO's row is PPO's
        named.setdefault((base.family, part), []).append(base.name)
    for kind in switches():
        named[kind.family, kind.name] = [_place(kind)]
    sections: dict[str, list[tuple[str, ...]]] = {family: [] for family in FAMILIES}
    for (family, part), names in named.items():
        row = table[part]
        sections.setdefault(family, []).append((", ".join(names), row.unit, row.discriminator, row.weight))
    return {family: cells for family, cells in sections.items() if cells}


def _widths(room: int, cells: list[tuple[str, ...]]) -> list[int]:
    """Return the widths of the four columns: names and units as wide as they are, the other two as wide as fits, words
    broken."""
    name, unit, judged, weight = (max(len(row[column]) for row in cells) for column in range(4))
    unit = unit if room >= 100 else min(unit, 14)
    left = max(room - name - unit - 6, 40)
    judged = min(judged, max(left - weight, left * 3 // 5))
    return [name, unit, judged, min(weight, left - judged)]


def _section(heading: str, cells: list[tuple[str, ...]], widths: list[int], with_head: bool) -> Group:
    table = Table(box=None, pad_edge=False, header_style="dim", show_header=with_head)
    for title, width in zip(("", "unit", "judged by", "weight"), widths, strict=True):
        table.add_column(title, width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    return Group(Text(heading, style="bold"), table, Text())


def _words(words: list[str]) -> Padding:
    """Return words with blanks between them, indented; none is broken at its hyphens."""
    return Padding(Text(" ".join(words)), (0, 0, 0, 2))


def _place(kind: type[Stabilizer]) -> str:
    return f"{kind.name}-BASE" if kind.place == "prefix" else f"BASE-{kind.name}"


def show_method(name: str, console: Console) -> None:
    """Print a method, or what is switched on beside one. Raises ConfigError where there is none of that name."""
    beside = {kind.name: kind for kind in switches()}
    if name in beside:
        kind = beside[name]
        console.print(Group(_title(name, kind.row.title), _row(kind.row)))
        key = f"method.{key_of(kind)}" + (".enabled" if has_settings(kind) else "")
        console.print(_pairs([("switched on", f"{key}: true, or {_place(kind)} as the method's name")]))
        _show_parameters(console, list(_fields(f"method.{key_of(kind)}", kind, kind())) if has_settings(kind) else [])
        return
    try:
        method = named_method(name)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    console.print(_title(name, " + ".join(row.title for row in method.rows)))
    try:
        check_method(method)
    except ValueError as error:
        console.print(_pairs([("refused", str(error))]))
        return
    for row in method.rows:
        if len(method.rows) > 1:
            console.print(Text(f"\n{row.title}", style="bold"))
        console.print(_row(row))
    console.print()
    console.print(_pairs(_whole(method)))
    _show_parameters(console, list(_parameters(method)))


def _title(name: str, title: str) -> Text:
    return Text.assemble((name, "bold"), f"  {title}")


def _row(row: Row) -> RenderableType:
    return _pairs(
        [
            ("formula", row.formula),
            ("source", row.source),
            *((column, getattr(row, column)) for column in COLUMNS),
            ("needs", row.needs),
            ("not with", row.excludes),
        ]
    )


def _whole(method: Method) -> list[tuple[str, str]]:
    """Return what is true of the method as a whole."""
    return [
        ("denominator", f"{method.denominator}: {DENOMINATORS[method.denominator]}"),
        ("runs on", "embedded" if not_on_slime(method) else "embedded, slime"),
    ]


def _pairs(pairs: list[tuple[str, str]]) -> Padding:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for key, value in pairs:
        table.add_row(key, Text(value))
    return Padding(table, (0, 0, 0, 2))


def _parameters(method: Method) -> Iterator[tuple[str, str, str]]:
    """Yield (key, default, meaning) of what a configuration can set."""
    if method.trust_region:
        yield from _fields("method.clip", Clip, method.trust_region)
    # SAT first: it is the clip's
    for stabilizer in sorted(method.stabilizers, key=lambda stabilizer: stabilizer.place != "prefix"):
        yield from _fields(f"method.{section_name(method, stabilizer)}", type(stabilizer), stabilizer)
    meaning = MethodConfig.model_fields["denominator"].description or ""
    yield "method.denominator", method.denominator, meaning.replace("`", "")


def _fields(section: str, kind: type[Any], settings: Clip | Stabilizer) -> Iterator[tuple[str, str, str]]:
    unread = settings.unread if isinstance(settings, Stabilizer) else ()
    for field, info in section_of(kind).model_fields.items():
        if field != "enabled" and field not in unread:
            value = getattr(settings, field)
            yield f"{section}.{field}", "unset" if value is None else str(value), info.description or ""


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
