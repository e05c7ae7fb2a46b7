"""Our own order of a run over slime's classes: python3 -m sat_slime.plugin.driver FLAGS, slime's flags.

It takes the place of slime's training scripts, on every version of slime. The order is that of
docs/internals/architecture.md: with lag n > 0 one batch is generated ahead, and weights go to the engines every n
rollouts, once the batch in flight is complete; with lag 0 everything waits for everything; in mode `streaming` the
rollout function generates without pause, and a batch is what is complete. The order is set by `driver` in the plugin's
section of --custom-config-path.

What a run leaves and how it goes on:
- Weights are numbered by optimizer steps (inside/actor.py), so that the version that comes back with a response tells
  its lag, and which weights an evaluation measured.
- The initial weights are evaluated before the first rollout and the final ones after the last, whatever the lag.
- A checkpoint's data position is that of its weights: it is saved before the next batch takes its prompts. A batch that
  was in flight is not saved; a resumed run generates it anew from the same prompts, with the weights of the checkpoint.
- Of its checkpoints the newest are kept, as many as `keep` of `driver` says (launch/saved.py).
- After a resume pushes are due where they were: after rollouts n, 2n, ... of the whole run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import ray

from sat_slime.config.exits import NODE_DIED
from sat_slime.config.plugin_schema import DriverConfig
from sat_slime.config.source import ConfigError
from sat_slime.plugin import rollout_hooks
from sat_slime.plugin.compat import probe_slime
from sat_slime.plugin.inside import claimed_ports, shared_routes
from sat_slime.plugin.inside.settings import DRIVEN, PUSH_METRICS, plugin_config, settle_flags, steps_per_rollout
from sat_slime.plugin.inside.slime_processes import Host, parse_arguments
from sat_slime.plugin.inside.step_files import StepFile
from sat_slime.plugin.push_canary import PushCanary, PushNotTaken, no_canary
from sat_slime.rollout import sglang_routes
from sat_slime.runs.proxies import own_address, proxies, without_proxy
from sat_slime.runs.saved import delete_old, numbered

logger = logging.getLogger(__name__)

NOT_HERE = {
    "use_critic": "the objective has no critic: leave it out",
    "colocate": "training and generation run side by side: give each GPUs of its own",
    "release_train": "the trainer is needed throughout: leave it out",
    "keep_old_actor": "denominator checkpoint keeps the weights that it needs without it: leave it out",
}
"""Flags of slime that mean another order than this one."""
NODES_SEEN_EVERY_S, CLOSED_WITHIN_S = 5.0, 30.0
DEATH_SEEN_WITHIN_S = 40.0
"""Ray takes 15 s to find that a killed node does not answer, and longer for one that hangs."""
GENERATE = "sat_slime.plugin.rollout_hooks.generate"
READ_BY_SLIME = ("slime.rollout.sglang_rollout.generate_rollout", "sat_slime.plugin.streaming.generate_rollout")
"""Rollout functions in which slime's Sample decodes the routes of a reply."""


def take_over(args: Namespace) -> None:
    """Checks slime's arguments, and marks them as those of a run of this driver.

    Raises:
        ConfigError: faults of the plugin's section, and flags that mean another order; a line each.
    """
    errors = [
        f"--{flag.replace('_', '-')} is set: {remedy}" for flag, remedy in NOT_HERE.items() if getattr(args, flag, None)
    ]
    if errors:
        raise ConfigError(errors)
    setattr(args, DRIVEN, True)
    settle_flags(args)
    if plugin_config(args).driver.canary != "none" and (errors := no_canary(args)):
        raise ConfigError(errors)
    if narrows_replies(args):
        setattr(args, rollout_hooks.ROLLOUT, args.rollout_function_path)
        setattr(args, rollout_hooks.EVALUATION, args.eval_function_path)
        args.rollout_function_path = args.eval_function_path = GENERATE


def narrows_replies(args: Namespace) -> bool:
    """Return whether engines send R3's routes in a byte each. They do where slime's own functions, or ours around them,
    read every reply."""
    return bool(
        getattr(args, "use_rollout_routing_replay", False)
        and args.num_experts <= sglang_routes.MOST_EXPERTS
        and not getattr(args, "custom_generate_function_path", None)
        and args.rollout_function_path in (GENERATE, *READ_BY_SLIME)
        and args.eval_function_path in (GENERATE, *READ_BY_SLIME)
        and not shared_routes.is_newest()
    )


class Clock:
    """Writes times.jsonl: for each iteration the seconds that the driver spent on each of its parts."""

    def __init__(self, args: Namespace, begun: float | None = None):
        """
        Args:
            begun: the time of `time.monotonic()` at which the driver started.
        """
        folder = plugin_config(args).run_dir
        self._args, self._file = args, StepFile(Path(folder) / "times.jsonl") if folder else None
        self._spent: dict[str, float] = {}
        if begun is not None:
            self._spent["time/start"] = time.monotonic() - begun

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts what is done inside as `time/NAME`."""
        begun = time.monotonic()
        yield
        self._spent[f"time/{name}"] = self._spent.get(f"time/{name}", 0.0) + time.monotonic() - begun

    def move(self, seconds: float, source: str, target: str) -> None:
        """Counts seconds of one part as those of another."""
        self._spent[f"time/{source}"] -= seconds
        self._spent[f"time/{target}"] = self._spent.get(f"time/{target}", 0.0) + seconds

    def end_iteration(self, rollout_id: int) -> None:
        """Writes the row of an iteration that is over."""
        spent, self._spent = self._spent, {}
        if self._file is not None:
            iteration = rollout_id + 1
            self._file.append([{"step": iteration * steps_per_rollout(self._args), "iteration": iteration, **spent}])


def end_with_its_nodes(host: Host) -> None:
    """Ends this job, with code NODE_DIED, once a node on which it runs has died. Whoever waits for an engine there, by
    requests that are tried again or in a collective operation, would wait for minutes or for good."""

    def look() -> None:
        dead: list[str] = []
        while not dead:
            time.sleep(NODES_SEEN_EVERY_S)
            with contextlib.suppress(Exception):  # while Ray itself ends
                dead = host.dead_nodes()
        print(f"sat_slime: node {', '.join(dead)}, on which this run was, has died", file=sys.stderr, flush=True)
        closing = threading.Thread(target=host.close, kwargs={"failed": True}, daemon=True)
        closing.start()
        closing.join(CLOSED_WITHIN_S)  # what is to be closed may have been on that node
        os._exit(NODE_DIED)

    threading.Thread(target=look, daemon=True).start()


def wait_for_deaths(host: Host) -> None:
    """Gives `end_with_its_nodes` the time to see a node's death, which may be why the run has failed: what asked an
    engine there fails before Ray knows. A job that ends with another code may not be restarted."""
    if len(host.nodes) > 1:
        time.sleep(DEATH_SEEN_WITHIN_S)


def train(host: Host, order: DriverConfig, begun: float | None = None) -> None:
    """Runs all rollouts of a run, from where its checkpoint ends.

    Args:
        begun: the time of `time.monotonic()` at which the driver started.
    """
    args, manager = host.args, host.manager
    start, end = args.start_rollout_id, args.num_rollout
    evaluates = args.eval_interval is not None
    clock = Clock(args, begun)
    saved = set() if order.keep is None else _own_checkpoints(args, order.from_iteration or 0)
    canary = None if order.canary == "none" else PushCanary(args, order.canary)

    with clock.part("start"):
        from_ranks = host.push()
        host.pushed_first()
    of_push = _check_push(host, canary, from_ranks, clock, "start")
    if evaluates and start == 0 and not args.skip_eval_before_train:
        with clock.part("first_eval"):
            ray.get(manager.eval.remote(start))
    if evaluates and start == end:  # a job that died between its last checkpoint and its end
        ray.get(manager.eval.remote(end - 1))

    ahead: Any = None
    for rollout_id in range(start, end):
        with clock.part("collect"):
            batch = ray.get(ahead or manager.generate.remote(rollout_id))
        ahead = None
        is_last, saves = rollout_id + 1 == end, _is_due(host, rollout_id, args.save_interval, end)
        if saves and getattr(args, "rollout_global_dataset", True):
            with clock.part("save"):
                ray.get(manager.save.remote(rollout_id))
        if order.mode == "batch" and order.lag and not is_last:
            ahead = manager.generate.remote(rollout_id + 1)

        with clock.part("train"):
            external = {"external_data": {PUSH_METRICS: of_push}} if of_push else {}
            ray.get(host.trainers.async_train(rollout_id, batch, **external))
        of_push = {}
        del batch  # its memory in Ray's store is for the next one
        host.trained(rollout_id)
        if saves:
            with clock.part("save"):
                host.trainers.save_model(rollout_id, force_sync=is_last)
                saved.add(rollout_id + 1)
                if order.keep is not None:
                    _delete_old(Path(args.save), order.keep, saved)
        if is_last or (rollout_id + 1) % max(order.lag, 1) == 0:
            if ahead is not None:
                with clock.part("flight"):
                    ray.wait([ahead])
            lost = 0.0
            if canary is not None:
                with clock.part("canary"):
                    lost = canary.check_again(host.engines())
            with clock.part("push"):
                from_ranks = host.push()
            of_push = _check_push(host, canary, from_ranks, clock, "push", lost)
        if evaluates and (_is_due(host, rollout_id, args.eval_interval) or is_last):
            if ahead is not None:  # the manager does one thing at a time
                with clock.part("flight"):
                    ray.wait([ahead])
            with clock.part("eval"):
                ray.get(manager.eval.remote(rollout_id))
        clock.end_iteration(rollout_id)


def _check_push(
    host: Host, canary: PushCanary | None, from_ranks: Any, clock: Clock, part: str, lost: float = 0.0
) -> dict[str, float]:
    """Return what the canary, if there is one, measured of a push. Raises PushNotTaken where it ends the run.

    Args:
        from_ranks: what the push returned.
        part: the part of the clock that has the push, and in it the time of the trainer's scores.
        lost: engines that did not hold the push before any more, which count too.
    """
    if canary is None:
        return {}
    with clock.part("canary"):
        metrics, seconds = canary.check(from_ranks, host.engines())
    clock.move(seconds, part, "canary")
    metrics["canary/faults"] += lost
    return metrics


def _own_checkpoints(args: Namespace, others: int) -> set[int]:
    """Return the iterations of the checkpoints in --save that are this run's: those from which it goes on, if it does,
    without those up to `others`."""
    if not args.start_rollout_id or not args.save or args.load is None or Path(args.load) != Path(args.save):
        return set()
    return {n for n in numbered(Path(args.save)) if others < n <= args.start_rollout_id}


def _delete_old(checkpoints: Path, keep: int, ours: set[int]) -> None:
    """Deletes this run's older checkpoints. What cannot be deleted stays, and does not end the run."""
    try:
        if deleted := delete_old(checkpoints, keep, ours):
            logger.info("sat_slime: deleted the checkpoints of iterations %s", ", ".join(map(str, sorted(deleted))))
    except OSError as error:
        logger.warning("sat_slime: an old checkpoint in %s cannot be deleted: %s", checkpoints, error)


def _is_due(host: Host, rollout_id: int, interval: int | None, end: int | None = None) -> bool:
    from slime.utils.misc import should_run_periodic_action

    return bool(should_run_periodic_action(rollout_id, interval, host.rollouts_per_epoch, end))


def _refuse(reason: str) -> NoReturn:
    """Ends with the exit code of bad arguments: a job that ends with it would do so again."""
    print(reason, file=sys.stderr, flush=True)
    raise SystemExit(2)


def connect(variables: Mapping[str, str]) -> None:
    """Connects to Ray, and excepts the run's hosts from an HTTP proxy in the environment of this process and of all
    workers. What is excepted already stays so. variables: more environment of the workers."""
    hosts: list[str] = []
    if proxies(os.environ):
        ray.init()
        hosts = [node[key] for node in ray.nodes() for key in ("NodeManagerAddress", "NodeManagerHostname")]
        hosts.append(own_address())  # which may not be Ray's
        ray.shutdown()
    excepted = without_proxy(os.environ, hosts)
    # The job's own environment may have it as well, and Ray refuses another value without this variable.
    os.environ |= {**excepted, "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
    ray.init(runtime_env={"env_vars": {**excepted, **variables}, "worker_process_setup_hook": claimed_ports.INSTALL})


def main() -> None:
    """Parses slime's flags, runs all rollouts, and ends the processes that it started."""
    begun = time.monotonic()
    if problems := probe_slime():
        _refuse("\n".join(problems))
    args, restore_plan = parse_arguments()
    try:
        take_over(args)
    except ConfigError as error:
        _refuse(str(error))
    if plugin_config(args).driver.canary != "none" and (problems := probe_slime(canary=True)):
        _refuse("\n".join(problems))

    from sat_slime.plugin.inside.actor import SatTrainRayActor

    connect({sglang_routes.VARIABLE: "1"} if narrows_replies(args) else {})
    host = Host.start(args, restore_plan, SatTrainRayActor)
    end_with_its_nodes(host)
    try:
        train(host, plugin_config(args).driver, begun)
    except PushNotTaken as error:
        host.close(failed=True)
        print(f"sat_slime: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None
    except BaseException as error:
        if isinstance(error, Exception):
            wait_for_deaths(host)
        host.close(failed=True)
        raise
    host.close(failed=False)


if __name__ == "__main__":
    main()
