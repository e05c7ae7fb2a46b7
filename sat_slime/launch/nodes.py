"""Asks a node what only it knows, and says what a run would fail on after its first batch, or wait for without end."""

from __future__ import annotations

import fcntl
import importlib.util
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sat_slime.config.finding import Finding, fail, warn
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.memory import machine_sizes
from sat_slime.runs.proxies import own_address

SIOCGIFADDR = 0x8915
"""Linux's request for the IPv4 address of an interface."""
APEX = "fused_weight_gradient_mlp_cuda"
"""The module of Apex with which Megatron adds up gradients, at the first backward pass."""

Facts = Mapping[str, Any]
"""The answer of a node to `node_facts`, with its `name`, which is its address in Ray."""


def node_facts() -> dict[str, Any]:
    """Return what this node says of itself. The router is imported, whose builds differ in the version that it says."""
    try:
        router = str(importlib.import_module("sglang_router").__version__)
    except Exception:  # whatever its own code raises; where it lacks, slime says so as it starts
        router = ""
    apex = importlib.util.find_spec(APEX) is not None
    return {"slime_address": own_address(), "apex": apex, "router": router, "sizes": machine_sizes()}


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


def package_findings(config: SlimeConfig, node: str, facts: Facts) -> Iterator[Finding]:
    """Yield findings on the packages of a node with GPUs."""
    if config.cluster.device != "gpu" or config.cluster.share_gpu:  # `card_run` has what is missing for the second
        return
    image = "run in slime's image, or set"
    if not facts["apex"] and not config.slime.get("no-gradient-accumulation-fusion"):
        lacks = f"{node}: Apex's {APEX} is not installed, with which Megatron adds up gradients"
        yield fail("apex", f"{lacks}: {image} slime.no-gradient-accumulation-fusion to true")
    router, own = facts["router"], config.slime.get("sglang-router-ip")
    if router and "slime" not in router and config.method.r3 and not own:
        only = "of its builds slime's alone hands the engines' routes on"
        yield fail("router", f"{node}: sglang-router is {router}, and {only}: {image} method.r3 to false")


def node_findings(config: SlimeConfig, nodes: Sequence[Facts]) -> Iterator[Finding]:
    """Yield findings on the nodes that answered."""
    nodes = [node for node in nodes if "router" in node]
    for node in nodes:
        name, slimes = node["name"], node["slime_address"]
        if node["gpus"]:
            yield from package_findings(config, f"node {name}", node)
        # slime takes the address of the default route, or SLIME_HOST_IP, whatever Ray's is.
        listen = f"node {name}: slime's servers listen on {slimes}"
        remedy = f"export SLIME_HOST_IP={name} where that node's Ray is started, and not in cluster.env"
        if len(nodes) > 1 and slimes.startswith("127.") and not name.startswith("127."):
            yield fail("network", f"{listen}, where no other node comes: {remedy}")
        elif len(nodes) > 1 and slimes != name and not slimes.startswith("127."):
            yield warn("network", f"{listen}, and Ray on {name}: if the others do not reach the first, {remedy}")
