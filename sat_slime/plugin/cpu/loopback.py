"""Has torch's process groups meet on loopback alone."""

from __future__ import annotations

import contextlib
import socket
from typing import Any


def listen_on_loopback(rendezvous: Any) -> None:
    """Has torch's TCPStore listen on loopback. It listens on every interface of the machine, whatever address it is
    given, and anybody may read and write its keys. But it takes a socket that listens already: here one on the address
    that was given, which is loopback."""
    store = rendezvous.TCPStore

    def store_on_its_address(*, host_name: str, port: int, is_master: bool = False, **more: Any) -> Any:
        if is_master:
            # The port may be taken: by this process, whose stores share it, or by another, and then torch says so.
            with contextlib.suppress(OSError):
                more["master_listen_fd"] = socket.create_server((host_name, port)).detach()
        return store(host_name=host_name, port=port, is_master=is_master, **more)

    rendezvous.TCPStore = store_on_its_address
