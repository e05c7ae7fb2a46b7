"""Chooses the report: of a single run, or of several runs together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sat_slime.report.run import write_report
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.grid import GridFolder
from sat_slime.runs.trackers import is_tracker


def write_reports(paths: Sequence[str | Path], out: str | Path | None = None, paper: bool = False) -> Path:
    """Write the report of a single run, where `paths` is one run folder; the check-up of a run of which one tracker's
    files are given; else one report of all of them, the paper's numbers beside them where `paper` asks for it. out: the
    folder of the page. Returns the page. Raises RunFolderError."""
    path = Path(paths[0])
    if len(paths) == 1 and RunFolder(path).is_readable():
        return write_report(path, out)
    if len(paths) == 1 and not GridFolder(path).is_grid() and is_tracker(path):
        from sat_slime.report.checkup import write_checkup

        return write_checkup([path], Path(out or "report")).path
    from sat_slime.report.comparison import write_comparison  # its statistics take long to import

    return write_comparison(paths, out, paper)
