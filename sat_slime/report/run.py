"""report.html of one run, whatever is there of it: what happened in sentences, and charts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd
import yaml

from sat_slime.config.jsonl import read_rows
from sat_slime.objective import method
from sat_slime.objective.metrics import metric_named
from sat_slime.report.charts import BLUE, GREY, Chart, axis, lines
from sat_slime.report.frames import finite_mean, smooth
from sat_slime.report.page import Section, check_out, count_of, headline, percent, write_page
from sat_slime.runs.folder import worked_seconds
from sat_slime.runs.health import advisories, judge, measures
from sat_slime.runs.log import duration
from sat_slime.runs.reading import Columns, Run, RunData, has, known, load_run, once_per_iteration, row_faults, section


def write_report(path: str | Path, out: str | Path | None = None) -> Path:
    """Write report.html, figures/ and tables/ into `out`, by default into the run folder at `path` itself; returns the
    page's path. Works on a run that is going on, failed or was killed, and on rows alone. Raises RunFolderError when
    `path` is no run folder, or `out` a folder of something else."""
    run = load_run(path)
    folder = run.folder.path if out is None else Path(out)
    check_out(folder, own=out is None)
    subtitle = headline(run.config)  # reads the method: a stabilizer outside this package brings its metrics
    shown = figures(run.data, run.config) or [Section("figures", "", sentences=["No step was logged."])]
    text = yaml.safe_dump(run.config, sort_keys=False) if run.config else ""
    config = Section("configuration", "Resolved configuration", text=text, folded=True)
    return write_page(
        folder / "report.html",
        [*shown, config],
        title=run.name,
        subtitle=subtitle,
        answer=[
            *verdict(run),
            *summary(run),
            f"{run.steps} of {run.planned_steps or '?'} optimizer steps. {_how_it_ended(run)}",
        ],
        warnings=findings(run),
        status=str(run.state.get("status", "unknown")),
    ).path


# ---------------------------------------------------------------------------------------------------------- sentences


def verdict(run: Run) -> Iterator[str]:
    """Say what a reader asks first: whether it learned, how stale the batches were and what that did, and what the
    method changed."""
    yield _learning(run)
    yield _staleness(run.data.metrics)
    metrics = run.data.metrics
    newly, clipped = known(metrics, "sat/newly_clipped")[1], finite_mean(metrics.get("clip/fraction", ()))
    if len(newly):
        where = f" at the {len(newly)} of {run.steps} steps that tell" if len(newly) < run.steps else ""
        if not newly.any():
            yield (
                f"SAT changed nothing{where}: it removed the gradient of no token that its base would have kept. Its "
                f"gate was open for {percent(finite_mean(metrics.get('sat/gate_rate', ())))} of the tokens."
            )
        else:
            of = f", of {percent(clipped)} that are clipped" if clipped == clipped else ""
            yield f"SAT removed the gradient of {percent(newly.mean())} of the tokens{of}."
    elif clipped == clipped:
        yield f"The clip removed the gradient of {percent(clipped)} of the tokens."


def _learning(run: Run) -> str:
    metrics, evals = run.data.metrics, run.data.evals
    if sentence := judge(metrics, evals, run.data.period).sentence:
        return f"Collapsed: {sentence.removeprefix('the run ')}."
    evaluated = pd.DataFrame(dict(evals), columns=["accuracy", "n_samples"], dtype=float).dropna(subset="accuracy")
    if len(evaluated) > 1:
        scores, n = evaluated.iloc[[0, -1]].to_numpy().T
        before, after = scores
        text = f"from {percent(before)} to {percent(after)}"
        if not ((n > 0) & (scores >= 0) & (scores <= 1)).all():
            return f"Held-out accuracy went {text}; its noise is not known."
        # one success more of n keeps the error of a share of 0 or 1 above 0
        p = (scores * n + 1) / (n + 2)
        if abs(after - before) < 2 * math.sqrt((p * (1 - p) / n).sum()):
            return f"Held-out accuracy did not change beyond its noise: {text}."
        return f"Held-out accuracy {'rose' if after > before else 'fell'} {text}."
    if len(rewards := known(metrics, "reward/mean")[1]) > 1:
        first, last = ends(rewards, run.data.period)
        return f"The training reward went from {first:.3f} to {last:.3f}; accuracy was measured less than twice."
    return "Whether it learned is not known: accuracy and reward are there at less than two steps."


def _staleness(metrics: Columns) -> str:
    """Say which lags the batches of the second half of the run had, and d_pi at the least and the largest of them; of
    batches that mix lags, as those of streaming do, the means."""
    names = ["lag/mean", "lag/max", "mismatch/d_pi"]
    there = pd.DataFrame(dict(metrics), columns=names, dtype=float).dropna(subset="lag/mean")
    if not len(there):
        return ""
    lag, oldest, d_pi = (there[name].iloc[len(there) // 2 :] for name in names)
    least, most, mixed = float(lag.min()), float(lag.max()), bool((lag % 1).any())
    fresh, stale = (d_pi[lag == level].mean() for level in (least, most))
    batches = f"batches were {least:g} to {most:g} updates old"
    if mixed:
        fresh = stale = d_pi.mean()
        batches = f"tokens were {lag.mean():.3g} updates old on average"
        batches += f", {oldest.max():g} at most" if oldest.notna().any() else ""
    elif least == most:
        batches = f"every batch was {most:g} update{'s' * (most != 1)} old"
    batches = f"In the second half {batches}"
    if math.isnan(fresh) or math.isnan(stale):
        return f"{batches}."
    if mixed or least == most:
        return f"{batches}; d_pi was {stale:.3g} nats."
    return f"{batches}; d_pi was {fresh:.3g} nats at lag {least:g} and {stale:.3g} at lag {most:g}."


def summary(run: Run) -> Iterator[str]:
    """Say what else happened, a sentence each."""
    if restarts := read_rows(run.folder.restarts):
        count = "once" if len(restarts) == 1 else f"{len(restarts)} times"
        deaths = ", ".join(f"{row.get('died_at')} (from {row.get('from')})" for row in restarts)
        yield f"Its job died and was restarted {count}, after iteration {deaths}: see restarts.jsonl."
    metrics = run.data.metrics
    yield _policy_share(metrics)
    if "tokens/response_total" in metrics:
        steps = section(run.config, "pipeline").get("optimizer_steps_per_rollout", 1)
        tokens = float(np.nansum(once_per_iteration(metrics, "tokens/response_total", steps)))
        seconds = float(np.nansum(once_per_iteration(metrics, "time/step", steps))) if "time/step" in metrics else 0.0
        pauses = ", evaluations and checkpoints included" * (run.config.get("runtime") == "slime")
        speed = f" in {duration(seconds)}: {tokens / seconds:,.0f} tokens/s{pauses}" if seconds > 0 else ""
        yield f"{tokens:,.0f} response tokens trained{speed}."


def _policy_share(metrics: Columns) -> str:
    """Say how much of the mismatch is lag: the policy part's share of |d| over the split steps, each of which counts by
    its |d|, since nothing has no parts. The tails' own |d| is not logged: there a step counts by its quantile."""
    sizes = [f"mismatch/{name}" for name in ("d_pi", "q90", "q99")]
    steps = pd.DataFrame(dict(metrics), columns=[*sizes, *POLICY_OF]).dropna()
    weights = steps[sizes].to_numpy()
    if not (weights.sum(axis=0) > 0).all():
        return ""
    mean, q90, q99 = map(percent, (steps[POLICY_OF].to_numpy() * weights).sum(axis=0) / weights.sum(axis=0))
    return (
        f"Over {count_of(len(steps), 'split step')} the policy part carries {mean} of mean |d|, about {q90} of |d| "
        f"beyond its 90 % quantile and {q99} beyond the 99 % quantile; the implementation part has the rest."
    )


def _how_it_ended(run: Run) -> str:
    status, error = run.state.get("status"), run.state.get("error")
    again = "--resume" if section(run.config, "slime").get("save-interval", 1) else "--resume-from 0"
    resume = f"Go on with: sat-slime launch {shlex.quote(str(run.folder.path))} {again}"
    seconds = worked_seconds(run.state)
    wall = f" after {duration(seconds)}" if seconds == seconds else ""
    if status == "interrupted" and 0 < run.planned_steps <= run.steps:
        return f"The run was interrupted{wall}, after its last step."
    endings = {
        "finished": f"The run finished{wall}.",
        "restarting": f"A job of the run failed, and another will go on: {error}.",
        "running": "The run is going on.",
        "failed": f"The run failed{wall}: {error or 'no reason is known'}. {resume}",
        "interrupted": f"The run was interrupted{wall}. {resume}",
        "killed": f"The run was killed before it could say why. {resume}",
    }
    return endings.get(str(status), "How the run ended is not known.")


def findings(run: Run) -> Iterator[str]:
    """Say what a reader should know before believing the charts."""
    metrics = run.data.metrics
    small = finite_mean(metrics.get("sat/scope_too_small", ()))
    if small > 0:
        yield (
            f"The quantile's scope was too small for {percent(small)} of the tokens: one response held so many of them "
            "that q may be the largest |d|, and the gate stay shut. Train with larger micro-batches, or set "
            "method.sat.scope to step."
        )
    yield from row_faults(run.folder)
    yield from health(run)
    if broken := run.data.not_finite:
        count, names = sum(map(len, broken.values())), ", ".join(sorted(broken)[:5])
        yield f"Not finite: {count_of(count, 'logged value')} (null in metrics.jsonl), of {names}; charts lack them."
    reward = metrics.get("reward/mean", np.zeros(0))
    if np.isfinite(reward[-1:]).all() and len(reward) >= 4 * run.data.period:
        smoothed = smooth(reward, run.data.period)
        best, last = float(np.nanmax(smoothed)), float(smoothed[-1])
        if best > 0 and last < 0.6 * best and best - last > 0.1:
            yield f"The training reward fell from {best:.3f} at its best to {last:.3f} at the end."
    pipeline = section(run.config, "pipeline")
    lag, lags = pipeline.get("lag") or 0, known(metrics, "lag/max")[1]
    updates = lag * (pipeline.get("optimizer_steps_per_rollout") or 1)
    if len(lags) and run.steps > 2 * run.data.period and lags.max() < updates:
        yield f"The realized lag never exceeded {lags.max():g} of the {updates} updates of pipeline.lag {lag}."
    if 0 < run.steps < 2 * run.data.period:
        yield f"Only {count_of(run.steps, 'step')} logged, less than two lag cycles: averages mean little."


def health(run: Run) -> Iterator[str]:
    """Tell what looked unhealthy at some time: the first time of each rule, and whether it held at the end."""
    for one in sorted(advisories(run.data, measures(run.config)), key=lambda one: one.since or 0):
        yield f"Health, from step {one.since}{', still at the end' if one.lasts else ''}: {one.text}."


def ends(values: np.ndarray, period: int) -> tuple[float, float]:
    """Return the means over the first and the last steps, a tenth of the run in whole lag cycles, half at most."""
    window = max(1, min(len(values) // 2, period * max(1, round(len(values) / 10 / period))))
    return finite_mean(values[:window]), finite_mean(values[-window:])


# ------------------------------------------------------------------------------------------------------------- charts


class Panel(NamedTuple):
    """A chart of metrics by optimizer step, averaged over whole lag cycles."""

    title: str
    metrics: Sequence[str]
    raw: bool = False
    """The first metric is drawn step by step too, in a lighter tone."""
    zero: bool = True
    log: bool = False


RADIUS = "the radius that SAT comes to"
PARTS, QUANTILES = ("d_pi", "policy", "implementation"), ("max", "q99", "q90", "q50")
POLICY_OF = [f"mismatch/policy_of_{level}" for level in ("mean", "q90", "q99")]
FIGURES: dict[str, tuple[str, str, Sequence[Panel]]] = {
    "overview": (
        "Accuracy and d_pi",
        "d_pi, the mean |log π − log μ| of the trained tokens, grows with the updates since the weights were sent: it "
        "is drawn over the lag, in grey, or of many lag cycles as their mean. Dashed: the accuracy before training.",
        (),
    ),
    "reward": (
        "Training reward, and length of the responses",
        "That of the policy that generated the batch, up to one lag ago. Faint lines are single steps, strong ones "
        "averages over whole lag cycles.",
        [
            Panel("training reward", ["reward/mean"], raw=True, zero=False),
            Panel("tokens of a response", ["response/length_mean"], raw=True),
        ],
    ),
    "mismatch": (
        "Mismatch between trainer and engine",
        "How far the trained policy π is from the one that sampled, μ: d_pi is the mean over tokens. Its policy part "
        "grows with every update since generation; its implementation part is what the engines compute differently.",
        [
            Panel("mean |log π − log μ| per token", [f"mismatch/{part}" for part in PARTS], raw=True),
            Panel("quantiles of |log π − log μ|", [f"mismatch/{level}" for level in QUANTILES], log=True),
            Panel("policy part of |log π − log μ|", POLICY_OF),
            Panel("effective sample size of π / μ", ["mismatch/ess"]),
        ],
    ),
    "trust_region": (
        "Trust region",
        "Of SAT: the radius that it comes to (dashed: its base's), the share of tokens beyond its gate, and the newly "
        "clipped share: tokens whose gradient it really removed, the only ones that make the run differ from its base.",
        [
            Panel(RADIUS, ["sat/radius_high", "sat/radius_low"]),
            Panel("gate open, and newly clipped", ["sat/gate_rate", "sat/newly_clipped"]),
            Panel("radii of the clip interval", ["radius/low", "radius/high"]),
        ],
    ),
    "optimization": (
        "Clipping, gradient and loss",
        "Tokens whose gradient is clipped away, by the sign of their advantage (upper: above 0); the gradient's norm "
        "before clipping; the loss terms.",
        [
            Panel("clipped tokens", ["clip/fraction", "clip/upper", "clip/lower"]),
            Panel("norm of the gradient", ["grad_norm"], raw=True),
            Panel("loss terms", ["loss/total", "loss/policy"], zero=False),
            Panel("KL to the reference model, unweighted", ["loss/kl"]),
            Panel("entropy of the policy", ["loss/entropy"]),
        ],
    ),
    "time": (
        "Where the time goes",
        "With a lag generation runs beside the trainer: it costs only what shows as waiting.",
        [Panel("seconds per iteration", ["time/step", "time/rollout", "time/train", "time/wait", "time/sync"])],
    ),
    "method": (
        "The parts of the method",
        "What the stabilizers of the run measure of themselves, averaged over whole lag cycles.",
        (),
    ),
}
"""{name: heading, sentence and panels} of the sections, in the order of the page."""
TITLES = {
    "masked": "dropped tokens",
    "weight": "mean weight",
    "held": "tokens held at the end of their interval",
    "largest": "largest d² of an outward token that is kept",
    "capped": "tokens whose weight is at its cap",
}
"""Titles of the panels of a method's own metrics, by what is measured."""


def figures(data: RunData, config: Mapping[str, Any] | None = None) -> list[Section]:
    """Return the sections of charts that there is data for. config: the run's settings, which tell its base radii."""
    clip = section(section(config or {}, "method"), "clip")
    radii = sorted(value for key, value in clip.items() if key != "dual" and isinstance(value, float))
    shown = []
    for name, (heading, note, panels) in FIGURES.items():
        charts = [*accuracy_chart(data), *mismatch_chart(data)] if name == "overview" else []
        for panel in of_the_method(data) if name == "method" else panels:
            charts += panel_chart(data, panel, f"{name}_{len(charts) + 1}", radii if panel.title == RADIUS else ())
        shown += [Section(name, heading, note, charts=charts)] if charts else []
    return shown


def of_the_method(data: RunData) -> Iterator[Panel]:
    """Yield the panels of what stabilizers measure of themselves and no other panel has: by what is measured, such as
    the masked tokens of all gates."""
    drawn = {name for _, _, panels in FIGURES.values() for panel in panels for name in panel.metrics}
    prefixes = tuple(f"{kind.prefix()}/" for kind in method.known())
    groups: dict[str, list[str]] = {}
    for name in data.metrics:
        if name.startswith(prefixes) and not name.startswith("sat/") and name not in drawn:
            groups.setdefault(name.partition("/")[2], []).append(name)
    for what, names in groups.items():
        yield Panel(TITLES.get(what, names[0]), names, zero=what != "weight")


def axis_of(name: str) -> tuple[str, float]:
    """Return how a chart shows a metric: the unit, and the factor of its values. Shares are percent of the tokens."""
    metric = metric_named(name)
    if metric and metric.unit == "share":
        return "% of |d|" if "policy_of" in name else "% of tokens", 100.0
    return metric.unit if metric else "", 1.0


def panel_chart(data: RunData, panel: Panel, name: str, levels: Sequence[float] = ()) -> list[Chart]:
    """Return the chart of a panel; none where no metric of it is there."""
    metrics = [metric for metric in panel.metrics if has(data.metrics, metric)]
    if not metrics:
        return []
    unit, scale = axis_of(metrics[0])
    parts: list[pd.DataFrame] = []
    for metric in metrics:
        there = np.isfinite(data.metrics[metric])  # of what some steps measure those alone make a cycle
        own = scale * data.metrics[metric][there]
        frame = pd.DataFrame({"x": data.metrics["step"][there], "y": smooth(own, data.period), "single": own})
        if panel.log:
            frame = frame.where(frame > 0)
        if panel.raw:
            frame["faint"] = math.nan if parts else frame["single"]
        parts.append(frame.assign(line=metric))
    how: dict[str, Any] = {"log": panel.log, "zero": panel.zero, "levels": levels, "faint": "faint" * panel.raw}
    return [lines(name, pd.concat(parts).dropna(subset="y"), panel.title, "optimizer step", unit, **how)]


def accuracy_chart(data: RunData) -> list[Chart]:
    """Return the accuracy with its interval, by optimizer step; without evaluations none."""
    names = {"step": "x", "accuracy": "y", "accuracy/low_samples": "low", "accuracy/high_samples": "high"}
    frame = pd.DataFrame(dict(data.evals), columns=[*names], dtype=float).rename(columns=names).dropna(subset="y")
    if not len(frame):
        return []
    title = " of ".join(["held-out accuracy", *data.datasets[:1]])
    title += ", bars: 95 % interval" * bool(frame["low"].notna().any())
    before = frame["y"][frame["x"] <= 0].head(1).tolist()
    frame = frame.assign(line="accuracy")
    return [lines("accuracy", frame, title, "optimizer step", "accuracy", points=True, levels=before)]


CYCLES = 25
"""Lag cycles beyond which the teeth of a sawtooth run together: of more, d_pi is drawn as its average over them."""


def mismatch_chart(data: RunData) -> list[Chart]:
    """Return d_pi step by step in front of the lag."""
    if not has(data.metrics, "mismatch/d_pi"):
        return []
    own = data.metrics["mismatch/d_pi"]
    teeth = has(data.metrics, "lag/mean") and len(own) <= CYCLES * data.period
    shown = own if teeth else smooth(own, data.period)
    frame = pd.DataFrame({"x": data.metrics["step"], "y": shown, "line": "d_pi"})
    if not teeth:
        over = "mean over lag cycles" if data.period > 1 else "moving average"
        return [lines("d_pi", frame, f"d_pi, {over}", "optimizer step", "d_pi, nats")]
    frame["lag"] = data.metrics["lag/mean"]
    tips = [alt.Tooltip("x:Q", title="step"), alt.Tooltip("y:Q", title="d_pi, nats", format=".4~g")]
    tips.append(alt.Tooltip("lag:Q"))
    base = alt.Chart(alt.NamedData("numbers")).encode(axis("optimizer step", "x:Q", kind=alt.X))
    right = alt.Axis(orient="right", tickMinStep=1, grid=False)
    lag = base.mark_area(interpolate="step", opacity=0.3, color=GREY, clip=True, line=False)
    lag = lag.encode(alt.Y("lag:Q", title="lag, updates", axis=right), tooltip=tips)
    front = base.mark_line(color=BLUE, point={"size": 14}).encode(axis("d_pi, nats", "y:Q", zero=True), tooltip=tips)
    view = alt.layer(lag, front).resolve_scale(y="independent").properties(title="d_pi over the lag", height=190)
    return [Chart("d_pi", view, frame, {"x": "optimizer step", "y": "d_pi, nats"})]
