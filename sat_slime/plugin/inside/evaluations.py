"""Evaluations that slime leaves out: of the initial weights under train_async.py, and of the final weights.

The trainer asks for both, since it can push weights and knows slime's rollout manager. It asks for the first inside the
first push, when its driver waits and nothing generates, and for the last inside the last call of `train_actor`, when
there is nothing to generate any more.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import Any

logger = logging.getLogger(__name__)


def before_first(actor: Any, args: Namespace) -> None:
    """Evaluates the weights that the engines were just sent. Every rank calls it. Raises what the evaluation raises: it
    would fail later, too."""
    if actor._rank == 0 and not getattr(args, "skip_eval_before_train", False):
        logger.info("sat_slime: evaluating the initial weights")
        _evaluate(actor, args.start_rollout_id or 0)


def after_last(actor: Any, args: Namespace, rollout_id: int) -> None:
    """Pushes the final weights and evaluates them, as far as slime's driver will not do so. Every rank calls it."""
    ended = rollout_id + 1
    pushed = ended % (getattr(args, "update_weights_interval", None) or 1) == 0
    evaluated = ended % args.eval_interval == 0
    if pushed and evaluated:
        return
    actor.update_weights()
    if evaluated or actor._rank != 0:
        return
    logger.info("sat_slime: evaluating the final weights")
    try:
        _evaluate(actor, rollout_id)
    except Exception:  # slime still has to write the last checkpoint, which is worth more
        logger.exception("sat_slime: the final weights were not evaluated")


def can_push(args: Namespace) -> bool:
    """Whether the trainer can send weights while its driver waits for it: engines have GPUs of their own, and the
    driver takes no part in a push."""
    shares = any(getattr(args, name, None) for name in ("colocate", "offload_train", "offload_rollout"))
    by_disk = getattr(args, "update_weight_transport", "nccl") == "disk"
    return not shares and not by_disk and not getattr(args, "release_train", False)


def _evaluate(actor: Any, rollout_id: int) -> None:
    import ray

    ray.get(actor.rollout_manager.eval.remote(rollout_id))
