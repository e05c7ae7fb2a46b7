"""Checks all of a run of slime that can be checked before a GPU is used, with one line for each finding.

The same checks of files and memory run on this machine, or, once there is a cluster, in a small job on its head node.
That job also asks every node whether it can import what the run calls.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sat_slime.config import dump_config, load_config
from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.method_section import build_method
from sat_slime.config.rules import slime_config_errors
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.command import SlimeCommand, flag_errors
from sat_slime.launch.flags import KnownFlags
from sat_slime.launch.machine import DOTTED_PATH, SCRIPT, existing_parent, machine_findings, reward_errors
from sat_slime.launch.memory import machine_sizes, memory_findings, sizes
from sat_slime.launch.ray_jobs import JobServer
from sat_slime.launch.secrets import secret_names
from sat_slime.launch.slimes_parser import Answer, ask_slime
from sat_slime.plugin.compat import probe_slime

PROBE_TIMEOUT_S = 300.0
"""Seconds in which every node of a fresh cluster may import torch, Megatron and SGLang."""
ANSWER = "SAT_SLIME_PROBE "
"""The beginning of the line with the probe's answer in the log of its job."""


def settings_errors(config: SlimeConfig, known: KnownFlags | None = None) -> list[str]:
    """Return the faults of the settings, each in one line. known: slime's flags; default: the recorded ones."""
    return [*slime_config_errors(config), *reward_errors(config), *secret_errors(config), *flag_errors(config, known)]


def refused_settings(config: SlimeConfig, answer: Answer) -> list[str]:
    """Return the faults of the settings, held against the flags of the slime that was asked; without any, what it
    refuses. It would most often refuse the same."""
    return settings_errors(config, answer.known) or list(answer.refusals)


def parser_findings(config: SlimeConfig, run_folder: Path) -> Iterator[Finding]:
    """Yield what slime's parser says on the machine on which the job's driver will run."""
    answer = ask_slime(config, run_folder)
    errors = flag_errors(config, answer.known) or answer.refusals
    yield from (fail("flags", error) for error in errors)
    if not errors:
        yield from answer.findings(on_head_node=True)


def secret_errors(config: SlimeConfig) -> list[str]:
    """Return a line for each secret that is written into the settings: Ray would show, save and keep it."""
    return [
        f"{key}.{name} is a secret, and settings are shown and saved: leave it out and export it where the cluster's "
        "Ray is started"
        for key, values in (("cluster.env", config.cluster.env), ("slime", config.slime))
        for name in secret_names(values)
    ]


def called_functions(command: Sequence[str]) -> list[str]:
    """Return the dotted paths of the functions that slime will call: the values of its flags that end in -path."""
    return list(
        dict.fromkeys(
            value
            for flag, value in itertools.pairwise(command)
            if flag.startswith("--") and flag.endswith("-path") and DOTTED_PATH.match(value)
        )
    )


# ----------------------------------------------------------------------------------------------- without a cluster


def here(config: SlimeConfig, run_folder: Path, resume: bool = False) -> Iterator[Finding]:
    """Yield findings on this machine, as if it were one of those that the run uses. resume: the run has begun."""
    yield from machine_findings(config, run_folder, resume)
    yield from memory_here(config)
    package = Path(config.cluster.slime_dir) / "slime"
    if package.is_dir():  # the machine's findings already name a checkout that is missing
        yield from _slime_findings(probe_slime(package))


def memory_here(config: SlimeConfig) -> Iterator[Finding]:
    """Yield findings on the memory of this machine, if slime is on it: no other is one of the run's. GPUs of 80 GB
    stand for those that nobody tells."""
    is_of_run = (Path(config.cluster.slime_dir) / SCRIPT).is_file()
    yield from memory_findings(config, sizes(config, {"this machine": machine_sizes()} if is_of_run else {}))


def _slime_findings(problems: Sequence[str]) -> Iterator[Finding]:
    yield from (fail("slime", problem) for problem in problems)
    if not problems:
        yield ok("slime", "has all that the plugin uses")


# -------------------------------------------------------------------------------------------------- with a cluster

# This program also runs on nodes where nothing of this package is installed.
_PROBE = f"""
import importlib, json, os, socket, sys
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

functions, marker, config, folder, resume = json.loads(sys.argv[1])
ray.init(log_to_driver=False, logging_level="ERROR")

def look(functions, marker):
    failures = {{}}
    for path in functions:
        module, _, name = path.rpartition(".")
        try:
            getattr(importlib.import_module(module), name)
        except BaseException as error:
            failures[path] = f"{{type(error).__name__}}: {{error}}"
    try:
        from sat_slime.launch.nodes import node_facts
        facts = node_facts()
    except BaseException:
        facts = {{}}
    return {{**facts, "failures": failures, "sees_folder": not marker or os.path.exists(marker)}}

nodes = [node for node in ray.nodes() if node["Alive"]]
look = ray.remote(num_cpus=0, max_retries=0)(look)
strategies = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
answers = [look.options(scheduling_strategy=strategy).remote(functions, marker) for strategy in strategies]
report = {{"nodes": [], "resources": ray.cluster_resources(), "available": ray.available_resources()}}
for node, answer in zip(nodes, answers):
    row = {{"name": node["NodeManagerAddress"], "gpus": node["Resources"].get("GPU", 0)}}
    try:
        row.update(ray.get(answer, timeout={PROBE_TIMEOUT_S / 2}))
    except Exception as error:
        row["error"] = f"{{type(error).__name__}}: {{error}}".splitlines()[0]
    report["nodes"].append(row)
try:
    from sat_slime.launch.checks import on_head_node
    report.update(on_head_node(config, folder, resume))
except ImportError as error:
    report["head"] = f"{{type(error).__name__}}: {{error}}"
print({ANSWER!r} + json.dumps(report), flush=True)
"""


def on_head_node(config_text: str, folder: str, resume: bool) -> dict[str, Any]:
    """Return the part of the probe's answer that only the node knows on which slime's driver will run."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".yaml") as file:
        file.write(config_text)
        file.flush()
        config = load_config(file.name)
    assert isinstance(config, SlimeConfig)
    all_findings = [*machine_findings(config, Path(folder), resume), *parser_findings(config, Path(folder))]
    findings = [(f.mark, f.what, f.detail) for f in all_findings]
    problems = probe_slime()
    return {"findings": findings, "slime": problems}


def cluster_findings(
    server: JobServer, config: SlimeConfig, run_folder: Path, sent: SlimeCommand, resume: bool = False
) -> Iterator[Finding]:
    """Yield findings on the cluster, asked by a job that uses no GPU. resume: the run has begun. Raises JobError when
    Ray fails."""
    job = f"sat-slime-check-{uuid.uuid4().hex[:8]}"
    with _marker(run_folder) as marker:
        needed = called_functions(sent.command)
        if not (method := build_method(config.method)).base_is_ours:
            needed.append(f"{method.base_path}.__name__")  # the module itself
        question = json.dumps([needed, marker, dump_config(config), str(run_folder), resume])
        server.submit([sent.command[0], "-c", _PROBE, question], sent.env, job)
        try:
            state = server.wait(job, PROBE_TIMEOUT_S)
            log = server.log(job)
        finally:
            server.stop(job)
    answer = next((line for line in log.splitlines() if line.startswith(ANSWER)), None)
    if answer is None:
        last = (log.strip().splitlines() or ["nothing in its log"])[-1]
        status = state.status if state else "lost"
        yield fail("cluster", f"the check on {server.address} ended without an answer ({status}): {last}")
        return
    yield from read_report(config, json.loads(answer.removeprefix(ANSWER)))


@contextlib.contextmanager
def _marker(run_folder: Path) -> Iterator[str | None]:
    """Makes a file where the run folder will be, for nodes to see: the same path may be another disk there. None: it
    could not be made."""
    try:
        with tempfile.NamedTemporaryFile(dir=existing_parent(run_folder), prefix=".sat_slime-") as file:
            yield file.name
    except OSError:  # the check of the disk says that nothing can be written there
        yield None


def read_report(config: SlimeConfig, report: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings from the probe's answer."""
    yield from _gpus(config, report)
    yield from _nodes(config, report["nodes"])
    with_gpus = {
        f"node {node['name']}": node["sizes"] for node in report["nodes"] if node["gpus"] and node.get("sizes")
    }
    yield from memory_findings(config, sizes(config, with_gpus))
    if "findings" in report:
        yield from (Finding(*finding) for finding in report["findings"])
        yield from _slime_findings(report["slime"])
    elif not any(node.get("failures") for node in report["nodes"]):
        yield fail("plugin", f"sat_slime cannot be imported on the head node ({report.get('head')}): install it there")


def _gpus(config: SlimeConfig, report: Mapping[str, Any]) -> Iterator[Finding]:
    needed = config.train.world_size + config.rollout.gpus
    there, free = (int(report[kind].get("GPU", 0)) for kind in ("resources", "available"))
    parts = f"{config.train.world_size} for training and {config.rollout.gpus} for rollout"
    if there < needed:
        yield fail(
            "GPUs",
            f"the cluster has {there}, the run needs {needed} ({parts}): add nodes, or lower "
            "slime.actor-num-gpus-per-node or slime.rollout-num-gpus",
        )
    elif free < needed:
        yield warn("GPUs", f"{free} of the cluster's {there} are free, the run needs {needed} ({parts}): it will wait")
    else:
        yield ok("GPUs", f"{needed} of {there} ({parts})")


def _nodes(config: SlimeConfig, nodes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    sound = True
    elsewhere = bool(nodes) and not any(node.get("sees_folder", True) for node in nodes)
    if elsewhere:
        yield fail(
            "run folder",
            "output_dir is on this machine's disk, and no node of the cluster sees it: launch where the cluster's "
            "shared disk is, such as on its head node, with an output_dir there",
        )
    for node in nodes:
        name = f"node {node['name']}"
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
        slimes = node.get("slime_address", node["name"])
        listen = f"{name}: slime's servers listen on {slimes}"
        remedy = f"export SLIME_HOST_IP={node['name']} where that node's Ray is started, and not in cluster.env"
        if len(nodes) > 1 and slimes.startswith("127.") and not node["name"].startswith("127."):
            yield fail("network", f"{listen}, where no other node comes: {remedy}")
        elif len(nodes) > 1 and slimes != node["name"] and not slimes.startswith("127."):
            yield warn(
                "network", f"{listen}, and Ray on {node['name']}: if the others do not reach the first, {remedy}"
            )
        if node["gpus"] and (there := int(node["gpus"])) != config.cluster.gpus_per_node:
            yield warn("GPUs", f"{name} has {there}, but cluster.gpus_per_node is {config.cluster.gpus_per_node}")
    if sound:
        yield ok("plugin", f"can be imported on {len(nodes)} node{'s' if len(nodes) > 1 else ''}")
