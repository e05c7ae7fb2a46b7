"""Stands for Slurm on this machine: `srun` and `scontrol`.

Two nodes, n1 and n2, are this machine at 127.0.0.2 and 127.0.0.3, which each has in SLIME_HOST_IP. `srun` starts a task
on each of the first nodes, or on that of --nodelist, hands SIGTERM on to them, and ends them all when one fails;
`scontrol` notes how it was called.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ADDRESSES = {"n1": "127.0.0.2", "n2": "127.0.0.3"}
ROOT = Path(__file__).parents[1]
PROGRAMS = {
    "srun": f'exec "{sys.executable}" "{__file__}" "$@"',
    "scontrol": 'echo "$*" >> "$SLURM_STAND_IN/scontrol.log"',
    "python3": f'exec "{sys.executable}" "$@"',
    "ray": f'exec "{sys.executable}" -m ray.scripts.scripts "$@"',
    "sat-slime": f'exec "{sys.executable}" -c "from sat_slime.cli import main; main()" "$@"',
}


def slurm_environment(folder: Path) -> dict[str, str]:
    """The environment of a batch script that runs on n1. folder: where the programs are made."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    # With a lab run in this process Ray has been told here that it is alone on its machine.
    alone = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    return {
        **{name: value for name, value in os.environ.items() if name != alone},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SLURM_STAND_IN": str(folder),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NUM_NODES": str(len(ADDRESSES)),
        "SLURMD_NODENAME": "n1",
    }


def srun(arguments: list[str]) -> int:
    """Runs tasks and waits for them; returns the first exit code that is not 0."""
    import signal

    options = {}
    while arguments and arguments[0].startswith("--"):
        name, _, value = arguments.pop(0).partition("=")
        options[name] = value
    nodes = [options["--nodelist"]] if "--nodelist" in options else list(ADDRESSES)[: int(options["--nodes"])]
    assert len(nodes) == int(options["--ntasks"])
    tasks = [
        subprocess.Popen(
            arguments,
            env={**os.environ, "SLURM_PROCID": str(number), "SLURMD_NODENAME": node, "SLIME_HOST_IP": ADDRESSES[node]},
        )
        for number, node in enumerate(nodes)
    ]

    def hand_on(*_: object) -> None:
        for task in tasks:
            if task.returncode is None:
                os.kill(task.pid, signal.SIGTERM)  # Popen.terminate would take its exit code from the loop below

    signal.signal(signal.SIGTERM, hand_on)
    code = 0
    for _ in tasks:
        pid, status = os.waitpid(-1, 0)
        next(task for task in tasks if task.pid == pid).returncode = os.waitstatus_to_exitcode(status)
        if status and not code:
            code = os.waitstatus_to_exitcode(status) % 256
            if "--kill-on-bad-exit" in options:
                hand_on()
    return code


if __name__ == "__main__":
    sys.exit(srun(sys.argv[1:]))
