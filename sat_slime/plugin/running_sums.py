"""The dotted path of launch scripts for the reward of the running sums; it is that of every task."""

from __future__ import annotations

from sat_slime.plugin.task_reward import reward

__all__ = ["reward"]
