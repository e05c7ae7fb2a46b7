"""The memory that there is: of GPUs, hosts, /dev/shm and Ray's object store, as settings give or machines tell it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.memory.memory_needs import GIB, MIB

KINDS = ("gpu", "host", "shm", "store")
ASSUMED_GPU_BYTES = 79.1 * GIB
"""What CUDA shows of an H100 of 80 GB, less than 80 GB by what the driver keeps (PyTorch's messages on memory that ran
out: "GPU 0 has a total capacity of 79.10 GiB")."""
NVIDIA_SMI = ("nvidia-smi", "--format=csv,noheader,nounits")
ASK_TIMEOUT_S = 20.0
CGROUPS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Files of a container's memory, in both versions of control groups: the limit, what is held of it, and its parts, with
the part that can be dropped."""


@dataclass(frozen=True)
class Size:
    """An amount of memory, and who says so."""

    bytes: float
    source: str
    """A node, or the setting that gives it."""
    taken: float = 0.0
    """Bytes of it that programs hold which are not the run's."""

    @property
    def is_of_settings(self) -> bool:
        """True where the settings or their default say so, whatever the machine is."""
        return self.source.startswith(("cluster.", "assumed"))


@dataclass(frozen=True)
class Sizes:
    """The smallest of each kind on the machines of a run; None where nobody knows it."""

    gpu: Size
    host: Size | None = None
    shm: Size | None = None
    store: Size | None = None


def sizes(config: SlimeConfig, machines: Mapping[str, Mapping[str, float | None]] | None = None) -> Sizes:
    """Return what the settings give, else the smallest that the machines have.

    Args:
        machines: for each machine by name, what `machine_sizes` told there.
    """
    smallest: dict[str, Size] = {"gpu": Size(ASSUMED_GPU_BYTES, "assumed: an 80 GB card")}
    for kind in KINDS:
        known = [(size, name) for name, machine in (machines or {}).items() if (size := machine.get(kind))]
        if known:
            smallest[kind] = Size(*min(known))
        key = "object_store_gib" if kind == "store" else f"{kind}_gib" if kind == "shm" else f"{kind}_memory_gib"
        if (given := getattr(config.cluster, key)) is not None:
            smallest[kind] = Size(given * GIB, f"cluster.{key}")
    return Sizes(**smallest)


def left_here() -> Sizes:
    """Return what this machine has for a run on its CPU, whose processes it all holds, beside other programs."""
    host = host_memory()
    return Sizes(Size(0, "none"), Size(host, "this machine", memory_in_use()) if host else None)


def machine_sizes() -> dict[str, float | None]:
    """Return the bytes of this machine's smallest GPU, its memory and its /dev/shm; None: unknown, or not there."""
    return {"gpu": gpu_memory(), "host": host_memory(), "shm": shared_memory()}


def gpu_memory() -> float | None:
    """Return the bytes that CUDA can use of this machine's smallest GPU, told by the driver, so that no CUDA context is
    made and CUDA_VISIBLE_DEVICES does not matter. Older drivers do not tell what they keep for themselves."""
    for fields in ("memory.total,memory.reserved", "memory.total"):
        try:
            run = subprocess.run(
                [*NVIDIA_SMI, f"--query-gpu={fields}"],
                capture_output=True,
                text=True,
                timeout=ASK_TIMEOUT_S,
                check=True,
            )
            rows = [[float(cell) for cell in row.split(",")] for row in run.stdout.splitlines() if row.strip()]
        except (OSError, subprocess.SubprocessError, ValueError):
            continue
        if rows:
            return min(total - sum(reserved) for total, *reserved in rows) * MIB
    return None


def host_memory() -> float | None:
    """Return the bytes of memory that this machine, or the container that this process is in, has."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(file).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if limit.isdigit():
            physical = min(physical, int(limit))
    return physical


def memory_in_use(root: Path = Path("/")) -> float:
    """Return the bytes of this machine's, or this container's, memory that programs hold: what Ray counts before it
    kills workers. Pages of files that can be dropped are not among them."""
    physical, groups = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), root / "sys/fs/cgroup"
    for limit, held, fields, droppable in CGROUPS:
        with contextlib.suppress(OSError, KeyError, ValueError):
            if int((groups / limit).read_text(encoding="utf-8")) < physical:
                return int((groups / held).read_text(encoding="utf-8")) - _fields(groups / fields)[droppable]
    with contextlib.suppress(OSError, KeyError, ValueError):
        kib = _fields(root / "proc/meminfo")
        return 1024 * (kib["MemTotal:"] - kib["MemAvailable:"])
    return 0.0


def _fields(file: Path) -> dict[str, int]:
    return {line.split()[0]: int(line.split()[1]) for line in file.read_text(encoding="utf-8").splitlines()}


def shared_memory() -> float | None:
    """Return the bytes of /dev/shm, in use or not."""
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_blocks * status.f_frsize


def sizes_of_nodes(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, float | None]]:
    """Return what the nodes of a cluster that have GPUs told the probe, by their names."""
    return {f"node {node['name']}": node["sizes"] for node in nodes if node["gpus"] and node.get("sizes")}
