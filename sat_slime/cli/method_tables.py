"""The design space as the code has it: the table of stabilizers, and one method in full."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sat_slime.config import ConfigError
from sat_slime.config.method import build_method, method_switches
from sat_slime.config.schema import MethodConfig, Section
from sat_slime.config.slime_checks import not_on_slime
from sat_slime.objective import (
    DENOMINATORS,
    SAT,
    STABILIZERS,
    Method,
    Stabilizer,
    base_names,
    check_method,
    compose_method,
    method_names,
    named_method,
)

SWITCHES = {"sat": "method.sat.enabled", "tis": "method.tis.enabled", "r3": "method.r3", "topp": "method.top_p_replay"}
"""What goes beside a base, by its part of a method's name, and where it is switched on."""
COLUMNS = ("unit", "discriminator", "constraint", "weight", "direction")
LEGEND = """\
r = π / (policy below the ratio), ρ its geometric mean over the response, d = log r
π: the policy in training, μ: the rollout engine's, both on the sampled token"""


def show_table(console: Console) -> None:
    """The paper's table of stabilizers, then the names."""
    bases: dict[str, list[str]] = {}
    for base in base_names():
        bases.setdefault(compose_method(base).components[-1], []).append(base)
    console.print(_table("base", [(", ".join(names), STABILIZERS[row]) for row, names in bases.items()]))
    console.print()
    console.print(_table("beside it", [(_place(name), STABILIZERS[name]) for name in SWITCHES]))
    console.print(f"\n{LEGEND}", markup=False, highlight=False)
    names = Text(" ".join(method_names()))
    console.print(Group(Text("\nNamed methods:"), Padding(names, (0, 0, 0, 2))))
    console.print(
        "\nAny other combination is written sat-BASE-tis-r3-topp. One in full, with its parameters:\n"
        "  sat-slime methods NAME\n"
        "Run one:\n"
        "  sat-slime launch FILE --method NAME",
        markup=False,
        highlight=False,
    )


def _place(name: str) -> str:
    return f"{name}-BASE" if name == "sat" else f"BASE-{name}"


def _table(heading: str, rows: list[tuple[str, Stabilizer]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (heading, *COLUMNS):
        table.add_column(column, no_wrap=column == heading)
    for name, row in rows:
        table.add_row(name, *(Text(getattr(row, column)) for column in COLUMNS))
    return table


def show_method(name: str, console: Console) -> None:
    """A method, or what is switched on beside one. Raises ConfigError where there is none of that name."""
    if name in SWITCHES:
        console.print(Group(_title(name, STABILIZERS[name].title), _row(STABILIZERS[name])))
        console.print(_pairs([("switched on", f"{SWITCHES[name]}: true, or {_place(name)} as the method's name")]))
        _show_parameters(console, list(_fields(MethodConfig(), name)) if name in MethodConfig.model_fields else [])
        return
    try:
        method = named_method(name)
    except ValueError as error:
        raise ConfigError([f"{error}; alone: {', '.join(SWITCHES)}"]) from None
    config = MethodConfig(**method_switches(name))
    rows = [STABILIZERS[component] for component in method.components]
    console.print(_title(name, " + ".join(row.title for row in rows)))
    try:
        check_method(method)
    except ValueError as error:
        console.print(_pairs([("refused", str(error))]))
        return
    for row in rows:
        if len(rows) > 1:
            console.print(Text(f"\n{row.title}", style="bold"))
        console.print(_row(row))
    console.print()
    console.print(_pairs(_whole(method)))
    _show_parameters(console, list(_parameters(config, method)))


def _title(name: str, title: str) -> Text:
    return Text.assemble((name, "bold"), f"  {title}")


def _row(row: Stabilizer) -> RenderableType:
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


def _parameters(config: MethodConfig, method: Method) -> Iterator[tuple[str, str, str]]:
    """(key, default, meaning) of what a configuration can set."""
    sections = ["clip"] if method.trust_region else []
    sections += ["sat"] if isinstance(method.trust_region, SAT) else []
    sections += [config.base] if config.base in MethodConfig.model_fields else []
    sections += ["tis"] if method.tis else []
    for section in sections:
        yield from _fields(config, section)
    meaning = MethodConfig.model_fields["denominator"].description or ""
    yield "method.denominator", build_method(config).denominator, meaning.replace("`", "")


def _fields(config: MethodConfig, name: str) -> Iterator[tuple[str, str, str]]:
    section = getattr(config, name)
    if not isinstance(section, Section):
        return
    for field, info in type(section).model_fields.items():
        if field != "enabled" and not _of_other_form(section, field):
            value = getattr(section, field)
            yield f"method.{name}.{field}", "unset" if value is None else str(value), info.description or ""


def _of_other_form(section: Section, field: str) -> bool:
    """DPPO has a threshold for each divergence."""
    return field in ("delta", "delta_kl") and (getattr(section, "divergence", "tv") == "kl") != (field == "delta_kl")


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
