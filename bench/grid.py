"""Measures how many cells an hour a grid of lab runs makes, and where a cell's time goes.

    python bench/grid.py [--cells 12] [--set KEY=VALUE ...] [--parallel 2] [--against CHECKOUT [--against-parallel 1]]

The cells are those of configs/grid/lab.yaml: GRPO, GSPO and SAT-GSPO at lag 1 and 8, seed by seed. With
`--against` the same cells are run by another checkout too, such as that of an earlier commit, in turns of one grid
each, so that a machine whose speed changes is fair to both. The initial models are warmed up before anything is timed.

Cells an hour: from the start of `sat-slime grid` to its end. Neither generation nor training: the share of a cell's
time, from its start to its end, in which it neither waits for a batch or an evaluation nor trains. CPU seconds are
those of all processes of the grid, by what they do; they are sampled, so a process's last moment is not in them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from sat_slime.runs.folder import worked_seconds

HERE = Path(__file__).resolve().parents[1]
METHODS, LAGS = ["grpo", "gspo", "sat-gspo"], [1, 8]
PER_TURN = len(METHODS) * len(LAGS)
"""Cells of a turn: those of one seed. The more, the less it matters that a grid imports before its first cell."""
SAMPLE_EVERY_S = 0.25
KINDS = {
    "SGLang's scheduler": ("sglang::scheduler",),
    "SGLang's other processes": ("sglang::", "sglang_process"),
    "trainer": ("lab.process", "trainer.process", "ray::_Rank"),
    "engine's actor": ("ray::RolloutEngine",),
    "Ray's own": ("gcs_server", "raylet", "dashboard", "monitor.py", "ray::DashboardAgent", "ray::RuntimeEnvAgent"),
    "workers that start": ("default_worker", "ray_worker", "ray::IDLE"),
}
"""Processes by words of their command lines, also those of checkouts in which trainer and engines were actors of a Ray;
the rest are the grid, the launchers and the drivers."""


@dataclass(frozen=True)
class Side:
    """A checkout, and how it runs the cells."""

    name: str
    checkout: Path
    parallel: int


@dataclass(frozen=True)
class Turn:
    """What one grid took."""

    seconds: float
    core_seconds: Counter[str]
    cells: list[dict[str, float]]
    """Of each cell: seconds, and those of them in which it generated or trained."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=12, help="cells of each side")
    parser.add_argument("--parallel", type=int, help="default: what the grid's file says")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--against-parallel", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the runs")
    options = parser.parse_args()
    grid = yaml.safe_load((HERE / "configs/grid/lab.yaml").read_text())
    sides = [Side("this checkout", HERE, options.parallel or grid.get("parallel", 1))]
    if options.against:
        sides.insert(0, Side("the other", options.against.resolve(), options.against_parallel))
    plan = _turns(options.cells)
    with tempfile.TemporaryDirectory() as folder:
        for seed in sorted({seed for seed, *_ in plan}):  # warms up the model of each seed
            for side in sides:
                _run(side, Path(folder), grid, [(seed, "gspo", 1)], [*options.set, "pipeline.iterations=1"])
        turns: dict[str, list[Turn]] = {side.name: [] for side in sides}
        for number in range(0, len(plan), PER_TURN):
            for side in sides if number % (2 * PER_TURN) else reversed(sides):
                turns[side.name].append(_run(side, Path(folder), grid, plan[number : number + PER_TURN], options.set))
                _print(side, turns[side.name][-1:], "turn")
        for side in sides:
            _print(side, turns[side.name], "all")
            _print_core_seconds(turns[side.name])
        if options.against:
            ratios = [a.seconds / b.seconds for a, b in zip(*turns.values(), strict=True)]
            over = f"{sides[1].name} over {sides[0].name}"
            told = f"median of the turns {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
            print(f"cells an hour, {over}: {told}")


def _turns(cells: int) -> list[tuple[int, str, int]]:
    """(seed, method, lag) of each cell."""
    return [(n // PER_TURN, METHODS[n % PER_TURN // len(LAGS)], LAGS[n % len(LAGS)]) for n in range(cells)]


def _run(side: Side, folder: Path, grid: dict, cells: list[tuple[int, str, int]], overrides: list[str]) -> Turn:
    """Runs some cells as a grid of their own, and deletes nothing: the folder is temporary."""
    name = f"turn{len(list(folder.glob('*.yaml')))}"
    file = folder / f"{name}.yaml"
    config = {
        **grid,
        "run": str(side.checkout / "configs/lab/base.yaml"),
        "output_dir": str(folder / "grids"),
        "parallel": side.parallel,
        "seeds": sorted({seed for seed, *_ in cells}),
    }
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-c", "from sat_slime.cli import main; main()", "grid", str(file), "--name", name]
    command += [word for _, method, lag in cells for word in ("--only", f"{method}@{lag}")]
    command += [*(word for override in overrides for word in ("--set", override))]
    environment = {**os.environ, "PYTHONPATH": str(side.checkout)}
    started = time.perf_counter()
    output = folder / f"{name}.txt"
    with output.open("wb") as stream:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=stream, stderr=subprocess.STDOUT)
        core_seconds = _sampled(process)
    seconds = time.perf_counter() - started
    if process.returncode:
        sys.exit(f"{side.name}: the grid failed\n{output.read_text()}")
    return Turn(seconds, core_seconds, list(_cells(folder / "grids" / name)))


def _sampled(process: subprocess.Popen) -> Counter[str]:
    """Waits for a process; CPU seconds of it and all its descendants, by kind."""
    used: dict[int, tuple[str, float]] = {}
    parent = psutil.Process(process.pid)
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in (parent, *parent.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):  # one that has ended, and may still stand there
                    spent = one.cpu_times()
                    used[one.pid] = _kind(one), spent.user + spent.system
        time.sleep(SAMPLE_EVERY_S)
    total: Counter[str] = Counter()
    for kind, spent in used.values():
        total[kind] += spent
    return total


def _kind(process: psutil.Process) -> str:
    line = " ".join([process.name(), *process.cmdline()])
    return next((kind for kind, words in KINDS.items() if any(word in line for word in words)), "grid and drivers")


def _cells(grid: Path) -> Iterator[dict[str, float]]:
    for run in sorted((grid / "runs").iterdir()):
        state = json.loads((run / "state.json").read_text())
        if state["status"] != "finished":
            continue
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        evaluations = [json.loads(line) for line in (run / "eval.jsonl").read_text().splitlines()]
        working = sum(row["time/wait"] + row["time/train"] for row in steps) + sum(
            row["time/eval"] for row in evaluations
        )
        yield {"seconds": worked_seconds(state), "working": working}


def _print(side: Side, turns: list[Turn], what: str) -> None:
    cells = [cell for turn in turns for cell in turn.cells]
    seconds = sum(turn.seconds for turn in turns)
    other = 1 - sum(cell["working"] for cell in cells) / sum(cell["seconds"] for cell in cells)
    busy = sum(sum(turn.core_seconds.values()) for turn in turns)
    print(
        f"{what:4} {side.name:14} parallel {side.parallel}: {len(cells)} cells in {seconds:6.1f} s, "
        f"{3600 * len(cells) / seconds:5.1f} an hour; {busy / len(cells):6.1f} core-seconds a cell; "
        f"neither generation nor training {other:4.0%}",
        flush=True,
    )


def _print_core_seconds(turns: list[Turn]) -> None:
    cells = sum(len(turn.cells) for turn in turns)
    total: Counter[str] = sum((turn.core_seconds for turn in turns), Counter())
    for kind, seconds in total.most_common():
        print(f"     {kind:22} {seconds / cells:6.1f} core-seconds a cell")


if __name__ == "__main__":
    main()
