"""The local page of all runs and grids, live, and its server: on loopback, read-only, for whoever sits at this
machine."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from sat_slime.config.jsonl import number
from sat_slime.config.method_section import method_label
from sat_slime.grid.progress import last_row
from sat_slime.grid.state import GridFolder
from sat_slime.report.page import WIDE_STYLE
from sat_slime.report.write_reports import write_reports
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.reading import read_yaml, section

HOST = "127.0.0.1"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".csv": "text/csv; charset=utf-8",
}
"""Files that are served, by their endings: what a report is made of, and nothing else of a run."""
POLICY = "default-src 'self' 'unsafe-inline' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"


class Server(ThreadingHTTPServer):
    """Serves the runs below a folder, on loopback and read-only."""

    daemon_threads = True

    def __init__(self, root: Path, port: int) -> None:
        """port: 0 takes any that is free. Raises OSError where it is taken."""
        self.root = root.resolve()
        self.made = tempfile.TemporaryDirectory(prefix="sat_slime-serve-")
        self.one_comparison = threading.Lock()
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def server_close(self) -> None:
        super().server_close()
        self.made.cleanup()

    def compared(self, paths: list[str]) -> str:
        """Write the comparison of some runs or grids; returns the name of its folder in `made`. Raises
        RunFolderError."""
        chosen = [self.inside(path) for path in paths]
        if not chosen:
            raise RunFolderError("tick the runs that are to be compared")
        name = hashlib.sha256("\n".join(map(str, chosen)).encode()).hexdigest()[:16]
        with self.one_comparison:
            write_reports(chosen, Path(self.made.name) / name, [])
        return name

    def inside(self, path: str) -> Path:
        """Return a path below the folder that is served, or the folder itself. Raises RunFolderError for another."""
        inside = (self.root / path).resolve()
        if not inside.is_relative_to(self.root) or not inside.exists():
            raise RunFolderError(f"{path} is not below the folder that is served")
        return inside


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer, or say in a line why not."""
        # A name that a web page made resolve to this machine is not ours: its scripts must not read runs.
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"asked by another name than localhost\n")
            return
        url = urlsplit(self.path)
        answers: dict[str, Callable[[], None]] = {
            "/": partial(self._answer, HTTPStatus.OK, KINDS[".html"], _page().encode()),
            "/entries": self._entries,
            "/compare": partial(self._compare, parse_qs(url.query).get("run", [])),
        }
        try:
            answers.get(url.path, partial(self._file, unquote(url.path)))()
        except RunFolderError as error:
            self._say(HTTPStatus.NOT_FOUND, error)
        except ConnectionError:
            self.close_connection = True  # who asked is gone
        except Exception as error:  # whatever a file holds: the other pages are still served
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, error)

    do_HEAD = do_GET

    def _entries(self) -> None:
        listed = json.dumps(list(map(asdict, entries(self.server.root))), allow_nan=False, default=str)
        self._answer(HTTPStatus.OK, "application/json", listed.encode())

    def _compare(self, paths: list[str]) -> None:
        name = self.server.compared(paths)
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", f"/made/{quote(name)}/report.html")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self, path: str) -> None:
        if path.startswith("/made/"):
            made = Path(self.server.made.name).resolve()
            file = (made / path.removeprefix("/made/")).resolve()
            if not file.is_relative_to(made):
                raise RunFolderError(f"there is no {path}")
        elif path.startswith("/files/"):
            file = self.server.inside(path.removeprefix("/files/"))
        else:
            raise RunFolderError(f"there is no page {path}")
        if file.suffix not in KINDS or not file.is_file():
            raise RunFolderError(f"there is no {path}")
        self._answer(HTTPStatus.OK, KINDS[file.suffix], file.read_bytes())

    def _say(self, status: HTTPStatus, error: Exception) -> None:
        text = str(error).partition("\n")[0] or type(error).__name__
        self._answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal stays as it is."""


def _page() -> str:
    """Return the page. It asks for /entries every two seconds; all that it shows of them is text, never markup."""
    text = Path(__file__).with_name("runs.html").read_text(encoding="utf-8")
    return text.replace("/* page.css and wide_page.css */", WIDE_STYLE)


# ----------------------------------------------------------------------------------------------------- what there is


DEPTH = 4
"""Folders below the first one that are looked into."""


@dataclass(frozen=True)
class Entry:
    """A run, or a grid with its runs."""

    path: str
    """Relative to the folder that is served."""
    kind: str
    """run or grid."""
    status: str
    method: str = ""
    lag: int | None = None
    seed: int | None = None
    step: float | None = None
    steps: int | None = None
    """Optimizer steps of the whole run."""
    reward: float | None = None
    d_pi: float | None = None
    accuracy: float | None = None
    """Of the newest evaluation."""
    started: str | None = None
    report: bool = False
    """Whether report.html is there."""
    runs: list[Entry] = field(default_factory=list)
    """Of a grid."""


def entries(root: Path) -> list[Entry]:
    """Return the grids and runs below a folder, the newest first; the runs of a grid are in it alone."""
    return sorted(_below(root, root, DEPTH), key=lambda entry: entry.started or "", reverse=True)


def _below(root: Path, folder: Path, depth: int) -> Iterator[Entry]:
    try:
        entry = _entry(root, folder)
    except OSError:  # gone meanwhile, or not ours to read
        return
    if entry is not None:
        if entry.kind == "run" or entry.runs or entry.status == "running":  # a kept result has no run
            yield entry
    elif depth:
        for child in sorted(_folders(folder)):
            yield from _below(root, child, depth - 1)


def _entry(root: Path, folder: Path) -> Entry | None:
    if GridFolder(folder).is_grid():
        return _grid(root, GridFolder(folder))
    return _run(root, RunFolder(folder)) if RunFolder(folder).is_run() else None


def _folders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as children:
            for child in children:
                if child.is_dir(follow_symlinks=False) and not child.name.startswith("."):
                    yield Path(child.path)
    except OSError:  # gone meanwhile, or not ours to read
        return


def _grid(root: Path, grid: GridFolder) -> Entry:
    runs = [_run(root, RunFolder(path)) for path in sorted(_folders(grid.runs)) if RunFolder(path).is_run()]
    return Entry(
        path=str(grid.path.relative_to(root)),
        kind="grid",
        status="running" if grid.is_running() else "not running",
        started=max((run.started for run in runs if run.started), default=None),
        report=(grid.path / "report.html").is_file(),
        runs=runs,
    )


def _finite(row: dict[str, Any], key: str) -> float | None:
    value = number(row, key)
    return value if math.isfinite(value) else None


def _run(root: Path, folder: RunFolder) -> Entry:
    config, state = read_yaml(folder.config), folder.state()
    newest, evaluation = last_row(folder.metrics), last_row(folder.eval)
    pipeline = section(config, "pipeline")
    iterations = pipeline.get("iterations")
    steps = iterations * (pipeline.get("optimizer_steps_per_rollout") or 1) if isinstance(iterations, int) else None
    return Entry(
        path=str(folder.path.relative_to(root)),
        kind="run",
        status=str(state.get("status", "unknown")),
        method=method_label(section(config, "method")),
        lag=pipeline.get("lag"),
        seed=config.get("seed"),
        step=_finite(newest, "step"),
        steps=steps,
        reward=_finite(newest, "reward/mean"),
        d_pi=_finite(newest, "mismatch/d_pi"),
        accuracy=_finite(evaluation, "accuracy"),
        started=state.get("last_started"),
        report=folder.report.is_file(),
    )
