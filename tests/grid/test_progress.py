"""How far cells are, and how long the rest takes."""

import math

from sat_slime.config.grid_schema import CostConfig
from sat_slime.grid.plan import Cell
from sat_slime.grid.progress import CellSize, ProgressReader, expect, outlook
from sat_slime.grid.state import CellState, GridFolder


def finished(method, lag, minutes):
    return CellState(Cell(method, lag, 0), "finished", 1, minutes=minutes)


def test_expectations_are_measured_where_they_can_be():
    size, cost = CellSize(100, 100), CostConfig(start_s=60, seconds_per_iteration=1.2)
    cell = Cell("gspo", 8, 0)
    same = expect(
        cell, [finished("a", 8, 3), finished("b", 8, 5), finished("c", 8, 4), finished("a", 1, 9)], size, [], cost
    )
    assert same.minutes == 4 and "same lag" in same.source
    assert expect(cell, [finished("a", 1, 9)], size, [0.6], cost).minutes == 9
    running = expect(cell, [CellState(cell)], size, [0.6, math.nan], cost)
    assert running.minutes == 2 and "running" in running.source
    assert expect(cell, [], size, [], cost).minutes == 3
    assert math.isnan(expect(cell, [], size, [], CostConfig()).minutes)


def test_time_left_counts_what_is_done_and_what_runs_side_by_side(tmp_path):
    folder = GridFolder(tmp_path)
    states = [CellState(Cell("gspo", lag, 0)) for lag in (0, 1, 2, 3)]
    states[0].state = "running"
    run = folder.run_folder(states[0])
    run.path.mkdir(parents=True)
    run.metrics.write_text('{"step": 75, "iteration": 75}\n')
    sizes = {state.cell: CellSize(100, 100) for state in states}
    cost = CostConfig(start_s=0, seconds_per_iteration=6)  # ten minutes a cell
    wanted = [state.cell for state in states]
    ahead = outlook(states, wanted, sizes, ProgressReader(folder), cost, 1)
    assert (ahead.minutes_left, ahead.left[states[0].cell]) == (32.5, 2.5)
    assert outlook(states, wanted, sizes, ProgressReader(folder), cost, 2).minutes_left == 16.25
    assert outlook(states, wanted, sizes, ProgressReader(folder), cost, 9).minutes_left == 10
    states[1].state, states[2].state = "finished", "failed"
    assert set(outlook(states, wanted[1:], sizes, ProgressReader(folder), cost, 1).left) == {states[3].cell}


def test_progress_is_read_past_a_torn_line(tmp_path):
    folder, state = GridFolder(tmp_path), CellState(Cell("gspo", 1, 0))
    reader, run = ProgressReader(folder), folder.run_folder(state)
    assert reader.of(state).step == 0
    run.path.mkdir(parents=True)
    run.metrics.write_text('{"step": 1, "reward/mean": 0.5}\n{"step": 2, "reward/mean": 0.6}\n{"step": 3, "rew')
    assert (reader.of(state).step, reader.of(state).reward) == (2, 0.6)
    run.metrics.write_text('{"step": 1, "reward/mean": 0.5}\n')
    assert reader.of(state).step == 1
