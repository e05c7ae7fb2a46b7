"""The metrics of a run: the one table, a line each, and their reduction over micro-batches and ranks.

metrics.jsonl has a row per optimizer step, eval.jsonl one per evaluation. Both runtimes, reports, docs/runs.md
and the map to slime's own names read this table. How a page draws a metric is report's, and what looks unhealthy
about one is in runs/health.py.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsFloat

from .method import known
from .stabilizer import Gate, Score, Stabilizer, Weight

if TYPE_CHECKING:  # so that settings are read before torch is imported
    import torch.distributed as dist

Reduction = Literal["mean", "sum", "min", "max", "step"]


class Metric(NamedTuple):
    """One entry of the table, for one name or for several that differ in a word."""

    pattern: str
    """The name. Words in braces stand for a name each, `lag/{mean,min}`; a word in capitals for any."""
    unit: str
    """Such as nats, seconds, tokens, or share: a fraction of 1."""
    meaning: str
    """One sentence. `|d|` is written abs(d), for tables in Markdown."""
    reduction: Reduction = "mean"
    """Over the micro-batches and ranks of an optimizer step: the mean over active tokens, the sum, the least, the
    largest; `step`: it is taken of the whole step or batch at once."""
    runtime: Literal["lab", "slime"] | None = None
    """The only runtime that writes it. Unset: both do."""
    slime: tuple[str, ...] = ()
    """Its name in slime itself. A metric that the plugin adds has our name after `train/`."""

    @property
    def names(self) -> list[str]:
        """All names that the pattern stands for."""
        parts = re.split(r"\{([^}]*)\}", self.pattern)
        return ["".join(words) for words in itertools.product(*(part.split(",") for part in parts))]

    def covers(self, name: str) -> bool:
        """Whether `name` is one of its names, with any words in the place of those in capitals."""
        return any(re.fullmatch(re.sub("[A-Z]{2,}", ".+", re.escape(own)), name) for own in self.names)


# fmt: off
_BATCH = (
    Metric("step", "count", "Optimizer updates made, from 1.", "step"),
    Metric("iteration", "count", "Rollout batches trained.", "step"),
    Metric("rollout_id", "count", "Number of the batch, from 0.", "step", runtime="lab"),
    Metric("run/restarts", "count", "[Restarts](launch.md#restarts) of the run's job so far.", "step", runtime="slime"),
    Metric("reward/mean", "reward", "Mean reward of the batch, earned by the weights that generated it.", "step", slime=("rollout/raw_reward",)),
    Metric("reward/flat_groups", "share", "Prompts whose responses all have the same reward, so that none has an advantage.", "step", runtime="lab"),
    Metric("response/length_mean", "tokens", "Mean length of the responses.", "step", slime=("rollout/response_len/mean", "rollout/response_lengths")),
    Metric("response/length_max", "tokens", "Length of the longest response.", "step", runtime="lab"),
    Metric("response/truncated", "share", "Responses cut at the longest length.", "step", runtime="lab"),
    Metric("mismatch/d_pi", "nats", "Mean of abs(log π − log μ) over tokens.", "step", slime=("train/train_rollout_logprob_abs_diff",)),
    Metric("mismatch/{q50,q90}", "nats", "Quantiles of the same.", "step"),
    Metric("mismatch/q99", "nats", "Its 99 % quantile.", "step"),
    Metric("mismatch/max", "nats", "The largest.", "step"),
    Metric("mismatch/k3_kl", "nats", "K3 estimate of the KL.", "step"),
    Metric("mismatch/ess", "share", "Effective sample size (Σw)² / (n Σw²), w = π / μ: 1 where all tokens count alike; below 0.5 a few carry the gradient.", "step"),
    Metric("mismatch/policy", "nats", "The policy part of d_pi, by the trainer's log-probs under the generating weights, where measured.", "step"),
    Metric("mismatch/implementation", "nats", "Its implementation part: engine and trainer at the same weights.", "step"),
    Metric("mismatch/policy_of_{mean,q90,q99}", "share", "The policy part of mean abs(d), and of abs(d) beyond its 90 % and 99 % quantile, in the direction of d; the rest is the implementation part's.", "step"),
    Metric("lag/mean", "updates", "Optimizer updates between the generating weights and the trained ones, mean over tokens; on slime lags are of the whole batch at each of its steps."),
    Metric("lag/min", "updates", "The smallest lag of a token.", "min"),
    Metric("lag/max", "updates", "The largest lag of a token.", "max"),
    Metric("lag/generation_mean", "updates", "The part of the lag while the rest of the response was generated."),
    Metric("lag/queue_mean", "updates", "The part of the lag [since then](asynchrony.md)."),
    Metric("queue/{length,in_generation}", "prompts", "Mode streaming: prompts complete and waiting, and in generation, when the batch was taken.", "step"),
)
_OF_STABILIZERS = (
    Metric("gmpo/held", "share", "Tokens that GMPO holds at the end of its interval."),
    Metric("cpgd/held", "share", "Tokens that CPGD holds at the end of its interval."),
    Metric("m2po/largest", "nats²", "The largest d² of an outward token that is kept, with `power` over that of its lag.", "max"),
    Metric("ipo/masked", "share", "Tokens whose r A IPO drops."),
    Metric("sat/q", "nats", "The quantile that opens the gate."),
    Metric("sat/{radius_high,radius_low}", "radius", "[The one radius](objective.md#one-radius) above and below 1 at which PPO's gradient is SAT's. Missing beside a radius policy."),
    Metric("sat/gate_rate", "share", "Tokens beyond the gate."),
    Metric("sat/newly_clipped", "share", "Tokens whose gradient SAT removed and the base, its gates included, would have kept; 0 throughout: SAT was a no-op."),
    Metric("sat/scope_too_small", "share", "Tokens in scopes of so few responses that the gate may stay shut."),
    Metric("tis/capped", "share", "Tokens at the cap."),
)
_STEP = (
    Metric("clip/fraction", "share", "Tokens clipped.", slime=("train/pg_clipfrac",)),
    Metric("clip/{upper,lower}", "share", "Tokens clipped with advantage above and below 0."),
    Metric("radius/{low,high}", "radius", "Mean radii of the clip interval below and above 1 that a radius policy sets, before SAT contracts them."),
    Metric("clip/dual", "share", "Tokens that the dual clip holds, where it is on."),
    Metric("routing/agreement", "share", "Replayed experts that the trainer's routers would have chosen, of each rank's first micro-batch, the last pipeline stage alone; R3 on.", "step", runtime="slime"),
    Metric("grad_norm", "norm", "Gradient norm before clipping.", "step"),
    Metric("loss/total", "loss", "The loss that is minimized.", "sum", slime=("train/loss",)),
    Metric("loss/policy", "loss", "The surrogate's term of it.", "sum", slime=("train/pg_loss",)),
    Metric("loss/kl", "nats", "KL to the reference, without its coefficient.", "sum", slime=("train/kl_loss",)),
    Metric("loss/entropy", "nats", "Entropy, without its coefficient.", "sum", slime=("train/entropy_loss",)),
    Metric("rollout/rejected", "count", "Responses that failed validation: they stay in their batch and are not trained.", "step", runtime="slime"),
    Metric("rollout/rejected/REASON", "count", "The rejected by reason, where there are any.", "step", runtime="slime"),
    Metric("rollout/{finished,finished_length_mean}", "count, tokens", "Mode streaming: responses completed since the batch before, and their mean length; a resume in the lab generates its queue anew, and counts it again.", "step"),
    Metric("rollout/{dropped,aborted,dropped_length_mean}", "count, tokens", "Mode streaming: responses dropped for their lag since the batch before; those among them that slime aborted in generation; the mean length of the others.", "step"),
    Metric("canary/d", "nats", "[Canary](asynchrony.md#the-canary): mean abs(d) of the worst engine at the push after this step; in the first row of a start without one, at the push before. On slime always the last push before this step.", "step"),
    Metric("canary/limit", "nats", "Its limit, learned from the pushes that passed.", "step"),
    Metric("canary/faults", "count", "Engines that do not hold the weights of that push, or cannot be asked; in the first row of a start also of the push before.", "step"),
    Metric("time/train", "seconds", "Training.", "step", slime=("perf/train_time",)),
    Metric("time/sync", "seconds", "The weight broadcast; on slime that before this batch, if there was one.", "step", slime=("perf/update_weights_time",)),
    Metric("time/wait", "seconds", "Spent waiting for a rollout, the wait before a broadcast included; on slime all since the training before, so also pushes, evaluations and checkpoints.", "step", slime=("perf/train_wait_time",)),
    Metric("time/step", "seconds", "The iteration, evaluation and checkpoints left out; on slime `time/train` and `time/wait`, with them.", "step", slime=("perf/step_time",)),
    Metric("time/rollout", "seconds", "From the batch's first request to its last response; beside the trainer when lag > 0. Mode streaming: of the group that took longest, lab runs alone.", "step"),
    Metric("tokens/response_total", "tokens", "Response tokens of the batch.", "step"),
)
EVALUATION = (
    Metric("step", "count", "Optimizer updates made.", "step"),
    Metric("iteration", "count", "Rollout batches trained.", "step", runtime="lab"),
    Metric("rollout_id", "count", "Number of the batch before it, from 0.", "step", runtime="slime"),
    Metric("dataset", "name", "The data set: a row for each.", "step", runtime="slime"),
    Metric("weights_step", "count", "Updates of the weights that were measured, as the engines reported them; `null` if they were several.", "step"),
    Metric("{accuracy,accuracy_by_problem}", "reward", "Mean over all samples; over those of each problem, a list.", "step"),
    Metric("accuracy_by_run", "reward", "Mean of each repeat, a list, with `eval.repeats` above 1.", "step"),
    Metric("accuracy/{low_samples,high_samples}", "reward", "[95 % interval](runs.md#evaluation) for these very problems.", "step"),
    Metric("{n_problems,n_samples}", "count", "Held-out problems; samples of them all.", "step"),
    Metric("length_mean", "tokens", "Mean length of the responses.", "step"),
    Metric("truncated", "share", "Responses cut at the longest length.", "step"),
    Metric("reasons/REASON", "count", "Samples by the [verifier's reason](reward.md#reasons), where there are any.", "step"),
    Metric("time/eval", "seconds", "From the first request to the last response.", "step", runtime="lab"),
)
# fmt: on
"""The columns of eval.jsonl."""


def metrics_of(kind: type[Stabilizer]) -> tuple[Metric, ...]:
    """The metrics that a stabilizer measures, those of its kind first."""
    prefix, title = kind.prefix(), kind.title()
    own = tuple(metric for metric in _OF_STABILIZERS if metric.pattern.startswith(f"{prefix}/"))
    if issubclass(kind, Score):
        weight = Metric(f"{prefix}/weight", "ratio", f"Mean weight w of {title}.")
        return (weight, Metric(f"{prefix}/masked", "share", f"Tokens to which {title} gives no weight."), *own)
    if issubclass(kind, Weight):
        return (Metric(f"{prefix}/weight", "ratio", f"Mean weight of {title}."), *own)
    if issubclass(kind, Gate):
        return (Metric(f"{prefix}/masked", "share", f"Tokens that the gate of {title} drops."), *own)
    return own


def run_metrics() -> tuple[Metric, ...]:
    """The columns of metrics.jsonl, in the order in which tables and panels show them."""
    by_stabilizers = [metric for kind in known() for metric in metrics_of(kind)]
    return (*_BATCH, *by_stabilizers, *_STEP)


def metric_named(name: str) -> Metric | None:
    """The entry of a column of metrics.jsonl; None where the table has none."""
    return next((metric for metric in run_metrics() if metric.covers(name)), None)


def slime_names(prefix: str = "") -> dict[str, str]:
    """slime's own names that begin with `prefix`, and ours."""
    return {own: metric.pattern for metric in run_metrics() for own in metric.slime if own.startswith(prefix)}


def gather(part: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """The small object of every rank, in rank order."""
    if group is None:
        return [part]
    import torch

    parts: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(parts, part, group=group)
    return parts


class MetricAccumulator:
    """Metrics of the micro-batches of one optimizer step, reduced over them and over ranks as the table says: sums,
    minima, maxima, and means weighted by the active tokens of each micro-batch."""

    def __init__(self) -> None:
        self._rows: list[tuple[dict[str, SupportsFloat], SupportsFloat]] = []

    def add(self, metrics: Mapping[str, SupportsFloat], weight: SupportsFloat) -> None:
        """Take a micro-batch: its metrics, 0-dim or numbers, and its active tokens. Nothing is read before reduce."""
        self._rows.append((dict(metrics), weight))

    def reduce(self, group: dist.ProcessGroup | None = None) -> dict[str, float]:
        """The step's metrics, the same on all ranks. A rank that added nothing takes part all the same.

        Raises:
            ValueError: two micro-batches, on whatever ranks, differ in their names; all ranks raise.
        """
        rows = [(_on_the_host(metrics), float(weight)) for metrics, weight in self._rows]
        rows = [row for rank in gather(rows, group) for row in rank]
        names = list(rows[0][0]) if rows else []
        for metrics, _ in rows:
            if odd := set(names) ^ set(metrics):
                raise ValueError(f"metrics differ between micro-batches: {', '.join(sorted(odd))} not in all of them")
        table = {name: metric.reduction for metric in run_metrics() for name in metric.names}
        return {
            name: _reduced(table.get(name, "mean"), [(metrics[name], weight) for metrics, weight in rows])
            for name in names
        }


def _on_the_host(metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
    """The numbers, read from the device at once."""
    import torch

    on_device = [value.detach().double() for value in metrics.values() if isinstance(value, torch.Tensor)]
    numbers = iter(torch.stack(on_device).tolist() if on_device else ())
    return {name: next(numbers) if isinstance(v, torch.Tensor) else float(v) for name, v in metrics.items()}


def _reduced(reduction: Reduction, values: list[tuple[float, float]]) -> float:
    """One number from those of the micro-batches, each with its active tokens."""
    if reduction == "sum":
        return math.fsum(value for value, _ in values)
    # A micro-batch without an active token has nothing to say about tokens.
    values = [(value, weight) for value, weight in values if weight > 0] or values
    if reduction == "min":
        return min(value for value, _ in values)
    if reduction == "max":
        return max(value for value, _ in values)
    total = math.fsum(weight for _, weight in values)
    return math.fsum(value * weight for value, weight in values) / total if total > 0 else 0.0
