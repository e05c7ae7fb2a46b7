"""Asks a node what only it knows, and says what is wrong with it: its address, its packages, the files that it sees."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.slime_flags import given_flag
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.named_files import SLICE
from sat_slime.runs.proxies import own_address

SIOCGIFADDR = 0x8915
"""Linux's request for the IPv4 address of an interface."""

NUMPY, ENGINE_OF_TRANSFORMERS, APEX, ROUTER = (
    "numpy",
    "transformer_engine",
    "fused_weight_gradient_mlp_cuda",
    "sglang_router",
)
"""Modules that slime imports once the nodes' GPUs are in use."""

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


# -------------------------------------------------------------------------------------------------------- on a node


def node_facts(paths: Mapping[str, str]) -> dict[str, Any]:
    """Return what this node says of itself. paths: by setting, those to look for."""
    return {
        "interfaces": {name: _address_of(name) for _, name in socket.if_nameindex()},
        "slime_address": own_address(),
        "missing": [key for key, path in paths.items() if not os.path.exists(os.path.expanduser(path))],
        "packages": package_versions(),
    }


def package_versions() -> dict[str, str | None]:
    """Return the versions of what slime imports minutes after a run's start."""
    return {module: _version(module) for module in (NUMPY, ENGINE_OF_TRANSFORMERS, APEX, ROUTER)}


def _version(module: str) -> str | None:
    """Return the version of the package with a module, empty where that is not told; None where there is no such
    module. Only the router is imported, whose build has another version than its package says: the others take seconds,
    or a GPU."""
    if importlib.util.find_spec(module) is None:
        return None
    if module == ROUTER:
        try:
            return str(importlib.import_module(module).__version__)
        except Exception:  # whatever its own code raises
            return ""
    for distribution in importlib.metadata.packages_distributions().get(module, ()):
        return importlib.metadata.version(distribution)
    return ""


def address_of(interface: str) -> str:
    """This node's address on an interface, or, where none is named, the one that slime takes. Raises SystemExit."""
    address = _address_of(interface) if interface else own_address()
    if address is None:
        raise SystemExit(f"interface {interface} has no IPv4 address on {socket.gethostname()}: see `ip -4 addr`")
    return address


def _address_of(interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24])
        except OSError:
            return None


# ----------------------------------------------------------------------------------------------------- the findings


def package_findings(config: SlimeConfig, nodes: Mapping[str, Mapping[str, str | None]]) -> Iterator[Finding]:
    """Yield findings on packages without which a run on GPUs fails minutes after its start. nodes: what each node said
    of its packages."""
    if config.cluster.device != "gpu":
        return
    local = _given(config, "transformer-impl") == "local"
    unfused = _given(config, "no-gradient-accumulation-fusion") is True
    other_router = _given(config, "sglang-router-ip") is not None
    rules: tuple[tuple[str, str, Callable[[str | None], object], str], ...] = (
        (
            "numpy",
            NUMPY,
            lambda version: version and not version.startswith("1."),
            "NumPy is {}, and slime ends each trainer as it starts unless it is 1: pip install 'numpy<2' there",
        ),
        (
            "transformer engine",
            ENGINE_OF_TRANSFORMERS,
            lambda version: version is None and not local,
            "Transformer Engine is not installed, of which Megatron's layers are: run in slime's image, or set "
            "slime.transformer-impl to local",
        ),
        (
            "apex",
            APEX,
            lambda version: version is None and not unfused,
            f"Apex's {APEX} is not installed, with which Megatron adds up gradients: run in slime's image, or set "
            "slime.no-gradient-accumulation-fusion to true",
        ),
        (
            "router",
            ROUTER,
            lambda version: version is None and not other_router,
            "sglang-router is not installed, which spreads requests over the engines: run in slime's image",
        ),
        (
            "router",
            ROUTER,
            lambda version: version and config.method.r3 and not other_router and "slime" not in version,
            "sglang-router is {}, and of its builds slime's alone hands the engines' routes on: run in slime's image, "
            "or set method.r3 to false",
        ),
    )
    for what, module, is_wrong, message in rules:
        wrong = [
            (name, packages[module]) for name, packages in nodes.items() if packages and is_wrong(packages[module])
        ]
        if wrong:
            (name, version), *others = wrong
            more = f" (and {len(others)} more)" if others else ""
            yield fail(what, f"{name}{more}: {message.format(version)}")


def _given(config: SlimeConfig, flag: str) -> Any:
    given = given_flag(config, flag)
    return given[1] if given else None


def node_findings(config: SlimeConfig, nodes: Sequence[Facts]) -> Iterator[Finding]:
    """Yield findings on the nodes that answered."""
    nodes = [node for node in nodes if node.get("interfaces")]
    yield from _paths(config, nodes)
    yield from package_findings(config, {f"node {node['name']}": node["packages"] for node in nodes if node["gpus"]})
    if len(nodes) > 1:
        problems = [finding for node in nodes for finding in _addresses(node)]
        yield from problems or [ok("network", ", ".join(_where(node) for node in nodes))]


def _where(node: Facts) -> str:
    interface = _interface_of(node, node["name"])
    return f"{node['name']}{f' on {interface}' if interface else ''}"


def _interface_of(node: Facts, address: str) -> str | None:
    return next((name for name, own in node["interfaces"].items() if own == address), None)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _addresses(node: Facts) -> Iterator[Finding]:
    """Checks that slime's servers are where the other nodes look for them: slime takes the address of the default
    route, or SLIME_HOST_IP, whatever Ray's is."""
    name, slimes = node["name"], node["slime_address"]
    if slimes == name or (_is_loopback(slimes) and _is_loopback(name)):
        return
    remedy = f"export SLIME_HOST_IP={name} where that node's Ray is started, and not in cluster.env"
    if _is_loopback(slimes):
        yield fail("network", f"node {name}: slime's servers listen on {slimes}, where no other node comes: {remedy}")
    elif slimes not in node["interfaces"].values():
        yield fail("network", f"node {name}: SLIME_HOST_IP is {slimes}, which is not an address of it: {remedy}")
    else:
        yield warn(
            "network",
            f"node {name}: slime's servers listen on {slimes} ({_interface_of(node, slimes)}), Ray on {name}: if the "
            f"other nodes do not reach the first, {remedy}",
        )


def _paths(config: SlimeConfig, nodes: Sequence[Facts]) -> Iterator[Finding]:
    paths = needed_paths(config)
    for key, path in paths.items():
        lacking = [node["name"] for node in nodes if key in node["missing"]]
        if lacking and len(lacking) < len(nodes):
            yield fail(
                "files" if key.startswith("slime.") else key.partition(".")[0],
                f"{key} is {path}: node {lacking[0]} does not see it, others do: put it on a disk that all nodes share",
            )
