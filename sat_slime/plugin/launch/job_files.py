"""A run of slime as a job of Ray: sent, followed, asked after and stopped, by whoever has its run folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sat_slime.plugin.launch.local_ray import LocalRay
from sat_slime.plugin.launch.ray_jobs import JobError, JobServer, JobState
from sat_slime.plugin.launch.secrets import redact

RECONNECTIONS = 5
"""Attempts in a row to go on following a log whose connection broke."""
RECONNECT_AFTER_S = 2.0
HEAD = "--- job "
"""What a job's part of log.txt begins with."""


@dataclass(frozen=True)
class JobRecord:
    """job.json of a run folder: the run's newest job and where it is."""

    job: str
    """Its submission id, unique among all clusters."""
    address: str
    """http://HOST:PORT of the dashboard of its cluster."""
    ray: LocalRay | None = None
    """The Ray that was started for it, if any."""
    earlier: list[str] = field(default_factory=list)
    """The run's jobs before this one."""

    def write(self, folder: Path) -> None:
        file, new = folder / "job.json", folder / ".job.json.tmp"
        new.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        os.replace(new, file)

    @classmethod
    def read(cls, folder: Path) -> JobRecord | None:
        """None where no job was ever sent. Raises JobError for a damaged file."""
        file = folder / "job.json"
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            return cls(**{**values, "ray": LocalRay(**values["ray"]) if values.get("ray") else None})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise JobError(f"{file} cannot be read ({error}): it names the run's job; mend or delete it") from error


def new_job_id(name: str) -> str:
    """An id that no cluster has seen."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"


def write_files(files: Mapping[str, str]) -> None:
    """The files that the command names, path to text."""
    for path, text in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")


def submit(
    server: JobServer,
    command: Sequence[str],
    env: Mapping[str, str],
    runtime_env: Mapping[str, Any],
    folder: Path,
    name: str,
    ray: LocalRay | None = None,
) -> JobRecord:
    """Send the command as a job, and note it in the run folder. Raises JobError."""
    before = JobRecord.read(folder)
    earlier = [*before.earlier, before.job] if before else []
    record = JobRecord(new_job_id(name), server.address, ray, earlier)
    # Noted first: a job that nobody knows of could not be stopped.
    record.write(folder)
    server.submit(command, env, record.job, runtime_env, {"sat_slime_run": str(folder)})
    return record


def job_state(record: JobRecord) -> JobState | None:
    """None for a job that its cluster no longer knows. Raises JobError when no cluster answers."""
    return JobServer(record.address).state(record.job)


class JobLog:
    """log.txt of a run folder: the lines of its jobs' logs, without secrets, each job's after a line that names it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def follow(
        self,
        server: JobServer,
        job: str,
        keep: bool = True,
        on_break: Callable[[JobError], None] = lambda error: None,
    ) -> Iterator[str]:
        """The job's lines, from its first one until it ends, without their line ends.

        keep: append those that log.txt lacks; for one process at a time. on_break is told when the connection broke
        and is tried again. Raises JobError when that does not help.
        """
        seen = breaks = 0
        with self._writer(job) if keep else contextlib.nullcontext(lambda number, line: None) as write:
            while True:
                try:
                    for number, line in enumerate(_lines(server.follow(job)), 1):
                        if number <= seen:
                            continue  # told before the connection broke
                        seen, breaks = number, 0
                        line = redact(line)
                        write(number, line)
                        yield line
                    return
                except JobError as error:
                    breaks += 1
                    if breaks > RECONNECTIONS:
                        raise
                    on_break(error)
                    time.sleep(RECONNECT_AFTER_S * breaks)

    def catch_up(self, job: str, text: str) -> None:
        """Append what log.txt lacks of the job's whole log."""
        with self._writer(job) as write:
            for number, line in enumerate(_lines(iter([text])), 1):
                write(number, redact(line))

    def lines(self, job: str | None = None) -> Iterator[str]:
        """Its lines, of one job or of all."""
        if not self.path.exists():
            return
        inside = job is None
        with self.path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if job is not None and line.startswith(HEAD):
                    inside = line == f"{HEAD}{job}\n"
                elif inside:
                    yield line.rstrip("\n")

    @contextlib.contextmanager
    def _writer(self, job: str) -> Iterator[Callable[[int, str], None]]:
        """Writes a job's line by its number, from 1, unless it is there already."""
        self._drop_torn_line()
        head = f"{HEAD}{job}"
        known = head in self.lines()
        kept = sum(1 for _ in self.lines(job))
        with self.path.open("a", encoding="utf-8") as file:
            if not known:
                print(head, file=file, flush=True)

            def write(number: int, line: str) -> None:
                if number > kept:
                    print(line, file=file, flush=True)

            yield write

    def _drop_torn_line(self) -> None:
        """A process that was killed leaves half a line."""
        if self.path.exists():
            with self.path.open("rb+") as file:
                file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))


def _lines(pieces: Iterator[str]) -> Iterator[str]:
    """Whole lines of a text in pieces."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        yield from whole
    if rest:
        yield rest
