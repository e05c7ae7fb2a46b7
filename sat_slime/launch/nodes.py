"""Asks a node what only it knows, and says what is wrong with it: its address, its packages, the files that it sees."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sat_slime.config.finding import Finding, fail, warn
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.named_files import SLICE
from sat_slime.runs.proxies import own_address

SIOCGIFADDR = 0x8915
"""Linux's request for the IPv4 address of an interface."""
NUMPY, ENGINE_OF_TRANSFORMERS, APEX, ROUTER = MODULES = (
    "numpy",
    "transformer_engine",
    "fused_weight_gradient_mlp_cuda",
    "sglang_router",
)
"""What slime imports once the nodes' GPUs are in use."""

Facts = Mapping[str, Any]
"""The answer of a node to `node_facts`, with its `name`, which is its address in Ray."""


def needed_paths(config: SlimeConfig) -> dict[str, str]:
    """Return the files and folders that every node opens, or that one does of which nobody knows in advance, by their
    settings."""
    paths = {
        "slime.hf-checkpoint": config.model.hf_checkpoint,
        "slime.ref-load": config.model.megatron_checkpoint,
        "slime.prompt-data": config.data.prompts,
    }
    if config.eval.every_n_iterations:
        paths |= {f"slime.eval-prompt-data ({name})": file for name, file in config.eval.prompts.items()}
    return {key: SLICE.sub("", path) for key, path in paths.items() if path}


def node_facts(paths: Mapping[str, str]) -> dict[str, Any]:
    """Return what this node says of itself. paths: by setting, those to look for."""
    return {
        "slime_address": own_address(),
        "missing": [key for key, path in paths.items() if not os.path.exists(os.path.expanduser(path))],
        "packages": package_versions(),
    }


def package_versions() -> dict[str, str | None]:
    """Return the versions of MODULES: empty where that is not told, None where there is no such module. Only the router
    is imported, whose build has another version than its package says: the others take seconds, or a GPU."""
    versions: dict[str, str | None] = {}
    for module in MODULES:
        if importlib.util.find_spec(module) is None:
            versions[module] = None
        elif module == ROUTER:
            try:
                versions[module] = str(importlib.import_module(module).__version__)
            except Exception:  # whatever its own code raises
                versions[module] = ""
        else:
            packages = importlib.metadata.packages_distributions().get(module, [])
            versions[module] = importlib.metadata.version(packages[0]) if packages else ""
    return versions


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


# ----------------------------------------------------------------------------------------------------- the findings


def package_findings(config: SlimeConfig, nodes: Mapping[str, Mapping[str, str | None]]) -> Iterator[Finding]:
    """Yield findings on packages without which a run on GPUs fails minutes after its start. nodes: what each node said
    of its packages."""
    if config.cluster.device != "gpu" or config.cluster.share_gpu:  # `card_run` has what is missing for the second
        return
    flags, install = config.slime, "is not installed: run in slime's image"
    for name, packages in nodes.items():
        numpy, router = packages[NUMPY], packages[ROUTER]
        if numpy and not numpy.startswith("1."):
            yield fail("numpy", f"{name}: NumPy is {numpy}, and slime ends each trainer: pip install 'numpy<2' there")
        if packages[ENGINE_OF_TRANSFORMERS] is None and flags.get("transformer-impl") != "local":
            yield fail("transformer engine", f"{name}: it {install}, or set slime.transformer-impl to local")
        if packages[APEX] is None and not flags.get("no-gradient-accumulation-fusion"):
            yield fail("apex", f"{name}: its {APEX} {install}, or set slime.no-gradient-accumulation-fusion to true")
        if flags.get("sglang-router-ip"):
            continue
        if router is None:
            yield fail("router", f"{name}: sglang-router {install}")
        elif router and config.method.r3 and "slime" not in router:
            yield fail(
                "router",
                f"{name}: sglang-router is {router}, and of its builds slime's alone hands the engines' routes on: run "
                "in slime's image, or set method.r3 to false",
            )


def node_findings(config: SlimeConfig, nodes: Sequence[Facts]) -> Iterator[Finding]:
    """Yield findings on the nodes that answered."""
    nodes = [node for node in nodes if "packages" in node]
    for key, path in needed_paths(config).items():
        lacking = [node["name"] for node in nodes if key in node["missing"]]
        if lacking and len(lacking) < len(nodes):
            place = "put it on a disk that all nodes share"
            yield fail("files", f"{key} is {path}: node {lacking[0]} does not see it, others do: {place}")
    yield from package_findings(config, {f"node {node['name']}": node["packages"] for node in nodes if node["gpus"]})
    # slime takes the address of the default route, or SLIME_HOST_IP, whatever Ray's is.
    for name, slimes in ((node["name"], node["slime_address"]) for node in nodes if len(nodes) > 1):
        listen = f"node {name}: slime's servers listen on {slimes}"
        remedy = f"export SLIME_HOST_IP={name} where that node's Ray is started, and not in cluster.env"
        if slimes.startswith("127.") and not name.startswith("127."):
            yield fail("network", f"{listen}, where no other node comes: {remedy}")
        elif slimes != name and not slimes.startswith("127."):
            yield warn("network", f"{listen}, and Ray on {name}: if the others do not reach the first, {remedy}")
