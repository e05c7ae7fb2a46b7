"""Where torch's process groups meet, on loopback alone."""

from __future__ import annotations

import contextlib
import socket
from typing import Any


def listen_on_loopback(rendezvous: Any) -> None:
    """A TCPStore listens on every interface of the machine, whatever address it is given, and its keys are everybody's
    to read and write. It takes a socket that listens already: here on the address that was given, which is loopback."""
    store = rendezvous.TCPStore

    def store_on_its_address(*, host_name: str, port: int, is_master: bool = False, **more: Any) -> Any:
        if is_master:
            with contextlib.suppress(OSError):  # taken: by this process, whose stores share it, or torch says so
                more["master_listen_fd"] = socket.create_server((host_name, port)).detach()
        return store(host_name=host_name, port=port, is_master=is_master, **more)

    rendezvous.TCPStore = store_on_its_address
