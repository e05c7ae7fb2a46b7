"""The local page of all runs and grids, live, and its server: on loopback, read-only, for whoever sits at this
machine."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from sat_slime.grid.entries import entries, is_newest
from sat_slime.report.page import WIDE_STYLE
from sat_slime.report.write_reports import write_report, write_reports, write_samples
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.reading import flat_settings, read_yaml

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

    def reported(self, path: str) -> str:
        """Write the report of a run as it is now, which renews itself while the run goes on; returns the name of its
        folder in `made`. Raises RunFolderError."""
        run = self.inside(path)
        name = f"run-{hashlib.sha256(str(run).encode()).hexdigest()[:16]}"
        with self.one_comparison:
            write_report(run, Path(self.made.name) / name, f"/report?run={quote(path)}")
        return name

    def samples(self, path: str, iteration: str) -> str:
        """Write the page of the responses that a run kept of an iteration, the newest where none is named; returns the
        name of its folder in `made`. Raises RunFolderError."""
        run = RunFolder.open(self.inside(path))
        name = f"samples-{hashlib.sha256(f'{run.path} {iteration}'.encode()).hexdigest()[:16]}"
        write_samples(run, iteration, Path(self.made.name) / name, f"/samples?run={quote(path)}&iteration=")
        return name

    def differences(self, paths: list[str]) -> dict[str, dict[str, str]]:
        """Return the settings in which runs differ, {setting: {run: value}}. Raises RunFolderError."""
        flat = {path: flat_settings(read_yaml(RunFolder(self.inside(path)).config)) for path in paths}
        keys = sorted({key for values in flat.values() for key in values})
        values_of = {key: {path: str(values.get(key, "unset")) for path, values in flat.items()} for key in keys}
        return {key: values for key, values in values_of.items() if len(set(values.values())) > 1}

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
        asked = parse_qs(url.query)
        first = {name: asked.get(name, [""])[0] for name in ("run", "iteration")}
        answers: dict[str, Callable[[], None]] = {
            "/": partial(self._answer, HTTPStatus.OK, KINDS[".html"], _page().encode()),
            "/entries": lambda: self._json(list(map(asdict, entries(self.server.root)))),
            "/compare": partial(self._made, self.server.compared, asked.get("run", [])),
            "/report": partial(self._made, self.server.reported, first["run"]),
            "/samples": partial(self._made, self.server.samples, first["run"], first["iteration"]),
            "/differences": lambda: self._json(self.server.differences(asked.get("run", []))),
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

    def _json(self, found: Any) -> None:
        self._answer(HTTPStatus.OK, "application/json", json.dumps(found, allow_nan=False, default=str).encode())

    def _made(self, make: Callable[..., str], *asked: Any) -> None:
        """Make a page, and lead to it."""
        name = make(*asked)
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
        run = RunFolder(file.parent)
        if file == run.report and run.is_run() and (run.is_locked() or not is_newest(run)):
            self._made(self.server.reported, str(run.path.relative_to(self.server.root)))
            return
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
