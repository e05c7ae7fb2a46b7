"""Entry of a server process: SGLang's arguments in, SGLang's HTTP server out. Ends with its parent."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from sat_slime.embedded.sglang_server import SCRATCH, SOCKET
from sat_slime.rollout.scratch import name_shared_memory, remove_scratch


def die_with_parent(folder: Path) -> None:
    """Kill this process group when standard input closes, which it does however the parent dies."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        remove_scratch(folder)  # made for this server alone
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def listen_on_file(folder: Path) -> None:
    """SGLang asks uvicorn for a host and a port. A port can be taken by somebody else in the 15 seconds before SGLang
    binds it, and is open to everyone on the machine. A file in a folder that only this user may enter is neither: who
    answers there is this server."""
    import uvicorn

    uvicorn.run = functools.partial(uvicorn.run, uds=str(folder / SOCKET))


def main() -> None:
    folder = Path(os.environ[SCRATCH])
    die_with_parent(folder)
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        from sat_slime.rollout.sglang_on_cpu import patches

        patches.apply()
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    try:
        # The warm-up sends a request to the port that nobody listens on here, or a stranger.
        args = prepare_server_args([*sys.argv[1:], "--skip-server-warmup"])
        listen_on_file(folder)
        name_shared_memory(folder)
        launch_server(args)
    except Exception:  # a scheduler that died; its siblings would keep this process waiting
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
