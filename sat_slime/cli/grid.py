"""The lag grid: a file to a plan, the plan to cells that run one after another or side by side."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sat_slime.cli import launch as launching
from sat_slime.cli import slime
from sat_slime.config import (
    ConfigError,
    EmbeddedConfig,
    GridConfig,
    SlimeConfig,
    config_errors,
    config_warnings,
    dump_config,
    load_config,
    load_grid,
)
from sat_slime.config.disk import disk_is_full
from sat_slime.config.loader import RunConfig, vary
from sat_slime.grid.plan import Cell, cell_config, plan_cells, select_cells
from sat_slime.grid.progress import CellSize, Outlook, ProgressReader, outlook
from sat_slime.grid.runner import GridRun
from sat_slime.grid.state import CellState, GridFolder
from sat_slime.grid.view import GridSight, LiveGridView, PlainGridView, matrix
from sat_slime.runs.folder import RunFolder, RunFolderError, writable
from sat_slime.runs.live_view import duration
from sat_slime.runs.rows import write_atomically

COMMAND = (sys.executable, "-m", "sat_slime.cli.tied")
"""What runs a cell, with the grid's process and the arguments of `sat-slime` behind it."""
PLAIN_WIDTH = 120
"""Columns of the table where there is no terminal."""
FOLLOW_S = 2.0
"""Seconds between looks at a grid that another process runs."""


@dataclass(frozen=True)
class GridPlan:
    """A grid that can start or go on."""

    grid: GridConfig
    """As its folder keeps it: of the run in run.yaml, with the settings laid on."""
    folder: GridFolder
    run: RunConfig
    configs: Mapping[Cell, RunConfig]
    """The run of each cell."""
    wanted: Sequence[Cell]
    """Cells that are to be run now."""
    warnings: tuple[str, ...]

    @property
    def gpus(self) -> int:
        """Of one cell; 0 for the embedded runtime."""
        return self.run.train.world_size + self.run.rollout.gpus if isinstance(self.run, SlimeConfig) else 0


# ----------------------------------------------------------------------------------------------------- planning


def plan_grid(
    file: Path, name: str | None, only: Sequence[str], seeds: Sequence[int], overrides: Sequence[str]
) -> GridPlan:
    """The grid that the command line asks for, checked cell by cell. Raises ConfigError or RunFolderError."""
    folder = grid_at(file)
    if folder is not None and name is None:
        file = folder.config
    elif folder is not None:
        file, folder = folder.config, None
    grid = load_grid(file, {"name": name} if name else {})
    if folder is None:
        folder = GridFolder(Path(grid.output_dir).expanduser() / grid.name)
    folder.check_usable()
    run = vary(load_config(file.parent / grid.run), [(f"{file}: settings", grid.settings)], overrides)
    wanted = select_cells(grid, only, seeds)
    configs = {cell: cell_config(grid, file, run, cell, folder.runs) for cell in plan_cells(grid)}
    errors, warnings = _faults(grid, file, configs, folder)
    if errors:
        raise ConfigError(errors)
    kept = grid.model_copy(update={"run": folder.run.name, "settings": {}})
    return GridPlan(kept, folder, run, configs, wanted, tuple(warnings))


def grid_at(path: Path) -> GridFolder | None:
    """The grid folder that `path`, or the grid.yaml in it, means; None where it is another file.

    Raises RunFolderError for a folder that is no grid's.
    """
    if path.is_dir():
        folder = GridFolder(path)
        if RunFolder(path).is_run():
            raise RunFolderError(f"{path} is a run, not a grid: sat-slime launch {path} --resume goes on with it")
        if not folder.is_grid():
            raise RunFolderError(f"{path} is not a grid folder: it has no grid.yaml")
        return folder
    folder = GridFolder(path.parent)
    return folder if path == folder.config and folder.state_file.exists() else None


def _faults(
    grid: GridConfig, file: Path, configs: Mapping[Cell, RunConfig], folder: GridFolder
) -> tuple[list[str], list[str]]:
    """(errors, warnings) of all cells, each once, with the cells that it is of."""
    errors: dict[str, list[str]] = {}
    warnings: dict[str, list[str]] = {}
    for cell, config in configs.items():
        found, doubts = _run_faults(config, file)
        for error in found:
            errors.setdefault(error, []).append(cell.name)
        for doubt in doubts:
            warnings.setdefault(doubt, []).append(cell.name)
        run = RunFolder(folder.runs / cell.name)
        if not run.has_data():
            continue
        if changed := _changed(load_config(run.config), config):
            errors.setdefault(changed, []).append(cell.name)
    lines = [f"{file}: {error} ({_of(cells, len(configs))})" for error, cells in errors.items()]
    return lines, [f"{text} ({_of(cells, len(configs))})" for text, cells in warnings.items()]


def _of(cells: Sequence[str], total: int) -> str:
    if len(cells) == total:
        return "all cells"
    return ", ".join(cells[:3]) + (f" and {len(cells) - 3} more" if len(cells) > 3 else "")


def _run_faults(config: RunConfig, file: Path) -> tuple[list[str], Sequence[str]]:
    if isinstance(config, EmbeddedConfig):
        return config_errors(config), config_warnings(config)
    from sat_slime.config import slime_config_warnings
    from sat_slime.plugin.launch.checks import settings_errors

    return settings_errors(config, None), slime_config_warnings(config)


def _changed(saved: RunConfig, config: RunConfig) -> str | None:
    """Which settings of a cell that has begun are others now."""
    if type(saved) is not type(config):
        return f"it has begun as a run of runtime {saved.runtime}, not of {config.runtime}: choose another --name"
    free = launching.FREE_ON_RESUME if isinstance(config, EmbeddedConfig) else slime.FREE_ON_RESUME
    kept_free = [key for key in free if key != "pipeline.iterations"]  # cells of a grid are equally long
    changed = launching.changes(saved, config, kept_free)
    if not changed:
        return None
    return (
        f"a grid keeps its settings, but these differ from those of cells that have begun: {changed}; leave "
        "them as they were, or start another grid with --name X"
    )


def sizes(configs: Mapping[Cell, RunConfig]) -> dict[Cell, CellSize]:
    """What each cell is to do."""
    return {
        cell: CellSize(pipeline.iterations, pipeline.iterations * pipeline.optimizer_steps_per_rollout)
        for cell, pipeline in ((cell, config.pipeline) for cell, config in configs.items())
    }


def _outlook(
    plan: GridPlan, states: Sequence[CellState], reader: ProgressReader, parallel: int
) -> Callable[[], Outlook]:
    of_cells = sizes(plan.configs)
    return lambda: outlook(states, plan.wanted, of_cells, reader, plan.grid.cost, parallel)


def describe(plan: GridPlan, retry_failed: bool) -> RenderableType:
    """The plan and its cost."""
    grid, pipeline = plan.grid, plan.run.pipeline
    states = plan.folder.observed(plan_cells(grid))
    reader = ProgressReader(plan.folder)
    ahead = _outlook(plan, states, reader, grid.parallel)()
    chosen = set(plan.wanted)
    counts = Counter(state.state for state in states if state.cell in chosen)
    steps = pipeline.iterations * pipeline.optimizer_steps_per_rollout
    chosen_note = "" if len(plan.wanted) == len(states) else f"; {len(plan.wanted)} of them chosen"
    lines = [
        f"grid        {plan.folder.path.name}: {len(grid.methods)} methods x {len(grid.lags)} lags x {len(grid.seeds)} "
        f"seeds = {len(states)} cells{chosen_note}",
        f"a cell      {plan.run.runtime} runtime, {pipeline.iterations} iterations, {steps} optimizer steps",
        f"order       seed by seed ({', '.join(map(str, grid.seeds))}), {grid.parallel} at a time; a failed cell is "
        f"started again, {grid.retries} time(s)",
        f"folder      {plan.folder.path}: " + ", ".join(f"{count} {state}" for state, count in counts.items()),
        *_cost_lines(plan, ahead),
    ]
    if counts["failed"] and not retry_failed:
        lines.append(f"failed      {counts['failed']} cell(s) are left as they are; --retry-failed starts them again")
    return Group(*(Text(line) for line in lines), Text(""), matrix(grid, states, plan.wanted))


def _cost_lines(plan: GridPlan, ahead: Outlook) -> list[str]:
    if not ahead.left:
        return ["cost        nothing: no cell is left to run"]
    if ahead.cell_minutes != ahead.cell_minutes:
        return [f"cost        {ahead.source}"]
    time_each, time_left = duration(60 * ahead.cell_minutes), duration(60 * ahead.minutes_left)
    lines = [f"cost        {time_left} left: {len(ahead.left)} cells of {time_each}"]
    if plan.gpus:
        hours, each = ahead.machine_minutes_left / 60 * plan.gpus, ahead.cell_minutes / 60 * plan.gpus
        lines.append(f"            {hours:,.0f} GPU-hours, {each:,.1f} a cell on {plan.gpus} GPUs")
    return [*lines, f"            ({ahead.source})"]


# ------------------------------------------------------------------------------------------------------ running


class Cells:
    """What runs a cell: `sat-slime launch`, or, of a job that goes on already, `sat-slime logs`."""

    def __init__(self, plan: GridPlan, options: Sequence[str] = ()):
        """options: further ones of `sat-slime launch`, of runs of slime."""
        self.plan = plan
        self.options = options

    def command(self, state: CellState) -> list[str]:
        config, run = self.plan.configs[state.cell], self.plan.folder.run_folder(state)
        if isinstance(config, SlimeConfig) and run.state().get("status") == "running":
            arguments = ["logs", str(run.path), "--follow"]
        elif run.has_data() or (isinstance(config, SlimeConfig) and slime.saved_iterations(config, run.path)):
            arguments = ["launch", str(run.path), "--resume", "--no-live", *self.options]
        else:
            file = self.plan.folder.cells / f"{state.cell.name}.yaml"
            write_atomically(file, dump_config(config))
            arguments = ["launch", str(file), "--no-live", *self.options]
        return [*COMMAND, str(os.getpid()), *arguments]

    def settle(self, state: CellState) -> None:
        if isinstance(self.plan.run, SlimeConfig):
            from sat_slime.cli.sent import status_lines
            from sat_slime.plugin.launch.ray_jobs import JobError

            # What cannot be asked now is told by the command that runs next.
            with contextlib.suppress(RunFolderError, ConfigError, JobError):
                status_lines(self.plan.folder.run_folder(state).path)


@dataclass(frozen=True)
class GridEnding:
    """How a call ended."""

    status: str
    """finished, interrupted or failed."""
    text: str


def run_grid(
    plan: GridPlan, retry_failed: bool, options: Sequence[str], live: bool | None, console: Console
) -> GridEnding:
    """Run the chosen cells to their end, or until Ctrl-C. Raises ConfigError or RunFolderError when it cannot start.

    options: further ones of `sat-slime launch`, of runs of slime.
    """
    if isinstance(plan.run, EmbeddedConfig) and options:
        raise ConfigError([f"{options[0]} is for runs of slime, and these are embedded runs: leave it out"])
    if isinstance(plan.run, EmbeddedConfig) and (missing := launching.missing_engines()):
        raise ConfigError([f"the embedded runtime needs {', '.join(missing)}: {launching.INSTALL_ENGINES}"])
    folder = plan.folder
    with contextlib.ExitStack() as undo:
        with writable(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            undo.callback(folder.unlock)
            folder.cells.mkdir(exist_ok=True)
            states = folder.observed(plan_cells(plan.grid))
            # grid.yaml last: a folder that has it is a whole grid's.
            write_atomically(folder.run, dump_config(plan.run))
            folder.save(states)
            write_atomically(folder.config, dump_config(plan.grid))
        try:
            _run(plan, states, retry_failed, Cells(plan, options), live, console)
        except OSError as error:
            if not disk_is_full(error):
                raise
            remedy = f"free space and go on with: sat-slime grid {folder.path}"
            return GridEnding("failed", f"{error.filename or folder.path}: {error.strerror}; {remedy}")
    return _ending(plan, states)


def _run(
    plan: GridPlan,
    states: Sequence[CellState],
    retry_failed: bool,
    cells: Cells,
    live: bool | None,
    console: Console,
) -> None:
    chosen = set(plan.wanted)
    queue = []
    for state in states:
        if state.cell not in chosen or state.state == "finished" or (state.state == "failed" and not retry_failed):
            continue
        if state.state == "failed":
            state.attempts, state.state = 0, "interrupted"
        queue.append(state)
    reader = ProgressReader(plan.folder)
    sight = GridSight(
        f"grid {plan.folder.path.name}",
        states,
        plan.wanted,
        sizes(plan.configs),
        reader,
        _outlook(plan, states, reader, plan.grid.parallel),
    )
    if live is None:
        live = console.is_terminal and not console.is_dumb_terminal and "CI" not in os.environ
    with LiveGridView(sight, console) if live else PlainGridView(sight, console) as view:
        view.message(f"{sight.name}, in {plan.folder.path}: {sight.headline()}")
        GridRun(plan.folder, states, queue, cells, view, plan.grid.parallel, plan.grid.retries).run()


def _ending(plan: GridPlan, states: Sequence[CellState]) -> GridEnding:
    chosen, path = set(plan.wanted), plan.folder.path
    of_them = [state for state in states if state.cell in chosen]
    failed = [state for state in of_them if state.state == "failed"]
    unfinished = [state for state in of_them if state.state not in ("finished", "failed")]
    done = len(of_them) - len(failed) - len(unfinished)
    lines = [f"{done} of {len(of_them)} cells finished, in {path}"]
    lines += [f"failed: {state.cell.name}: {state.error}" for state in failed]
    if failed:
        lines.append(f"when that is mended, start them again with: sat-slime grid {path} --retry-failed")
    if unfinished:
        lines.append(f"go on with: sat-slime grid {path}")
    lines.append(f"look at it with: sat-slime status {path}; report: sat-slime report {path}")
    return GridEnding("interrupted" if unfinished else "failed" if failed else "finished", "\n".join(lines))


# ------------------------------------------------------------------------------------------------------- status


def show_status(folder: GridFolder, follow: bool, console: Console) -> None:
    """The table of a grid, whoever runs it; with `follow` until nobody does, or Ctrl-C."""
    plan = plan_grid(folder.config, None, (), (), ())
    reader = ProgressReader(folder)

    def sight() -> RenderableType:
        states = folder.observed()
        of_now = GridSight(
            f"grid {folder.path.name}",
            states,
            list(plan.configs),
            sizes(plan.configs),
            reader,
            _outlook(plan, states, reader, plan.grid.parallel),
        )
        running = "running" if folder.is_running() else f"not running: sat-slime grid {folder.path} goes on with it"
        if all(state.state == "finished" for state in states):
            running = "done"
        rows = max(3, console.height - 5) if follow else None
        return Group(Text(f"{of_now.name}, {running}"), Text(of_now.headline()), Text(""), of_now.table(rows))

    if not follow:
        (console if console.is_terminal else Console(width=PLAIN_WIDTH)).print(sight())
        return
    with Live(sight(), console=console, auto_refresh=False) as live:
        while folder.is_running():
            time.sleep(FOLLOW_S)
            live.update(sight(), refresh=True)
