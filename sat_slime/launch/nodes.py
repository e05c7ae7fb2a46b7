"""Asks the nodes of a cluster what only they know, in a job on its head node that uses no GPU:

    python3 -m sat_slime.launch.nodes QUESTION

QUESTION is a JSON list: the functions that slime will call, a file that every node should see, the run's settings and
folder, and whether the run has begun. The last line that it prints is ANSWER with a report in JSON.
"""

from __future__ import annotations

import fcntl
import json
import logging
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import yaml

from sat_slime.config import SlimeConfig
from sat_slime.config.loader import read_section
from sat_slime.launch.flags import parser_findings
from sat_slime.launch.machine import machine_findings
from sat_slime.plugin.compat import probe_slime
from sat_slime.runs.proxies import own_address

TIMEOUT_S = 300.0
"""Seconds for the whole check; a node of a fresh cluster may import torch, Megatron and SGLang in half of them."""
ANSWER = "SAT_SLIME_PROBE "
SIOCGIFADDR = 0x8915
"""Linux's request for the IPv4 address of an interface."""


def look(functions: list[str], marker: str | None) -> dict[str, Any]:
    """Return what a node says of itself. Ray sends it as text: it also runs where this package is not installed."""
    import importlib
    import os

    failures = {}
    for path in functions:
        module, _, name = path.rpartition(".")
        try:
            getattr(importlib.import_module(module), name)
        except BaseException as error:
            failures[path] = f"{type(error).__name__}: {error}"
    try:
        from sat_slime.launch.memory import machine_sizes
        from sat_slime.runs.proxies import own_address

        facts = {"slime_address": own_address(), "sizes": machine_sizes()}
    except BaseException:
        facts = {}
    return {**facts, "failures": failures, "sees_folder": not marker or os.path.exists(marker)}


def main(question: str) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    functions, marker, text, folder, resume = json.loads(question)
    config = read_section(SlimeConfig, yaml.safe_load(text), "the run's settings")
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    asked, there = ray.remote(num_cpus=0, max_retries=0)(look), NodeAffinitySchedulingStrategy
    places = [asked.options(scheduling_strategy=there(node["NodeID"], soft=False)) for node in nodes]
    answers: list[Any] = [place.remote(functions, marker) for place in places]
    ray.wait(answers, num_returns=len(answers), timeout=TIMEOUT_S / 2)  # of all: several may hang
    rows = []
    for node, answer in zip(nodes, answers, strict=True):
        row: dict[str, Any] = {"name": node["NodeManagerAddress"], "gpus": node["Resources"].get("GPU", 0)}
        try:
            row |= ray.get(answer, timeout=1.0)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
        rows.append(row)
    findings = [*machine_findings(config, Path(folder), resume), *parser_findings(config, Path(folder))]
    report = {
        "nodes": rows,
        "resources": ray.cluster_resources(),
        "available": ray.available_resources(),
        "findings": [(finding.mark, finding.what, finding.detail) for finding in findings],
        "slime": probe_slime(),
    }
    print(ANSWER + json.dumps(report), flush=True)


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


if __name__ == "__main__":
    main(sys.argv[1])
