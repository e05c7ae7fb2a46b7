"""The server of the page: on loopback, read-only, for whoever sits at this machine."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from sat_slime.report.serve.entries import entries
from sat_slime.report.serve.page import PAGE
from sat_slime.report.write import write_reports
from sat_slime.runs.folder import RunFolderError

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
    """Serves a folder."""

    daemon_threads = True

    def __init__(self, root: Path, port: int) -> None:
        """port: 0 takes any that is free. Raises OSError where it is taken."""
        self.root = root.resolve()
        self.made = tempfile.TemporaryDirectory(prefix="sat_slime-serve-")
        self.one_at_a_time = threading.Lock()
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def server_close(self) -> None:
        super().server_close()
        self.made.cleanup()

    def compared(self, paths: list[str]) -> str:
        """The name of a folder in `made` with the comparison of some runs or grids. Raises RunFolderError."""
        chosen = [self.inside(path) for path in paths]
        if not chosen:
            raise RunFolderError("tick the runs that are to be compared")
        name = hashlib.sha256("\n".join(map(str, chosen)).encode()).hexdigest()[:16]
        with self.one_at_a_time:
            write_reports(chosen, Path(self.made.name) / name, [])
        return name

    def inside(self, path: str) -> Path:
        """A path below the folder that is served, or the folder. Raises RunFolderError."""
        found = (self.root / path).resolve()
        if not found.is_relative_to(self.root) or not found.exists():
            raise RunFolderError(f"{path} is not below the folder that is served")
        return found


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answers, or says in a line why not."""
        # A name that a web page made resolve to this machine is not ours: its scripts must not read runs.
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"asked by another name than localhost\n")
            return
        url = urlsplit(self.path)
        answers: dict[str, Callable[[], None]] = {
            "/": partial(self._answer, HTTPStatus.OK, KINDS[".html"], PAGE.encode()),
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
        found = [entry.as_json() for entry in entries(self.server.root)]
        self._answer(HTTPStatus.OK, "application/json", json.dumps(found, allow_nan=False, default=str).encode())

    def _compare(self, paths: list[str]) -> None:
        name = self.server.compared(paths)
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", f"/made/{quote(name)}/report.html")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self, path: str) -> None:
        if path.startswith("/made/"):
            made = Path(self.server.made.name).resolve()
            found = (made / path.removeprefix("/made/")).resolve()
            if not found.is_relative_to(made):
                raise RunFolderError(f"there is no {path}")
        elif path.startswith("/files/"):
            found = self.server.inside(path.removeprefix("/files/"))
        else:
            raise RunFolderError(f"there is no page {path}")
        if found.suffix not in KINDS or not found.is_file():
            raise RunFolderError(f"there is no {path}")
        self._answer(HTTPStatus.OK, KINDS[found.suffix], found.read_bytes())

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
        """Nothing: the terminal stays as it is."""
