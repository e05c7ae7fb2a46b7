"""A program: launches a run of slime over two nodes of this machine, in a network namespace, and kills all processes of
the second node once a batch was trained after the first checkpoint. Its words are those of sat-slime.

    python dying_node.py RUN launch FILE OPTIONS...
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

from sat_slime.cli import main
from sat_slime.launch import local_ray

SECOND = b"SLIME_HOST_IP=127.0.0.3"


def kill_the_second_node(run: Path) -> None:
    look = threading.Event()
    while not ((run / "metrics.jsonl").is_file() and len((run / "metrics.jsonl").read_text().splitlines()) > 2):
        look.wait(0.5)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if SECOND in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


if __name__ == "__main__":
    local_ray.private_network()
    folder = Path(sys.argv.pop(1))
    threading.Thread(target=kill_the_second_node, args=[folder], daemon=True).start()
    main()
