"""The page of a rehearsal: what held, what did not, what a CPU replaced, and what is left for GPUs."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sat_slime.report.page import Page, Sheet, Strong, warning_box

FILE = "rehearsal.html"
MARKS = {"OK": "held", "NOTE": "note", "WARN": "warning", "FAIL": "failed"}
"""How a check's mark reads on the page."""


def write_rehearsal(found: Mapping[str, Any], folder: Path) -> Path:
    """Write the page of what `rehearsal.json` holds into its folder; returns its path."""
    page = Page(folder)
    checks, changes = found["checks"], found["changes"]
    failed = [check for check in checks if check["mark"] == "FAIL"]
    page.sheet(
        Sheet(
            "checks",
            "Checks",
            "What the run's settings ask for, and what the rehearsal recorded.",
            ["check", "", "expected", "found", "remark"],
            [
                [
                    check["what"],
                    Strong(MARKS["FAIL"]) if check["mark"] == "FAIL" else MARKS[check["mark"]],
                    check["expected"],
                    check["found"],
                    check["remark"].partition("\n")[0],
                ]
                for check in checks
            ],
            words=True,
        )
    )
    page.sheet(
        Sheet(
            "replaced",
            "What the rehearsal replaced",
            "All else is the run's own file.",
            ["setting", "the run's", "the rehearsal's", "why"],
            [[change["key"], _shown(change["was"]), _shown(change["now"]), change["why"]] for change in changes],
            words=True,
        )
    )
    seconds = sum(found["seconds"].values())
    page.sheet(
        Sheet(
            "time",
            "Time and memory",
            f"{seconds / 60:.1f} minutes, at most {found['memory_gib']} GiB of all processes together, "
            f"{found['memory_estimate']}.",
            ["part", "seconds"],
            [[name, f"{value:.0f}"] for name, value in found["seconds"].items()],
        )
    )
    page.section(
        "estimate", "Time of the run itself", f"<pre>{html.escape(chr(10).join(found['time_of_the_run']))}</pre>"
    )
    held = sum(check["mark"] == "OK" for check in checks)
    summary = [
        f"{held} checks held, {len(failed)} did not.",
        f"Words: {found['words']}." if found["words"] else "",
        found["left"],
    ]
    return page.write(
        FILE,
        title=f"Rehearsal of {found['name']}",
        subtitle=f"{found['method']} · {found['file']}",
        summary=filter(None, summary),
        warnings=warning_box(
            f"{check['what']}: {check['found']}" + (f", expected {check['expected']}" if check["expected"] else "")
            for check in failed
        ),
        status="held" if found["held"] else "did not hold",
        contents=False,
    )


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
