"""Our own order of a run over slime's classes: python3 -m sat_slime.plugin.driver FLAGS, slime's flags.

It takes the place of slime's training scripts, on every version of slime. `driver` in the plugin's section of
--custom-config-path sets the order, which docs/internals/architecture.md describes: with lag n > 0 one batch is
generated ahead, and weights go to the engines every n rollouts of the whole run, once the batch in flight is complete;
with lag 0 everything waits for everything; in mode `streaming` the rollout function generates without pause.

A checkpoint's data position is that of its weights: it is saved before the next batch takes its prompts, from which a
resumed run generates that batch anew.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import getproxies

import ray

from sat_slime.config.jsonl import number, read_rows
from sat_slime.config.slime_schema import SlimePipelineConfig
from sat_slime.config.source import ConfigError
from sat_slime.plugin.canary import PushCanary, PushNotTaken, arithmetic, no_canary
from sat_slime.plugin.compat import probe_slime, slime_function
from sat_slime.plugin.settings import DRIVEN, PUSH_METRICS, plugin_config, settle_flags, steps_per_rollout
from sat_slime.plugin.step import StepFile
from sat_slime.runs.proxies import own_address, without_proxy
from sat_slime.runs.saved import delete_old, numbered

logger = logging.getLogger(__name__)

NOT_HERE = {
    "use_critic": "slime sets it for --advantage-estimator ppo, and the objective has no critic: set that to grpo",
    "colocate": "training and generation run side by side: give each GPUs of its own",
    "release_train": "the trainer is needed throughout: leave it out",
    "keep_old_actor": "denominator checkpoint keeps the weights that it needs without it: leave it out",
    "update_weights_interval": "driver.lag says when weights are pushed: leave it out",
    "update_weight_transport": "such pushes are numbered one by one, and lags count optimizer steps: leave it out",
}
"""Flags of slime that mean another order than this one."""
USUAL = {"update_weights_interval": 1, "update_weight_transport": "nccl"}
"""Values of those that are no switches with which they do not."""
SETUP_WORKER = "sat_slime.plugin.compat.claim_ports"
"""Run first by each process that Ray starts. Of this module, which is `__main__` where a run goes, Ray would find
nothing."""


def take_over(args: Namespace) -> None:
    """Checks slime's arguments, and marks them as those of a run of this driver. Raises ConfigError with a line for
    each fault of the plugin's section, and each flag that means another order."""
    if errors := [
        f"--{flag.replace('_', '-')} is {'set' if value is True else value}: {remedy}"
        for flag, remedy in NOT_HERE.items()
        if (value := getattr(args, flag, None)) not in (None, False, USUAL.get(flag))
    ]:
        raise ConfigError(*errors)
    setattr(args, DRIVEN, True)
    settle_flags(args)
    if plugin_config(args).driver.canary != "none" and (errors := no_canary(args)):
        raise ConfigError(*errors)


# ------------------------------------------------------------------------------------------- slime's processes of a run


def parse_arguments() -> tuple[Namespace, Any]:
    """Return slime's arguments from the command line, and its newest versions' plan for a restart, else None."""
    from slime.utils.arguments import parse_args

    if "return_restore_plan" in inspect.signature(parse_args).parameters:
        args, restore_plan = parse_args(return_restore_plan=True)
        return args, restore_plan
    return parse_args(), None


@dataclass
class Host:
    """The rollout manager with its engines, and the group of trainer ranks."""

    args: Namespace
    manager: Any
    """slime's RolloutManager, an actor of Ray that answers one call at a time."""
    trainers: Any
    """slime's RayTrainGroup."""
    rollouts_per_epoch: int | None
    startup: Any = None
    """slime's RolloutStartup; None in versions that have none."""

    @classmethod
    def start(cls, args: Namespace, restore_plan: Any, actor_cls: type) -> Host:
        """Starts engines, manager and trainers, whose ranks are of `actor_cls`. On return these have loaded their
        checkpoint and know where to begin."""
        from slime.ray.placement_group import create_placement_groups, create_rollout_manager, create_training_models

        slime_function("configure_logger")()
        if "restore_plan" in inspect.signature(create_rollout_manager).parameters:
            slime_function("init_tracking")(args)
            startup = create_rollout_manager(args, restore_plan=restore_plan)
            args = getattr(startup, "args", args)
            manager, groups, per_epoch = startup.manager, startup.placements, startup.num_rollout_per_epoch
        else:
            groups, startup = create_placement_groups(args), None
            slime_function("init_tracking")(args)
            manager, per_epoch = create_rollout_manager(args, groups["rollout"])
        trainers, _ = create_training_models(args, groups, manager, actor_cls=actor_cls)
        return cls(args, manager, trainers, per_epoch, startup)

    def push(self) -> list[Any]:
        """Sends the trainers' weights to the engines; return what each rank returned."""
        if self.startup is None:
            return self.trainers.update_weights() or []
        was = ray.get(self.manager.pause_rollout_admission.remote())
        from_ranks = self.trainers.update_weights() or []
        ray.get(self.manager.resume_rollout_admission.remote(was))
        return from_ranks

    def engines(self) -> dict[int, str]:
        """Return the address of each engine to which weights are pushed, by its number; those that are dead are left
        out."""
        engines, *_ = ray.get(self.manager.get_updatable_engines_and_lock.remote())
        urls: dict[int, str] = {}
        for i, engine in enumerate(engines):
            with contextlib.suppress(ray.exceptions.RayActorError):  # it died since slime looked
                urls |= {} if engine is None else {i: ray.get(engine.get_url.remote())}
        return urls

    def pushed_first(self) -> None:
        """Tells slime that the engines have the weights that the run begins with."""
        if self.startup is not None:
            ray.get(self.manager.training_ready.remote())
        if self.args.check_weight_update_equal:
            ray.get(self.manager.check_weights.remote(action="compare"))

    def trained(self, rollout_id: int) -> None:
        """Tells slime that a batch is trained on, without waiting: the manager may be generating the next batch."""
        if self.startup is not None:
            self.manager.training_completed.remote(rollout_id)

    def close(self, *, failed: bool) -> None:
        """Ends engines and trackers; after a failure only the processes that would outlive it."""
        if hasattr(self.startup, "close"):
            self.startup.close(failed=failed)
        elif not failed:
            ray.get(self.manager.dispose.remote())
        elif self.startup is not None:
            ray.get(self.startup.serving.dispose.remote())
        if not failed:
            slime_function("finish_tracking")(self.args)


# ------------------------------------------------------------------------------------------------------------ the order


class Clock:
    """Writes times.jsonl: for each iteration the seconds that the driver spent on each of its parts."""

    def __init__(self, args: Namespace, begun: float):
        """begun: the time of `time.monotonic()` at which the driver started."""
        folder = plugin_config(args).run_dir
        self._args, self._file = args, StepFile(Path(folder) / "times.jsonl") if folder else None
        self._spent = {"time/start": time.monotonic() - begun}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts what is done inside as `time/NAME`."""
        begun = time.monotonic()
        yield
        self._spent[f"time/{name}"] = self._spent.get(f"time/{name}", 0.0) + time.monotonic() - begun

    def end_iteration(self, rollout_id: int) -> None:
        """Writes the row of an iteration that is over."""
        spent, self._spent = self._spent, {}
        if self._file is not None:
            iteration = rollout_id + 1
            self._file.append([{"step": iteration * steps_per_rollout(self._args), "iteration": iteration, **spent}])


def train(host: Host, order: SlimePipelineConfig, begun: float) -> None:
    """Runs all rollouts of a run, from where its checkpoint ends, with an evaluation of its initial and of its final
    weights. begun: as Clock has it."""
    args, manager = host.args, host.manager
    start, end = args.start_rollout_id, args.num_rollout
    evaluates = args.eval_interval is not None
    clock = Clock(args, begun)
    saved = set() if order.keep_checkpoints is None else _own_checkpoints(args)
    canary = None if order.canary == "none" else PushCanary(order.canary, arithmetic(args))

    of_push = _push(host, canary, clock, "start")
    host.pushed_first()
    if evaluates and start == 0 and not (args.skip_eval_before_train and end):  # a run of 0 rollouts only evaluates
        with clock.part("first_eval"):
            ray.get(manager.eval.remote(start))
    if evaluates and start and (end == 0 or _lacks_evaluation(host, start)):
        with clock.part("eval"):
            ray.get(manager.eval.remote(start - 1))

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
                if order.keep_checkpoints is not None:
                    _delete_old(Path(args.save), order.keep_checkpoints, saved)
        pushes = is_last or (rollout_id + 1) % max(order.lag, 1) == 0
        measures = evaluates and (is_last or _is_due(host, rollout_id, args.eval_interval))
        if ahead is not None and (pushes or measures):  # the manager does one thing at a time
            with clock.part("flight"):
                ray.wait([ahead])
        if pushes:
            of_push = _push(host, canary, clock, "push")
        if measures:
            with clock.part("eval"):
                ray.get(manager.eval.remote(rollout_id))
        clock.end_iteration(rollout_id)


def _push(host: Host, canary: PushCanary | None, clock: Clock, part: str) -> dict[str, float]:
    """Sends the weights to the engines, in a part of the clock, and returns what the canary, if there is one, measured
    of it. Raises PushNotTaken where it ends the run."""
    with clock.part(part):
        from_ranks = host.push()
    if canary is None:
        return {}
    with clock.part("canary"):
        return canary.check(from_ranks, host.engines())


def _lacks_evaluation(host: Host, iterations: int) -> bool:
    """Return whether the weights of a checkpoint should have an evaluation and have none, since the job died after
    saving it. Without a folder of the run nothing says so, and only that at the end is made again."""
    args, folder = host.args, plugin_config(host.args).run_dir
    due = _is_due(host, iterations - 1, args.eval_interval, args.num_rollout)
    if folder is None or not due:
        return bool(iterations == args.num_rollout)
    step = iterations * steps_per_rollout(args)
    return all(number(row, "step") != step for row in read_rows(Path(folder) / "eval.jsonl"))


def _own_checkpoints(args: Namespace) -> set[int]:
    """Return the iterations of the checkpoints in --save that are this run's: those from which it goes on, if it
    does."""
    if not args.start_rollout_id or not args.save or args.load is None or Path(args.load) != Path(args.save):
        return set()
    return {n for n in numbered(Path(args.save)) if n <= args.start_rollout_id}


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


def connect() -> None:
    """Connects to Ray, and excepts the run's hosts from an HTTP proxy in the environment of this process and of all
    workers. What is excepted already stays so."""
    hosts: list[str] = []
    if getproxies().keys() - {"no"}:  # no_proxy is among them
        ray.init()
        hosts = [node[key] for node in ray.nodes() for key in ("NodeManagerAddress", "NodeManagerHostname")]
        hosts.append(own_address())  # which may not be Ray's
        ray.shutdown()
    excepted = without_proxy(os.environ, hosts)
    # The job's own environment may have it as well, and Ray refuses another value without this variable.
    os.environ |= {**excepted, "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
    ray.init(runtime_env={"env_vars": excepted, "worker_process_setup_hook": SETUP_WORKER})


def main() -> None:
    """Parses slime's flags, runs all rollouts, and ends the processes that it started."""
    begun = time.monotonic()
    try:
        if problems := probe_slime():
            raise ConfigError(*problems)
        args, restore_plan = parse_arguments()
        take_over(args)
    except ConfigError as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(2) from None  # that of bad arguments: a job that ends with it would do so again

    from sat_slime.plugin.actor import SatTrainRayActor

    connect()
    host = Host.start(args, restore_plan, SatTrainRayActor)
    failed = True
    try:
        train(host, plugin_config(args).driver, begun)
        failed = False
    except PushNotTaken as error:
        print(f"sat_slime: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None
    finally:
        host.close(failed=failed)


if __name__ == "__main__":
    main()
