"""A run of slime as a job of Ray: whoever has its run folder can send, follow, ask after and stop it."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sat_slime
from sat_slime.config.jsonl import append_line, write_atomically
from sat_slime.config.section import kept_settings
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch import job_log
from sat_slime.launch.command import SlimeCommand
from sat_slime.launch.local_ray import LocalRay
from sat_slime.launch.ray_jobs import JobError, JobServer
from sat_slime.rollout.scratch import PREFIX

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
            record = cls(**{**values, "ray": LocalRay(**values["ray"]) if values.get("ray") else None})
            # Anybody may have written it: Ray imports what stands before ://, and a Ray's folder is deleted at its end.
            own = record.ray is None or re.fullmatch(rf"{PREFIX}\w{{8}}", Path(record.ray.folder).name)
            if not own or not re.match("https?://", record.address):
                raise ValueError("its address, or the folder of its Ray, is none that a launch notes")
            return record
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise JobError(f"{file} cannot be read ({error}): it names the run's job; fix or delete it") from error


def submit(
    server: JobServer, sent: SlimeCommand, folder: Path, config: SlimeConfig, ray: LocalRay | None = None
) -> JobRecord:
    """Write a command's files, send it as a job that writes the run folder's log.txt, and note it. Raises JobError."""
    for path, text in sent.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    job = f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    record = JobRecord(job, server.address, ray, kept_settings(config), sat_slime.__version__)
    # The note comes first: nobody could stop a job that nobody knows of.
    record.write(folder)
    log = folder / "log.txt"
    append_line(log, HEAD + job)
    command = [sent.command[0], "-m", job_log.__name__, str(log), *sent.command]
    server.submit(command, sent.env, job, {"sat_slime_run": str(folder)})
    return record


class Tail:
    """The whole lines of a file that grows, each told once."""

    def __init__(self, path: Path, at: int = 0) -> None:
        """at: the bytes at the beginning that are left out."""
        self.path, self.at = path, at

    @classmethod
    def of_job(cls, path: Path, job: str) -> Tail:
        """Return the lines of a job's part of log.txt, none where it has none."""
        tail = cls(path)
        begins = [tail.at for line in tail.lines() if line == HEAD + job]
        return cls(path, begins[-1] if begins else tail.at)

    def lines(self) -> Iterator[str]:
        """Yield the lines that are new, without line ends."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.at)
            for line in file:
                if not line.endswith(b"\n"):  # it is being written
                    return
                self.at += len(line)
                yield line[:-1].decode(errors="replace")
