"""A program: starts a Ray of two nodes, of which the second has an empty disk in a folder's place, and prints what the
check of the cluster finds, a JSON list each. Root alone may mount such a disk.

    python two_nodes.py FILE FOLDER RUN KEY=VALUE...
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sat_slime.config import load_config
from sat_slime.launch import checks, cpu_run, local_ray
from sat_slime.launch.command import slime_command
from sat_slime.launch.ray_jobs import JobServer


class WithItsOwnDisk(subprocess.Popen):
    """Starts a process; that of the second node sees the folder empty."""

    def __init__(self, command, **more):
        if "start" in command and "--head" not in command:
            mount = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", mount, sys.argv[2], *command]
        super().__init__(command, **more)


def main() -> None:
    file, _, run, *overrides = sys.argv[1:]
    config = load_config(Path(file), overrides)
    local_ray.private_network()
    local_ray.subprocess.Popen = WithItsOwnDisk
    gpus, cores = config.cluster.gpus_per_node, cpu_run.cpu_cores(config)
    ray = local_ray.start_ray(gpus, cores, 100 * 2**20, cpu_run.RAY_ENVIRONMENT, nodes=cpu_run.cpu_nodes(config))
    try:
        sent = slime_command(config, Path(run))
        for finding in checks.cluster_findings(JobServer(ray.address), config, Path(run), sent):
            print(json.dumps([finding.mark, finding.what, finding.detail]))
    finally:
        local_ray.stop_ray(ray)


if __name__ == "__main__":
    main()
