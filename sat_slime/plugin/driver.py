"""Our own order of a run over slime's classes: python3 -m sat_slime.plugin.driver FLAGS, slime's flags.

It takes the place of slime's training scripts, on every version of slime. The order is that of docs/architecture.md:
with lag n > 0 one batch is generated ahead, and weights go to the engines every n rollouts, once the batch in flight is
complete; with lag 0 everything waits for everything; in mode `streaming` the rollout function generates without pause,
and a batch is what is complete. The order is set by `driver` in the plugin's section of --custom-config-path.

What a run leaves and how it goes on:
- Weights are numbered by optimizer steps (inside/actor.py), so that the version that comes back with a response tells
  its lag, and which weights an evaluation measured.
- The initial weights are evaluated before the first rollout and the final ones after the last, whatever the lag.
- A checkpoint's data position is that of its weights: it is saved before the next batch takes its prompts. A batch that
  was in flight is not saved; a resumed run generates it anew from the same prompts, with the weights of the checkpoint.
- After a resume pushes are due where they were: after rollouts n, 2n, ... of the whole run.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import Any

import ray

from sat_slime.config.plugin_schema import DriverConfig
from sat_slime.config.source import ConfigError
from sat_slime.plugin.inside.host import Host, parse_arguments
from sat_slime.plugin.inside.settings import DRIVEN, plugin_config, plugin_method
from sat_slime.plugin.probe import probe_slime

logger = logging.getLogger(__name__)

NOT_HERE = {
    "use_critic": "the objective has no critic: leave it out",
    "colocate": "training and generation run side by side: give each GPUs of its own",
    "release_train": "the trainer is needed throughout: leave it out",
    "keep_old_actor": "denominator checkpoint keeps the weights that it needs without it: leave it out",
}
"""Flags of slime that mean another order than this one."""


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
    plugin_method(args)


def train(host: Host, order: DriverConfig) -> None:
    """Runs all rollouts of a run, from where its checkpoint ends."""
    args, manager, hooks = host.args, host.manager, plugin_config(host.args).hooks
    start, end = args.start_rollout_id, args.num_rollout
    evaluates = args.eval_interval is not None

    host.push()
    host.pushed_first()
    if evaluates and hooks.evaluate_first and start == 0 and not args.skip_eval_before_train:
        ray.get(manager.eval.remote(start))

    ahead: Any = None
    for rollout_id in range(start, end):
        batch = ray.get(ahead or manager.generate.remote(rollout_id))
        ahead = None
        is_last, saves = rollout_id + 1 == end, _is_due(host, rollout_id, args.save_interval, end)
        if saves and getattr(args, "rollout_global_dataset", True):
            ray.get(manager.save.remote(rollout_id))
        if order.mode == "batch" and order.lag and not is_last:
            ahead = manager.generate.remote(rollout_id + 1)

        ray.get(host.trainers.async_train(rollout_id, batch))
        host.trained(rollout_id)
        if saves:
            host.trainers.save_model(rollout_id, force_sync=is_last)
        if is_last or (rollout_id + 1) % max(order.lag, 1) == 0:
            if ahead is not None:
                ray.wait([ahead])
            host.push()
        if evaluates and (_is_due(host, rollout_id, args.eval_interval) or (is_last and hooks.evaluate_last)):
            ray.get(manager.eval.remote(rollout_id))


def _is_due(host: Host, rollout_id: int, interval: int | None, end: int | None = None) -> bool:
    from slime.utils.misc import should_run_periodic_action

    return bool(should_run_periodic_action(rollout_id, interval, host.rollouts_per_epoch, end))


def main() -> None:
    """Parses slime's flags, runs all rollouts, and ends the processes that it started."""
    if problems := probe_slime():
        raise SystemExit("\n".join(problems))
    args, restore_plan = parse_arguments()
    try:
        take_over(args)
    except ConfigError as error:
        raise SystemExit(str(error)) from None

    from sat_slime.plugin.inside.actor import SatTrainRayActor

    host = Host.start(args, restore_plan, SatTrainRayActor)
    try:
        train(host, plugin_config(args).driver)
    except BaseException:
        host.close(failed=True)
        raise
    host.close(failed=False)


if __name__ == "__main__":
    main()
