"""Sets up in a trainer's process what slime calls as functions of its modules, not as methods of its trainer.

A process has one trainer; `facts` are about the batches that it trains on.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable

from sat_slime.plugin.inside import routing_check, versions
from sat_slime.plugin.inside.batch_facts import BatchFacts
from sat_slime.plugin.inside.settings import plugin_config
from sat_slime.plugin.inside.step_files import record_metrics

logger = logging.getLogger(__name__)

_facts = BatchFacts()


def facts() -> BatchFacts:
    """The facts of the trainer of this process; empty facts where it has no trainer."""
    return _facts


def teller(tells: bool) -> Callable[..., None]:
    """A function that says in the log whether a hook is on, and what it does. It speaks on the rank that `tells`."""

    def tell(hook: str, what: str, is_on: bool = True) -> None:
        if tells:
            logger.info("sat_slime: hook %s is %s: %s", hook, "on" if is_on else "off", what)

    return tell


def prepare(args: Namespace, of_trainer: BatchFacts, tell: Callable[..., None]) -> None:
    """Installs the hooks on slime's functions that are on; called once the trainer's facts are known. A second call
    installs nothing more."""
    global _facts
    _facts = of_trainer
    config = plugin_config(args)
    hooks = config.hooks
    if versions.are_steps(args, hooks):
        tell("version_by_step", "versions of weights are their optimizer steps")
    elif hooks.version_by_step:
        tell("version_by_step", "left out: a push by disk needs consecutive versions; lag stays unknown", is_on=False)
    if getattr(args, "use_rollout_routing_replay", False):
        if hooks.narrow_routed_experts:
            routing_check.accept_narrow_routes()
            tell("narrow_routed_experts", "routes are replayed from a narrow type (slime issue 2384)")
        if hooks.check_routed_experts:
            routing_check.watch()
            tell("check_routed_experts", "replayed routes are held against the routers' own")
    if config.run_dir is not None:
        record_metrics(config.run_dir)
