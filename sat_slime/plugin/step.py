"""All that the plugin keeps in the process of a trainer rank: of the weights, of the batch in training, of its step.
What slime calls as functions (the loss, hooks, what is wrapped around its own functions) finds it by `current`."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sat_slime.config.jsonl import append_line, keep_rows, number, read_rows, to_json
from sat_slime.config.plugin_file import in_words
from sat_slime.objective import Method, MetricAccumulator, Result, TokenBatch, mismatch_metrics, threshold_scores
from sat_slime.objective.metrics import gather, slime_names
from sat_slime.objective.tokens import broken_tokens
from sat_slime.plugin import r3, versions
from sat_slime.plugin.compat import is_newest, locate, wrap_once
from sat_slime.plugin.settings import plugin_config, plugin_method

logger = logging.getLogger(__name__)

_GROWING = ("lag/mean", "lag/min", "lag/max", "lag/queue_mean")
"""Metrics of a batch that are one more at each further optimizer step on it."""
_RECORDED = "sat_slime_recorded"
"""Mark of a micro-batch that is recorded already: with --recompute-loss-function its loss runs twice."""
_LOSSES = {own: ours for own, ours in slime_names("train/").items() if ours.startswith("loss/")}
"""slime's losses and our names for them. The plugin measures all else in training anew, and exactly."""
_TIMES = slime_names("perf/")


class TrainerState:
    """Follows a trainer from batch to batch: `begin` and `scored` are called in this order for each, `record` for each
    micro-batch, and `end_step` at each optimizer step. All ranks call each of them, since metrics are reduced over all.

    slime sums what a loss returns and divides by the batch, which makes a mean of everything. So the loss returns what
    slime's own loss returns, and all other metrics and the columns of tokens are kept here, on the host, until slime
    reduces the step. Then each is reduced as its kind demands over micro-batches and ranks (a minimum stays one; the
    tail of |d| is that of all tokens) and joins slime's metrics as `train/NAME`.
    """

    def __init__(self, steps: int = 0):
        self.steps = steps
        """Optimizer steps that the weights have had before this batch, including the steps before a resume."""
        self.batch_metrics: dict[str, float] = {}
        """Metrics of the batch in training, the same on all ranks."""
        self.token_lags: list[Tensor] | None = None
        """(T,) of each response of this rank; None where unknown."""
        self.steps_on_batch = 0
        """Optimizer steps made on the batch in training."""
        self.agreement: r3.Agreement | None = None
        """How far the routers agree with the routes that they replay in this step, where they do."""
        self.threshold: Tensor | None = None
        """0-dim: the threshold of the optimizer step, where the method takes one over a whole step."""
        self.push_metrics: dict[str, float] = {}
        """Metrics of the push before this batch, which its first optimizer step reports."""
        self._metrics = MetricAccumulator()
        self._tokens: list[dict[str, Tensor]] = []

    @property
    def generated_by(self) -> int | None:
        """The one version of the weights that generated the batch, in optimizer steps; None where several did, or where
        it is unknown."""
        oldest, newest = self.batch_metrics.get("lag/max"), self.batch_metrics.get("lag/min")
        return None if oldest is None or oldest != newest else self.steps - int(oldest)

    def begin(self, rollout_data: dict[str, Any]) -> None:
        """Takes the origins out of a batch and computes its metrics; called before it is scored."""
        origins = versions.take_origins(rollout_data)
        lengths = rollout_data["response_lengths"]
        self.token_lags, self.steps_on_batch = None, 0
        if origins is not None:
            known = [origin.parts for origin in origins]
            self.token_lags = [torch.cat([torch.full((n,), self.steps - v) for n, v in parts]) for parts in known]
            if any((lags < 0).any() for lags in self.token_lags):
                logger.warning("sat_slime: lag is unknown: the batch is of weights newer than step %d", self.steps)
                self.token_lags = None
        self.batch_metrics = _reduced(lengths, self.token_lags, rollout_data.get("loss_masks"))
        if origins:
            self.batch_metrics |= origins[0].rollout_metrics
        raw_rewards = rollout_data.get("raw_reward")  # every rank has those of the whole batch
        if raw_rewards is not None and len(raw_rewards):
            with contextlib.suppress(TypeError, ValueError):  # a reward of several parts is a dict
                self.batch_metrics["reward/mean"] = sum(map(float, raw_rewards)) / len(raw_rewards)

    def scored(self, args: Namespace, rollout_data: dict[str, Any], actor: Any = None) -> None:
        """Gets ready what the loss of a batch reads: lags of its tokens, and the threshold of the step. Called after
        slime's forward passes over the batch and before it is trained on. actor: as `step_threshold` takes it. Raises
        RuntimeError where the method needs the lags, and they are unknown, and as `step_threshold` does."""
        method = plugin_method(args)
        if "lags" in method.needs:
            if self.token_lags is None:
                raise RuntimeError(
                    f"{method.name} needs the lags of the responses, which travel with the versions of their weights, "
                    "and this batch has none: the log of its rollout says why (look for `lag is unknown`)"
                )
            versions.tell_lags(rollout_data["tokens"], self.token_lags)
        self.threshold = step_threshold(args, rollout_data, actor)

    def threshold_for(self, method: Method) -> Tensor | None:
        """Return the threshold of the current optimizer step under scope `step`, 0-dim; None where each micro-batch
        takes its own. Raises RuntimeError where the hook that takes it is not in place."""
        if method.scope != "step":
            return None
        if self.threshold is None:
            raise RuntimeError(
                f"{method.name}: its threshold is over the step, but none was taken for this step: "
                "rollout_data_postprocess_path is not sat_slime.plugin.train_hooks.postprocess, nor a function that "
                "calls it"
            )
        return self.threshold

    def record(
        self, batch: dict[str, Any], method: Method, tokens: TokenBatch, surrogate: Result, has_rollout: bool
    ) -> None:
        """Keeps the metrics of a micro-batch for the step, only once, however often its loss is computed. Raises
        FloatingPointError where a number of an active token is not finite, which the host learns with the columns that
        it takes anyway, before the backward pass."""
        if batch.get(_RECORDED):
            return
        batch[_RECORDED] = True
        self._metrics.add(surrogate.metrics, surrogate.n)
        columns = {"surrogate": surrogate.values, "mask": tokens.mask}
        if has_rollout:
            columns |= {"log_probs": tokens.log_probs, "rollout": tokens.rollout_log_probs}
            if method.denominator == "checkpoint" and tokens.proximal_log_probs is not None:
                columns["checkpoint"] = tokens.proximal_log_probs
        table = torch.stack([column.detach().to(surrogate.values.dtype) for column in columns.values()]).cpu()
        known = dict(zip(columns, table[:, table[1].bool()], strict=True))  # of the active tokens
        if known.pop("surrogate").isnan().any():
            raise FloatingPointError(broken_tokens(tokens) or "the surrogate of finite numbers is not finite")
        del known["mask"]
        if has_rollout:
            self._tokens.append(known)

    def end_step(self, group: dist.ProcessGroup | None) -> dict[str, float]:
        """Return the metrics of an optimizer step that is done, those of its batch included, the same on all ranks of
        `group`, the gloo group of the data- and context-parallel ranks, all of which must call; None: this process
        alone. The next step starts empty. Raises RuntimeError where replayed routes are not those of the tokens."""
        metrics = self._metrics.reduce(group)
        names = set().union(*gather(set().union(*self._tokens), group))  # a rank without a response knows none
        if names:
            columns = {name: torch.cat([one[name] for one in self._tokens] or [torch.zeros(0)]) for name in names}
            metrics |= mismatch_metrics(
                columns["log_probs"],
                columns["rollout"],
                torch.ones(len(columns["log_probs"]), dtype=torch.bool),
                checkpoint_log_probs=columns.get("checkpoint"),
                group=group,
            )
        metrics |= self.batch_metrics | self.push_metrics
        if self.agreement is not None:
            metrics |= self.agreement.metrics(group)
            self.agreement = r3.Agreement()
        self._metrics, self._tokens, self.push_metrics = MetricAccumulator(), [], {}
        # If the batch has another step, its lag is one more then: not the part from generation, but the part after it.
        self.batch_metrics |= {key: value + 1 for key, value in self.batch_metrics.items() if key in _GROWING}
        self.threshold = None
        self.steps_on_batch += 1
        return metrics


def _reduced(lengths: list[int], lags: list[Tensor] | None, masks: list[Tensor] | None) -> dict[str, float]:
    """Return means and extremes over all ranks, by metric name. Ranks of tensor, pipeline and context parallelism hold
    the same samples, so every sample counts equally often.

    Args:
        lengths: response tokens of each sample of this rank.
        lags: (T,) of each sample.
        masks: (T,) of each sample: the tokens that are trained, which alone count for the lags; None, or where no rank
            has any: all.
    """
    # of each token, and of the last of its response: weights only become newer
    pairs = [torch.stack([lag, lag[-1:].expand_as(lag)]) for lag in lags or [torch.zeros(0)]]
    counts = [pair.shape[1] for pair in pairs]
    trained, group, replicas = pairs, None, 1
    if dist.is_initialized():
        from megatron.core import mpu
        from slime.utils.distributed_utils import get_gloo_group

        group = get_gloo_group()
        replicas = dist.get_world_size(group) // mpu.get_data_parallel_world_size(with_context_parallel=False)
    if masks and [len(mask) for mask in masks] == counts:
        trained = [pair[:, torch.as_tensor(mask).bool().cpu()] for pair, mask in zip(pairs, masks, strict=True)]
    any_trained = any(gather(any(pair.numel() for pair in trained), group))
    known, last = torch.cat(trained if any_trained else pairs, 1).double()
    ends = [float(end) for end in known.aminmax()] if len(known) else [math.inf, -math.inf]
    all_known = sum(counts) == sum(lengths)
    own = (len(lengths), sum(lengths), len(known), float(known.sum()), float(last.sum()), *ends, all_known)
    n, tokens, n_known, lag, queue, low, high, told = zip(*gather(own, group), strict=True)
    metrics = {"response/length_mean": sum(tokens) / max(sum(n), 1), "tokens/response_total": sum(tokens) / replicas}
    if all(told) and (count := sum(n_known)):
        metrics |= {"lag/mean": sum(lag) / count, "lag/min": min(low), "lag/max": max(high)}
        metrics |= {"lag/generation_mean": (sum(lag) - sum(queue)) / count, "lag/queue_mean": sum(queue) / count}
    return metrics


@torch.no_grad()
def step_threshold(args: Namespace, rollout_data: dict[str, Any], actor: Any = None) -> Tensor | None:
    """Return the threshold of a method's judge over the whole step that a batch is for (scope `step`), such as SAT's
    quantile, 0-dim: over all micro-batches, all data- and context-parallel ranks. None where each micro-batch takes its
    own, and on all pipeline stages but the last. Called when the model holds the weights in training.

    It needs log pi of every token before the first micro-batch is trained. slime makes that forward pass, since
    use_rollout_logprobs is off under scope `step`. With denominator `checkpoint` slime's pass is under the generating
    weights, and one more is made here. The threshold is exact as far as a forward pass is repeatable.

    Args:
        rollout_data: responses of this data-parallel rank, with the log-probs of its context-parallel rank.
        actor: slime's MegatronTrainRayActor, for a forward pass of our own where slime made none; None where it is not
            known.

    Raises:
        RuntimeError: such a pass is needed, and no actor is there.
    """
    method = plugin_method(args)
    if method.scope != "step":
        return None
    assert method.judge, "it has a threshold"
    if method.denominator == "checkpoint" or args.use_rollout_logprobs:
        log_probs = _scored_again(args, method, rollout_data, actor)
    else:
        log_probs = rollout_data.get("log_probs", [])  # of slime's pass, on the last pipeline stage alone

    from megatron.core import mpu

    if not mpu.is_pipeline_last_stage():
        return None

    from sat_slime.plugin.batch import context_group, token_batch  # imports slime

    tokens, d = token_batch(method, rollout_data, log_probs)
    scores = threshold_scores(method, tokens, group=context_group(), d=d)
    return method.judge.threshold_of(scores, mpu.get_data_parallel_group(with_context_parallel=True))


def _scored_again(args: Namespace, method: Method, rollout_data: dict[str, Any], actor: Any) -> list[Tensor]:
    """Return log pi of every response under the weights in training, by a forward pass of our own; [] on all pipeline
    stages but the last."""
    if actor is None:
        raise RuntimeError(
            f"{method.name}: its threshold is over the step, but slime made no forward pass under the weights in "
            "training: custom_megatron_init_path is not sat_slime.plugin.train_hooks.install, which asks for one, "
            "nor a function that calls it"
        )
    from slime.backends.megatron_utils.data import get_data_iterator

    replays = getattr(args, "use_routing_replay", False)  # R2 or R3
    if replays:
        os.environ["ROUTING_REPLAY_STAGE"] = "replay_forward"
    scored = actor.compute_log_prob(
        get_data_iterator(rollout_data), rollout_data["num_microbatches"], store_prefix="training_"
    )
    if replays:
        from slime.utils.routing_replay import RoutingReplay

        RoutingReplay.clear_all_forward()
    return scored.get("training_log_probs", [])


# ----------------------------------------------------------------------------------------------------- the process

_current = TrainerState()


def current() -> TrainerState:
    """Return the state of the trainer of this process; an empty one where it has no trainer."""
    return _current


def prepare(args: Namespace, state: TrainerState) -> None:
    """Makes the state that of this process, and wraps the functions of slime that it needs. A second call wraps nothing
    more. Rank 0 logs the method."""
    global _current
    _current = state
    method = plugin_method(args)
    if getattr(args, "rank", 0) == 0:
        logger.info("sat_slime: %s is on: %s", method.label, in_words(method))
    if r3.replays(args):
        if not is_newest():
            r3.lay_out_narrow()
        state.agreement = r3.Agreement()
        r3.watch(lambda: current().agreement)
    if (run_dir := plugin_config(args).run_dir) is not None:  # slime's trackers are fed by the one rank that has these
        wrap_once(*locate("log"), MetricsFile(Path(run_dir)).log)


def join_step_metrics() -> None:
    """Makes slime's reduction of a step return our metrics too; later calls do nothing."""
    wrap_once(*locate("reduce_train_step_metrics"), _with_ours)


def _with_ours(reduction: Callable[..., dict[str, float]], /, *positional: Any, **keywords: Any) -> dict[str, float]:
    from megatron.core import mpu

    reduced = reduction(*positional, **keywords)
    group = mpu.get_data_parallel_group_gloo(with_context_parallel=True)
    return reduced | current().end_step(group)


class StepFile:
    """A file of rows by `step` that one process writes. The first row that is written replaces the rows of its step and
    of later ones: a resumed run had written them after its checkpoint. Where that would be all rows, they are of
    another run or of one without a checkpoint, and stay beside the file: as metrics.jsonl.1 and so on."""

    def __init__(self, path: Path):
        self._path = path
        self._begun, self._first = False, math.inf

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows at the end. A full disk does not end the run and is only logged: the trackers have the rows too."""
        try:
            if not self._begun and rows:
                self._first = first = min(self._first, rows[0]["step"])  # of rows that could not be written, too
                self._path.parent.mkdir(parents=True, exist_ok=True)
                if (old := read_rows(self._path)) and number(old[0], "step", 0) >= first:
                    beside = (self._path.with_name(f"{self._path.name}.{i}") for i in itertools.count(1))
                    aside = self._path.rename(next(path for path in beside if not path.exists()))
                    logger.warning("sat_slime: the rows of an earlier start in %s are now in %s", self._path, aside)
                keep_rows(self._path, lambda row: number(row, "step", 0) < first)
                self._begun = True
            for row in rows:
                append_line(self._path, to_json(row))
        except OSError as error:
            logger.error("%s: %s: %d lines are lost", self._path, error.strerror or error, len(rows))


class MetricsFile(StepFile):
    """metrics.jsonl, with a line per optimizer step. The lines of a rollout are written together, once its times are
    known."""

    def __init__(self, run_dir: Path):
        super().__init__(run_dir / "metrics.jsonl")
        self._run = {"run/restarts": len(read_rows(run_dir / "restarts.jsonl"))}
        self._rows: list[dict[str, Any]] = []

    def log(self, track: Callable[..., None], /, args: Any, metrics: dict[str, Any], step_key: str) -> None:
        """Hands metrics on to slime's trackers, and keeps those of a training step."""
        track(args, metrics, step_key=step_key)
        if step_key == "train/step":
            named = {_LOSSES.get(k, k.removeprefix("train/")): v for k, v in metrics.items() if k != step_key}
            self._rows.append({"step": metrics[step_key] + 1} | named)
        elif "perf/train_time" in metrics:
            times = {name: metrics[key] for key, name in _TIMES.items() if key in metrics}
            rows, self._rows = self._rows, []
            self.append([row | times | self._run | {"iteration": rows[-1]["step"] // len(rows)} for row in rows])
