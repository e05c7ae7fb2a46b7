"""The cells of a grid on the nodes of a running Ray cluster: each is the command that runs it here, started there."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sat_slime.cli.embedded_run.engine_packages import INSTALL_ENGINES
from sat_slime.cli.grid_run import ray_node
from sat_slime.cli.grid_run.cells import Cells
from sat_slime.cli.grid_run.grid_plan import GridPlan
from sat_slime.config import ConfigError
from sat_slime.grid.runner import NODE_LOST, Process

COMMAND = ("{python}", "-m", "sat_slime.cli.grid_run.tied", "{parent}")
"""The command that runs a cell, with the node's Python and the process that it ends with."""
AS_HERE = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONPATH")
"""Variables that a cell has as the grid has them: Ray sets the first two for its own processes."""


CONNECT_S = 10
"""Seconds within which the head answers."""


@dataclass
class Node:
    """A node of the cluster."""

    id: str
    name: str
    room: int
    """Cells that it can run at once."""
    running: int = 0


@contextlib.contextmanager
def ray_nodes(address: str, plan: GridPlan) -> Iterator[RayCells]:
    """Join a running Ray cluster; the grid's folder has to be locked.

    address: the host and port of its head. There is no `auto`: it might find the Ray of an embedded run.

    Raises:
        ConfigError: no cluster answers, or one of its nodes cannot run a cell.
    """
    _look_for(address)
    try:
        import ray
    except ImportError:
        raise ConfigError(["--ray needs ray: pip install '.[embedded]' in a checkout"]) from None
    ray.cloudpickle.register_pickle_by_value(ray_node)
    # Ray prints what it hears of nodes that die, 20 lines each, into the live view.
    ray._private.worker.print_to_stdstream = lambda *args, **more: None
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError([f"--ray {address}: no Ray cluster can be joined there ({reason})"]) from None
    try:
        yield RayCells(plan, ray, _usable(ray, plan))
    finally:
        ray.shutdown()


def _look_for(address: str) -> None:
    """Raise ConfigError where nothing listens: Ray would try for minutes, and then end this process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError([f"--ray {address}: expected HOST:PORT of a Ray's head, such as 10.0.0.1:6379"])
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        remedy = "start it with ray start --head, or name the head's address"
        raise ConfigError([f"--ray {address}: no Ray cluster answers ({error}): {remedy}"]) from None


def _usable(ray: Any, plan: GridPlan) -> list[Node]:
    """Return the nodes that have cores. Raises ConfigError where one of them cannot run a cell."""
    lock = Path(plan.folder.path).resolve() / ".lock"
    alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    look = ray.remote(num_cpus=0, max_retries=0)(ray_node.look)
    asked = [look.options(**_on(node["NodeID"])).remote(os.getcwd(), str(lock), _variables()) for node in alive]
    here, errors, nodes = ray_node.facts(lock), [], []
    for node, answer in zip(alive, asked, strict=True):
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        try:
            found = ray.get(answer)
        except ray.exceptions.RayError as error:
            found = {"error": str(error).strip().splitlines()[0]}
        if fault := _fault(found, here, lock):
            errors.append(f"node {name} of the Ray cluster {fault}")
        else:
            room = min(int(node["Resources"]["CPU"]), int(found["memory"] / plan.cell_memory))
            nodes.append(Node(node["NodeID"], name, max(1, room)))
    if not alive:
        errors.append("no node of the Ray cluster has a core for a cell: start one with --num-cpus")
    if errors:
        raise ConfigError(errors)
    return nodes


def _fault(found: dict[str, Any], here: dict[str, Any], lock: Path) -> str | None:
    """Return why a node cannot run a cell, or None. found, here: what `ray_node.facts` says there and here."""
    if "error" in found:
        return f"cannot start a cell ({found['error']}): it needs sat_slime, and the grid's folders under the same path"
    if not found["locked"]:
        return f"does not see the lock of {lock.parent}: put the grid on a disk that all nodes share, with locks"
    if found["missing"]:
        return f"lacks {', '.join(found['missing'])}: there {INSTALL_ENGINES}"
    if found["package"] != here["package"]:
        return "has other code of sat_slime than this machine: install the same there"
    return None


def _variables() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in AS_HERE}


def _on(node: str) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


class RayCells(Cells):
    """Cells as actors of Ray, a core each. A node that joins later is used by the next call of the grid."""

    def __init__(self, plan: GridPlan, ray: Any, nodes: Sequence[Node]):
        super().__init__(plan)
        self._ray = ray
        self._nodes = list(nodes)

    def room(self) -> int:
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        self._nodes = [node for node in self._nodes if node.id in alive]
        room = sum(node.room for node in self._nodes)
        return room if self.plan.grid.parallel is None else min(room, self.plan.grid.parallel)

    def start(self, arguments: Sequence[str], output: IO[bytes]) -> Process:
        node = max(self._nodes, key=lambda node: node.room - node.running)
        actor = self._ray.remote(ray_node.NodeCell)
        actor = actor.options(num_cpus=1, max_concurrency=2, max_restarts=0, **_on(node.id)).remote()
        command, file = [*COMMAND, *(_unformatted(word) for word in arguments)], str(Path(output.name).resolve())
        return RayProcess(self._ray, node, actor, actor.run.remote(command, file, os.getcwd(), _variables()))

    def kill(self, process: Process) -> None:
        process.send_signal(signal.SIGKILL)

    def place(self, process: Process) -> str:
        return f" on {process.node.name}" if isinstance(process, RayProcess) else ""


def _unformatted(word: str) -> str:
    return word.replace("{", "{{").replace("}", "}}")


class RayProcess:
    """A cell's process on a node."""

    pid = 0

    def __init__(self, ray: Any, node: Node, actor: Any, end: Any):
        """end: what its exit code will be taken from."""
        self.node = node
        self.returncode: int | None = None
        self._ray, self._actor, self._end = ray, actor, end
        node.running += 1

    def poll(self) -> int | None:
        if self.returncode is None and self._ray.wait([self._end], timeout=0)[0]:
            self._take()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._ray.wait([self._end], timeout=timeout)
            self._take()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        self._actor.signal.remote(number)

    def _take(self) -> None:
        try:
            self.returncode = self._ray.get(self._end)
        except self._ray.exceptions.RayError:  # the process that ran the command is gone
            alive = any(node["NodeID"] == self.node.id and node["Alive"] for node in self._ray.nodes())
            self.returncode = -signal.SIGKILL if alive else NODE_LOST
        self.node.running -= 1
        if self.returncode == NODE_LOST:
            self.node.room = 0
        self._ray.kill(self._actor)
