"""The design space as the code has it: the table of stabilizers, and one method in full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sat_slime.config import ConfigError
from sat_slime.config.method_section import MethodConfig, has_settings, key_of, section_of
from sat_slime.config.on_slime import not_on_slime
from sat_slime.objective import (
    DENOMINATORS,
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
from sat_slime.objective.method import ANY_NAME
from sat_slime.objective.stabilizers import rows, switches

COLUMNS = ("unit", "discriminator", "constraint", "weight", "direction")
LEGEND = """\
r = π / denominator, ρ its geometric mean over the response, d = log r
π: the policy in training, μ: the rollout engine's, both on the sampled token"""


def show_table(console: Console) -> None:
    """The paper's table of stabilizers, then the names."""
    table = rows()
    named: dict[str, list[str]] = {}
    for base in base_names():
        named.setdefault(compose_method(base).parts[-1], []).append(base)
    console.print(_table("base", [(", ".join(names), table[part]) for part, names in named.items()]))
    console.print()
    console.print(_table("beside it", [(_place(kind), kind.row) for kind in switches()]))
    console.print(f"\n{LEGEND}", markup=False, highlight=False)
    names = Text(" ".join(method_names()))
    console.print(Group(Text("\nNamed methods:"), Padding(names, (0, 0, 0, 2))))
    console.print(
        f"\nAny other combination is written {ANY_NAME}. One in full, with its parameters:\n"
        "  sat-slime methods NAME\n"
        "Run one:\n"
        "  sat-slime launch FILE --method NAME",
        markup=False,
        highlight=False,
    )


def _place(kind: type[Stabilizer]) -> str:
    return f"{kind.name}-BASE" if kind.place == "prefix" else f"BASE-{kind.name}"


def _table(heading: str, rows: list[tuple[str, Row]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (heading, *COLUMNS):
        table.add_column(column, no_wrap=column == heading)
    for name, row in rows:
        table.add_row(name, *(Text(getattr(row, column)) for column in COLUMNS))
    return table


def show_method(name: str, console: Console) -> None:
    """A method, or what is switched on beside one. Raises ConfigError where there is none of that name."""
    beside = {kind.name: kind for kind in switches()}
    if name in beside:
        kind = beside[name]
        console.print(Group(_title(name, kind.row.title), _row(kind.row)))
        key = f"method.{key_of(kind)}" + (".enabled" if has_settings(kind) else "")
        console.print(_pairs([("switched on", f"{key}: true, or {_place(kind)} as the method's name")]))
        _show_parameters(console, list(_fields(f"method.{name}", kind, kind())) if has_settings(kind) else [])
        return
    try:
        method = named_method(name)
    except ValueError as error:
        raise ConfigError([f"{error}; alone: {', '.join(beside)}"]) from None
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
    """What is true of the method as a whole."""
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
    """(key, default, meaning) of what a configuration can set."""
    if method.trust_region:
        yield from _fields("method.clip", Clip, method.trust_region)
    # SAT first: it is the clip's
    for one in sorted(method.stabilizers, key=lambda one: one.place != "prefix"):
        section = "settings" if one is method.base and not method.base_is_ours else key_of(type(one))
        yield from _fields(f"method.{section}", type(one), one)
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
