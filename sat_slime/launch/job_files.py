"""A run of slime as a job of Ray: whoever has its run folder can send, follow, ask after and stop it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sat_slime
from sat_slime.config.jsonl import write_atomically
from sat_slime.config.section import kept_settings
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.local_ray import LocalRay
from sat_slime.launch.ray_jobs import JobError, JobServer
from sat_slime.launch.secrets import redact

RECONNECTIONS = 5
"""How often in a row following a log is tried again when the connection breaks."""
RECONNECT_AFTER_S = 2.0
HEAD = "--- job "
"""The beginning of the line that heads a job's part of log.txt."""


@dataclass(frozen=True)
class JobRecord:
    """job.json of a run folder: the run's newest job and where it is."""

    job: str
    """The job's submission id, unique among all clusters."""
    address: str
    """http://HOST:PORT of the dashboard of the job's cluster."""
    ray: LocalRay | None = None
    """The Ray that was started for the job, if one was."""
    earlier: list[str] = field(default_factory=list)
    """Submission ids of the run's jobs before this one."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings that the run has to keep, by dotted keys."""
    version: str = ""
    """Of this package."""

    def write(self, folder: Path) -> None:
        write_atomically(folder / "job.json", json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> JobRecord | None:
        """Return the record in a run folder; None where no job was ever sent. Raises JobError for a damaged file."""
        file = folder / "job.json"
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            return cls(**{**values, "ray": LocalRay(**values["ray"]) if values.get("ray") else None})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise JobError(f"{file} cannot be read ({error}): it names the run's job; fix or delete it") from error


def new_job_id(name: str) -> str:
    """Return a submission id that no cluster has seen, with the run's name in it."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"


def write_files(files: Mapping[str, str]) -> None:
    """Writes the files that the command names. files: text by path."""
    for path, text in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")


def submit(
    server: JobServer,
    command: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    config: SlimeConfig,
    ray: LocalRay | None = None,
) -> JobRecord:
    """Sends the command as a job, and notes it in the run folder. Raises JobError."""
    before = JobRecord.read(folder)
    earlier = [*before.earlier, before.job] if before else []
    settings, version = kept_settings(config), sat_slime.__version__
    record = JobRecord(new_job_id(config.name), server.address, ray, earlier, settings, version)
    # The note comes first: nobody could stop a job that nobody knows of.
    record.write(folder)
    server.submit(command, env, record.job, {"sat_slime_run": str(folder)})
    return record


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
        """Yields the job's lines without line ends, from the first one until the job ends.

        keep: append lines that log.txt lacks; only one process at a time may do so. on_break is called when the
        connection broke and is tried again. Raises JobError when that does not help.
        """
        seen = breaks = 0
        kept = self._begin(job) if keep else None
        while True:
            try:
                for number, line in enumerate(_lines(server.follow(job)), 1):
                    if number <= seen:
                        continue  # it was yielded before the connection broke
                    seen, breaks = number, 0
                    line = redact(line)
                    if kept is not None and number > kept:
                        self._append([line])
                    yield line
                return
            except JobError as error:
                breaks += 1
                if breaks > RECONNECTIONS:
                    raise
                on_break(error)
                time.sleep(RECONNECT_AFTER_S * breaks)

    def catch_up(self, job: str, text: str) -> None:
        """Appends the lines of the job's whole log that log.txt lacks."""
        kept = self._begin(job)
        self._append(map(redact, [*_lines(iter([text]))][kept:]))

    def remark(self, text: str) -> None:
        """Appends a line of the launcher's, once the newest job has ended."""
        self._drop_torn_line()
        self._append([f"--- {text}"])

    def lines(self, job: str | None = None) -> Iterator[str]:
        """Yield the lines of log.txt, of one job or of all."""
        if not self.path.exists():
            return
        inside = job is None
        with self.path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if job is not None and line.startswith(HEAD):
                    inside = line == f"{HEAD}{job}\n"
                elif inside:
                    yield line.rstrip("\n")

    def _begin(self, job: str) -> int:
        """Return how many lines of the job are there already, below the line that heads them."""
        self._drop_torn_line()
        head = f"{HEAD}{job}"
        if head not in self.lines():
            self._append([head])
        return sum(1 for _ in self.lines(job))

    def _append(self, lines: Iterable[str]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def _drop_torn_line(self) -> None:
        """Drops half a line at the end, which a process leaves that was killed."""
        if self.path.exists():
            with self.path.open("rb+") as file:
                file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))


def _lines(pieces: Iterator[str]) -> Iterator[str]:
    """Yield whole lines of a text that comes in pieces."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        yield from whole
    if rest:
        yield rest
