"""Wraps our hooks for slime's plugin contract tests. Those give hooks bare arguments and look for marks that only their
own examples leave; so each wrapper fills in the arguments of a run, and leaves the marks."""

from __future__ import annotations

import importlib.util
from typing import Any

from slime_host import make_args

from sat_slime.plugin import rollout_hooks, train_hooks
from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for

if importlib.util.find_spec("wandb") is None:
    stand_in_for("wandb")


def _fill(args: Any) -> Any:
    for name, value in vars(make_args(2, 8, 0, reference=False)).items():
        setattr(args, name, value)
    args.use_wandb = args.use_tensorboard = args.wandb_always_use_train_step = args.use_rollout_logprobs = False
    args.eps_clip_c, args.sat_slime = None, "gspo"
    return args


def log_rollout(rollout_id, args, samples, rollout_extra_metrics, rollout_time) -> bool:
    args.logged_rollout_id = rollout_id
    return rollout_hooks.log_rollout(rollout_id, _fill(args), samples, rollout_extra_metrics, rollout_time)


def log_eval(rollout_id, args, data, extra_metrics) -> bool:
    args.logged_eval_rollout_id = rollout_id
    return rollout_hooks.log_eval(rollout_id, _fill(args), data, extra_metrics)


def postprocess(args, rollout_id, rollout_data) -> None:
    args.rollout_data_postprocess_called = True
    batch = {"response_lengths": [], "num_microbatches": []} | rollout_data  # as slime's trainer has it
    return train_hooks.postprocess(_fill(args), rollout_id, batch)
