"""A Ray cluster on this machine for tests: a head without cores, and two nodes of one core each.

As a program it starts the cluster, prints its address, and ends it when its standard input is closed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """The environment of this process without settings of Ray, which other tests may have left there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


@contextlib.contextmanager
def ray_cluster(variables: Mapping[str, str], log: Path) -> Iterator[str]:
    """Start the cluster with these variables in its environment, and end it; yields its address."""
    command = [sys.executable, str(Path(__file__))]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment(**variables)
        )
    try:
        assert process.stdout is not None
        lines = (line.decode() for line in process.stdout)
        address = next((line.split()[1] for line in lines if line.startswith("address ")), None)
        assert address, log.read_text()
        yield address
    finally:
        process.communicate()


def main() -> None:
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    for _ in range(2):
        cluster.add_node(num_cpus=1, wait=True, object_store_memory=100 * 2**20)
    print("address", cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
