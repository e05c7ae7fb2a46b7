"""Measures the most memory that each kind of process of a command held, and its shared memory.

    python bench/process_memory.py COMMAND [ARGUMENT ...]

It counts the command and all that it starts: an environment variable marks them. Memory is what a process has to itself
(anonymous, proportional where several have a page), summed over the processes of a kind; `/dev/shm` is all that is in
it above what was there before, which is Ray's object store, mapped or not. Beside each kind's own peak stands what it
held when all together held most.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import uuid
from collections import Counter
from pathlib import Path

MARK = "SAT_SLIME_MEASURED"
EVERY_S = 1.0


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    mark, before = f"{MARK}={uuid.uuid4().hex}", shared_bytes()
    command = subprocess.Popen(sys.argv[1:], env={**os.environ, MARK: mark.partition("=")[2]})
    peaks: Counter[str] = Counter()
    highest: Counter[str] = Counter()
    ended = threading.Event()

    def watch() -> None:
        nonlocal peaks, highest
        while not ended.wait(EVERY_S):
            held = by_kind(mark.encode())
            held["/dev/shm"] = shared_bytes() - before
            peaks |= held
            highest = max(highest, held, key=lambda memory: memory.total())

    watcher = threading.Thread(target=watch)
    watcher.start()
    status = command.wait()
    ended.set()
    watcher.join()
    print(f"\n{'MiB':40}{'peak':>8}{'when all held most':>20}")
    for kind, peak in peaks.most_common():
        print(f"{kind[:39]:40}{peak / 2**20:8.0f}{highest[kind] / 2**20:20.0f}")
    print(f"{'all':40}{'':8}{highest.total() / 2**20:20.0f}")
    sys.exit(status)


def by_kind(mark: bytes) -> Counter[str]:
    """Return the bytes of the marked processes, by the first word of their command lines, methods of Ray's actors
    aside."""
    held: Counter[str] = Counter()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
                rollup = (process / "smaps_rollup").read_text()
                kind = words[0].rpartition("/")[2].partition(".")[0] if words else "(gone)"
                held[kind] += int(rollup.split("Pss_Anon:")[1].split()[0]) * 1024
    return held


def shared_bytes() -> int:
    status = os.statvfs("/dev/shm")
    return (status.f_blocks - status.f_bfree) * status.f_frsize


if __name__ == "__main__":
    main()
