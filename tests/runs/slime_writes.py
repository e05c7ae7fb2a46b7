"""slime's own functions write what its trackers and its log get."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from pathlib import Path

from slime.observability import logging_utils, rollout_metrics, tensorboard_utils
from slime.utils.types import Sample

ARGS = {
    "use_wandb": False,
    "use_tensorboard": True,
    "tb_project_name": None,
    "tb_experiment_name": None,
    "custom_rollout_log_function_path": None,
    "custom_eval_rollout_log_function_path": None,
    "load_debug_rollout_data": None,
    "advantage_estimator": "grpo",
    "reward_key": None,
    "log_reward_category": None,
    "log_passrate": True,
    "n_samples_per_eval_prompt": 2,
    "rollout_num_gpus": 1,
    "wandb_always_use_train_step": False,
}


def sample(group: int, index: int, reward: float, length: int = 5, **more) -> Sample:
    """A sample as a rollout ends it."""
    return Sample(
        group_index=group,
        index=index,
        prompt="1 + 1",
        tokens=[3, 4, *range(length)],
        response="two",
        response_length=length,
        reward=reward,
        rollout_log_probs=[-0.25] * length,
        status=more.pop("status", Sample.Status.COMPLETED),
        **more,
    )


def write_with_slime(folder: Path, rollouts: int = 3) -> None:
    """TensorBoard events in FOLDER/events and the job's log, by slime's own functions: rollouts and evaluations."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TENSORBOARD_DIR"] = str(folder / "events")
    type(tensorboard_utils._TensorboardAdapter)._instances.pop(tensorboard_utils._TensorboardAdapter, None)
    handler = logging.FileHandler(folder / "job.log", mode="w")
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(filename)s:%(lineno)d - %(message)s", "%Y-%m-%d %H:%M:%S"))
    root = logging.getLogger("slime")
    root.addHandler(handler)
    level, root.level = root.level, logging.INFO
    args = Namespace(**ARGS)
    try:
        for rollout in range(rollouts):
            samples = [
                sample(i // 2, i, float(i % 2), status=Sample.Status.TRUNCATED if i == 3 else Sample.Status.COMPLETED)
                for i in range(4)
            ]
            rollout_metrics.log_rollout_data(rollout, args, samples, {"rollout/raw_reward": 0.5 + rollout}, 2.0)
            metrics = {
                "train/loss": 0.125 * rollout,
                "train/train_rollout_logprob_abs_diff": 0.25,
                "train/step": rollout,
            }
            logging_utils.log(args, metrics, step_key="train/step")
            root.getChild("backends.megatron_utils.model").info(f"step {rollout}: {metrics}")
        data = {"aime": {"rewards": [1.0, 0.0], "truncated": [0, 1], "samples": samples[:2]}}
        rollout_metrics.log_eval_rollout_data(rollouts - 1, args, data)
    finally:
        tensorboard_utils._TensorboardAdapter(args).finish()
        root.removeHandler(handler)
        root.level = level
