"""The page of slime's names: everything of slime that the plugin touches."""

from __future__ import annotations

from sat_slime.plugin.slime_names import MAIN, NEWEST, PARTS, V031, Form, Name

from .markdown import code, page, table

INTRODUCTION = """\
Every name of [slime](../compatibility.md) that the plugin touches. "Trees" are v0.3.1 and 624b824a8, where each name
is looked up by `tests/plugin/test_slime_names.py`. In the last column stands the commit of the file in which the
newest form was read; `called in` a file means that its callers were read and not itself; a dash, that it is gone or
not needed there. What was read is recorded, as signatures, in `tests/plugin/newest_slime.json`. Parameters are those
that the plugin gives or takes over; others have defaults. What stands in for a GPU ([slime on a
laptop](../slime-laptop.md)) replaces more, in processes of such a run alone; `plugin/cpu` has a reason for each."""


def slime_names() -> str:
    """The page."""
    blocks = [block for title, names in PARTS.items() for block in (f"## {title}", _table(names))]
    return page("Names of slime", INTRODUCTION, *blocks)


def _table(names: tuple[Name, ...]) -> str:
    head = ["below `slime`", "the plugin", "for", "trees", "newest"]
    return table(head, (_row(name, form) for name in names for form in name.forms))


def _row(name: Name, form: Form) -> list[str]:
    call = "" if form.parameters is None else f"({', '.join(form.parameters)})"
    trees = [version for version in (V031, MAIN) if version in form.seen]
    shown = "both" if len(trees) == 2 else ", ".join(trees) or "-"
    return [code(f"{form.module}.{form.name}{call}"), name.use, name.why, shown, form.seen.get(NEWEST, "-")]
