"""The design space as the code has it: the stabilizers with formula and source, and one method in full."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
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
        console.print(heading, style="bold", markup=False)
        of_room = (kind for kind in kinds if kind.__module__.rpartition(".")[2] == room)
        console.print(_grid(((f"{_written(kind):{width}}", _sentence(kind)) for kind in of_room), indent=0))
        console.print()
    suffixes = (f"-{kind.name}" for kind in switches() if kind.place == "suffix")
    for text in (
        f"{LEGEND}\n",
        f"Named methods, the first {len(PAPER_METHODS)} of them the paper's:",
        Padding(Text(" ".join(method_names())), (0, 0, 0, 2)),
        "\nAny base with what stands beside it is a method too, as sat-gspo-mis-geo-r3:",
        Padding(Text(" ".join(["sat-", "BASE", *suffixes])), (0, 0, 0, 2)),
        "in this order; a base may be left out where it is grpo.\n\n"
        "Where to start: grpo, with the radius for your lag; sat-gspo where the base is gspo at 0.2: "
        "docs/choosing.md. sat-gspo-r3 is the paper's method.\n\n"
        "  sat-slime methods NAME               one in full, with its parameters\n"
        "  sat-slime launch FILE --method NAME  run one\n"
        "  sat-slime replay DUMP --methods all  what each would have done to a dump",
    ):
        console.print(text, markup=False, highlight=False)


def show_method(name: str, console: Console) -> None:
    """Print a method, or what is switched on beside one. Raises ConfigError where there is none of that name."""
    if kind := {kind.name: kind for kind in switches()}.get(name):
        key = f"method.{key_of(kind)}"
        console.print(Text.assemble((name, "bold"), f"  {_sentence(kind)}"))
        console.print(_grid([("switched on", f"{key}: true, or {_written(kind)} as the method's name")]))
        settings: list[tuple[str, Clip | Stabilizer]] = [(key, kind())]
        denominator = None
    else:
        try:
            method = named_method(name)
        except ValueError as error:
            raise ConfigError([str(error)]) from None
        console.print(Text.assemble((name, "bold"), f"  {method.label}"))
        try:
            check_method(method)
        except ValueError as error:
            console.print(_grid([("refused", str(error))]))
            return
        facts = [(stabilizer.title(), _sentence(type(stabilizer))) for stabilizer in method.stabilizers]
        facts += [
            ("denominator", f"{method.denominator}: {DENOMINATORS[method.denominator]}"),
            ("needs", ", ".join(["rollout log-probs", *method.needs])),
            ("runs on", "slime" if method.top_p_replay else "lab, slime"),
        ]
        console.print(_grid(facts))
        settings = [("method.clip", method.clip)] if method.clip else []
        # SAT first: it is the clip's
        ordered = sorted(method.stabilizers, key=lambda stabilizer: stabilizer.place != "prefix")
        settings += [(f"method.{section_name(method, stabilizer)}", stabilizer) for stabilizer in ordered]
        denominator = method.denominator
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("parameter", "default", "meaning"):
        table.add_column(heading, no_wrap=heading != "meaning")
    for section, values in settings:
        for field, meaning in meanings(type(values)).items():
            if field not in getattr(values, "unread", ()):
                value = getattr(values, field)
                default = "unset" if value is None else str(value)
                table.add_row(f"{section}.{field}", default, Text(" ".join(meaning.split())))
    if denominator:
        meaning = " ".join(meanings(MethodConfig)["denominator"].replace("`", "").split())
        table.add_row("method.denominator", denominator, meaning)
    if table.row_count:
        console.print()
        console.print(table)


def _written(kind: type[Stabilizer]) -> str:
    variants = [name for name, (stem, _) in VARIANTS.items() if stem == kind.name]
    forms = {"base": ", ".join([kind.name, *variants]), "prefix": f"{kind.name}-BASE"}
    return forms.get(kind.place, f"BASE-{kind.name}")


def _sentence(kind: type[Stabilizer]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _grid(rows: Iterable[tuple[str, str]], indent: int = 2) -> Padding:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim" if indent else "", no_wrap=True)
    table.add_column()
    for key, value in rows:
        table.add_row(key, Text(value))
    return Padding(table, (0, 0, 0, indent))
