"""The page of a rehearsal: what held, what did not, what a CPU replaced, and what is left for GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from sat_slime.report.page import Section, Strong, Table, section_of, write_page

FILE = "rehearsal.html"
MARKS = {"OK": "held", "NOTE": "note", "WARN": "warning", "FAIL": "failed"}
"""How a check's mark reads on the page."""


def write_rehearsal(found: Mapping[str, Any], folder: Path) -> Path:
    """Write the page of what `rehearsal.json` holds into its folder; returns its path."""
    checks, changes = pd.DataFrame(found["checks"]), found["changes"]
    failed = [check for check in found["checks"] if check["mark"] == "FAIL"]
    held = sum(check["mark"] == "OK" for check in found["checks"])
    tables = [
        Table(
            "checks",
            "Checks",
            "What the run's settings ask for, and what the rehearsal recorded.",
            checks,
            {
                "what": "",
                "mark": lambda row: Strong("failed") if row["mark"] == "FAIL" else MARKS[row["mark"]],
                "expected": lambda row: row["expected"],
                "found": lambda row: row["found"],
                "remark": lambda row: row["remark"].partition("\n")[0],
            },
            words=True,
        ),
        Table(
            "replaced",
            "What the rehearsal replaced",
            "All else is the run's own file.",
            pd.DataFrame(
                [(change["key"], _shown(change["was"]), _shown(change["now"]), change["why"]) for change in changes],
                columns=["setting", "the run's", "the rehearsal's", "why"],
            ),
            dict.fromkeys(("setting", "the run's", "the rehearsal's", "why"), ""),
            words=True,
        ),
        Table(
            "time",
            "Time",
            f"{sum(found['seconds'].values()) / 60:.1f} minutes.",
            pd.DataFrame(list(found["seconds"].items()), columns=["part", "seconds"]),
            {"part": "", "seconds": ".0f"},
        ),
    ]
    estimate = Section("estimate", "Time of the run itself", text="\n".join(found["time_of_the_run"]))
    words = f"Words: {found['words']}." if found["words"] else ""
    return write_page(
        folder / FILE,
        [*(part for table in tables for part in section_of(table)), estimate],
        title=f"Rehearsal of {found['name']}",
        subtitle=f"{found['method']} · {found['file']}",
        answer=[f"{held} checks held, {len(failed)} did not.", words, found["left"]],
        warnings=[
            f"{check['what']}: {check['found']}" + (f", expected {check['expected']}" if check["expected"] else "")
            for check in failed
        ],
        status="held" if found["held"] else "did not hold",
    ).path


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
