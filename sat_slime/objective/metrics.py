"""The metrics of a run: the one table, and their reduction over micro-batches and ranks.

metrics.jsonl has a row per optimizer step, eval.jsonl one per evaluation. Both runtimes, reports, docs/run-folder.md
and the map to slime's own names read this table; what a stabilizer measures stands in its file.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch

from .metric import DROPPED, WEIGHTS, Bound, Line, Metric, Panel, Reduction, Rule, Shown
from .ranks import gather
from .stabilizer import Gate, Score, Stabilizer, Weight
from .stabilizers import known

MISMATCH_BAND = Bound(3.0, of="lowest", ceiling=0.15)
"""d_pi in nats over its lowest level: the paper's run at lag 8 leaves its band of 0.01 above 0.03. Baselines that learn
on were seen to reach this factor too: the mismatch alone tells no collapse. No level from the ceiling on counts as low:
it is ten times what the paper shows of runs that do not collapse."""
WRONG_WEIGHTS = Bound(6.0, of="beginning", over="max", least=0.01)
"""The implementation part of d_pi at the worst step, of that of the first steps. In 620 runs of a small model without
R3 it rose up to 5.5 times in 128 steps, and stayed below 0.06 nats; where one engine of two was given the initial
weights it was more than ten times as large at once."""
LEAST_ESS = 0.5
"""Effective sample size of pi / mu over the tokens, as a share: below, half of a batch counts for nothing."""
ENTROPY_LOSS = Bound(0.1, above=False, of="beginning")
"""Entropy as a share of that at the beginning. Runs that learned well went to 0.2."""

_RUN = (
    Metric("step", "count", "Optimizer updates made, from 1.", "step"),
    Metric("iteration", "count", "Rollout batches trained.", "step", runtime="embedded"),
    Metric("rollout_id", "count", "Number of the batch, from 0.", "step", runtime="embedded"),
    Metric(
        "run/restarts",
        "count",
        "[Restarts](slime-launch.md#restarts) of the run's job so far.",
        "step",
        runtime="slime",
    ),
    Metric(
        "reward/mean",
        "reward",
        "Mean reward of the batch, earned by the weights that generated it.",
        "step",
        slime=("rollout/raw_reward",),
        panel=Panel("training reward", "reward", y_label="mean reward", raw=True, zero=False),
        lines=(Line("reward of the batch", "blue"),),
        table=Shown("reward", ".3f"),
        live=Shown("reward", ".3f"),
    ),
    Metric(
        "reward/flat_groups",
        "share",
        "Prompts whose responses all have the same reward, so that none has an advantage.",
        "step",
        runtime="embedded",
    ),
    Metric(
        "response/length_mean",
        "tokens",
        "Mean length of the responses.",
        "step",
        slime=("rollout/response_len/mean", "rollout/response_lengths"),
        table=Shown("response length, tokens", ".1f"),
    ),
    Metric("response/length_max", "tokens", "Length of the longest response.", "step", runtime="embedded"),
    Metric("response/truncated", "share", "Responses cut at the longest length.", "step", runtime="embedded"),
)
_SIZE = Panel("mean |log π − log μ| per token", "mismatch", raw=True)
_QUANTILES = Panel("quantiles of |log π − log μ|", "mismatch", log=True)
_MISMATCH = (
    Metric(
        "mismatch/d_pi",
        "nats",
        "Mean of abs(log π − log μ) over tokens.",
        "step",
        slime=("train/train_rollout_logprob_abs_diff",),
        panel=_SIZE,
        lines=(Line("d_pi", "blue"),),
        table=Shown("d_pi, nats", ".4f"),
        live=Shown("d_pi", ".4f"),
        health=Rule(
            "mismatch",
            MISMATCH_BAND,
            "d_pi is {level:.3g} nats, {crossed}",
            "Try a smaller radius, lag or learning rate{or_sat}",
        ),
    ),
    Metric(
        "mismatch/{q50,q90}",
        "nats",
        "Quantiles of the same.",
        "step",
        panel=_QUANTILES,
        lines=(Line("median", "sky", ":"), Line("90 %", "black")),
    ),
    Metric(
        "mismatch/q99",
        "nats",
        "Its 99 % quantile.",
        "step",
        panel=_QUANTILES,
        lines=(Line("99 %", "orange", "--"),),
        table=Shown("99 % quantile of |d|, nats", ".3f"),
    ),
    Metric(
        "mismatch/max",
        "nats",
        "The largest.",
        "step",
        panel=_QUANTILES,
        lines=(Line("largest", "vermilion", (0, (6, 1))),),
    ),
    Metric("mismatch/k3_kl", "nats", "K3 estimate of the KL.", "step"),
    Metric(
        "mismatch/ess",
        "share",
        "Effective sample size.",
        "step",
        table=Shown("effective sample size, share", ".3f"),
        health=Rule(
            "ess",
            Bound(LEAST_ESS, above=False),
            "the effective sample size is {level:.0%} of the tokens, below {limit:.0%}: a few stale ones carry the "
            "gradient",
            "Try a smaller lag or clip radius, or cap the weights (tis)",
        ),
    ),
    Metric(
        "mismatch/policy",
        "nats",
        "The policy part of d_pi, by the trainer's log-probs under the generating weights, where measured.",
        "step",
        panel=_SIZE,
        lines=(Line("policy part", "green", "--"),),
    ),
    Metric(
        "mismatch/implementation",
        "nats",
        "Its implementation part: engine and trainer at the same weights.",
        "step",
        panel=_SIZE,
        lines=(Line("implementation part", "vermilion", "-."),),
        health=Rule(
            "engine",
            WRONG_WEIGHTS,
            "engine and trainer differ by {level:.3g} nats a token at the same weights, more than {limit:g} times the "
            "{usual:.3g} of the first steps: an engine has other weights than it says, or computes otherwise",
            "Look into the engines' logs for a restart; pipeline.canary: stop names such an engine at the next push",
        ),
    ),
    Metric(
        "mismatch/policy_of_{mean,q90,q99}",
        "share",
        "The policy part of mean abs(d), and of abs(d) beyond its 90 % and 99 % quantile, in the direction of d; the "
        "rest is the implementation part's.",
        "step",
    ),
)
_LAGS = Panel("of the trained responses", "lag")
_LAG = (
    Metric(
        "lag/mean",
        "updates",
        "Optimizer updates between the generating weights and the trained ones, mean over tokens.",
        panel=_LAGS,
        lines=(Line("mean", "blue"),),
        table=Shown("lag, updates", ".2f"),
        live=Shown("lag", "g"),
    ),
    Metric(
        "lag/min",
        "updates",
        "The smallest lag of a token.",
        "min",
        panel=_LAGS,
        lines=(Line("smallest", "green", ":"),),
    ),
    Metric(
        "lag/max",
        "updates",
        "The largest lag of a token.",
        "max",
        panel=_LAGS,
        lines=(Line("most", "orange", "--"),),
        health=Rule(
            "lag",
            Bound(1, of="lag", over="max"),
            "tokens are up to {level:g} updates old, {usual:g} by the plan: weights reach the engines late",
            "Look for errors of the broadcast in the log",
        ),
    ),
    Metric("lag/generation_mean", "updates", "The part of the lag while the rest of the response was generated."),
    Metric("lag/queue_mean", "updates", "The part of the lag [since then](asynchrony.md)."),
    Metric(
        "queue/{length,in_generation}",
        "prompts",
        "Mode streaming: prompts complete and waiting, and in generation, when the batch was taken.",
        "step",
    ),
)
_CLIPPED = Panel("clipped tokens", "optimization")
_LOSS_TERMS = Panel("loss terms", "optimization", zero=False)
_TIMES = Panel("seconds per iteration, parts stacked", "time", y_label="s")
_STEP = (
    Metric(
        "clip/fraction",
        "share",
        "Tokens clipped.",
        slime=("train/pg_clipfrac",),
        panel=_CLIPPED,
        lines=(Line("all", "black"),),
        table=Shown("clipped, share of tokens", ".2%"),
        live=Shown("clip", ".1%"),
        health=Rule(
            "radius",
            Bound(1, of="clipped", over="run"),
            "{level:.1%} of the tokens have been clipped, above {usual:.0%}: the radius is narrow for this lag. Token "
            "radii that clipped so many lost 2 to 19 points at lag 32 and 64 in the study of one setting for every lag",
            "Try twice the radius (method.clip); GRPO did well at 0.8 from lag 8 to 64 there",
        ),
    ),
    Metric(
        "clip/{upper,lower}",
        "share",
        "Tokens clipped with advantage above and below 0.",
        panel=_CLIPPED,
        lines=(Line("upper (advantage > 0)", "blue", "--"), Line("lower (advantage < 0)", "orange", "-.")),
    ),
    Metric(
        "radius/{low,high}",
        "radius",
        "Mean radii of the clip interval below and above 1 that a radius policy sets, before SAT contracts them.",
        panel=Panel("radii of the clip interval", "trust_region"),
        lines=(Line("lower", "orange", "--"), Line("upper", "blue")),
    ),
    Metric("clip/dual", "share", "Tokens that the dual clip holds, where it is on."),
    Metric(
        "routing/flip_rate",
        "share",
        "Tokens whose expert set under the trainer's current weights differs from the engine's: it "
        "includes lag; R3 off.",
        "step",
        runtime="embedded",
        table=Shown("expert set differs, share of tokens", ".2%"),
    ),
    Metric(
        "routing/agreement",
        "share",
        "Replayed experts that the trainer's routers would have chosen; R3 on.",
        "step",
        runtime="slime",
    ),
    Metric(
        "grad_norm",
        "norm",
        "Gradient norm before clipping.",
        "step",
        panel=Panel("norm of the gradient before clipping", "optimization", raw=True),
        lines=(Line("norm", "blue"),),
        table=Shown("gradient norm", ".3f"),
    ),
    Metric(
        "loss/total",
        "loss",
        "The loss that is minimized.",
        "sum",
        slime=("train/loss",),
        panel=_LOSS_TERMS,
        lines=(Line("total", "purple"),),
    ),
    Metric(
        "loss/policy",
        "loss",
        "The surrogate's term of it.",
        "sum",
        slime=("train/pg_loss",),
        panel=_LOSS_TERMS,
        lines=(Line("policy part", "green", "--"),),
    ),
    Metric(
        "loss/kl",
        "nats",
        "KL to the reference, without its coefficient.",
        "sum",
        slime=("train/kl_loss",),
        panel=Panel("KL to the reference model, unweighted", "optimization"),
        lines=(Line("KL", "vermilion"),),
    ),
    Metric(
        "loss/entropy",
        "nats",
        "Entropy, without its coefficient.",
        "sum",
        slime=("train/entropy_loss",),
        panel=Panel("entropy of the policy", "optimization"),
        lines=(Line("entropy", "green"),),
        health=Rule(
            "entropy",
            ENTROPY_LOSS,
            "entropy is {level:.3g} nats, below a tenth of the {usual:.3g} it started with: nothing new is tried",
            "Try loss.entropy_coef, a larger loss.kl_coef, or a smaller learning rate",
        ),
    ),
    Metric(
        "collapse/{mismatch_rise,score_loss,met}",
        "ratio, share, 0 or 1",
        "d_pi's level over its lowest; share of the best score lost; 1 while the "
        "[collapse rule](report.md#the-collapse-rule) holds. Missing until known.",
        "step",
        runtime="embedded",
    ),
    Metric(
        "rollout/rejected",
        "count",
        "Responses that failed validation. On slime they stay in their batch and are not trained.",
        "step",
        health=Rule(
            "rejected",
            Bound(0.01, of="responses"),
            "{share:.1%} of the responses failed a check, above {limit:.0%}: rollout/rejected/REASON in metrics.jsonl "
            "says which",
        ),
    ),
    Metric(
        "rollout/{lost,resent}",
        "count",
        "Requests without an answer; requests sent again.",
        "step",
        runtime="embedded",
    ),
    Metric("rollout/rejected/REASON", "count", "The rejected by reason, where there are any.", "step"),
    Metric(
        "rollout/weight_error",
        "share",
        "Relative error of the projections that the engines hold, where rollout.weights rounds them: the norm of the "
        "difference over that of the weights.",
        "step",
        runtime="embedded",
    ),
    Metric(
        "rollout/restarts",
        "count",
        "Restarts of servers since the row before, evaluations' included: each is in one row, of an iteration with "
        "several steps its first.",
        "step",
        runtime="embedded",
        health=Rule(
            "restarts",
            Bound(0, over="sum"),
            "engines were restarted {level:g} times in {steps} steps: the log names what died, and memory is the usual "
            "cause",
        ),
    ),
    Metric(
        "rollout/{dropped,aborted,dropped_length_mean}",
        "count, tokens",
        "Mode streaming: responses dropped for their lag since the step before; those among them that were aborted in "
        "generation; the mean length of the others.",
        "step",
    ),
    Metric(
        "rollout/masked_tokens",
        "count",
        "Mode streaming with `pipeline.over_age` mask: tokens of the batch beyond the bound, which are not trained.",
        "step",
    ),
    Metric(
        "rollout/{finished,dropped}/LOW-HIGH",
        "count",
        "Mode streaming: responses of LOW to HIGH tokens completed, and dropped, since the step before; the last of "
        "them also longer ones.",
        "step",
    ),
    Metric(
        "canary/d",
        "nats",
        "[Canary](asynchrony.md#the-canary): mean abs(d) of the worst engine at the push after this step; in the first "
        "row, before it. On slime always at the last push before this step.",
        "step",
    ),
    Metric("canary/limit", "nats", "Its limit, learned from the pushes that passed.", "step"),
    Metric("canary/worst_engine", "index", "The engine that it is of, from 0.", "step"),
    Metric(
        "canary/faults",
        "count",
        "Engines that do not hold the weights of that push.",
        "step",
        health=Rule(
            "canary",
            Bound(0, over="sum"),
            "the canary found engines without the pushed weights {level:g} times in {steps} steps",
            "The log names engine, push and remedy; `pipeline.canary: stop` ends such a run",
        ),
    ),
    Metric(
        "verifier/{verdicts,correct,timeouts,kills,parse_failures,label_failures,no_answer}",
        "count",
        "Counts of the verifier, of `verifier.mode` other than exact.",
        "step",
        runtime="embedded",
    ),
    Metric("verifier/seconds_mean", "seconds", "A verdict in its worker.", "step", runtime="embedded"),
    Metric(
        "time/train",
        "seconds",
        "Training.",
        "step",
        slime=("perf/train_time",),
        panel=_TIMES,
        lines=(Line("train", "blue", "area"),),
    ),
    Metric(
        "time/sync",
        "seconds",
        "The weight broadcast; on slime that before this batch, if there was one.",
        "step",
        slime=("perf/update_weights_time",),
        panel=_TIMES,
        lines=(Line("send weights", "orange", "area"),),
    ),
    Metric(
        "time/wait",
        "seconds",
        "Spent waiting for a rollout, the wait before a broadcast included.",
        "step",
        slime=("perf/train_wait_time",),
        panel=_TIMES,
        lines=(Line("wait for responses", "#999999", "area"),),
    ),
    Metric(
        "time/step",
        "seconds",
        "The iteration, evaluation and checkpoints left out.",
        "step",
        slime=("perf/step_time",),
        panel=_TIMES,
        lines=(Line("whole iteration", "black"),),
        table=Shown("iteration, s", ".2f"),
    ),
    Metric(
        "time/rollout",
        "seconds",
        "From the batch's first request to its last response; beside the trainer when lag > 0. Mode streaming: of the "
        "group that took longest, embedded runs alone.",
        "step",
        panel=_TIMES,
        lines=(Line("generation (in parallel)", "vermilion", "--"),),
    ),
    Metric("tokens/response_total", "tokens", "Response tokens of the batch.", "step"),
)
EVALUATION = (
    Metric("step", "count", "Optimizer updates made.", "step"),
    Metric("iteration", "count", "Rollout batches trained.", "step", runtime="embedded"),
    Metric("rollout_id", "count", "Number of the batch before it, from 0.", "step", runtime="slime"),
    Metric("dataset", "name", "The data set: a row for each.", "step", runtime="slime"),
    Metric(
        "weights_step",
        "count",
        "Updates of the weights that were measured, as the engines reported them; `null` if they were several.",
        "step",
    ),
    Metric(
        "{accuracy,accuracy_by_problem}",
        "reward",
        "Mean over all samples; over those of each problem, a list.",
        "step",
    ),
    Metric("accuracy_by_run", "reward", "Mean of each repeat, a list, with `eval.repeats` above 1.", "step"),
    Metric(
        "accuracy/{low,high}",
        "reward",
        "[95 % interval](evaluation.md#intervals) over problems and samples.",
        "step",
    ),
    Metric(
        "accuracy/{low_samples,high_samples}",
        "reward",
        "95 % interval for these very problems, over samples alone.",
        "step",
    ),
    Metric(
        "{avg@K,avg@K/se}",
        "reward",
        "The score of an evaluation with K samples a problem; how far one such scatters, a standard deviation.",
        "step",
    ),
    Metric(
        "{pass@K,pass@K/low,pass@K/high}",
        "probability",
        "That one of K samples is right, unbiased; 95 % interval over problems.",
        "step",
    ),
    Metric("{n_problems,n_samples}", "count", "Held-out problems; samples of them all.", "step"),
    Metric("length_mean", "tokens", "Mean length of the responses.", "step"),
    Metric("truncated", "share", "Responses cut at the longest length.", "step"),
    Metric(
        "{rollout/rejected,rollout/lost,rollout/resent,rollout/rejected/REASON,rollout/restarts}",
        "count",
        "As in the metrics: what went wrong with the responses of the evaluation, restarts since the row before.",
        "step",
        runtime="embedded",
    ),
    Metric(
        "reasons/REASON",
        "count",
        "Samples by the [verifier's reason](reward.md#reasons), where there are any.",
        "step",
    ),
    Metric("time/eval", "seconds", "From the first request to the last response.", "step", runtime="embedded"),
    Metric(
        "delay",
        "count",
        "Updates made since `step` when the row was written, with [`eval.beside`](evaluation.md#beside-training).",
        "step",
        runtime="embedded",
    ),
    Metric(
        "time/eval_wait",
        "seconds",
        "Time for which the run waited for nothing but the evaluation, with `eval.beside`.",
        "step",
        runtime="embedded",
    ),
)
"""The columns of eval.jsonl."""


def metrics_of(kind: type[Stabilizer]) -> tuple[Metric, ...]:
    """Return the metrics that a stabilizer measures, those of its kind first."""
    prefix, title = kind.prefix(), kind.row.title
    own = list(kind.metrics)
    if issubclass(kind, Gate):
        own.insert(0, Metric(f"{prefix}/masked", "share", f"Tokens that the gate of {title} drops.", panel=DROPPED))
    if issubclass(kind, Weight) and kind.sums is Weight.sums:
        own.insert(0, Metric(f"{prefix}/weight", "ratio", f"Mean weight of {title}.", panel=WEIGHTS))
    if issubclass(kind, Score):
        own.insert(0, Metric(f"{prefix}/weight", "ratio", f"Mean weight w of {title}.", panel=WEIGHTS))
        own.insert(1, Metric(f"{prefix}/masked", "share", f"Tokens to which {title} gives no weight.", panel=DROPPED))
    return tuple(own)


def run_metrics() -> tuple[Metric, ...]:
    """Return the columns of metrics.jsonl, in the order in which tables and panels show them."""
    by_stabilizers = [metric for kind in known() for metric in metrics_of(kind)]
    return (*_RUN, *_MISMATCH, *_LAG, *by_stabilizers, *_STEP)


def metric_named(name: str) -> Metric | None:
    """Return the entry of a column of metrics.jsonl; None where the table has none."""
    return next((metric for metric in run_metrics() if metric.covers(name)), None)


def axis_of(name: str) -> tuple[str, float]:
    """Return how a figure shows a metric: the unit, and the factor of its values. Shares are percent of the tokens."""
    metric = metric_named(name)
    assert metric is not None, f"{name} is in the table"
    return ("% of tokens", 100.0) if metric.unit == "share" else (metric.unit, 1.0)


def slime_names(prefix: str = "") -> dict[str, str]:
    """Return slime's own names that begin with `prefix`, and ours."""
    return {own: metric.pattern for metric in run_metrics() for own in metric.slime if own.startswith(prefix)}


class MetricAccumulator:
    """Metrics of the micro-batches of one optimizer step, reduced over them and over ranks as the table says: sums,
    minima, maxima, and means weighted by the active tokens of each micro-batch."""

    def __init__(self) -> None:
        self._rows: list[tuple[dict[str, torch.Tensor | float], torch.Tensor | float]] = []

    def add(self, metrics: Mapping[str, torch.Tensor | float], weight: torch.Tensor | float) -> None:
        """Take a micro-batch: its 0-dim metrics and its active tokens. Nothing is read back before reduce."""
        self._rows.append((dict(metrics), weight))

    def reduce(self, group: torch.distributed.ProcessGroup | None = None) -> dict[str, float]:
        """Return the step's metrics, the same on all ranks. A rank that added nothing takes part all the same.

        Raises:
            ValueError: two micro-batches, on whatever ranks, differ in their names; all ranks raise.
        """
        rows = [({name: float(value) for name, value in metrics.items()}, float(w)) for metrics, w in self._rows]
        rows = [row for rank in gather(rows, group) for row in rank]
        names = list(rows[0][0]) if rows else []
        for metrics, _ in rows:
            if odd := set(names) ^ set(metrics):
                raise ValueError(f"metrics differ between micro-batches: {', '.join(sorted(odd))} not in all of them")
        table = _by_name(known())
        return {
            name: _reduced(table.get(name, "mean"), [(metrics[name], weight) for metrics, weight in rows])
            for name in names
        }


@functools.cache
def _by_name(kinds: tuple[type[Stabilizer], ...]) -> dict[str, Reduction]:
    """Return the reduction of every metric, while these stabilizers are known."""
    return {name: metric.reduction for metric in run_metrics() for name in metric.names}


def _reduced(reduction: Reduction, values: list[tuple[float, float]]) -> float:
    """Return one number from those of the micro-batches, each with its active tokens."""
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
