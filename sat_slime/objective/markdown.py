"""`python -m sat_slime.objective.markdown [DOCS]` writes the tables of the documentation that the code has: the methods
in objective.md, the metrics in run-folder.md. Each stands between two comments that name it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from .method import Method, base_names, compose_method
from .metric import Metric
from .metrics import EVALUATION, run_metrics
from .stabilizer import Stabilizer
from .stabilizers import switches

REDUCTIONS = {"mean": "mean", "sum": "sum", "min": "least", "max": "largest", "step": ""}


def methods_table() -> str:
    """A row for each base, then one for each stabilizer that is switched on beside a base."""
    head = ["name", "ratio", "denominator", "interval", "formula", "settings and defaults"]
    rows = [_method_row(compose_method(name)) for name in base_names()]
    rows += [_switch_row(kind) for kind in switches()]
    return _table(head, rows)


def _method_row(method: Method) -> list[str]:
    interval, formula = "clip" if method.trust_region else "none", method.rows[-1].formula
    return [_code(method.name), method.ratio, method.denominator, interval, formula, _settings(method.base)]


def _switch_row(kind: type[Stabilizer]) -> list[str]:
    name = f"{kind.name}-BASE" if kind.place == "prefix" else f"BASE-{kind.name}"
    return [_code(name), "", "", "", kind.row.formula, _settings(kind())]


def _settings(stabilizer: Stabilizer) -> str:
    fields = [field.name for field in dataclasses.fields(stabilizer)]  # type: ignore[arg-type]
    return ", ".join(f"`{name}` {getattr(stabilizer, name)}" for name in fields if name not in stabilizer.unread)


def metrics_table(metrics: Iterable[Metric]) -> str:
    """A row for each entry of the table of metrics."""
    head = ["key", "unit", "over micro-batches", "meaning"]
    return _table(head, [_metric_row(metric) for metric in metrics])


def _metric_row(metric: Metric) -> list[str]:
    names = metric.names if metric.pattern.startswith("{") else [metric.pattern]
    runtime = {"embedded": " Embedded runs alone.", "slime": " On slime alone."}.get(metric.runtime or "", "")
    slime = f" slime: {', '.join(map(_code, metric.slime))}." if metric.slime else ""
    keys = ", ".join(map(_code, names))
    return [keys, metric.unit, REDUCTIONS[metric.reduction], f"{metric.meaning}{runtime}{slime}"]


def _code(name: str) -> str:
    return f"`{name}`"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "objective.md": {"methods": methods_table},
    "run-folder.md": {
        "metrics": lambda: metrics_table(run_metrics()),
        "evaluation": lambda: metrics_table(EVALUATION),
    },
}
"""Tables of each file, by the name in their comments."""


def with_tables(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """The text of a file with its tables written anew. Raises ValueError where a comment is missing."""
    for name, table in tables.items():
        begin, end = f"<!-- table: {name} -->\n", f"\n<!-- end: {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"there is no place for the table {name!r}: write {begin.strip()} and {end.strip()}")
        text = f"{before}{begin}{table()}{end}{after}"
    return text


def main(folder: Path) -> None:
    """Write the tables of all files in a folder."""
    for name, tables in TABLES.items():
        path = folder / name
        path.write_text(with_tables(path.read_text(encoding="utf-8"), tables), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
