"""The status of a grid: a table of its cells, from any terminal."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sat_slime.cli.grid_run.grid_plan import grid_outlook, plan_grid, sizes
from sat_slime.cli.terminal import say
from sat_slime.config import ConfigError
from sat_slime.grid.progress import ProgressReader
from sat_slime.grid.state import GridFolder
from sat_slime.grid.view import GridStatus

PLAIN_WIDTH = 120
"""Columns of the table where there is no terminal."""
FOLLOW_S = 2.0
"""Seconds between looks at a grid that another process runs."""


def show_grid(folder: GridFolder, follow: bool, console: Console) -> None:
    """Print the table of a grid, whoever runs it; with `follow` until nobody does, or Ctrl-C."""
    try:
        plan = plan_grid(folder.config, None, (), (), ())
    except ConfigError:  # its base has changed, or is one that a command which reads does not import
        for state in folder.observed():
            say(console, f"{state.cell.name}  {state.state}{f': {state.error}' if state.error else ''}")
        return
    reader = ProgressReader(folder)

    def shown() -> RenderableType:
        states = folder.observed()
        current = GridStatus(
            f"grid {folder.path.name}",
            states,
            list(plan.configs),
            sizes(plan.configs),
            reader,
            grid_outlook(plan, states, reader, plan.parallel),
        )
        running = "running" if folder.is_running() else f"not running: sat-slime grid {folder.path} goes on with it"
        if all(state.state == "finished" for state in states):
            running = "done"
        rows = max(3, console.height - 5) if follow else None
        return Group(Text(f"{current.name}, {running}"), Text(current.headline()), Text(""), current.table(rows))

    if not follow:
        (console if console.is_terminal else Console(width=PLAIN_WIDTH)).print(shown())
        return
    with Live(shown(), console=console, auto_refresh=False) as live:
        while folder.is_running():
            time.sleep(FOLLOW_S)
            live.update(shown(), refresh=True)
