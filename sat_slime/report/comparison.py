"""The report of several runs or a grid, beside the paper's numbers where asked for: a page, its figures and tables."""

from __future__ import annotations

import inspect
import math
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sat_slime.report import stats
from sat_slime.report.charts import Chart, lines, looks
from sat_slime.report.frames import Collection, ComparedRun, collect, differing_settings, scores, seed_curve
from sat_slime.report.methods import ANSWERS_PER_EVALUATION, BASE_MODEL_SCORE, MAIN_TABLE, PAPER_LABEL, SOURCE, label_of
from sat_slime.report.page import (
    DASH,
    Form,
    Row,
    Section,
    Strong,
    Table,
    as_text,
    check_out,
    count_of,
    minus,
    percent,
    write_page,
)
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.grid import GridFolder
from sat_slime.runs.health import Collapse
from sat_slime.runs.reading import section


def write_comparison(paths: Sequence[str | Path], out: str | Path | None = None, paper: bool = False) -> Path:
    """Write report.html, figures/ and tables/ about `paths` into `out`, by default into the grid itself where a single
    one is given, else into `report`; returns the page. paper: whether the paper's numbers stand beside those of the
    runs. Raises RunFolderError for a path without runs, or a folder of something else."""
    own = out is None and len(paths) == 1 and GridFolder(paths[0]).is_grid()
    folder = Path(paths[0]) if own else Path(out or "report")
    check_out(folder, own)
    collection = collect(paths, paper)
    if not collection.runs and not collection.planned:
        raise RunFolderError(f"{paths[0]} holds no run yet: there is nothing to report")
    command = f"sat-slime report {shlex.join(map(str, paths))}"
    command += ("" if own else f" --out {shlex.quote(str(folder))}") + " --paper" * paper
    names = [Path(path).resolve().name for path in paths]
    differences = stats.contrasts(collection)
    return write_page(
        folder / "report.html",
        sections(collection, differences),
        title=" · ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more",
        subtitle=ours_label(collection) + "; beside them: paper, 30B, one seed" * paper,
        answer=summary(collection, differences),
        warnings=unequal(collection),
        command=command,
    ).path


def sections(collection: Collection, differences: pd.DataFrame) -> Iterator[Section]:
    """Yield the parts of the page."""
    several = seeds_of(collection)[1] > 1
    first, *curves = (curve_section(collection, key) for key in CURVES)
    yield first
    for lag in collection.lags:
        yield main_table(collection, lag)
    if len(differences) and (differences["pairs"] > 1).any():
        yield difference_table(differences)
    yield from curves
    yield Section("limits", "What this does not show", sentences=list(limits(collection)))
    rule = str(inspect.getdoc(Collapse)).replace("**", "")
    rules = f"Differences: {stats.TEST}.\n\n" * several + rule + f"\n\nPaper: {SOURCE}." * collection.paper
    yield Section("rules", "Rules and tests", text=rules, folded=True)
    yield run_table(collection)


# ------------------------------------------------------------------------------------------------------------- in words


def lag_name(lag: int | None) -> str:
    """Return how a lag is called in titles."""
    return "lag unknown" if lag is None else f"lag {lag}"


def seeds_of(collection: Collection) -> tuple[int, int]:
    """Return the fewest and the most seeds of a cell that has any; 0 and 0 where none has."""
    counts = {len(collection.of(method, lag)) for method in collection.methods for lag in collection.lags} - {0}
    return min(counts, default=0), max(counts, default=0)


def ours_label(collection: Collection) -> str:
    """Return how our numbers are marked beside the paper's."""
    kinds = {_kind(run) for run in collection.runs}
    least, most = seeds_of(collection)
    seeds = "no whole run" if not most else count_of(most, "seed") if least == most else f"{least} to {most} seeds"
    return ", ".join(["ours", *(kinds if len(kinds) < 2 else ["several models"]), seeds])


def _kind(run: ComparedRun) -> str:
    model = str(section(run.config, "slime").get("hf-checkpoint", "?")).rstrip("/").rpartition("/")[2]
    return {"lab": "lab model", "slime": f"slime, {model}"}.get(str(run.config.get("runtime")), "model not stated")


def summary(collection: Collection, differences: pd.DataFrame) -> Iterator[str]:
    """Say what the runs show and which there are, a sentence each; every number in it is in a table too."""
    yield from _costs(differences)
    for lag in collection.lags[:NAMED]:
        yield from _best_at(collection, lag)
    yield from _told_apart(differences)
    whole = sum(run.counts for run in collection.runs)
    text = f"{count_of(whole, 'whole run')} of {count_of(len(collection.run_methods), 'method')}"
    if not_whole := len(collection.runs) - whole:
        damaged = sum(bool(run.faults) for run in collection.runs)
        text += f", {not_whole} not whole" + f" ({damaged} with damaged rows)" * bool(damaged)
    yield text + f", {len(collection.not_run)} planned and not run" * bool(collection.not_run) + "."
    collapsed = [run.where for run in collection.runs if run.collapse.met]
    if judged := sum(run.collapse.known for run in collection.runs):
        names = f": {'; '.join(collapsed)}" if collapsed else ""
        yield f"The collapse rule marks {len(collapsed)} of {judged} runs with enough scores to tell{names}."


def unequal(collection: Collection) -> Iterator[str]:
    """Say that the runs, or their evaluations, have not the same length, or scores are of several data sets, where
    every number of the page compares them."""
    if len(sets := sorted({run.data.datasets[0] for run in collection.runs if run.data.datasets})) > 1:
        yield f"Scores are not of the same data set in all runs and do not compare: {', '.join(sets)}."
    whole = {run.planned_steps or run.steps for run in collection.runs if run.counts}
    if len(whole) > 1:
        yield f"Whole runs have {min(whole):,} to {max(whole):,} steps, which may itself make a difference."
    if early := [run.where for run in collection.runs if run.counts and scores(run)["x"].max() < 0.75 * run.steps]:
        runs = f"{count_of(len(early), 'whole run')}, such as {early[0]}"
        yield f"No evaluation is of the last quarter of the steps in {runs}: best and late accuracy are earlier ones."


NAMED = 4
"""Lags, and differences, that sentences name at most."""


def _costs(differences: pd.DataFrame) -> Iterator[str]:
    """Say what the largest lag costs each method, and of one seed what SAT changes, in points of late accuracy."""
    for group, rows in differences.groupby("group", sort=False) if len(differences) else ():
        rows = rows[rows["late mean"].notna()]
        one_seed = rows["pairs"].max() == 1
        texts = []
        for row in rows.to_dict("records"):
            at = f" at lag {row['lag']}" if row["lag"] else ""
            tested = f", {row['late verdict']}" if row["pairs"] > 1 else ""
            points = minus(format(100 * row["late mean"], "+.1f"))
            texts.append(f"{row['difference']}{at} {points}{tested}")
        if 0 < len(texts) <= NAMED and (group.startswith("lag ") or (group == stats.AGAINST_BASE and one_seed)):
            one = ", one seed" * bool(one_seed)
            yield f"{group[0].upper()}{group[1:]}, points of late accuracy{one}: {'; '.join(texts)}."


def _best_at(collection: Collection, lag: int | None) -> Iterator[str]:
    """Say which method is the most accurate at a lag, and how many others are within noise of it."""
    from_best = stats.against_best(collection, lag, "late")
    for best in from_best.index[from_best["verdict"] == "best"]:
        tested = from_best[from_best["n"] > 1]
        clear = int((tested["verdict"] == "beyond noise").sum())
        few = " that share two seeds with it" * (len(tested) < len(from_best) - 1)
        noise = f"{len(tested) - clear} of {len(tested)} others{few} within noise"
        mean = stats.level_of(collection, best, lag, "late")["mean"]
        yield (
            f"Highest late accuracy at {lag_name(lag)}: {label_of(best)} {percent(mean)}; "
            f"{noise if len(tested) else 'fewer than two common seeds: no test'}."
        )


def _told_apart(differences: pd.DataFrame) -> Iterator[str]:
    """Say how many of the paper's main comparisons, of several seeds, are more than noise."""
    for group in (stats.AGAINST_BASE, stats.AGAINST_BASELINES) if len(differences) else ():
        tested = differences[(differences["group"] == group) & (differences["pairs"] > 1)]
        parts = []
        for name, sign, unit in (("late", 1, "late accuracy"), ("d_pi", -1, "d_pi")):
            known = tested[tested[f"{name} p"].notna()]
            clear = known[known[f"{name} verdict"] == "beyond noise"]
            better = int((sign * clear[f"{name} mean"] > 0).sum())
            text = f"{better} better, {len(clear) - better} worse, {len(known) - len(clear)} not told from noise"
            parts += [f"{unit}: {text}"] if len(known) else []
        if parts:
            yield f"{group}, {count_of(len(tested), 'comparison')}: {'; '.join(parts)}."


def limits(collection: Collection) -> Iterator[str]:
    """Say what a reader must not take from the page, a sentence or two each."""
    configs, most = [run.config for run in collection.runs if run.config], seeds_of(collection)[1]
    if unknown := len(collection.runs) - len(configs):
        yield f"The settings of {count_of(unknown, 'run')} are not known here: model, task and budget."
    if any(config.get("runtime") == "lab" for config in configs):
        yield "What happens at this size need not happen at that of a large model."
        warmups = {str(section(config, "warmup").get("seed")) for config in configs}
        if len(warmups) == 1 and len({config.get("seed") for config in configs}) > 1:
            yield (
                "All seeds start from one and the same initial model: the intervals hold the luck of prompts and "
                "sampling, not that of the initial weights."
            )
    if most == 1:
        yield "There is one seed a cell: no interval, and no difference can be told from noise."
    elif 1 < most < 6:
        yield f"{most} seeds a cell at most: small effects cannot be seen, and within noise is not the same as equal."
    yield (
        "The best score is the highest of many noisy evaluations, which lifts it, and lifts it more the noisier they "
        "are; the late accuracy is not picked."
    )
    if collection.paper:
        yield (
            f"The paper has one seed a cell, {ANSWERS_PER_EVALUATION} answers an evaluation: a standard error of about "
            "2 points. Its d_pi is of the last epoch, its collapse mark its authors' judgement; ours is the rule below."
        )
    if len(datasets := sorted({name for run in collection.runs for name in run.data.datasets})) > 1:
        yield f"Evaluated data sets: {', '.join(datasets)}. The score of a run is that of the first one it evaluated."
    differing = differing_settings(collection.runs)
    for key, values in differing.items():
        counts = ", ".join(f"{value} ({count_of(count, 'run')})" for value, count in values.items())
        yield f"Not the same in all runs, beside method, lag and seed: {key}: {counts}."
    if not differing and configs and not unknown:
        yield "Apart from method, lag and seed all runs have the same settings; a method's own are not compared."
    there = {(run.method, run.lag) for run in collection.runs if run.counts}
    absent = [f"{label_of(name)} at lag {lag}" for name, lag in MAIN_TABLE if (name, lag) not in there]
    if absent and collection.paper:
        yield f"Cells of the paper without a whole run here: {', '.join(absent)}."
    broken = [run for run in collection.runs if not run.counts]
    for run in broken:
        error = f" ({run.state['error']})" if run.state.get("error") else ""
        faults = f": {' '.join(run.faults)}" if run.faults else "."
        yield f"Not counted: {run.where}, {run.status} after {run.steps} steps{error}{faults}"
    if any(run.status == "failed" for run in broken):
        yield "If runs fail because of what is measured, such as a method that diverges, leaving them out flatters it."
    yield from collection.left_out


# --------------------------------------------------------------------------------------------------------------- tables

PAPER_COLUMNS = ("paper AIME24 %", "paper step", "paper d_pi", "paper collapsed")
"""Those of a PaperCell."""
SIGNS = {"within noise": " ≈", "lead": " ≈", "one seed": " ?", "": " ?", "beyond noise": ""}


def main_table(collection: Collection, lag: int | None) -> Table:
    """Tell best and late accuracy and d_pi of every method at one lag, where asked for beside the paper's Table 1."""
    asked = stats.QUANTITIES if seeds_of(collection)[1] > 1 else ()
    against = {quantity: stats.against_best(collection, lag, quantity)["verdict"].to_dict() for quantity in asked}
    # a normal interval knows no bounds, but no share is below 0 or above 1, no |d| below 0
    shares = all(scores(run)["y"].between(0, 1).all() for run in collection.runs)
    score, size = (0.0, 1.0) if shares else (-math.inf, math.inf), (0.0, math.inf)
    rows, spans = [], {}
    for method in collection.methods if collection.paper else collection.run_methods:
        paper, runs = collection.paper_cell(method, lag), collection.of(method, lag)
        spans[method] = steps = sorted(step for run in runs if math.isfinite(step := run.numbers["best_step"]))
        row: dict[str, Any] = {
            "method": method,
            "lag": lag,
            **dict(zip(PAPER_COLUMNS, paper or [None] * len(PAPER_COLUMNS), strict=True)),
            "seeds": len(runs),
            "collapsed": sum(run.collapse.met for run in runs),
            "not whole": len(collection.of(method, lag, whole=False)) - len(runs),
            "median best step": float(np.median(steps)) if steps else None,
        }
        for quantity in stats.QUANTITIES:
            level = stats.level_of(collection, method, lag, quantity)
            low, high = np.clip((level["low"], level["high"]), *(size if quantity == "d_pi" else score))
            row |= {f"{quantity} mean": level["mean"], f"{quantity} low": low, f"{quantity} high": high}
        rows.append(row)
    numbers = pd.DataFrame(rows)
    frame = numbers.astype(dict.fromkeys(numbers.columns.drop(["method", "seeds", "collapsed", "not whole"]), float))

    def cell(quantity: str, row: Row) -> str:
        words = with_interval(row, quantity)
        if quantity == "best" and (steps := spans[row["method"]]):
            words += f" ({steps[0]:.0f})" if steps[0] == steps[-1] else f" ({steps[0]:.0f}–{steps[-1]:.0f})"
            words += f" ‡ {row['collapsed']}/{row['seeds']}" if row["collapsed"] else ""
        judged = against.get(quantity, {}).get(row["method"])
        return Strong(words) if judged == "best" else words + ("" if judged is None else SIGNS[judged])

    def paper_score(row: Row) -> str:
        if math.isnan(row["paper AIME24 %"]):
            return DASH
        return f"{row['paper AIME24 %']:.2f} ({row['paper step']:.0f})" + " ‡" * int(row["paper collapsed"])

    forms: dict[str, Form] = {"method": lambda row: label_of(row["method"])}
    if collection.paper:
        forms |= {"AIME24, %": paper_score, "d_pi": lambda row: as_text(row, "paper d_pi", ".4f")}
    forms |= {"best, %": partial(cell, "best"), "late, %": partial(cell, "late"), "d_pi, nats": partial(cell, "d_pi")}
    forms["runs"] = lambda row: f"{row['seeds']}" + f" of {row['seeds'] + row['not whole']}" * bool(row["not whole"])
    name = lag_name(lag)
    return Table(
        f"main_{name.replace(' ', '_')}",
        f"Best score and mismatch, {name}",
        _how_to_read(collection, lag),
        frame=frame,
        forms=forms,
        above=[(PAPER_LABEL, 2), (ours_label(collection), 4)] if collection.paper else (),
    )


def with_interval(row: Row, quantity: str, sign: str = "") -> str:
    """Return a mean with its interval as text, scores in percent; a dash for none."""
    scale, form = (1, f"{sign}.4f") if quantity == "d_pi" else (100, f"{sign}.1f")
    mean, low, high = (scale * row[f"{quantity} {key}"] for key in ("mean", "low", "high"))
    if math.isnan(mean):
        return DASH
    return minus(format(mean, form) + ("" if math.isnan(low) else f" [{low:{form}}, {high:{form}}]"))


def _how_to_read(collection: Collection, lag: int | None) -> str:
    several = seeds_of(collection)[1] > 1
    initial = stats.mean_interval(run.numbers["initial"] for run in collection.runs if run.lag == lag)
    paper = f" (the paper: {BASE_MODEL_SCORE} %)" * collection.paper
    before = f"Before training: {percent(initial['mean'])}{paper}." if initial["n"] else ""
    if lag != collection.lags[0]:
        return f"Read as the table above. {before}".rstrip()
    text = (
        "Two experiments side by side, never one scale: AIME24 of a 30B model (‡: its authors' mark of a later "
        "collapse; d_pi of the last epoch), and the task of these runs. " * collection.paper
    )
    text += "Mean over seeds [95 % interval, Student's t]. " if several else "One seed. "
    text += (
        "Best: the highest evaluation of a run, in brackets its step; late: mean of the last quarter's evaluations; "
        "d_pi: mean of the last quarter; ‡: collapsed by the rule below, with the number of seeds; runs: whole ones. "
    )
    text += (
        "Bold: best mean of a column (two seeds or more); ≈: within noise of it, corrected over all pairs of methods, "
        "since the best is picked after the fact; ?: fewer than two seeds in common with it. "
    ) * several
    return text + before


def difference_table(frame: pd.DataFrame) -> Table:
    """Tell the paper's comparisons in our data, and which of them are noise."""

    def cell(quantity: str, row: Row) -> str:
        words = f"{with_interval(row, quantity, '+')}\n{row[f'{quantity} verdict']}".rstrip()
        return Strong(words) if row[f"{quantity} verdict"] == "beyond noise" else words

    paper = bool(frame["paper AIME24"].notna().any())
    forms: dict[str, Form] = {"difference": "", "lag": ""}
    if paper:
        forms |= {"AIME24": lambda row: as_text(row, "paper AIME24", "+.2f")}
        forms |= {"d_pi": lambda row: as_text(row, "paper d_pi", "+.4f")}
    forms |= {"best": partial(cell, "best"), "late": partial(cell, "late"), "d_pi, nats": partial(cell, "d_pi")}
    return Table(
        "differences",
        "Differences, and which of them are noise",
        "Scores in percentage points, d_pi in nats. In brackets the 95 % bootstrap interval of the mean over pairs. "
        "Bold, beyond noise: bootstrap and t-test agree, also after Holm's correction within the group. Lead: they "
        "agree only if nothing else had been looked at. Everything else is within noise.",
        frame=frame,
        forms={**forms, "pairs": "d"},
        group="group",
        above=[("", 1), (PAPER_LABEL, 2), ("ours, paired by seed", 4)] if paper else (),
    )


RUN_COLUMNS = (
    *("method", "lag", "seed", "state", "steps", "planned", "best", "best_step", "late", "final", "initial", "d_pi"),
    *("d_pi left band at", "collapse rule", "error"),
)


def run_table(collection: Collection) -> Table:
    """List every run, also those that do not count, and with the paper every cell without one."""
    rows: list[dict[str, Any]] = [
        {
            **{"method": run.method, "lag": run.lag, "seed": run.seed},
            "state": run.status + ("" if run.counts else ", not counted"),
            **{"steps": run.steps, "planned": run.planned_steps or None},
            **{key: run.numbers[key] for key in ("best", "best_step", "late", "final", "initial", "d_pi")},
            **{"d_pi left band at": run.collapse.departed, "collapse rule": _collapse_text(run)},
            "error": run.state.get("error") or "",
        }
        for run in collection.runs
    ]
    for cell in collection.not_run if collection.paper else ():
        told = {"state": "not run", "steps": 0, "collapse rule": "", "error": ""}
        rows.append({"method": cell.method, "lag": cell.lag, "seed": cell.seed, **told})
    order = {method: place for place, method in enumerate(collection.methods)}
    rows.sort(key=lambda row: (order[row["method"]], -1 if row["lag"] is None else row["lag"], row["seed"] or 0))
    frame = pd.DataFrame(rows, columns=list(RUN_COLUMNS))  # all, also where nothing has run yet
    texts = ["method", "state", "collapse rule", "error"]
    frame = frame.astype(dict.fromkeys(frame.columns.difference(texts), float))

    def best(row: Row) -> str:
        return DASH if math.isnan(row["best"]) else f"{100 * row['best']:.1f} ({row['best_step']:.0f})"

    def steps(row: Row) -> str:
        return f"{row['steps']:.0f}" + ("" if math.isnan(row["planned"]) else f" of {row['planned']:.0f}")

    return Table(
        "runs",
        "Every run",
        "Runs that are not whole do not count in means and differences: they would be compared at another point of "
        "training. The rule for collapse is the same for all.",
        frame=frame,
        forms={
            "method": lambda row: label_of(row["method"]),
            **{"lag": ".0f", "seed": ".0f", "state": "", "of steps": steps, "best, % (step)": best},
            **{"d_pi": ".4f", "d_pi left band at": ".0f", "collapse rule": "", "error": lambda row: row["error"]},
        },
    )


def _collapse_text(run: ComparedRun) -> str:
    watch = run.collapse
    if watch.met:
        return f"collapsed from {watch.since}"
    if watch.ever is not None:
        return f"held at {watch.ever}, recovered"
    if watch.fell:
        return f"score fell, d_pi {'in its band' if 'mismatch/d_pi' in run.data.metrics else 'unknown'}"
    return "no" if watch.known else "too few scores to tell"


# --------------------------------------------------------------------------------------------------------------- charts

BANDS = 6
"""Methods whose seeds are drawn as bands, at most: more would hide each other."""
CURVES = {
    "accuracy": (
        *("Held-out accuracy over training", "held-out accuracy", "updates of the weights that were measured"),
        *("%", 100.0, "By the updates of the weights that were measured."),
    ),
    "mismatch/d_pi": (
        *("d_pi over training", "d_pi", "optimizer step"),
        *("nats", 1.0, "Averaged over whole lag cycles."),
    ),
}
"""{metric: heading of its section; title and axes of its charts; factor of its values; note}."""


def curve_section(collection: Collection, key: str) -> Section:
    """Return a metric of all methods at each lag."""
    heading, *_, note = CURVES[key]
    bands = "; the band goes from the lowest to the highest" * (len(collection.methods) <= BANDS)
    seeds = f"Mean over the seeds, at what all of them have{bands}" if seeds_of(collection)[1] > 1 else "One seed"
    charts = [chart for lag in collection.lags for chart in method_curves(collection, key, lag)]
    return Section(key.replace("/", "_"), heading, f"{seeds}. {note}", charts)


def method_curves(collection: Collection, key: str, lag: int | None) -> list[Chart]:
    """Return the chart of a metric of all methods at a lag that have it, mean and range over the seeds, or none."""
    curves = [seed_curve(collection.of(name, lag), key).assign(line=label_of(name)) for name in collection.methods]
    frame = pd.concat(curves)
    if not np.isfinite(frame["y"].to_numpy(float)).any():
        return []
    if len(curves) > BANDS or seeds_of(collection)[1] < 2:
        frame = frame.drop(columns=["low", "high"])
    _, called, x, unit, scale, _ = CURVES[key]
    frame[frame.columns.intersection(["y", "low", "high"])] *= scale
    return [
        lines(
            f"{key.replace('/', '_')}_{lag_name(lag).replace(' ', '_')}",
            frame,
            f"{lag_name(lag)}: {called}",
            x,
            unit,
            of=looks(map(label_of, collection.methods)),  # alike in all charts of the page
            log=key == "mismatch/d_pi" and 0 < 8 * frame["y"].min() < frame["y"].max(),
            zero=key == "mismatch/d_pi",
            points=key == "accuracy" and "low" not in frame,
            height=240,
        )
    ]
