"""Chooses the report: of a single run, of several runs together, or a check-up of a run of slime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sat_slime.grid.state import GridFolder
from sat_slime.report.comparison import write_comparison
from sat_slime.report.page import check_out
from sat_slime.report.run.run_figures import figures
from sat_slime.report.run.run_report import write_report, write_tracked_report
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.trackers.tracked_run import is_tracker

if TYPE_CHECKING:
    from sat_slime.report.checkup.checkup_page import Findings

__all__ = ["write_checkup", "write_report", "write_reports"]


def write_reports(
    paths: Sequence[str | Path], out: str | Path | None, only: Sequence[str], paper: bool = False
) -> list[Path]:
    """Write the report of a single run, where `paths` is one run folder and nothing of a comparison is asked for, or
    one tracker's files; else one report of all of them, the paper's
    numbers beside them where `paper` asks for it. Returns the pages or pictures to look at. Raises RunFolderError."""
    path = Path(paths[0])
    if len(paths) == 1 and out is None and not only and RunFolder(path).is_run():
        return [write_report(path)]
    if len(paths) == 1 and not only and not _is_ours(path) and is_tracker(path):
        return [write_tracked_report(path, Path(out or "report"))]
    return write_comparison(paths, out, only, paper)


def _is_ours(path: Path) -> bool:
    """Say whether a folder is a grid or has our rows: there may be TensorBoard events in it too."""
    return GridFolder(path).is_grid() or (path / "metrics.jsonl").exists()


def write_checkup(paths: Sequence[Path], out: Path, on_file: Callable[[str], object]) -> Findings:
    """Write the check-up of a run of slime, from what there is of its trackers and dumps. Raises RunFolderError."""
    from sat_slime.report.checkup.checkup import check
    from sat_slime.report.checkup.checkup_page import write_findings

    check_out(out)  # before the dumps are read, which may take minutes
    return write_findings(check(paths, on_file), paths, out, figures)
