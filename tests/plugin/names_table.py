"""Makes the tables of docs/compatibility.md out of plugin/slime_names.py.

python tests/plugin/names_table.py      writes them into the page, between its two marks
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sat_slime.plugin.slime_names import MAIN, NEWEST, PARTS, V031, Form, Name

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- names: written by tests/plugin/names_table.py -->\n", "<!-- names: end -->\n"


def table() -> str:
    return "\n".join(_lines()).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    for title, names in PARTS.items():
        yield from (
            f"**{title}**",
            "",
            "| below `slime` | the plugin | for | trees | newest |",
            "|---|---|---|---|---|",
        )
        yield from (_row(name, form) for name in names for form in name.forms)
        yield ""


def _row(name: Name, form: Form) -> str:
    call = "" if form.parameters is None else f"({', '.join(form.parameters)})"
    trees = [version for version in (V031, MAIN) if version in form.seen]
    shown = "both" if len(trees) == 2 else ", ".join(trees) or "-"
    return f"| `{form.module}.{form.name}{call}` | {name.use} | {name.why} | {shown} | {form.seen.get(NEWEST, '-')} |"


def main() -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
