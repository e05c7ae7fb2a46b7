"""report.html of one run, whatever is there of it: what happened in sentences, a table, responses, and figures, each a
function from the run's data to a drawing and the numbers behind it.

What is drawn by optimizer step alone is in report/panels.py; what is not, or has a form of its own, is drawn here.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import yaml

from sat_slime.config.jsonl import number, read_rows
from sat_slime.objective.method import STABILIZERS, known
from sat_slime.objective.metrics import metric_named
from sat_slime.report import histogram
from sat_slime.report.averages import finite_mean, smooth, window_of
from sat_slime.report.drawing import (
    Drawing,
    Panel,
    Plot,
    Table,
    column_of,
    in_colour,
    joined,
    layered,
    lines,
    log_axis,
    pointed,
    rows,
    steps_axis,
    tip,
)
from sat_slime.report.looks import BLACK, BLUE, GREEN, GREY, ORANGE, VERMILION, Look, apart
from sat_slime.report.number_text import DASH, count_of, decimals, percent
from sat_slime.report.page import STYLE, Figure, Page, Sheet, check_out, headline, warning_box
from sat_slime.report.panels import Line, axis_of, panels_of
from sat_slime.report.panels import Panel as MetricPanel
from sat_slime.rollout.types import TOOL
from sat_slime.runs.collapse import judge
from sat_slime.runs.folder import RunFolder, worked_seconds, writable
from sat_slime.runs.health import HealthWatch, symptoms
from sat_slime.runs.live_view import duration
from sat_slime.runs.reading import Run, RunData, load_run, row_faults, section
from sat_slime.runs.rows import Columns, has, largest_k, once_per_iteration
from sat_slime.runs.trackers import read_tracked


def write_report(path: str | Path) -> Path:
    """Write report.html and figures/ into the run folder at `path`; returns the page's path. Works on a run that is
    going on, failed or was killed. Raises RunFolderError when `path` is no run folder."""
    run = load_run(path)
    subtitle = headline(run.config)  # reads the method: a stabilizer outside this package brings its metrics
    page = Page(run.folder.path)
    every = list(figures(run.data, run.config))
    drawn = [page.figure(figure) for figure in every[:1]]
    page.add(_samples(run))
    page.add(_details(run, findings(run)))
    drawn += [page.figure(figure) for figure in every[1:]]
    if not any(drawn):
        page.add("<p>No step was logged, so there is nothing to draw.</p>")
    config = html.escape(yaml.safe_dump(run.config, sort_keys=False))
    page.add(f"<details><summary>Resolved configuration</summary><pre>{config}</pre></details>")
    return page.write(
        run.folder.report.name,
        title=run.name,
        subtitle=subtitle,
        status=str(run.state.get("status", "unknown")),
        summary=[*verdict(run), f"{run.steps} of {run.planned_steps or '?'} optimizer steps. {_how_it_ended(run)}"],
        contents=False,
        style=STYLE,
    )


def write_tracked_report(path: Path, out: Path) -> Path:
    """Write report.html and figures/ to `out`, of a run of which only its trackers' files are there. Raises
    RunFolderError."""
    check_out(out)
    tracked = read_tracked([path])
    data = tracked.data()
    run = Run(RunFolder(out), {"name": path.stem}, {}, data)
    found = symptoms(data)
    warnings = [f"{symptom.heading}: {symptom.text}." for symptom in found]
    with writable(out):
        page = Page(out)
        every = list(figures(data))
        for figure in every[:1]:
            page.figure(figure)
        page.add(_details(run, warnings))
        for figure in every[1:]:
            page.figure(figure)
        return page.write(
            run.folder.report.name,
            title=run.name,
            subtitle=f"a run of slime, from {path.name}",
            summary=[*verdict(run), f"{count_of(run.steps, 'optimizer step')}."],
            contents=False,
            style=STYLE,
        )


def _samples(run: Run) -> str:
    kept = first_samples(run.folder)
    if kept is None:
        return ""
    iteration, samples = kept
    sheet = sample_sheet(iteration, samples, int(section(run.config, "pipeline").get("optimizer_steps_per_rollout", 1)))
    rest = f"Responses of iteration {iteration}, trained on in its step; all that were kept are in samples/."
    return f'<section id="samples"><h2>Samples</h2><p>{rest}</p><div class="wide">{sheet.as_html()}</div></section>'


def _details(run: Run, remarks: Iterable[str]) -> str:
    """Return the rest of what is to be said: remarks, sentences and the table of metrics."""
    sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in summary(run))
    text = f'{warning_box(remarks)}<div class="summary">{sentences}</div>{_table(run)}'
    return f'<section id="details"><h2>In numbers</h2>{text}</section>'


# ------------------------------------------------------------------------------------------------------ verdict


def verdict(run: Run) -> Iterator[str]:
    """Say what a reader asks first: whether it learned, how stale the batches were and what that did, and what the
    method changed."""
    yield _learning(run)
    metrics = run.data.metrics
    if sentence := _staleness(metrics):
        yield sentence
    if sentence := _what_sat_did(run):
        yield sentence
    elif has(metrics, "clip/fraction"):
        yield f"The clip took the gradient of {percent(finite_mean(metrics['clip/fraction']))} of the tokens."


def _learning(run: Run) -> str:
    metrics, evals = run.data.metrics, run.data.evals
    if sentence := judge(metrics, evals, run.data.period).sentence():
        return f"Collapsed: {sentence.removeprefix('the run ')}."
    evals = _scored(evals)
    if len(evals.get("accuracy", ())) > 1:
        ends_of = [(float(evals["accuracy"][i]), float(evals["n_samples"][i])) for i in (0, -1)]
        (before, _), (after, _) = ends_of
        text = f"from {percent(before)} to {percent(after)}"
        if not all(n > 0 and 0 <= score <= 1 for score, n in ends_of):
            return f"Held-out accuracy went {text}; its noise is not known."
        # one success more of n keeps the error of a share of 0 or 1 above 0
        shares = [((score * n + 1) / (n + 2), n) for score, n in ends_of]
        error = math.sqrt(sum(p * (1 - p) / n for p, n in shares))
        if abs(after - before) < 2 * error:
            return f"Held-out accuracy did not change beyond its noise: {text}."
        return f"Held-out accuracy {'rose' if after > before else 'fell'} {text}."
    if len(rewards := _finite(metrics, "reward/mean")) > 1:
        first, last, _ = ends(rewards, run.data.period)
        return f"The training reward went from {first:.3f} to {last:.3f}; accuracy was measured less than twice."
    return "Nothing was learned yet: accuracy and reward are known at less than two steps."


def _finite(metrics: Columns, key: str) -> np.ndarray:
    values = metrics.get(key, np.zeros(0))
    return values[np.isfinite(values)]


def _scored(evals: Columns) -> Columns:
    """Return the evaluations that have an accuracy, with a column of samples, NaN where unknown."""
    if "accuracy" not in evals:
        return {}
    there = np.isfinite(evals["accuracy"])
    unknown = np.full(len(there), math.nan)
    return {key: values[there] for key, values in {"n_samples": unknown, **evals}.items()}


def _staleness(metrics: Columns) -> str:
    """Say which lags the batches had, and d_pi at the least and the largest of them, in the second half of the run."""
    if not has(metrics, "lag/mean"):
        return ""
    lag = metrics["lag/mean"]
    known = np.flatnonzero(np.isfinite(lag))
    half = np.isin(np.arange(len(lag)), known[len(known) // 2 :])
    least, most = float(np.nanmin(lag[half])), float(np.nanmax(lag[half]))
    batches = f"Batches were {least:g} to {most:g} updates old"
    if least == most:
        batches = f"Every batch was {most:g} update{'s' * (most != 1)} old"
    if not has(metrics, "mismatch/d_pi"):
        return f"{batches}."
    d_pi = metrics["mismatch/d_pi"]
    fresh, stale = (finite_mean(d_pi[half & (lag == level)]) for level in (least, most))
    if math.isnan(fresh) or math.isnan(stale):
        return f"{batches}."
    if least == most:
        return f"{batches}; d_pi was {stale:.3g} nats."
    return f"{batches}; d_pi was {fresh:.3g} nats at lag {least:g} and {stale:.3g} at lag {most:g}."


def _what_sat_did(run: Run) -> str:
    newly, where = _newly_clipped(run)
    if not len(newly):
        return ""
    if not newly.any():
        return f"SAT changed nothing{where}: it took the gradient of no token that its base would have kept."
    both = finite_mean(run.data.metrics.get("clip/fraction", ()))
    alone = f", beside the {percent(both - finite_mean(newly))} that its base clips" if both == both else ""
    return f"SAT took the gradient of {percent(finite_mean(newly))} of the tokens{alone}."


def _newly_clipped(run: Run) -> tuple[np.ndarray, str]:
    """Return what SAT newly clipped at the steps that tell it, none with SAT off, and in words which steps, where some
    do not."""
    newly = run.data.metrics.get("sat/newly_clipped", np.zeros(0))
    if not section(section(run.config, "method"), "sat").get("enabled"):
        return np.zeros(0), ""
    known = newly[np.isfinite(newly)]
    return known, f" at the {len(known)} of {len(newly)} steps that tell" if len(known) < len(newly) else ""


def summary(run: Run) -> Iterator[str]:
    """Say what happened, a sentence each."""
    if restarts := read_rows(run.folder.restarts):
        count = "once" if len(restarts) == 1 else f"{len(restarts)} times"
        deaths = ", ".join(f"{row.get('died_at')} (from {row.get('from')})" for row in restarts)
        yield f"Its job died and was restarted {count}, after iteration {deaths}: see restarts.jsonl."
    metrics, evals = run.data.metrics, _scored(run.data.evals)
    if len(rewards := _finite(metrics, "reward/mean")):
        first, last, window = ends(rewards, run.data.period)
        steps = f"means of the first and last {window} steps" if window > 1 else "first and last step"
        yield f"The training reward went from {first:.3f} to {last:.3f} ({steps})."
    if "accuracy" in evals and len(evals["accuracy"]):
        accuracy, n = evals["accuracy"], evals["n_samples"]
        sizes = sorted({int(size) for size in n if not math.isnan(size)})
        samples = f", {' to '.join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))} samples each" if sizes else ""
        if len(accuracy) == 1:
            yield f"Held-out accuracy at the one evaluation was {accuracy[0]:.3f}{samples.removesuffix(' each')}."
        else:
            ends_at = f"from {accuracy[0]:.3f} to {accuracy[-1]:.3f}"
            yield f"Held-out accuracy went {ends_at} ({len(accuracy)} evaluations{samples})."
        if sentence := _last_evaluation(evals):
            yield sentence
    if "tokens/response_total" in metrics:
        tokens = float(np.nansum(once_per_iteration(metrics, "tokens/response_total")))
        seconds = float(np.nansum(once_per_iteration(metrics, "time/step"))) if "time/step" in metrics else math.nan
        speed = f" in {duration(seconds)}: {tokens / seconds:,.0f} tokens/s" if seconds > 0 else ""
        yield f"{tokens:,.0f} response tokens trained{speed}."


def _last_evaluation(evals: Columns) -> str | None:
    """Tell intervals and pass@k of the last evaluation, where its row has them."""
    last = {key: float(values[-1]) for key, values in evals.items() if math.isfinite(values[-1])}
    if "accuracy/low_samples" not in last:
        return None
    text = f"At the last evaluation 95 % intervals were {last['accuracy/low_samples']:.3f} to "
    text += f"{last['accuracy/high_samples']:.3f} for these problems"
    if "accuracy/low" in last:
        text += f", {last['accuracy/low']:.3f} to {last['accuracy/high']:.3f} for all of their kind"
    if (k := largest_k(last)) > 1:
        text += f"; pass@{k} was {last[f'pass@{k}']:.3f}"
    return f"{text}."


def _how_it_ended(run: Run) -> str:
    status, error = run.state.get("status"), run.state.get("error")
    resume = f"Go on with: sat-slime launch {run.folder.path} --resume"
    seconds = worked_seconds(run.state)
    wall = f" after {duration(seconds)}" if seconds == seconds else ""
    if status == "finished":
        return f"The run finished{wall}."
    if status == "restarting":
        return f"A job of the run failed, and another will go on: {error}."
    if status == "running":
        return "The run is going on."
    if status == "failed":
        return f"The run failed{wall}: {error or 'no reason is known'}. {resume}"
    if status == "interrupted" and 0 < run.planned_steps <= run.steps:
        return f"The run was interrupted{wall}, after its last step."
    if status == "interrupted":
        return f"The run was interrupted{wall}. {resume}"
    if status == "killed":
        return f"The run was killed before it could say why. {resume}"
    return "How the run ended is not known."


def findings(run: Run) -> Iterator[str]:
    """Say what a reader should know before believing the figures."""
    metrics = run.data.metrics
    sat_on = bool(section(section(run.config, "method"), "sat").get("enabled"))
    newly, where = _newly_clipped(run)
    if len(newly) and not newly.any():
        equal = "" if where else ", so the run equals its base"
        yield (
            f"SAT was an exact no-op{where or ' in this run'}: it newly clipped no token there{equal}. "
            f"The gate was open for {finite_mean(metrics.get('sat/gate_rate', ())):.2%} of the tokens."
        )
    small = metrics.get("sat/scope_too_small")
    if sat_on and small is not None and finite_mean(small) > 0:
        yield (
            f"The quantile's scope was too small in {finite_mean(small):.0%} of the steps: one response held so many "
            "of its tokens that q is the largest |d| and the gate cannot open. Raise train.tokens_per_microbatch or "
            "set method.sat.scope to step."
        )
    yield from row_faults(run.folder)
    yield from _advisories(run)
    if broken := run.data.not_finite:
        count, names = sum(map(len, broken.values())), ", ".join(sorted(broken)[:5])
        yield f"{count} logged values were not finite numbers (null in metrics.jsonl), of {names}; figures lack them."
    reward = metrics.get("reward/mean", np.zeros(0))
    if np.isfinite(reward[-1:]).all() and len(reward) >= 4 * run.data.period:
        smoothed = smooth(reward, window_of(run.data))
        best, last = float(np.nanmax(smoothed)), float(smoothed[-1])
        if best > 0 and last < 0.6 * best and best - last > 0.1:
            yield f"The training reward fell from {best:.3f} at its best to {last:.3f} at the end."
    lag = section(run.config, "pipeline").get("lag")
    if lag and has(metrics, "lag/max") and run.steps > 2 * run.data.period and np.nanmax(metrics["lag/max"]) < lag:
        yield f"The realized lag never exceeded {np.nanmax(metrics['lag/max']):g}, though pipeline.lag is {lag}."
    if 0 < run.steps < 2 * run.data.period:
        yield f"Only {run.steps} steps were logged, less than two lag cycles: averages mean little."


def _advisories(run: Run) -> Iterator[str]:
    """Tell what looked unhealthy at some time: the first time of each rule, and whether it held at the end."""
    if not section(run.config, "logging").get("health", True):
        return
    watch = HealthWatch.of(run.config)
    seen: dict[str, tuple[int, str]] = {}
    for row in read_rows(run.folder.metrics):
        for advisory in watch.step(row):
            seen.setdefault(advisory.name, (int(number(row, "step", 0)), advisory.text))
    for name, (step, text) in seen.items():
        yield f"Health, from step {step}{', still at the end' if name in watch.holding else ''}: {text}."


def ends(values: np.ndarray, period: int) -> tuple[float, float, int]:
    """Return the means over the first and over the last steps, and how many these are: a tenth of the run in whole lag
    cycles, at most half of it."""
    window = max(1, min(len(values) // 2, period * max(1, round(len(values) / 10 / period))))
    return finite_mean(values[:window]), finite_mean(values[-window:]), window


TABLE = {
    "reward/mean": ("reward", ".3f"),
    "response/length_mean": ("response length, tokens", ".1f"),
    "mismatch/d_pi": ("d_pi, nats", ".4f"),
    "mismatch/q99": ("99 % quantile of |d|, nats", ".3f"),
    "mismatch/ess": ("effective sample size, share", ".3f"),
    "lag/mean": ("lag, updates", ".2f"),
    "sat/q": ("q, nats", ".4f"),
    "sat/gate_rate": ("gate open, share of tokens", ".2%"),
    "sat/newly_clipped": ("newly clipped, share of tokens", ".3%"),
    "clip/fraction": ("clipped, share of tokens", ".2%"),
    "routing/flip_rate": ("expert set differs, share of tokens", ".2%"),
    "grad_norm": ("gradient norm", ".3f"),
    "time/step": ("iteration, s", ".2f"),
}
"""Metrics in the table at the head of the page: label and format."""


def _table(run: Run) -> str:
    rows = []
    for metric, (label, form) in TABLE.items():
        if metric not in run.data.metrics:
            continue
        values = run.data.metrics[metric]
        first, last, _ = ends(values, run.data.period)
        known = values[np.isfinite(values)]
        cells = [first, last, float(known.min()), float(known.max())] if len(known) else [math.nan] * 4
        text = "".join(f"<td>{format(cell, form) if math.isfinite(cell) else DASH}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{html.escape(label)}</th>{text}</tr>')
    if not rows:
        return ""
    head = "<tr><th></th><th>start</th><th>end</th><th>min</th><th>max</th></tr>"
    return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>'


FIRST = 5
LONGEST = 300
"""Characters of a prompt or a response that a table shows."""


def first_samples(folder: RunFolder) -> tuple[int, list[dict[str, Any]]] | None:
    """Return the newest iteration whose responses were kept, and five of them, each to a prompt of its own, right and
    wrong by turns as far as there are both; None where none were kept."""
    files = [file for file in folder.samples.glob("*.jsonl") if file.stem.isdigit()]
    newest = max(files, key=lambda file: int(file.stem), default=None)
    samples = read_rows(newest) if newest else []
    if newest is None or not samples:
        return None
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in samples:
        groups.setdefault(row.get("prompt"), []).append(row)
    chosen: list[dict[str, Any]] = []
    for group in list(groups.values())[:FIRST]:
        wants_right = len(chosen) % 2 == 0
        chosen.append(next((row for row in group if (number(row, "reward") > 0) == wants_right), group[0]))
    return int(newest.stem), chosen


def sample_sheet(iteration: int, samples: Sequence[Mapping[str, Any]], steps_per_iteration: int) -> Sheet:
    """Make the table of some responses of an iteration."""
    head = ["prompt", "response", "reward", "weights of step"]
    known = any("log_prob" in row for row in samples)
    rows = []
    for row in samples:
        cells = [_cut(row.get("prompt")), _cut(row.get("response")), f"{number(row, 'reward', 0.0):g}"]
        cells.append(_weights(row, (iteration - 1) * steps_per_iteration))
        if known:
            cells.append(decimals(number(row, "log_prob"), 2))
        rows.append(cells)
    if known:
        head.append("log μ, nats")
    return Sheet("samples", "Samples", "", head, rows, words=True)


def _cut(text: Any) -> str:
    words = str(text)
    return words if len(words) <= LONGEST else f"{words[:LONGEST]} …"


def _weights(row: Mapping[str, Any], step: int) -> str:
    """Tell the weights that a response is of, and how many updates they were behind those in training."""
    parts = list(_parts(row))
    if not parts:
        return DASH
    return ", ".join(
        (f"{version} (lag {step - version})" if version != TOOL else "the tool")
        + (f" for {tokens} tokens" if len(parts) > 1 else "")
        for version, tokens in parts
    )


def _parts(row: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield (version, tokens) in the order of the tokens."""
    versions = row.get("weight_versions")
    if isinstance(versions, list):
        for part in versions:
            if isinstance(part, list) and len(part) == 2 and all(isinstance(value, int) for value in part):
                yield part[0], part[1]
    elif isinstance(row.get("weight_version"), int):
        yield row["weight_version"], 0


# -------------------------------------------------------------------------------------------------------------- figures


Series = Sequence[tuple[str, Look]]
"""Metrics and how they are drawn."""

FIGURES = {
    "overview": (
        "Accuracy, and d_pi over the lag",
        "d_pi, the mean |log π − log μ| of the trained tokens, grows with every update since the weights were sent, "
        "and falls when they are sent again. Grey: the lag, in updates. Of many lag cycles the mean "
        "is drawn instead.",
    ),
    "reward": (
        "Training reward",
        "That of the policy that generated the batch, up to one lag ago. Faint lines are single steps, strong ones "
        "averages over whole lag cycles.",
    ),
    "mismatch": (
        "Mismatch between trainer and engine",
        "How far the trained policy π is from the one that sampled, μ: d_pi is the mean over tokens. Its policy part "
        "grows with every update since generation; its implementation part is what the engines compute differently.",
    ),
    "lag": (
        "Realized lag",
        "How many optimizer updates old the trained responses were, from the weight version that the engine reported. "
        "Under a fixed lag it is a sawtooth: the weights are sent every so many steps.",
    ),
    "trust_region": (
        "Trust region",
        "What SAT left of the base radii, the share of tokens beyond its gate, and the newly clipped share: tokens "
        "whose gradient it really removed, the only ones that make the run differ from its base.",
    ),
    "log_ratio_histogram": (
        "Distribution of |d|",
        "d = log π − log μ of single tokens; the slider chooses the step. Vertical lines: q, the quantile that opens "
        "SAT's gate, median over the steps drawn. With a sequence ratio q is of the responses' mean d and lies below "
        "the tokens' own tail.",
    ),
    "optimization": (
        "Clipping, gradient and loss",
        "Tokens whose gradient is clipped away, by the sign of their advantage; the gradient's norm; the loss terms.",
    ),
    "time": (
        "Where the time goes",
        "The stacked parts follow each other in the trainer. Generation runs beside them: it costs only what shows as "
        "waiting.",
    ),
    "method": (
        "The parts of the method",
        "What the stabilizers of the run measure of themselves, averaged over whole lag cycles.",
    ),
}
"""{name: (heading, sentence)} of the figures, in the order of the page."""


def figures(data: RunData, config: Mapping[str, Any] | None = None) -> Iterator[Figure]:
    """List all figures of the page, which are drawn when asked for. config: the settings of the run, which tell its
    base radii."""
    of_their_own: dict[str, Callable[[], Drawing | None]] = {
        "overview": partial(draw_overview, data),
        "reward": partial(draw_learning, data),
        "lag": partial(draw_lag, data),
        "trust_region": partial(draw_trust_region, data, config or {}),
        "log_ratio_histogram": partial(draw_histogram, data),
    }
    for name, (heading, sentence) in FIGURES.items():
        yield Figure(name, heading, sentence, of_their_own.get(name, partial(draw_metrics, data, name)))


# ------------------------------------------------------------------------------------------- by the table of panels


def draw_metrics(data: RunData, figure: str) -> Drawing | None:
    """Draw the panels of a figure."""
    return by_step(data, *metric_panels(data, figure))


def metric_panels(
    data: RunData, figure: str, levels: Mapping[str, Sequence[tuple[float, Look]]] | None = None
) -> list[Panel]:
    """Return the panels of a figure, in the order of their table. levels: by a panel's title, values in its
    unit that straight lines mark."""
    return [
        partial(_line_panel, data, panel, series, (levels or {}).get(panel.title, ()))
        for panel, series in (_panels(figure) | _of_own_stabilizers(data, figure)).items()
    ]


def _of_own_stabilizers(data: RunData, figure: str) -> dict[MetricPanel, Series]:
    """Return a panel for each metric that a stabilizer outside this package measures, and no table has."""
    prefixes = tuple(f"{kind.prefix()}/" for kind in known() if kind.name not in STABILIZERS)
    names = [name for name in data.metrics if name.startswith(prefixes) and metric_named(name) is None]
    return {MetricPanel(name): [(name, Look(name, BLUE))] for name in names if figure == "method"}


def _panels(figure: str) -> dict[MetricPanel, Series]:
    """Return the metrics of each panel of a figure."""
    return {
        panel: list(zip((line.metric for line in drawn), apart(map(_look, drawn)), strict=True))
        for panel, drawn in panels_of(figure)
    }


def _look(line: Line) -> Look:
    label = line.label or line.metric
    return (
        Look(label, line.colour, "", "bar", filled=True) if line.dash == "area" else Look(label, line.colour, line.dash)
    )


def _line_panel(
    data: RunData,
    panel: MetricPanel,
    series: Series,
    levels: Sequence[tuple[float, Look]],
    table: Table,
    shown: alt.Parameter,
) -> Plot | None:
    """Draw a panel of smoothed metrics by step, in the unit of the first one."""
    series = [(metric, look) for metric, look in series if has(data.metrics, metric)]
    if not series:
        return None
    if any(look.marker == "bar" for _, look in series):
        return _stacked_panel(data, panel, series, table, shown)
    unit, scale = axis_of(series[0][0]) if metric_named(series[0][0]) else ("", 1.0)
    parts, looks = [], []
    for metric, look in series:
        table[metric] = data.metrics[metric]
        mean, own = (scale * values for values in (smooth(table[metric], window_of(data)), table[metric]))
        if panel.log:
            mean, own = (np.where(values > 0, values, np.nan) for values in (mean, own))
        parts.append(rows(x=steps_of(data), y=mean, own=own, line=look.name))
        # a line of one point would not be seen
        looks.append(look if np.isfinite(mean).sum() > 2 else replace(look, marker="o"))
    for level, look in levels:
        parts.append(rows(x=steps_of(data)[[0, -1]], y=[level] * 2, own=[level] * 2, line=look.name))
        looks.append(look)
    y_label = panel.y_label or unit
    y = alt.Y("y:Q", title=y_label, **(log_axis() if panel.log else {"scale": alt.Scale(zero=panel.zero)}))
    in_unit = f", {unit}" if unit else ""
    tips = [
        tip("line:N", "line"),
        tip("x:Q", "step", "d"),
        tip("y:Q", f"mean{in_unit}"),
        tip("own:Q", f"step{in_unit}"),
    ]
    base = alt.Chart().encode(steps_axis("optimizer step"), y).transform_filter(shown)
    layers = lines(base, looks, tips)
    if panel.raw:
        first = base.transform_filter(alt.datum.line == looks[0].name)
        faint = first.mark_line(clip=True, opacity=0.35, strokeWidth=0.8, color=looks[0].colour)
        layers.insert(0, faint.encode(alt.Y("own:Q", title=y_label)))
    return Plot(layered(*layers, data=joined(parts), title=panel.title), looks)


def _stacked_panel(
    data: RunData, panel: MetricPanel, series: Series, table: Table, shown: alt.Parameter
) -> Plot | None:
    """Draw a panel of smoothed metrics by step, in which areas are stacked and lines run over them."""
    parts: dict[str, alt.InlineData] = {}
    for place, (metric, look) in enumerate(series):
        table[metric] = data.metrics[metric]
        mean = smooth(table[metric], window_of(data))
        parts[look.name] = rows(x=steps_of(data), y=mean, own=table[metric], line=look.name, place=place)
    looks = [look for _, look in series]
    x, y_label = steps_axis("optimizer step"), panel.y_label or axis_of(series[0][0])[0]
    tips = [tip("line:N", "part"), tip("x:Q", "step", "d"), tip("y:Q", "mean, s"), tip("own:Q", "step, s")]
    stacked = alt.Chart(joined(parts[look.name] for look in looks if look.marker == "bar")).transform_filter(shown)
    stacked = stacked.encode(x, alt.Y("y:Q", title=y_label, stack="zero"), in_colour(looks), alt.Order("place:Q"))
    layers: list[Any] = [stacked.mark_area(clip=True), pointed(stacked, tips)]
    if beside := [parts[look.name] for look in looks if look.marker != "bar"]:
        base = alt.Chart(joined(beside)).encode(x, alt.Y("y:Q", title=y_label)).transform_filter(shown)
        layers.append(layered(*lines(base, looks, tips)))
    return Plot(layered(*layers, title=panel.title), looks)


def by_step(data: RunData, *panels: Panel) -> Drawing | None:
    """Draw panels over the optimizer steps; the table begins with them."""
    return column_of(panels, height=170, one_key=False, table={"step": steps_of(data)})


def steps_of(data: RunData) -> np.ndarray:
    """Return (steps,) the x of every metric."""
    length = max((len(values) for values in data.metrics.values()), default=0)
    return data.metrics.get("step", np.arange(1.0, length + 1))


# ---------------------------------------------------------------------------------------------- of a form of their own


def draw_overview(data: RunData) -> Drawing | None:
    """Draw what a reader asks first: the accuracy, or without evaluations the reward, and d_pi over the lag."""
    learning: list[Panel] = (
        [partial(_eval_panel, data)] if has(data.evals, "accuracy") else metric_panels(data, "reward")
    )
    return _with_evaluations(data, by_step(data, *learning, partial(_mismatch_over_lag, data)))


def _mismatch_over_lag(data: RunData, table: Table, shown: alt.Parameter) -> Plot | None:
    """Draw d_pi step by step in front of the lag; of a run of too many cycles its average over them, without the
    lag."""
    if not has(data.metrics, "mismatch/d_pi"):
        return None
    steps, own = steps_of(data), data.metrics["mismatch/d_pi"]
    teeth = has(data.metrics, "lag/mean") and len(steps) <= CYCLES * data.period
    drawn = own if teeth or data.period == 1 else smooth(own, window_of(data))
    table["mismatch/d_pi"] = own
    looks = [Look("d_pi", BLUE, "-", "o" if len(own) < 3 else "")]
    tips = [tip("x:Q", "step", "d"), tip("y:Q", "d_pi, nats")]
    x = steps_axis("optimizer step")
    base = alt.Chart(rows(x=steps, y=drawn, line="d_pi")).encode(x, alt.Y("y:Q", title="d_pi, nats"))
    front = layered(*lines(base.transform_filter(shown), looks, tips))
    if not teeth:
        return Plot(layered(front, title="d_pi" if drawn is own else "d_pi, mean over lag cycles"), looks)
    table["lag/mean"] = data.metrics["lag/mean"]
    looks.append(Look("lag, right axis", GREY, "", "bar", filled=True))
    lag_axis = alt.Axis(orient="right", tickMinStep=1, grid=False)
    lag = alt.Chart(rows(x=steps, y=table["lag/mean"], line="lag, right axis")).transform_filter(shown)
    behind = lag.mark_area(clip=True, interpolate="step", opacity=0.3, color=GREY, line=False)
    behind = behind.encode(x, alt.Y("y:Q", title="lag, updates", axis=lag_axis))
    return Plot(layered(behind, front, title="d_pi over the lag").resolve_scale(y="independent"), looks)


def draw_learning(data: RunData) -> Drawing | None:
    """Draw the reward of the training batches; the accuracy on held-out problems stands beside it in the numbers, and
    is drawn in the overview."""
    return _with_evaluations(data, by_step(data, *metric_panels(data, "reward")))


def _with_evaluations(data: RunData, drawing: Drawing | None) -> Drawing | None:
    """Put the evaluations beside the steps in the numbers of a figure."""
    if drawing is not None and "step" in data.evals:
        drawing.table = side_by_side(drawing.table, {f"eval/{key}": values for key, values in data.evals.items()})
    return drawing


def side_by_side(table: Table, evals: Table) -> Table:
    """Return the columns of both in one table, by their steps, `step` and `eval/step`; NaN where one has no row. Where
    a step has several rows, as with several data sets, the first of one goes with the first of the other."""
    steps, rows = _places(table["step"], evals["eval/step"])
    columns: Table = {"step": steps}
    for part, places in zip((table, evals), rows, strict=True):
        for key, values in part.items():
            if key not in ("step", "eval/step"):
                columns[key] = np.full(len(steps), np.nan)
                columns[key][places] = values
    return columns


def _places(*parts: np.ndarray) -> tuple[np.ndarray, list[list[int]]]:
    """Return (all steps in order, each as often as in the part that has it most; the places of each part's steps among
    them)."""
    numbered = []
    for steps in parts:
        seen: Counter[float] = Counter()
        for step in steps.tolist():
            seen[step] += 1
            numbered.append((step, seen[step]))
    place = {key: i for i, key in enumerate(sorted(set(numbered)))}
    places = iter([place[key] for key in numbered])
    return np.array([step for step, _ in place]), [[next(places) for _ in steps] for steps in parts]


def _eval_panel(data: RunData, table: Table, shown: alt.Parameter) -> Plot | None:
    if not has(data.evals, "accuracy"):
        return None
    accuracy = data.evals["accuracy"]
    steps = data.evals.get("step", np.arange(len(accuracy)))
    samples = data.evals.get("n_samples", np.full_like(accuracy, np.nan))
    error, bars_are = np.sqrt(np.clip(accuracy * (1 - accuracy), 0, None) / samples), "one standard error"
    low, high = accuracy - error, accuracy + error
    if has(data.evals, "accuracy/low_samples"):
        low, high, bars_are = data.evals["accuracy/low_samples"], data.evals["accuracy/high_samples"], "95 % interval"
    before = f"before training ({accuracy[0]:.3f})"
    looks = [Look("accuracy", GREEN, "-", "o", filled=True)]
    none = {"low": np.nan, "high": np.nan}
    parts = [rows(x=steps, y=accuracy, line="accuracy", low=low, high=high)]
    if (k := largest_k(data.evals)) > 1:
        looks.append(Look(f"pass@{k}", ORANGE, "--", "s"))
        parts.append(rows(x=steps, y=data.evals[f"pass@{k}"], line=f"pass@{k}", **none))
    looks.append(Look(before, BLACK, ":"))
    parts.append(rows(x=[steps[0], steps[-1]], y=accuracy[0], line=before, **none))
    y = alt.Y("y:Q", title="accuracy", scale=alt.Scale(zero=False))
    base = alt.Chart().encode(steps_axis("optimizer step"), y).transform_filter(shown)
    tips = [tip("line:N", "line"), tip("x:Q", "step", "d"), tip("y:Q", "value")]
    tips += [tip("low:Q", f"{bars_are}, low"), tip("high:Q", "high")]
    bars = base.transform_filter("isValid(datum.low)").mark_rule(clip=True, color=GREEN, strokeWidth=1.4)
    layers = [bars.encode(alt.Y("low:Q", title="accuracy"), y2="high:Q"), *lines(base, looks, tips)]
    title = f"accuracy, bars: {bars_are}"
    return Plot(layered(*layers, data=joined(parts), title=title), looks)


CYCLES = 25
"""Lag cycles beyond which the teeth of a sawtooth run together on a whole page's width."""


def draw_lag(data: RunData) -> Drawing | None:
    """Draw the realized lag of the trained responses, step by step; of a long run the last cycles alone too."""
    steps = len(steps_of(data))
    (lags, series), *_ = _panels("lag").items()
    panels: list[Panel] = [partial(_lag_panel, data, series, slice(None), lags.title)]
    if data.period > 1 and steps > CYCLES * data.period:
        last = slice(steps - 10 * data.period, None)
        panels.append(partial(_lag_panel, data, series, last, "the last 10 cycles"))
    panels += metric_panels(data, "lag")[1:]
    return column_of(panels, height=150, one_key=False, linked=False, table={"step": steps_of(data)})


def _lag_panel(
    data: RunData, series: Series, part: slice, title: str, table: Table, shown: alt.Parameter
) -> Plot | None:
    if not has(data.metrics, "lag/mean"):
        return None
    mean, parts, looks = data.metrics["lag/mean"], [], []
    for metric, look in series:
        if not has(data.metrics, metric):
            continue
        table[metric] = data.metrics[metric]
        if metric == "lag/mean" or not np.array_equal(table[metric], mean, equal_nan=True):
            parts.append(rows(x=steps_of(data)[part], y=table[metric][part], line=look.name))
            looks.append(look)
    y = alt.Y("y:Q", title="updates", axis=alt.Axis(tickMinStep=1))
    base = alt.Chart().encode(steps_axis("optimizer step"), y).transform_filter(shown)
    tips = [tip("line:N", "lag of the batch"), tip("x:Q", "step", "d"), tip("y:Q", "updates")]
    layers = lines(base, looks, tips, interpolate="step", strokeWidth=1.2)
    return Plot(layered(*layers, data=joined(parts), title=title), looks)


def draw_trust_region(data: RunData, config: Mapping[str, Any]) -> Drawing | None:
    """Draw the radius that SAT comes to, how often its gate opened (Eq. gate) and what that changed."""
    return by_step(data, *metric_panels(data, "trust_region", {"the radius that SAT comes to": _base_radii(config)}))


def _base_radii(config: Mapping[str, Any]) -> list[tuple[float, Look]]:
    """Return the radii of the interval that SAT contracts; one where both are equal."""
    clip = section(section(config, "method"), "clip")
    high, low = (clip.get(key) for key in ("eps_high", "eps_low"))
    if not (isinstance(high, float) and isinstance(low, float)):
        return []
    if high == low:
        return [(high, Look(f"base radius {high:g}", BLACK, ":"))]
    upper, lower = Look(f"upper base radius {high:g}", BLACK, ":"), Look(f"lower base radius {low:g}", GREY, ":")
    return [(high, upper), (low, lower)]


def draw_histogram(data: RunData) -> Drawing | None:
    """Draw the distribution of |d| step by step, early and late, and at low and high lag, with the quantile q (Eq.
    quantile)."""
    histograms = histogram.usable(data.histograms)
    if not histograms:
        return None
    quarter = max(1, len(histograms) // 4)
    pairs = [{"first quarter": histograms[:quarter], "last quarter": histograms[-quarter:]}]
    dated = [row for row in histograms if row.get("lag") is not None]
    lags = [row["lag"] for row in dated]
    if lags and min(lags) < max(lags):
        low, high = np.quantile(lags, [0.25, 0.75])
        stale = [row for row in dated if row["lag"] >= high]
        pairs.append({f"lag up to {low:g}": [row for row in dated if row["lag"] <= low], f"lag from {high:g}": stale})
    colours = ((BLUE, VERMILION), (GREEN, ORANGE))
    looks = [
        [Look(name, colour, dash) for name, colour, dash in zip(pair, two, ("-", "--"), strict=True)]
        for pair, two in zip(pairs, colours, strict=False)
    ]
    panels = [histogram.density(pair, two) for pair, two in zip(pairs, looks, strict=True)]
    return column_of([*panels, histogram.over_steps(histograms)], height=170, one_key=False)
