"""The plan of a run: predictions for several splits of the GPUs and lags, beside measured runs where there are some."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from sat_slime.config import ConfigError, EmbeddedConfig, load_config
from sat_slime.config.loader import RunConfig
from sat_slime.config.plan_schema import PlanConfig, ResponseLengths
from sat_slime.report.drawing import Plot, Table, column_of, joined, layered, lines, rows, tip
from sat_slime.report.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Look
from sat_slime.report.page import Figure, Page, Sheet, Strong
from sat_slime.rollout.simulation import Prediction, Setting, Workload, decoding_steps, predict
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.rows import read_rows

SKIPPED = 2
"""Iterations at the start of a run that are not measured: they compile and fill caches."""
STEP_SHARE = 0.5
"""Share of a decoding step that does not depend on the requests in it, where one speed alone is known."""
_LOOKS = [(BLACK, "-", "o"), (ORANGE, "--", "s"), (SKY, ":", "D"), (GREEN, "-.", "^")]
_LOOKS += [(BLUE, "-", "v"), (VERMILION, "--", "P"), (PURPLE, ":", "*")]


@dataclass(frozen=True)
class Measured:
    """The times and lags of a run, without its first iterations."""

    iteration_seconds: float
    lag_mean: float
    generation_mean: float
    queue_mean: float
    dropped: float
    """Share of the responses that were completed or aborted."""


@dataclass(frozen=True)
class Option:
    """A way to run it, and what is expected of it."""

    name: str
    setting: Setting
    prediction: Prediction
    gpus_per_engine: int

    @property
    def split(self) -> str:
        return f"{self.setting.engines * self.gpus_per_engine}\u00a0+\u00a0{self.setting.trainer_gpus}"


@dataclass(frozen=True)
class Plan:
    options: list[Option]
    comparisons: list[tuple[str, Prediction, Measured]]
    basis: str
    """Where lengths and speeds are from."""

    @property
    def fastest(self) -> Option:
        return min(self.options, key=lambda option: option.prediction.iteration_seconds)


# ------------------------------------------------------------------------------------------------------ the workload


def make_plan(config: PlanConfig, measured_runs: Sequence[Path] = ()) -> Plan:
    """Predict every split and lag of a plan, and the settings of measured runs.

    Raises:
        ConfigError: speeds or lengths are missing, or do not fit each other; a split leaves no GPU to one side.
        RunFolderError: no run folder, or a run without what is taken from it.
    """
    source = _Source(config)
    options = []
    for engines, trainer in source.splits():
        for lag in config.lags:
            options.append(source.option(f"batch, lag {lag}", Setting(engines, trainer, lag)))
        for bound in config.bounds:
            setting = Setting(engines, trainer, 1, "streaming", bound, config.over_age, config.queue_prompts)
            options.append(source.option(f"streaming, bound {bound}", setting))
    comparisons = []
    for path in measured_runs:
        run = _load(path)
        # A measured run is simulated as long as it was, and both without their first iterations.
        workload = source.workload_of(run.pipeline.mode)
        predicted = predict(workload, _setting(run), run.pipeline.iterations, SKIPPED, config.seed)
        comparisons.append((path.name, predicted, measure(path)))
    return Plan(options, comparisons, source.basis)


class _Source:
    """Lengths and speeds of a plan, from its file and its run."""

    def __init__(self, config: PlanConfig) -> None:
        self.config = config
        run = _load(Path(config.run)) if config.run else None
        self.run = run
        missing = [
            f"{key} is not set, and there is no run to take it from"
            for key in ("engine_tokens_per_second", "trainer_tokens_per_second")
            if run is None and getattr(config, key) is None
        ]
        if missing:
            raise ConfigError(missing)
        concurrency = config.concurrent_requests or (_concurrency(run) if run else 64)
        lengths = config.lengths or (None if run else ResponseLengths())
        own = run.rollout.samples_per_prompt if run else 8
        samples = config.samples_per_prompt or own
        groups = _drawn(lengths, max(samples, own), config.seed) if lengths else _sampled(Path(config.run or ""))
        if min(map(len, groups)) < samples:
            raise ConfigError([f"samples_per_prompt is {samples}, but {config.run} sampled {min(map(len, groups))}"])
        speeds = _speeds(Path(config.run), run, groups) if config.run and run else None
        step, request = _decoding(config, concurrency, speeds)
        train = 1 / config.trainer_tokens_per_second if config.trainer_tokens_per_second else None
        self.workload = Workload(
            groups=groups,
            prompts=config.prompts_per_iteration or (run.rollout.prompts_per_iteration if run else 64),
            samples=samples,
            step_seconds=step,
            request_seconds=request,
            concurrency=concurrency,
            train_seconds=_first(train, speeds["train"] if speeds else None),
            push_seconds=_first(config.push_seconds, speeds["push"] if speeds else None, 10.0),
            hand_over_seconds=speeds["hand_over"] if speeds else 0.0,
            steps=config.optimizer_steps_per_rollout or (run.pipeline.optimizer_steps_per_rollout if run else 1),
            engine_factors=speeds["engine_factors"] if speeds else (1.0,),
            train_factors=speeds["train_factors"] if speeds else (1.0,),
            bytes_per_token=config.bytes_per_token,
        )
        self.streaming = self.workload
        if config.streaming_run:
            push, rest = _overhead(Path(config.streaming_run))
            self.streaming = replace(
                self.workload, push_seconds=_first(config.push_seconds, push), hand_over_seconds=rest
            )
        known = ("lengths", "engine_tokens_per_second", "trainer_tokens_per_second", "push_seconds")
        given = [name for name in known if getattr(config, name) is not None]
        self.basis = f"measured in {config.run}" + (f", except {', '.join(given)}" if given else "")
        if not config.run:
            self.basis = "from the plan's file"
        if config.streaming_run:
            self.basis += f"; the overhead of mode streaming measured in {config.streaming_run}"

    def workload_of(self, mode: str) -> Workload:
        return self.streaming if mode == "streaming" else self.workload

    def splits(self) -> list[tuple[int, int]]:
        """Return (engines, GPUs of the trainer) of each split."""
        config, run = self.config, self.run
        own = (run.rollout.engines, run.train.world_size) if run else None
        per_engine = config.gpus_per_engine
        gpus = config.gpus or (own[0] * per_engine + own[1] if own else 16)
        if config.engine_gpus is None and gpus < 4 and own and not config.gpus:
            return [own]
        chosen = config.engine_gpus or sorted(
            {max(per_engine, round(gpus * part / per_engine) * per_engine) for part in (0.25, 0.5, 0.75)}
        )
        for engine_gpus in chosen:
            if engine_gpus % per_engine or engine_gpus >= gpus:
                raise ConfigError(
                    [
                        f"engine_gpus {engine_gpus} of {gpus} GPUs with gpus_per_engine {per_engine}: give multiples "
                        "of gpus_per_engine that leave the trainer a GPU"
                    ]
                )
        return [(engine_gpus // per_engine, gpus - engine_gpus) for engine_gpus in chosen]

    def option(self, name: str, setting: Setting) -> Option:
        skip, seed = max(1, self.config.iterations // 4), self.config.seed
        cycle = max(1, setting.lag)  # whole cycles of the lag are measured
        iterations = skip + math.ceil(max(1, self.config.iterations - skip) / cycle) * cycle
        try:
            expected = predict(self.workload_of(setting.mode), setting, iterations, skip, seed)
        except ValueError as error:
            raise ConfigError([f"{self.config.run or 'the plan'}: {error}"]) from None
        return Option(name, setting, expected, self.config.gpus_per_engine)


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _decoding(config: PlanConfig, concurrency: int, speeds: dict[str, Any] | None) -> tuple[float, float]:
    """Return the seconds of a decoding step whatever runs, and of each request in it."""
    if config.engine_tokens_per_second is None:
        assert speeds is not None
        return speeds["step"], speeds["request"]
    together = concurrency / config.engine_tokens_per_second
    if config.request_tokens_per_second is None:
        return STEP_SHARE * together, (1 - STEP_SHARE) * together / concurrency
    alone = 1 / config.request_tokens_per_second
    request = (together - alone) / (concurrency - 1) if concurrency > 1 else 0.0
    if request < 0 or alone < request:
        raise ConfigError(
            [
                f"request_tokens_per_second {config.request_tokens_per_second:g} and engine_tokens_per_second "
                f"{config.engine_tokens_per_second:g} do not fit {concurrency} concurrent requests: an engine makes at "
                "least as many tokens as one request alone, and at most as many for each"
            ]
        )
    return alone - request, request


def _drawn(lengths: ResponseLengths, samples: int, seed: int) -> list[list[int]]:
    """Return groups of independent lengths."""
    spread = np.log(1 + (lengths.deviation / lengths.mean) ** 2)
    random = np.random.default_rng(seed)
    drawn = random.lognormal(np.log(lengths.mean) - spread / 2, np.sqrt(spread), (512, samples))
    groups: list[list[int]] = np.clip(np.round(drawn), 1, lengths.longest).astype(int).tolist()
    return groups


# -------------------------------------------------------------------------------------------------------- of a run


def _load(path: Path) -> RunConfig:
    return load_config(RunFolder.open(path).config)


def _concurrency(config: RunConfig) -> int:
    if isinstance(config, EmbeddedConfig):
        return config.rollout.max_running_requests
    return config.rollout.concurrent_requests


def _setting(config: RunConfig) -> Setting:
    """Return the setting of a run, with what its host begins at once."""
    pipeline, engines = config.pipeline, config.rollout.engines
    queue, in_flight, paced = None, None, True
    if isinstance(config, EmbeddedConfig):
        queue, paced = config.pipeline.queue_prompts, config.pipeline.pacing
        in_flight = min(engines * config.rollout.max_running_requests, queue)
    return Setting(
        engines,
        config.train.world_size,
        pipeline.lag,
        pipeline.mode,
        pipeline.max_staleness,
        pipeline.over_age,
        queue,
        paced,
        in_flight,
    )


def _sampled(path: Path) -> list[list[int]]:
    """Return the response lengths of a run's samples by prompt. A sample has its text alone, so that characters are
    counted and scaled to the run's mean in tokens."""
    groups = []
    for file in sorted(RunFolder(path).samples.glob("*.jsonl")):
        for _, group in groupby(read_rows(file), key=lambda row: row.get("prompt")):
            groups.append([max(1, len(str(row.get("response", "")))) for row in group])
    if not groups:
        raise RunFolderError(
            f"{path} has no samples, from which lengths are taken: give them, as --set 'lengths={{mean: 6000, "
            "deviation: 5000, longest: 32768}'"
        )
    tokens = np.mean([row["response/length_mean"] for row in _measured_rows(path, "response/length_mean")])
    scale = tokens / np.mean([length for group in groups for length in group])
    return [[max(1, round(length * scale)) for length in group] for group in groups]


def _measured_rows(path: Path, *more: str) -> list[dict[str, Any]]:
    """Return a row for each iteration without the first, with its times: the driver's own on slime.

    more: metrics without which the run is of no use.
    """
    folder = RunFolder.open(path)
    times = {row.get("iteration"): row for row in read_rows(folder.times)}
    found: dict[Any, dict[str, Any]] = {}
    for number, row in enumerate(read_rows(folder.metrics), 1):
        iteration = row.get("iteration", number)
        found.setdefault(iteration, {**row, **times.get(iteration, {})})
    kept = [row for iteration, row in found.items() if iteration > SKIPPED]
    if not kept:
        raise RunFolderError(f"{path} has {len(found)} iterations, and the first {SKIPPED} are not measured: run more")
    needed = {"tokens/response_total", "time/train", *more}
    needed |= set() if "time/collect" in kept[0] else {"time/step", "time/wait", "time/sync"}
    if missing := sorted(key for key in needed if any(row.get(key) is None for row in kept)):
        raise RunFolderError(
            f"{path} did not measure {', '.join(missing)}, from which a plan is made: take another run"
        )
    return kept


def _seconds(row: dict[str, Any]) -> float:
    """Return the seconds of an iteration without evaluations and checkpoints."""
    if "time/collect" in row:
        return sum(row.get(f"time/{part}") or 0.0 for part in ("collect", "train", "push", "canary", "flight"))
    return float(row["time/step"])


def measure(path: Path) -> Measured:
    """Return what a run did. Raises RunFolderError where it has too few iterations."""
    kept = _measured_rows(path)
    tokens = np.array([row["tokens/response_total"] for row in kept], dtype=float)

    def mean(key: str) -> float:
        return float(np.average([row.get(key) or 0.0 for row in kept], weights=tokens))

    finished = sum(value for row in kept for key, value in row.items() if key.startswith("rollout/finished/"))
    completed = finished + sum(row.get("rollout/aborted") or 0 for row in kept)
    dropped = sum(row.get("rollout/dropped") or 0 for row in kept)
    return Measured(
        float(np.mean([_seconds(row) for row in kept])),
        mean("lag/mean"),
        mean("lag/generation_mean"),
        mean("lag/queue_mean"),
        dropped / completed if completed else 0.0,
    )


def _speeds(path: Path, config: RunConfig, groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the speeds of a run of mode batch, with responses of these lengths, and by what factors they varied."""
    if config.pipeline.mode != "batch":
        raise RunFolderError(
            f"{path} is a run of mode streaming, in which no batch has a time of its own: take the speeds of one of "
            "mode batch, a few iterations at lag 1 do, and name this one as streaming_run"
        )
    kept, rollout = _measured_rows(path, "time/rollout"), config.rollout
    tokens = float(np.mean([row["tokens/response_total"] for row in kept]))
    generate = float(np.mean([row["time/rollout"] for row in kept]))
    train = float(np.mean([row["time/train"] for row in kept]))
    push, rest = _overhead_of(kept)
    own = Workload(
        groups, rollout.prompts_per_iteration, rollout.samples_per_prompt, 1.0, 0.0, _concurrency(config), 0.0
    )
    by_token = [[row[time] / row["tokens/response_total"] for row in kept] for time in ("time/rollout", "time/train")]
    engine_factors, train_factors = ([value / np.mean(values) for value in values] for values in by_token)
    return {
        "engine_factors": engine_factors,
        "train_factors": train_factors,
        "step": STEP_SHARE * generate / decoding_steps(own, rollout.engines),
        "request": (1 - STEP_SHARE) * generate / (tokens / rollout.engines),
        "train": train / tokens * config.train.world_size,
        "push": push,
        "hand_over": rest,
    }


def _overhead(path: Path) -> tuple[float, float]:
    """Return what `_overhead_of` says of a run of mode streaming. Raises RunFolderError for another."""
    if _load(path).pipeline.mode != "streaming":
        raise RunFolderError(
            f"streaming_run: {path} is a run of mode batch: name one of mode streaming, or leave it out"
        )
    return _overhead_of(_measured_rows(path))


def _overhead_of(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the seconds of a push, and those of an iteration outside waiting, training and pushes."""
    pushes = [seconds for row in rows if (seconds := row.get("time/push") or row.get("time/sync"))]
    parts = ("wait", "train", "sync")
    rest = [row["time/step"] - sum(row[f"time/{part}"] for part in parts) for row in rows if "time/collect" not in row]
    return float(np.mean(pushes or [0.0])), max(0.0, float(np.mean(rest or [0.0])))


# ------------------------------------------------------------------------------------------------- best after a time


def read_study(path: Path, method: str) -> dict[int, float]:
    """Return a study's accuracy by lag, of one method, from its table `levels_*.csv`. Raises ConfigError."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file))
        levels = {int(row["lag"]): float(row["late mean"]) for row in table if row["method"] == method}
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise ConfigError([f"--study {path} is no table of methods, lags and late means ({error!r})"]) from None
    if not levels:
        known = ", ".join(sorted({row["method"] for row in table}))
        raise ConfigError([f"--study {path} has no method {method}: it has {known}"])
    return levels


def best_within(plan: Plan, levels: dict[int, float], updates: int, hours: float) -> str:
    """Say which option of mode batch has the best accuracy of a study once it has made the study's updates.

    A study gives one accuracy for each lag, at one number of updates. So options that make fewer of them in the time
    are out, and nothing is said of mode streaming, or of lags that the study has not."""
    steps = [
        (levels[option.setting.lag], option)
        for option in plan.options
        if option.setting.mode == "batch" and option.setting.lag in levels
        if updates * option.prediction.iteration_seconds <= 3600 * hours
    ]
    if not steps:
        return f"No split and lag of the study makes its {updates} iterations within {hours:g} h."
    level, best = max(steps, key=lambda pair: (pair[0], -pair[1].prediction.iteration_seconds))
    return (
        f"Best after {hours:g} h, by the study's accuracy after {updates} iterations: {best.name} on {best.split} "
        f"GPUs, {100 * level:.1f} %, there after {updates * best.prediction.iteration_seconds / 3600:.2g} h."
    )


# --------------------------------------------------------------------------------------------------------- as tables


def options_table(plan: Plan) -> Sheet:
    """Return the table of all splits and lags."""
    head = ["order", "GPUs", "s/iteration", "engines idle", "trainer idle", "lag", "99 %", "in response", "99 %"]
    head += ["in queue", "99 %", "dropped", "masked", "queue"]
    fastest = plan.fastest
    body = []
    for option in plan.options:
        expected = option.prediction
        cells = [
            *(option.name, option.split, f"{expected.iteration_seconds:.3g}"),
            *(f"{100 * share:.0f} %" for share in (expected.engines_idle, expected.trainer_idle)),
            *(f"{expected.lag_mean:.2f}", f"{expected.lag_99:.0f}"),
            *(f"{expected.generation_mean:.2f}", f"{expected.generation_99:.0f}"),
            *(f"{expected.queue_mean:.2f}", f"{expected.queue_99:.0f}"),
            *(f"{100 * share:.1f} %" for share in (expected.dropped, expected.masked)),
            _bytes(expected.queue_bytes),
        ]
        body.append([Strong(cells[0]), cells[1], Strong(cells[2]), *cells[3:]] if option is fastest else cells)
    return Sheet(
        "plan",
        "Splits and lags",
        "GPUs of engines + trainer. Lags in optimizer updates, mean and 99 % quantile over trained tokens: in all, "
        "from a token to the end of its response, and from there until it is trained. Queue: complete groups at most. "
        "The fastest stands out.",
        head,
        body,
    )


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def comparison_table(plan: Plan) -> Sheet:
    """Return predicted beside measured."""
    body = []
    for name, predicted, measured in plan.comparisons:
        row = [name]
        for key, form in (("iteration_seconds", ".2f"), ("lag_mean", ".2f")):
            expected, real = getattr(predicted, key), getattr(measured, key)
            row += [f"{expected:{form}}", f"{real:{form}}", f"{100 * (expected / real - 1):+.0f} %" if real else "–"]
        row += [f"{predicted.generation_mean:.2f}", f"{measured.generation_mean:.2f}"]
        row += [f"{100 * predicted.dropped:.1f} %", f"{100 * measured.dropped:.1f} %"]
        body.append(row)
    return Sheet(
        "measured",
        "Predicted and measured",
        "Runs that lengths and speeds were not taken from, without their first iterations.",
        [
            "run",
            "s/iteration",
            "measured",
            "off",
            "lag",
            "measured",
            "off",
            "in response",
            "measured",
            "dropped",
            "measured",
        ],
        body,
    )


# --------------------------------------------------------------------------------------------------------- the page


def plan_figure(plan: Plan) -> Figure:
    """Return the figure of time and lag by split."""
    panels = [
        partial(_by_split, plan, "iteration_seconds", "seconds an iteration"),
        partial(_by_split, plan, "lag_mean", "mean lag, updates"),
    ]
    return Figure(
        "plan",
        "Time and staleness by split",
        "Lower is better in both. An order that no longer gets faster from one split to the next waits for the other "
        "side.",
        lambda: column_of(panels, zoom=False),
    )


def _by_split(plan: Plan, key: str, unit: str, table: Table, shown: alt.Parameter) -> Plot:
    names = list(dict.fromkeys(option.name for option in plan.options))
    looks = [Look(name, *_LOOKS[place % len(_LOOKS)]) for place, name in enumerate(names)]
    parts = []
    for name in names:
        chosen = [option for option in plan.options if option.name == name]
        gpus = [option.setting.engines * option.gpus_per_engine for option in chosen]
        values = [getattr(option.prediction, key) for option in chosen]
        table["engine GPUs"] = np.array(gpus, dtype=float)
        table[f"{name}, {unit}"] = np.array(values, dtype=float)
        parts.append(rows(x=gpus, y=values, line=name, split=[option.split for option in chosen]))
    x = alt.X("x:Q", title="GPUs of the engines", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(zero=False, padding=12))
    base = alt.Chart().encode(x, alt.Y("y:Q", title=unit)).transform_filter(shown)
    tips = [tip("line:N", "order"), tip("split:N", "GPUs"), tip("y:Q", unit)]
    return Plot(layered(*lines(base, looks, tips), data=joined(parts), title=unit), looks)


def comparison_figure(plan: Plan) -> Figure:
    """Return the figure of predicted beside measured."""
    panels = [
        partial(_beside, plan, "iteration_seconds", "seconds an iteration", 1.0),
        partial(_beside, plan, "lag_mean", "mean lag, updates", 1.0),
        partial(_beside, plan, "dropped", "% of responses dropped", 100.0),
    ]
    return Figure(
        "measured",
        "Predicted and measured",
        "Each run has a predicted and a measured value; they lie on each other where the prediction is right.",
        lambda: column_of(panels, zoom=False, height=140) if plan.comparisons else None,
    )


def _beside(plan: Plan, key: str, unit: str, scale: float, table: Table, shown: alt.Parameter) -> Plot:
    looks = [Look("predicted", ORANGE, "", "s"), Look("measured", BLACK, "", "o", filled=True)]
    names = [name for name, _, _ in plan.comparisons]
    parts = []
    for place, look in enumerate(looks, 1):
        values = [scale * getattr(comparison[place], key) for comparison in plan.comparisons]
        table["run"] = np.array(names)
        table[f"{unit}, {look.name}"] = np.array(values, dtype=float)
        parts.append(rows(x=values, run=names, line=look.name))
    base = alt.Chart().encode(
        alt.X("x:Q", title=unit, scale=alt.Scale(zero=True)),
        alt.Y("run:N", title=None, sort=names, axis=alt.Axis(grid=True)),
    )
    tips = [tip("line:N", "value"), tip("run:N", "run"), tip("x:Q", unit)]
    return Plot(layered(*lines(base.transform_filter(shown), looks, tips), data=joined(parts), title=unit), looks)


def summary(plan: Plan) -> list[str]:
    """Say which is fastest, and what the numbers rest on."""
    fastest = plan.fastest
    lead = fastest.prediction
    return [
        f"Fastest: {fastest.name} on {fastest.split} GPUs (engines + trainer), {lead.iteration_seconds:.3g} s an "
        f"iteration at a mean lag of {lead.lag_mean:.2f} updates.",
        f"Lengths and speeds: {plan.basis}. Trainer GPUs are taken to scale, and engines to share the load.",
    ]


def write_plan(plan: Plan, folder: Path, more: Sequence[str], command: str) -> Path:
    """Write the page, its figures and tables into a folder; returns the page's path."""
    page = Page(folder)
    page.sheet(options_table(plan))
    page.figure(plan_figure(plan))
    if plan.comparisons:
        page.sheet(comparison_table(plan))
        page.figure(comparison_figure(plan))
    page.again(command)
    return page.write(
        "report.html",
        title="Plan: time and staleness",
        subtitle=plan.basis,
        summary=[*summary(plan), *more],
    )
