"""Runs by method, lag and seed, read from run folders, grids or files of metrics, and their curves as data frames."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sat_slime.config import ConfigError, load_grid
from sat_slime.config.loader import marked_settings
from sat_slime.config.method_section import method_in
from sat_slime.config.section import COMPUTES_NOTHING, OWN_TO_A_CELL, among, flat
from sat_slime.report.methods import MAIN_TABLE, PAPER_ORDER, WITH, PaperCell, label_of, method_called
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.grid import Cell, GridFolder, plan_cells
from sat_slime.runs.health import Collapse, judge
from sat_slime.runs.reading import Run, has, load_run, realized_lag, row_faults, section
from sat_slime.runs.trackers import READABLE, is_tracker, read_tracked, what_it_is

NAMED_SETTINGS = 3
"""Settings that the name of a method tells, at most."""
DENOMINATOR = "method.denominator"
SHARED = (DENOMINATOR, *(f"method.clip.{field}" for field in ("eps_low", "eps_high", "dual")))
"""Settings of a method and its base alike: behind the names of both, which are then compared."""
_NAME = re.compile(r"^(?P<method>.+?)-lag(?P<lag>\d+)(?:-seed(?P<seed>\d+))?$")
_UNTOLD = {*marked_settings(OWN_TO_A_CELL), *marked_settings(COMPUTES_NOTHING)}
"""Settings in which runs may differ without being told: those of a cell, and those that compute nothing."""


@dataclass
class ComparedRun(Run):
    """One run, as far as it goes."""

    method: str
    """Our name of the method, such as sat-gspo-r3; of a run that names none, the run's own name. Runs that differ in
    their settings alone have these behind it: `sat-gspo-r3 with lr 0.0002`."""
    lag: int | None
    seed: int | None
    faults: tuple[str, ...] = ()
    """What is wrong with its rows, a sentence each: such a run does not count."""

    @property
    def status(self) -> str:
        """What became of it, as its state says."""
        return str(self.state.get("status", "unknown"))

    @property
    def counts(self) -> bool:
        """The run is whole: its numbers may stand beside those of others."""
        whole = self.steps >= self.planned_steps if self.planned_steps else self.status == "unknown"
        return self.steps > 0 and not self.faults and (whole or self.status == "finished")

    @cached_property
    def collapse(self) -> Collapse:
        """The collapse rule over all that is logged."""
        return judge(self.data.metrics, self.data.evals, self.data.period)

    @cached_property
    def numbers(self) -> dict[str, float]:
        """What is compared; NaN where the run lacks it.

        best: the highest accuracy after training started, as a share, with best_step, the updates of the weights that
        earned it first. late: the mean accuracy over the evaluations of the last quarter: not picked, so not biased
        upwards. final: that of the newest weights. initial: before the first step. d_pi: mean over the last quarter of
        the steps, in whole lag cycles, nats.
        """
        frame = scores(self)
        trained = frame[frame["x"] > 0]
        last = trained["x"].max()
        best = trained.nlargest(1, "y")  # the first of several
        d_pi = self.data.metrics.get("mismatch/d_pi", np.zeros(0))
        window = self.data.period * max(1, round(len(d_pi) / 4 / self.data.period))
        return {
            "best": float(best["y"].max()),
            "best_step": float(best["x"].max()),
            "late": float(trained[trained["x"] >= 0.75 * last]["y"].mean()),
            "final": float(trained[trained["x"] == last]["y"].mean()),
            "initial": next(iter(frame[frame["x"] <= 0]["y"]), math.nan),
            "d_pi": finite_mean(d_pi[-window:]),
        }

    @property
    def where(self) -> str:
        """Method, lag and seed as words."""
        lag = "" if self.lag is None else f" lag {self.lag}"
        return f"{label_of(self.method)}{lag}{'' if self.seed is None else f' seed {self.seed}'}"


@dataclass
class Collection:
    """The runs that a report is about."""

    runs: list[ComparedRun]
    left_out: list[str] = field(default_factory=list)
    """Sentences about what was given and is not in the report."""
    planned: list[Cell] = field(default_factory=list)
    """Cells that the given grids plan."""
    paper: bool = False
    """The paper's numbers stand beside those of the runs."""

    def paper_cell(self, method: str, lag: int | None) -> PaperCell | None:
        """Return the paper's numbers of a cell; None where it has none or they are not asked for."""
        return MAIN_TABLE.get((method, lag or 0)) if self.paper else None

    @property
    def methods(self) -> list[str]:
        """Methods in the paper's order, others after them."""
        names = dict.fromkeys([run.method for run in self.runs] + [cell.method for cell in self.planned])
        return sorted(names, key=lambda name: (PAPER_ORDER.index(name) if name in PAPER_ORDER else 99, name))

    @property
    def run_methods(self) -> list[str]:
        """Methods that have a run, in the same order."""
        return [method for method in self.methods if any(run.method == method for run in self.runs)]

    @property
    def lags(self) -> list[int | None]:
        """Lags of which there are runs, in order. None comes last, where there is a run of unknown lag."""
        return sorted({run.lag for run in self.runs}, key=lambda lag: (lag is None, lag or 0))

    def of(self, method: str, lag: int | None, whole: bool = True) -> list[ComparedRun]:
        """Return the runs of a method at a lag. whole: only those that count."""
        same = (run for run in self.runs if (run.method, run.lag) == (method, lag))
        return [run for run in same if run.counts or not whole]

    @property
    def not_run(self) -> list[Cell]:
        """Planned cells without a run."""
        there = {(run.method.partition(WITH)[0], run.lag, run.seed) for run in self.runs}
        return [cell for cell in self.planned if (cell.method, cell.lag, cell.seed) not in there]


def collect(paths: Sequence[str | Path], paper: bool = False) -> Collection:
    """Read all runs below `paths`: grids, run folders, folders or files of metrics. Others raise RunFolderError."""
    collection = Collection([], paper=paper)
    found = [run for path in dict.fromkeys(map(Path, paths)) for run in _runs_in(collection, GridFolder(path))]
    _name_apart(found)
    for run in found:
        cells = [(other.method, other.lag, other.seed) for other in collection.runs]
        if run.seed is not None and (run.method, run.lag, run.seed) in cells:
            told = f"{run.folder.path}: a second run of {run.where}; the first one given is used"
            collection.left_out.append(told)
        else:
            collection.runs.append(run)
    return collection


def _name_apart(runs: Sequence[ComparedRun]) -> None:
    """Put the method's settings in which runs of one method and lag differ behind the name of all its runs, those of
    SHARED behind all names, then any in which those of one seed differ; where none is known, and no method, the path.
    """
    known = {id(run) for run in runs if method_called(run.method)}
    for by_seed in (False, True):
        cells: dict[tuple[Any, ...], list[ComparedRun]] = {}
        keys_of: dict[str, dict[str, None]] = {}
        for run in runs:
            cells.setdefault((run.method, run.lag, run.seed if by_seed else None), []).append(run)
        for (method, *_), same in cells.items():
            keys = [key for key in differing_settings(same) if by_seed or key.startswith("method.")]
            keys_of.setdefault(method, {}).update(dict.fromkeys(key for key in keys if key != "name"))
        of_all = [key for key in SHARED if any(key in keys for keys in keys_of.values())]
        for (method, *_), same in cells.items():
            for run in same:
                values = told_settings(run.config)
                keys = [key for key in dict.fromkeys([*of_all, *keys_of[method]]) if key in values]
                own = ", ".join(f"{key.rpartition('.')[2]} {values[key]}" for key in keys[:NAMED_SETTINGS])
                by_path = by_seed and len(same) > 1 and id(run) not in known
                if own or by_path:
                    run.method += WITH + (own or str(run.folder.path))


def _runs_in(collection: Collection, grid: GridFolder) -> list[ComparedRun]:
    """Return the run in a folder, or those of a grid, and note what the grid itself knows of its cells: which are
    planned, and why one failed before it made a run. A damaged grid.yaml is named in `left_out`, and the runs are
    read."""
    if not grid.is_grid():
        return [load_compared_run(grid.path)]
    planned = list[Cell]()
    try:
        planned = plan_cells(load_grid(grid.config))
    except ConfigError as error:
        collection.left_out += str(error).splitlines()
    collection.planned += planned
    refused = {cell.name: grid.error(cell) for cell in planned if not grid.run_folder(cell).path.exists()}
    collection.left_out += [f"{name}: {error}" for name, error in refused.items() if error]
    begun = sorted({path.parent for name in ("config.yaml", "metrics.jsonl") for path in grid.runs.glob(f"*/{name}")})
    return [load_compared_run(path) for path in begun]


def load_compared_run(path: Path) -> ComparedRun:
    """Read a run folder, a folder with metrics.jsonl, or what a tracker left. Raises RunFolderError when it is none."""
    folder, name = RunFolder(path), path.absolute().name
    if ours := folder.is_readable():
        run = load_run(path)
    elif is_tracker(path):
        run = Run(folder, {}, {}, read_tracked([path]))
        if not path.is_dir():
            name = path.absolute().parent.name if path.stem in ("metrics", "log") else path.stem
    else:
        raise RunFolderError(
            f"{path} is no run, grid or file of metrics: {what_it_is(path)}. A run has config.yaml or metrics.jsonl, a "
            f"grid grid.yaml; of other runs {READABLE} can be read"
        )
    config, metrics = run.config, run.data.metrics
    match, method = _NAME.match(name), section(config, "method")
    lag = section(config, "pipeline").get("lag", int(match["lag"]) if match else None)
    if lag is None and has(metrics, "lag/max"):
        lag, _ = realized_lag(metrics)
    seed = str(config.get("seed", match and match["seed"]))
    return ComparedRun(
        folder,
        config,
        run.state,
        replace(run.data, period=max(run.data.period, lag or 1)),
        method=method_in(method).name if method else match["method"] if match else name,
        lag=lag,
        seed=int(seed) if seed.isdecimal() else None,
        faults=tuple(row_faults(folder)) if ours else (),
    )


def differing_settings(runs: Sequence[ComparedRun]) -> dict[str, dict[str, int]]:
    """Return the settings in which the runs differ beyond method, lag and seed: {dotted key: {value: runs}}."""
    flat = [told_settings(run.config) for run in runs if run.config]
    counts: dict[str, Counter[str]] = {}
    for key in sorted({key for values in flat for key in values}):
        of_all = not key.startswith("method.") or key == DENOMINATOR  # others are of what is on in a run alone
        counts[key] = Counter(str(values.get(key, "unset")) for values in flat if of_all or key in values)
    return {key: dict(of_values) for key, of_values in counts.items() if len(of_values) > 1}


def told_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by dotted keys, but for those of a cell and those that compute nothing. The
    denominator is a cell's where it is that of the method's name."""
    method, told = section(config, "method"), {k: v for k, v in flat(config).items() if not among(k, _UNTOLD)}
    given = method.get("denominator")
    return told | ({DENOMINATOR: given} if given and given != method_in(method).denominator else {})


def finite_mean(values: np.ndarray | Sequence[float]) -> float:
    """Return the mean of the finite values; NaN where there are none."""
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    return float(known.mean()) if len(known) else math.nan


def smooth(values: np.ndarray, period: int) -> np.ndarray:
    """Return the (steps,) centred moving average of a metric over about a twentieth of its values, in whole lag cycles,
    which are `period` values each; over fewer at the ends, and none while there are few. NaNs are left out."""
    window = period * max(1, round(len(values) / 20 / period)) if len(values) >= 4 * period else 1
    return pd.Series(values).rolling(window, center=True, min_periods=1).mean().to_numpy()


def scores(run: ComparedRun) -> pd.DataFrame:
    """Return the evaluations with an accuracy, y, in the order of x, the updates of the measured weights."""
    evals = pd.DataFrame(dict(run.data.evals), columns=["step", "weights_step", "accuracy"], dtype=float)
    frame = pd.DataFrame({"x": evals["weights_step"].fillna(evals["step"]), "y": evals["accuracy"]})
    return frame[np.isfinite(frame).all(axis=1)].sort_values("x", kind="stable", ignore_index=True)


def curve(run: ComparedRun, key: str) -> pd.DataFrame:
    """Return x and y of a run: `accuracy` by the updates of the weights that were measured, a metric by step, averaged
    over whole lag cycles. Empty where the run lacks it."""
    if key == "accuracy":
        return scores(run)
    frame = pd.DataFrame(dict(run.data.metrics), columns=["step", key], dtype=float).set_axis(["x", "y"], axis=1)
    return frame.assign(y=smooth(frame["y"].to_numpy(), run.data.period)).dropna()


def seed_curve(runs: Sequence[ComparedRun], key: str) -> pd.DataFrame:
    """Return x, and y, low and high, the mean and the range over the seeds, at the x that all runs have which have the
    metric: where one ends, the mean of the others would jump."""
    curves = [frame.drop_duplicates("x", keep="last") for frame in (curve(run, key) for run in runs) if len(frame)]
    if not curves:
        return pd.DataFrame({"x": [], "y": [], "low": [], "high": []}, dtype=float)
    by_step = pd.concat(curves).groupby("x")["y"].agg(y="mean", low="min", high="max", seeds="count")
    return by_step[by_step["seeds"] == len(curves)].reset_index().drop(columns="seeds")
