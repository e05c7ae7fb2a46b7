"""Which report is written: of a single run, or of several runs together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sat_slime.report.comparison.page import write_grid_report
from sat_slime.report.run.page import write_report
from sat_slime.runs.folder import RunFolder


def write_reports(paths: Sequence[str | Path], out: str | Path | None, only: Sequence[str]) -> list[Path]:
    """Write the report of a single run, where `paths` is one run folder and nothing of a comparison is asked for; else
    one report of all of them. Returns what to look at. Raises RunFolderError."""
    if len(paths) == 1 and out is None and not only and RunFolder(paths[0]).is_run():
        return [write_report(paths[0])]
    return write_grid_report(paths, out, only)
