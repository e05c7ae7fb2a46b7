"""The process of SGLang's server: `python -m sat_slime.lab.sglang_process ARGUMENTS`.

It takes SGLang's arguments, runs SGLang's HTTP server, and ends with its parent.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

from sat_slime.rollout.scratch import name_shared_memory, remove_scratch

SCRATCH = "SAT_SLIME_SCRATCH"
"""The environment variable that names the server's scratch folder, which goes with the server."""
SOCKET = "http"
"""The file in that folder on which the server listens."""


def die_with_parent(folder: Path) -> None:
    """Kills this process group when standard input closes, which it does however the parent dies."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        remove_scratch(folder)  # made for this server alone
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def stay_with_this_user(folder: Path) -> None:
    """Has SGLang listen on a file in place of its host and port, its processes meet at a file, and talk on the loopback
    interface.

    Everyone on the machine can reach a port, and somebody else can take it in the 15 seconds before SGLang binds it.
    Torch's TCPStore, at which processes meet, listens on every interface, and Gloo and NCCL where the host's name
    leads. With a file in a folder that only this user may enter, whoever answers there is this server.
    """
    import uvicorn

    uvicorn.run = functools.partial(uvicorn.run, uds=str(folder / SOCKET))
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    os.environ["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] = f"file://{folder}/meeting-point"


def import_sglang() -> None:
    """Imports SGLang's server, with the patches that it needs on a CPU."""
    from sat_slime.rollout.sglang_on_cpu import patches

    patches.apply()
    import sglang.srt.entrypoints.http_server
    import sglang.srt.models.registry  # noqa: F401 - once, before the scheduler is forked

    # What was imported is not collected, here and in the scheduler, which is forked: a million objects that never go,
    # and that each full collection would look through in the middle of a batch.
    gc.collect()
    gc.freeze()


def run_server(arguments: Sequence[str]) -> None:
    """Runs SGLang's server with its arguments until it ends, or the parent does."""
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    folder = Path(os.environ[SCRATCH])
    try:
        # SGLang's warm-up would send a request to the port, where here nobody listens, or a stranger does.
        args = prepare_server_args([*arguments, "--skip-server-warmup"])
        stay_with_this_user(folder)
        name_shared_memory(folder)
        launch_server(args)
    except Exception:  # a scheduler died, and its siblings would keep this process waiting
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    die_with_parent(Path(os.environ[SCRATCH]))
    import_sglang()
    run_server(sys.argv[1:])
