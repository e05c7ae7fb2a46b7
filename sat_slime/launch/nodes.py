"""Asks a node what only it knows."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import Any

from sat_slime.launch.memory import machine_sizes
from sat_slime.runs.proxies import own_address

SIOCGIFADDR = 0x8915
"""Linux's request for the IPv4 address of an interface."""


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
