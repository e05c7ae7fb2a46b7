"""What one trainer of slime knows of the batches that it trains on: their lag, their numbers, the verdict on routes."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sat_slime.plugin.inside import response_facts, routing_check, step_metrics, step_threshold, versions
from sat_slime.plugin.inside.settings import plugin_config, plugin_method


class BatchFacts:
    """Follows a trainer from batch to batch: `begin`, `scored` and `trained` are called in this order for each.

    All ranks call each of them, since numbers are reduced over all.
    """

    def __init__(self, steps: int = 0):
        self.steps = steps
        """Optimizer steps that the weights have had, including the steps before a resume."""
        self.numbers: dict[str, float] = {}
        """Numbers of the batch in training, the same on all ranks; train_hooks.rollout_facts lists them."""
        self.lags: list[int] | None = None
        self.token_lags: list[Tensor] | None = None
        self.rewards: list[float] | None = None
        """Reward of each response of this rank before any baseline; None where it did not travel with the versions."""
        self._routing: dict[str, float] = {}
        """The verdict on the routes of this batch, if one was possible before the batch is trained on."""
        self._late_routing: dict[str, float] = {}
        """The verdict on the routes of the batch before, where it was possible only after that batch was trained on."""

    @property
    def generated_by(self) -> int | None:
        """The one version of the weights that generated the batch, in optimizer steps; None where several did, or where
        it is unknown."""
        oldest, newest = self.numbers.get("lag/max"), self.numbers.get("lag/min")
        return None if oldest is None or oldest != newest else self.steps - int(oldest)

    def begin(self, rollout_data: dict[str, Any]) -> None:
        """Takes the versions out of a batch and computes its numbers; called before the batch is scored."""
        routing_check.begin_rollout()
        made_by = versions.unload(rollout_data)
        lengths = rollout_data["response_lengths"]
        self.lags = self.token_lags = self.rewards = None
        if made_by is not None:
            self.lags = [self.steps - version.oldest for version in made_by]
            self.token_lags = [
                self.steps - _token_versions(one, length) for one, length in zip(made_by, lengths, strict=True)
            ]
            told = [one.reward for one in made_by if one.reward is not None]
            self.rewards = told if len(told) == len(made_by) else None
        self._routing = {}
        self.numbers = self._late_routing | _reduced(lengths, self.token_lags)
        if made_by:
            self.numbers |= made_by[0].numbers
        rewards = rollout_data.get("raw_reward")  # every rank has those of the whole batch
        if rewards and all(isinstance(reward, (int, float)) for reward in rewards):
            self.numbers["reward/mean"] = sum(rewards) / len(rewards)
        self._late_routing = {}

    def scored(self, args: Namespace, rollout_id: int, rollout_data: dict[str, Any], actor: Any) -> None:
        """Judges the routes of a batch, and hands over its numbers for the metrics and the quantile of the step. Called
        after slime's forward passes over the batch and before it is trained on.

        Args:
            actor: slime's MegatronTrainRayActor; None where it is not known.

        Raises:
            RuntimeError: the replayed routes are not those of the tokens, or the method needs a fact that is unknown.
        """
        if checks_routes(args):
            self._routing = routing_check.verdict(rollout_id, must_have_replayed=False)
            self.numbers |= self._routing
        step_metrics.set_rollout_facts(self.numbers)
        self._tell_responses(args, rollout_data)
        step_threshold.postprocess(args, rollout_id, rollout_data, actor=actor)

    def _tell_responses(self, args: Namespace, rollout_data: dict[str, Any]) -> None:
        """Hands over what the method reads of each response."""
        method = plugin_method(args)
        known = {"lags": self.token_lags, "rewards": self.rewards}
        if unknown := [need for need in method.needs if known.get(need) is None]:
            raise RuntimeError(
                f"{method.name} needs the {' and the '.join(unknown)} of the responses, which travel with the versions "
                "of their weights, and this batch has none: the log of its rollout says why (look for `lag is unknown`)"
            )
        if method.needs:
            response_facts.remember(rollout_data["tokens"], self.token_lags, self.rewards)

    def trained(self, args: Namespace, rollout_id: int, steps: int) -> None:
        """Counts `steps` optimizer steps, which the batch has had now. Raises RuntimeError where R3 is on and nothing
        was replayed."""
        self.steps += steps
        if checks_routes(args) and "routing/agreement" not in self._routing:
            # No forward pass before the training replayed routes, so this verdict is reported with the next batch.
            self._late_routing = routing_check.verdict(rollout_id, must_have_replayed=True)


def checks_routes(args: Namespace) -> bool:
    """Whether replayed routes are compared with the routers' own choice."""
    return bool(getattr(args, "use_rollout_routing_replay", False) and plugin_config(args).hooks.check_routed_experts)


def _token_versions(made_by: versions.Carried, length: int) -> Tensor:
    """(T,) version of each token of a response."""
    parts = made_by.parts or ((length, made_by.oldest),)
    return torch.repeat_interleave(
        torch.tensor([version for _, version in parts]), torch.tensor([tokens for tokens, _ in parts])
    )


def _reduced(lengths: list[int], lags: list[Tensor] | None) -> dict[str, float]:
    """Means and extremes over all ranks, by metric name. lengths: response tokens of each sample of this rank. Ranks of
    tensor, pipeline and context parallelism hold the same samples, so every sample counts equally often."""
    known = torch.cat(lags or [torch.zeros(0)]).double()
    last = torch.cat([lag[-1:].expand(len(lag)) for lag in lags or []] or [torch.zeros(0)]).double()
    sums = torch.tensor([len(lengths), sum(lengths), len(known), known.sum(), last.sum()], dtype=torch.float64)
    extremes = torch.tensor([torch.inf, torch.inf], dtype=torch.float64)
    if len(known):
        extremes = torch.stack([known.min(), -known.max()])
    replicas = 1
    if dist.is_initialized():
        from megatron.core import mpu
        from slime.utils.distributed_utils import get_gloo_group

        dist.all_reduce(sums, group=get_gloo_group())
        dist.all_reduce(extremes, op=dist.ReduceOp.MIN, group=get_gloo_group())
        replicas = dist.get_world_size() // mpu.get_data_parallel_world_size(with_context_parallel=False)
    n, tokens, n_known, lag, queue = sums.tolist()
    numbers = {"response/length_mean": tokens / max(n, 1), "tokens/response_total": tokens / replicas}
    if n_known == tokens > 0:
        low, minus_high = extremes.tolist()
        numbers |= {"lag/mean": lag / tokens, "lag/min": low, "lag/max": -minus_high}
        numbers |= {"lag/generation_mean": (lag - queue) / tokens, "lag/queue_mean": queue / tokens}
    return numbers
