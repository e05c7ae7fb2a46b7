"""Checks all of a run of slime that can be checked before a GPU is used, with one line for each finding. The same
checks of files and memory run on this machine, or, once there is a cluster, in a small job on its head node. That job
also asks every node whether it can import what the run calls."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sat_slime.config import dump_config
from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.method_section import build_method
from sat_slime.config.rules import slime_config_errors
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch import nodes
from sat_slime.launch.command import SlimeCommand
from sat_slime.launch.flags import Slime, flag_errors
from sat_slime.launch.machine import DOTTED_PATH, SCRIPT, existing_parent, machine_findings, reward_errors
from sat_slime.launch.memory import machine_sizes, memory_findings, sizes
from sat_slime.launch.ray_jobs import JobServer
from sat_slime.launch.secrets import secret_names
from sat_slime.plugin.compat import probe_slime


def settings_errors(config: SlimeConfig, slime: Slime | None = None) -> list[str]:
    """Return the faults of the settings, each in one line, held against the flags of a slime, by default the recorded
    one; without any, what it refuses of the command. It would most often refuse the same."""
    own = [*slime_config_errors(config), *reward_errors(config), *secret_errors(config), *flag_errors(config, slime)]
    return own or list(slime.refusals if slime else ())


def secret_errors(config: SlimeConfig) -> list[str]:
    """Return a line for each secret that is written into the settings: Ray would show, save and keep it."""
    return [
        f"{key}.{name} is a secret, and settings are shown and saved: leave it out and export it where the cluster's "
        "Ray is started"
        for key, values in (
            *(("cluster", {"address": config.cluster.address}), ("cluster.env", config.cluster.env)),
            ("slime", config.slime),
        )
        for name in secret_names(values)
    ]


def here(config: SlimeConfig, run_folder: Path, resume: bool = False) -> Iterator[Finding]:
    """Yield findings on this machine, as if it were one of those that the run uses. resume: the run has begun."""
    yield from machine_findings(config, run_folder, resume)
    yield from memory_here(config)
    package = Path(config.cluster.slime_dir) / "slime"
    if os.path.isdir(package):  # the machine's findings already name a checkout that is missing
        yield from _slime_findings(probe_slime(package))


def memory_here(config: SlimeConfig) -> Iterator[Finding]:
    """Yield findings on this machine's memory, if slime is on it: no other is of the run. Else a GPU has 80 GB."""
    is_of_run = os.path.isfile(Path(config.cluster.slime_dir) / SCRIPT)
    yield from memory_findings(config, sizes(config, {"this machine": machine_sizes()} if is_of_run else {}))


def _slime_findings(problems: Sequence[str]) -> list[Finding]:
    return [fail("slime", problem) for problem in problems] or [ok("slime", "has all that the plugin uses")]


def cluster_findings(
    server: JobServer, config: SlimeConfig, run_folder: Path, sent: SlimeCommand, resume: bool = False
) -> Iterator[Finding]:
    """Yield findings on the cluster, by a job without GPUs. resume: the run has begun. Raises JobError."""
    job = f"sat-slime-check-{uuid.uuid4().hex[:8]}"
    with _marker(run_folder) as marker:
        pairs = itertools.pairwise(sent.command)  # the functions that slime will call stand behind flags on -path
        called = (value for flag, value in pairs if re.fullmatch("--.*-path", flag) and DOTTED_PATH.match(value))
        needed = list(dict.fromkeys(called))
        if not (method := build_method(config.method)).base_is_ours:
            needed.append(f"{method.base_path}.__name__")  # the module itself
        question = json.dumps([needed, marker, dump_config(config), str(run_folder), resume])
        server.submit([sent.command[0], "-m", nodes.__name__, question], sent.env, job)
        try:
            state = server.wait(job, nodes.TIMEOUT_S)
            log = server.log(job)
        finally:
            server.stop(job)
    answer = next((line for line in log.splitlines() if line.startswith(nodes.ANSWER)), None)
    if answer is None:
        last = (log.strip().splitlines() or ["nothing in its log"])[-1]
        status = state.status if state else "lost"
        remedy = ": install it there, or set cluster.python_path" if "No module named" in last else ""
        yield fail("cluster", f"the check on {server.address} ended without an answer ({status}): {last}{remedy}")
        return
    yield from read_report(config, json.loads(answer.removeprefix(nodes.ANSWER)))


@contextlib.contextmanager
def _marker(run_folder: Path) -> Iterator[str | None]:
    """Makes a file where the run folder will be, for nodes to see: another disk may be there. None: it could not be."""
    try:
        with tempfile.NamedTemporaryFile(dir=existing_parent(run_folder), prefix=".sat_slime-") as file:
            yield file.name
    except OSError:  # the check of the disk says that nothing can be written there
        yield None


def read_report(config: SlimeConfig, report: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings from the probe's answer."""
    yield from _gpus(config, report)
    yield from _nodes(config, report["nodes"])
    with_gpus = {f"node {one['name']}": one["sizes"] for one in report["nodes"] if one["gpus"] and one.get("sizes")}
    yield from memory_findings(config, sizes(config, with_gpus))
    yield from (Finding(*finding) for finding in report["findings"])
    yield from _slime_findings(report["slime"])


def _gpus(config: SlimeConfig, report: Mapping[str, Any]) -> Iterator[Finding]:
    needed = config.train.world_size + config.rollout.gpus
    there, free = (int(report[kind].get("GPU", 0)) for kind in ("resources", "available"))
    parts = f"{config.train.world_size} for training and {config.rollout.gpus} for rollout"
    if there < needed:
        remedy = "add nodes, or lower slime.actor-num-gpus-per-node or slime.rollout-num-gpus"
        yield fail("GPUs", f"the cluster has {there}, the run needs {needed} ({parts}): {remedy}")
    elif free < needed:
        yield warn("GPUs", f"{free} of the cluster's {there} are free, the run needs {needed} ({parts}): it will wait")
    else:
        yield ok("GPUs", f"{needed} of {there} ({parts})")


def _nodes(config: SlimeConfig, asked: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    sound = True
    elsewhere = bool(asked) and not any(node.get("sees_folder", True) for node in asked)
    if elsewhere:
        fault = "output_dir is on this machine's disk, and no node of the cluster sees it"
        remedy = "launch where the cluster's shared disk is, such as on its head node, with an output_dir there"
        yield fail("run folder", f"{fault}: {remedy}")
    for node in asked:
        address, name = node["name"], f"node {node['name']}"
        if "error" in node:
            yield fail("plugin", f"{name} could not be asked: {node['error']}")
            sound = False
            continue
        # Most failures of a node have one cause, so only the first is told.
        for path, reason in list(node["failures"].items())[:1]:
            missing = re.search(r"No module named '([^'.]+)", reason)
            remedy = f"install {missing[1]} there" if missing else "fix it there"
            flag = next((f"slime.{flag}: " for flag, value in config.slime.items() if value == path), "")
            yield fail("plugin", f"{flag}{name} cannot import {path} ({reason}): {remedy}, or set cluster.python_path")
            sound = False
        if not node["sees_folder"] and not elsewhere:
            yield fail("run folder", f"{name} does not see it: put output_dir on a disk that all nodes share")
        # slime takes the address of the default route, or SLIME_HOST_IP, whatever Ray's is.
        slimes = node.get("slime_address", address)
        listen = f"{name}: slime's servers listen on {slimes}"
        remedy = f"export SLIME_HOST_IP={address} where that node's Ray is started, and not in cluster.env"
        if len(asked) > 1 and slimes.startswith("127.") and not address.startswith("127."):
            yield fail("network", f"{listen}, where no other node comes: {remedy}")
        elif len(asked) > 1 and slimes != address and not slimes.startswith("127."):
            yield warn("network", f"{listen}, and Ray on {address}: if the others do not reach the first, {remedy}")
        if node["gpus"] and (there := int(node["gpus"])) != config.cluster.gpus_per_node:
            yield warn("GPUs", f"{name} has {there}, but cluster.gpus_per_node is {config.cluster.gpus_per_node}")
    if sound:
        yield ok("plugin", f"can be imported on {len(asked)} node{'s' if len(asked) > 1 else ''}")
