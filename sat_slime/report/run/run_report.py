"""report.html: one self-contained page about a run, whatever is there of it."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import yaml

from sat_slime.report.averages import finite_mean, smooth, window_of
from sat_slime.report.number_text import DASH, count_of, percent
from sat_slime.report.page import STYLE, Page, check_out, headline, warning_box
from sat_slime.report.run.run_figures import figures
from sat_slime.report.run.samples import first_samples, sample_sheet
from sat_slime.runs.collapse import judge
from sat_slime.runs.folder import RunFolder, worked_seconds, writable
from sat_slime.runs.health import HealthWatch
from sat_slime.runs.live_view import duration
from sat_slime.runs.reading import Run, load_run, row_faults, section
from sat_slime.runs.rows import Columns, has, largest_k, number, once_per_iteration, read_rows
from sat_slime.runs.symptoms import symptoms
from sat_slime.runs.trackers.tracked_run import read_tracked


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
    warnings = [f"{symptom.heading}: {symptom.seen}. {symptom.advice}." for symptom in found]
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
