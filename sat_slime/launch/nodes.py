"""Asks a node what only it knows, and says where a run would wait for its servers without end."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sat_slime.config.finding import Finding, fail, warn
from sat_slime.launch.memory import machine_sizes
from sat_slime.runs.proxies import own_address

SIOCGIFADDR = 0x8915
"""Linux's request for the IPv4 address of an interface."""

Facts = Mapping[str, Any]
"""The answer of a node to `node_facts`, with its `name`, which is its address in Ray."""


def node_facts() -> dict[str, Any]:
    """Return what this node says of itself."""
    return {"slime_address": own_address(), "sizes": machine_sizes()}


def address_of(interface: str) -> str:
    """This node's address on an interface, or, where none is named, the one that slime takes. Raises SystemExit."""
    if not interface:
        return own_address()
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24])
        except OSError:
            where = socket.gethostname()
            raise SystemExit(f"interface {interface} has no IPv4 address on {where}: see `ip -4 addr`") from None


def node_findings(nodes: Sequence[Facts]) -> Iterator[Finding]:
    """Yield findings on the nodes that answered."""
    nodes = [node for node in nodes if "slime_address" in node]
    for node in nodes:
        name, slimes = node["name"], node["slime_address"]
        # slime takes the address of the default route, or SLIME_HOST_IP, whatever Ray's is.
        listen = f"node {name}: slime's servers listen on {slimes}"
        remedy = f"export SLIME_HOST_IP={name} where that node's Ray is started, and not in cluster.env"
        if len(nodes) > 1 and slimes.startswith("127.") and not name.startswith("127."):
            yield fail("network", f"{listen}, where no other node comes: {remedy}")
        elif len(nodes) > 1 and slimes != name and not slimes.startswith("127."):
            yield warn("network", f"{listen}, and Ray on {name}: if the others do not reach the first, {remedy}")
