"""slime's processes of a run, started and ended as each version of slime wants it (docs/slime.md).

Versions after slime's pull request 2391 start the engines as a separate service, which outlives a failed trainer.
"""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

from sat_slime.plugin.compat import slime_function


def parse_arguments() -> tuple[Namespace, Any]:
    """Return slime's arguments from the command line, and the plan for a restart that its newest versions need; else
    None."""
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
    nodes: frozenset[str] = frozenset()
    """Ray's ids of the nodes that hold the GPUs of trainers and engines."""

    @classmethod
    def start(cls, args: Namespace, restore_plan: Any, actor_cls: type) -> Host:
        """Starts engines, manager and trainers. On return the trainers have loaded their checkpoint and know where to
        begin.

        Args:
            actor_cls: class of a trainer rank.
        """
        from slime.ray.placement_group import create_rollout_manager, create_training_models

        slime_function("configure_logger")()
        if "restore_plan" in inspect.signature(create_rollout_manager).parameters:
            slime_function("init_tracking")(args)
            startup = create_rollout_manager(args, restore_plan=restore_plan)
            args = getattr(startup, "args", args)
            manager, groups, per_epoch = startup.manager, startup.placements, startup.num_rollout_per_epoch
        else:
            from slime.ray.placement_group import create_placement_groups

            groups, startup = create_placement_groups(args), None
            slime_function("init_tracking")(args)
            manager, per_epoch = create_rollout_manager(args, groups["rollout"])
        trainers, _ = create_training_models(args, groups, manager, actor_cls=actor_cls)
        return cls(args, manager, trainers, per_epoch, startup, nodes_of(groups))

    def dead_nodes(self) -> list[str]:
        """Return the addresses of the run's nodes that have died; other nodes of a cluster come and go."""
        of_run = (node for node in ray.nodes() if node["NodeID"] in self.nodes)
        return sorted(node["NodeManagerAddress"] for node in of_run if not node["Alive"])

    def push(self) -> list[Any] | None:
        """Sends the trainers' weights to the engines; return what each rank returned, or None with a push by disk."""
        if self.startup is None:
            return self.trainers.update_weights()
        was = ray.get(self.manager.pause_rollout_admission.remote())
        from_ranks = self.trainers.update_weights()
        ray.get(self.manager.resume_rollout_admission.remote(was))
        return from_ranks

    def engines(self) -> dict[int, str]:
        """Return the address of each engine to which weights are pushed, by its number; those that are dead are left
        out."""
        engines, *_ = ray.get(self.manager.get_updatable_engines_and_lock.remote())
        urls = ray.get([engine.get_url.remote() for engine in engines if engine is not None])
        numbers = [number for number, engine in enumerate(engines) if engine is not None]
        return dict(zip(numbers, urls, strict=True))

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


def nodes_of(groups: Any) -> frozenset[str]:
    """Return Ray's ids of the nodes on which slime's placement groups are: the first of each tuple of a mapping."""
    values = groups.values() if isinstance(groups, Mapping) else ()
    placed = {group[0].id: group[0] for group in values if group and hasattr(group[0], "id")}
    tables = [ray.util.placement_group_table(group) for group in placed.values()]
    return frozenset(node for table in tables for node in table["bundles_to_node_id"].values() if node)
