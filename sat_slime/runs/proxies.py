"""Keeps an HTTP proxy out of the way between the hosts of a run. slime, SGLang and Ray's client ask each other with
`requests`, which sends everything through the proxy of the environment that `no_proxy` does not except. A proxy cannot
reach a cluster's own addresses, and slime then waits for its engines for ever."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def without_proxy(environment: Mapping[str, str], hosts: Iterable[str] = ()) -> dict[str, str]:
    """Return `no_proxy` in both its spellings: what the environment has, then this host and `hosts`."""
    values = (environment.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    entries = [entry.strip() for value in values for entry in value.split(",") if entry.strip()]
    # Where it is `*` alone, all hosts are excepted; urllib does not understand that beside other entries.
    value = "*" if "*" in entries else ",".join(dict.fromkeys([*entries, *HERE, *hosts]))
    return {"no_proxy": value, "NO_PROXY": value}


def host_of(url: str) -> str:
    """Return the host in a URL, or in HOST:PORT; empty where there is none."""
    return urlsplit(url if "://" in url else f"//{url}").hostname or ""


def own_address() -> str:
    """Return the address on which slime's servers listen here, found as slime does: SLIME_HOST_IP, else that of the
    default route, else the one that the host's name leads to, else loopback. SLIME_PREFER_IPV6 is not followed."""
    if chosen := os.environ.get("SLIME_HOST_IP"):
        return chosen
    addresses = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sends_nothing:
        sends_nothing.connect(("8.8.8.8", 80))
        addresses.append(sends_nothing.getsockname()[0])
    with contextlib.suppress(OSError):
        addresses += [info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    return next((str(address) for address in addresses if not str(address).startswith("127.")), "127.0.0.1")
