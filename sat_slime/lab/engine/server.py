"""One SGLang server process: its command, its birth, its health, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from sat_slime.config.exits import how_it_ended
from sat_slime.config.schema import ModelConfig, RolloutConfig
from sat_slime.lab.deaths import dead_children, is_ending
from sat_slime.lab.engine.sglang_process import SCRATCH, SOCKET
from sat_slime.lab.forking.forked_process import SGLANG, ForkedProcess, NoForkServer, socket_of
from sat_slime.models import FAMILY_VARIABLE, family_environment
from sat_slime.rollout import sglang_on_gpu
from sat_slime.rollout.client import SGLangClient
from sat_slime.rollout.scratch import Scratch, new_scratch

SGLANG_COMMAND = (sys.executable, "-m", "sat_slime.lab.engine.sglang_process")
LOG_TAIL_LINES = 20
CPU_ARGUMENTS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-cuda-graph", "--disable-overlap-schedule"),
)
GPU_ARGUMENTS = (
    # SGLang's deterministic attention that computes in float32, too, and on heads of 16 numbers.
    *("--attention-backend", "triton", "--sampling-backend", "pytorch", "--moe-runner-backend", "triton"),
    *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
)
CONTEXT_MARGIN = 8  # SGLang keeps up to 7 positions of its context length for itself


_CRASHED = re.compile(r"Subprocess ([a-z]+)\w* \(pid=(\d+)\) crashed with exit code (-?\d+)")
"""What SGLang's HTTP server logs of a dead scheduler or detokenizer, before it ends itself."""
_PARTS = {"sglang::schedul": "scheduler", "sglang::detoken": "detokenizer"}
"""SGLang's parts by the names of their processes, as far as the kernel keeps them."""
_ENDED_ITSELF = "SIGQUIT received"
"""What SGLang's HTTP server logs as it ends itself."""


class ServerFailed(RuntimeError):
    """A server that does not start, or does not become healthy in time."""


class SGLangServer:
    """A server on a socket file of this user. It ends with `stop`, and with this process, however that ends."""

    def __init__(
        self, index: int, rollout: RolloutConfig, model: ModelConfig, log_dir: str, command: list[str] | None = None
    ) -> None:
        """command: what to run, with SGLang's arguments appended; default: SGLang."""
        self.index = index
        self.rollout = rollout
        self.model = model
        self.log_path = Path(log_dir).resolve() / f"sglang-{index}.log"
        self.command = command
        self._client: SGLangClient | None = None
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._scratch: Scratch | None = None

    @property
    def client(self) -> SGLangClient:
        """Client of the server that runs, or ran last."""
        if self._client is None:
            raise ServerFailed(f"engine {self.index} has not been started")
        return self._client

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        if self._process is None:
            return False
        if is_ending(self._process.pid):  # its children are killed with it, and would pass for the cause
            self._process.wait()
        return self._process.poll() is None

    async def start(self, model_path: str, version: int) -> None:
        """Starts with the weights of a Hugging Face folder, reported as `version`, and waits until it is healthy.

        Raises:
            ServerFailed: with the end of the log.
        """
        self.stop()
        self._scratch = new_scratch()
        self._client = SGLangClient(self._scratch.path / SOCKET, self.rollout.request_timeout_s)
        on_gpu = gpu_available()
        self._spawn(
            self.arguments(model_path, version, on_gpu), server_environment(on_gpu, self.model.family), self._scratch
        )
        deadline = time.monotonic() + self.rollout.startup_timeout_s
        while not await self._client.healthy(timeout_s=5.0):
            if not self.alive:
                self._fail("ended before it was healthy")
            if time.monotonic() > deadline:
                self._fail(
                    f"is not healthy after {self.rollout.startup_timeout_s:g} s (rollout.startup_timeout_s): raise it "
                    "if the machine is slow"
                )
            await asyncio.sleep(0.2)

    def arguments(self, model_path: str, version: int, on_gpu: bool) -> list[str]:
        """Return SGLang's arguments."""
        return server_arguments(self.rollout, self.model, model_path, version, on_gpu)

    def ended_within(self, seconds: float) -> bool:
        """Tells whether the server's process has ended, or ends in that time; False for one that was not started."""
        if self._process is None:
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def stop(self) -> None:
        """Ends the server and all its processes at once: it holds nothing worth saving."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            if self._process.stdin:
                self._process.stdin.close()
            self._process = None
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def log_tail(self) -> str:
        """Return the log's last lines, indented."""
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        return "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:])

    def last_words(self) -> str:
        """Return the last line that the server wrote, as the end of a sentence; empty when it wrote none."""
        lines = [line.strip() for line in self.log_tail().splitlines()]
        line = next((line for line in reversed(lines) if line), "---")
        return "" if line.startswith("---") else f"; last in its log: {line}"

    def dead_part(self) -> str | None:
        """Names the process of SGLang's that died before the server itself, and how, in a sentence; None: none did."""
        for pid, name, code in dead_children(self._process.pid) if self._process else ():
            if part := _PARTS.get(name):
                return self._death_of(part, pid, code)
        crashed = _CRASHED.search(self._log_of_this_start()) if self._process else None
        return self._death_of(crashed[1], int(crashed[2]), int(crashed[3])) if crashed else None

    def how_it_ended(self) -> str:
        """Names the process of a dead server that ended first, and how, as the beginning of a sentence."""
        assert self._process is not None and self._process.returncode is not None
        if part := self.dead_part():
            return part
        if _ENDED_ITSELF in self._log_of_this_start():
            return f"SGLang's server of engine {self.index} ended itself, since one of its processes failed"
        return self._death_of("HTTP server", self._process.pid, self._process.returncode)

    def _death_of(self, part: str, pid: int, code: int) -> str:
        return f"SGLang's {part} (process {pid}) of engine {self.index} {how_it_ended(code)}"

    def _log_of_this_start(self) -> str:
        log = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return log[log.rfind("\n--- ") + 1 :]

    def _spawn(self, arguments: list[str], environment: dict[str, str], folder: Scratch) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        # SGLang leaves its sockets in the temporary folder; in one of its own they go with the server.
        environment = {**os.environ, **environment, "TMPDIR": str(folder.path), SCRATCH: str(folder.path)}
        command = [*(self.command or SGLANG_COMMAND), *arguments]
        with self.log_path.open("ab") as log:
            log.write(f"--- at {folder.path / SOCKET}: {' '.join(command)}\n".encode())
            log.flush()
            if self.command is None and FAMILY_VARIABLE not in environment:  # no fork server knows such a family
                with contextlib.suppress(NoForkServer):
                    self._process = _forked_server(arguments, environment, folder, log.fileno())
                    return
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # never written to: its closing tells the server that we are gone
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder.path,
                pass_fds=(folder.hold,),  # the server's processes keep the hold when this one is killed
                start_new_session=True,
            )

    def _fail(self, what: str) -> None:
        code = self._process.poll() if self._process else None
        self.stop()
        ended = "" if code is None else f" (exit code {code})"
        raise ServerFailed(
            f"the SGLang server of engine {self.index} {what}{ended}{self.last_words()}\n"
            f"Its log {self.log_path} ends with:\n{self.log_tail()}"
        )


def _forked_server(arguments: list[str], environment: dict[str, str], folder: Scratch, log: int) -> ForkedProcess:
    """Forks a server that has everything imported when it starts. Raises NoForkServer."""
    server = socket_of(SGLANG, os.environ)
    read_end, write_end = os.pipe()  # as the standard input of a command
    try:
        process = ForkedProcess(
            server,
            ["sglang", *arguments],
            stdin=read_end,
            stdout=log,
            environment=environment,
            cwd=folder.path,
            keep=(folder.hold,),
        )
    except NoForkServer:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    process.stdin = os.fdopen(write_end, "wb", buffering=0)
    return process


def server_arguments(
    rollout: RolloutConfig, model: ModelConfig, model_path: str, version: int, on_gpu: bool
) -> list[str]:
    """Return SGLang's arguments."""
    context_length = model.max_positions + CONTEXT_MARGIN
    arguments = {
        "--model-path": str(Path(model_path).resolve()),
        "--weight-version": version,
        "--dtype": rollout.dtype,
        "--context-length": context_length,
        "--max-running-requests": rollout.max_running_requests,
        # Room for every running request at its longest, so that none is ever put back for lack of memory.
        "--max-total-tokens": rollout.max_running_requests * context_length,
        "--grammar-backend": "none",
        "--log-level-http": "warning",
    }
    switches = [
        "--skip-tokenizer-init",
        "--disable-radix-cache",
        "--enable-deterministic-inference",  # what makes SGLang heed a request's sampling seed
        "--sleep-on-idle",  # an idle scheduler takes three quarters of a core otherwise
    ]
    if model.resolved_family.has_experts:
        switches.append("--enable-return-routed-experts")
    switches += GPU_ARGUMENTS if on_gpu else CPU_ARGUMENTS
    return [str(word) for pair in arguments.items() for word in pair] + switches


def server_environment(on_gpu: bool, family: str | None = None) -> dict[str, str]:
    """Returns what a server needs in its environment besides ours. family: `model.family`."""
    package_parent = str(Path(__file__).resolve().parents[3])
    environment = {
        **family_environment(family),
        "PYTHONPATH": os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")])),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",  # its log has what it wrote last, in its order, also when it was killed
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # /health answers at once instead of after a second
        "SGLANG_USE_PICKLE_IPC": "0",  # its processes send each other bytes: torch's pickles cost a tenth of a batch
    }
    if on_gpu:
        environment |= sglang_on_gpu.ENVIRONMENT
    else:
        environment |= {
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",  # more threads on busy cores are ten times slower
            "TORCHDYNAMO_DISABLE": "1",  # torch.compile needs a C++ compiler and gains nothing at this size
        }
    return environment


def gpu_available() -> bool:
    """Tells whether torch sees a GPU."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # without it CUDA starts here, and cannot be forked
    import torch

    return torch.cuda.is_available()
