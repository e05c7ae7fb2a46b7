"""Talks to Ray's job API: finds it, submits a job, reads its log and ends it."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import secrets
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sat_slime.runs.proxies import host_of, without_proxy

ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Environment variables that Ray prefers to the address that a client is given, even for a job that runs elsewhere."""
THIS_MACHINE = "http://127.0.0.1:8265"
"""The default address of the dashboard of a Ray on this machine."""
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
CONNECT_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 60.0
"""Seconds in which a job that is stopped may end: Ray kills it a few seconds after SIGTERM."""
SUBMISSIONS = 12
POLL_S = 0.5


class JobError(RuntimeError):
    """Ray's job API refused something; the message is one line with the remedy."""


class NoAnswer(JobError):
    """Nothing listens at the address: the cluster was never there, or it is gone and its jobs with it."""

    def __init__(self, address: str) -> None:
        remedy = (
            "start one (ray start --head), name another (--set cluster.address=http://HOST:8265), or have one started"
        )
        super().__init__(f"no Ray answers at {address}: {remedy} on this machine for this run (launch --start-ray)")


class JobState(NamedTuple):
    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    exit_code: int | None = None
    message: str = ""

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class JobServer:
    """The job server of one Ray cluster."""

    def __init__(self, address: str | None = None) -> None:
        """address: http://HOST:PORT of the dashboard, or what ray.init takes; None: THIS_MACHINE. Raises JobError when
        no Ray answers there."""
        self._client = _client(address)
        self.address: str = self._client.get_address()

    def submit(
        self, command: Sequence[str], env: Mapping[str, str], job: str, metadata: Mapping[str, str] = {}
    ) -> None:
        """Starts `command` on the head node as `job`, an id that was not used before."""
        values = {"submission_id": job, "runtime_env": {"env_vars": dict(env)}, "metadata": dict(metadata)}
        from ray.exceptions import RayError

        for attempt in range(SUBMISSIONS):
            try:
                self._client.submit_job(entrypoint=shlex.join(command), **values)
                return
            except (RuntimeError, OSError, ValueError, TypeError, RayError) as error:
                # A cluster that has just come up has no agent yet: Ray itself waits some seconds for it each time.
                if "No available agent" not in str(error) or attempt == SUBMISSIONS - 1:
                    raise JobError(f"Ray at {self.address}: {first_line(error)}") from error

    def state(self, job: str) -> JobState | None:
        """Return the state of a job; None where this cluster, perhaps started again, does not know it."""
        from ray.exceptions import RayError

        try:
            info = self._client.get_job_info(job)
        except OSError as error:
            raise NoAnswer(self.address) from error
        except (RuntimeError, ValueError, RayError) as error:  # it has answered what is no job, or wants another token
            if "status code 404" in str(error):  # a job's name, with its date, may have the digits
                return None
            raise JobError(f"Ray at {self.address}: {first_line(error)}") from error
        status = str(getattr(info.status, "value", info.status))
        return JobState(status, getattr(info, "driver_exit_code", None), info.message or "")

    def wait(self, job: str, timeout_s: float) -> JobState | None:
        """Waits for the job to end, for at most `timeout_s` seconds, and returns its state then."""
        deadline = time.monotonic() + timeout_s
        while (state := self.state(job)) is not None and not state.ended and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return state

    def log(self, job: str) -> str:
        with _as_job_error(self.address):
            return str(self._client.get_job_logs(job))

    def stop(self, job: str) -> JobState | None:
        """Ends the job and waits for its end. A job that has ended is left as it is."""
        with _as_job_error(self.address):
            self._client.stop_job(job)
        state = self.wait(job, STOP_TIMEOUT_S)
        if state is not None and not state.ended:
            late = f"has not ended {STOP_TIMEOUT_S:.0f} s after it was told to"
            raise JobError(f"job {job} at {self.address} {late}: ask again")
        return state


def given_address(option: str | None, configured: str | None) -> str | None:
    """Return the address to use: the option's, the configured, the environment's; None: that of this machine."""
    values = (os.environ.get(name) for name in ADDRESS_VARIABLES)
    from_environment = next((value for value in values if value and value not in ("auto", "local")), None)
    return option or configured or from_environment


def is_this_machine(address: str | None) -> bool:
    """Return whether an address is on the loopback interface; None counts as one that is."""
    host = host_of(address or THIS_MACHINE)
    return host == "localhost" or host.startswith("127.")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not empty; the error's type where there is none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _client(address: str | None) -> Any:
    address, token = _url(address or THIS_MACHINE), _token()
    if token and not address.startswith("http"):
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it at its import: its own protocol takes no header
    try:
        from ray.exceptions import AuthenticationError, RayError
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise JobError(f"Ray cannot be imported ({first_line(error)}): pip install '.[slime]' in a checkout") from error
    logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)
    # Ray's client would ask through an HTTP proxy of the environment; _url has seen that the host answers without one.
    os.environ |= without_proxy(os.environ, [host_of(address)])
    hidden = {name: os.environ.pop(name) for name in ADDRESS_VARIABLES if name in os.environ}
    try:
        return JobSubmissionClient(address, headers={"Authorization": f"Bearer {token}"} if token else None)
    except AuthenticationError as error:
        remedy = "put that of the cluster into ~/.ray/auth_token or RAY_AUTH_TOKEN; if it is another's, delete job.json"
        raise JobError(f"the Ray at {address} wants an authentication token: {remedy}") from error
    except (RuntimeError, ValueError, OSError, RayError) as error:
        raise NoAnswer(address) from error
    finally:
        os.environ.update(hidden)


def _url(address: str) -> str:
    """Return the address, with its scheme if it is that of a dashboard. Raises JobError when nothing listens there."""
    address = address.partition("#")[0]  # as a browser shows it
    parts = urlsplit(address if "://" in address else f"//{address}")
    if parts.password:
        raise JobError("Ray's address has a password in it, which would be shown and saved: leave it out")
    try:
        host, port = parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        host = port = None
    if not host or not port:
        raise JobError(f"the address {address!r} is not that of a Ray dashboard, such as http://10.0.0.1:8265")
    try:
        # Without this test Ray's client would wait for minutes.
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise NoAnswer(address) from error
    if "://" not in address:
        # RAY_ADDRESS is meant to name another port of the head node, but it is easy to write HOST:8265 instead.
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
            connection.request("GET", "/api/version")
            connection.getresponse().close()
            return f"http://{address}"
    return address


def _token() -> str | None:
    """Return the token for Ray's authentication, on by default in newer versions, from where Ray looks; or None."""
    if os.environ.get("RAY_AUTH_MODE") == "disabled":
        return None
    with contextlib.suppress(OSError):
        return os.environ.get("RAY_AUTH_TOKEN") or _token_file().read_text(encoding="utf-8").strip() or None
    return None


def _token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def token_for_own_ray() -> str | None:
    """Return the token that a Ray which is started here shall ask for: the user's own; where there is none, it is made,
    in a file that nobody else may read. None with RAY_AUTH_MODE=disabled. Raises JobError."""
    token = _token()
    if token or os.environ.get("RAY_AUTH_MODE") == "disabled":
        return token
    file = _token_file()
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as written:
            written.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):  # another start was faster: its token counts
            os.link(temporary, file)
        temporary.unlink()
    except OSError as error:
        raise JobError(f"Ray's token cannot be kept in {file} ({error.strerror}): set RAY_AUTH_TOKEN") from error
    if not (token := _token()):
        raise JobError(f"{file} holds no token that can be read: delete it, and another is made")
    return token


@contextlib.contextmanager
def _as_job_error(address: str) -> Iterator[None]:
    """Turns what Ray's client raises into a JobError."""
    from ray.exceptions import RayError

    try:
        yield
    except (RuntimeError, OSError, RayError) as error:
        raise JobError(f"Ray at {address}: {first_line(error)}") from error
