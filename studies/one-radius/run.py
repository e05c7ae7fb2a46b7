#!/usr/bin/env python3
"""Runs what is missing of the study of plan.md, and appends each finished run to runs.csv.

    python studies/one-radius/run.py CHECKOUT [--dry-run]      # again after any end

CHECKOUT is made where it is missing: a worktree of the frozen commit, patched, with a .venv of its own. A Python that
was built with profiles (PYTHON=/usr/bin/python3 on Debian) made 1.3 times the steps of one that was not.
runs.csv has a row for each evaluation of a run; its columns after `answers` are means over the steps since the
evaluation before.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
TABLE = HERE / "runs.csv"
FROZEN = "5c22a333"
MEANS = {
    "reward": "reward/mean",
    "entropy": "loss/entropy",
    "grad_norm": "grad_norm",
    "d_pi": "mismatch/d_pi",
    "d_q90": "mismatch/q90",
    "d_q99": "mismatch/q99",
    "k3_kl": "mismatch/k3_kl",
    "length": "response/length_mean",
    "clipped": "clip/fraction",
    "q": "sat/q",
    "radius_high": "sat/radius_high",
    "radius_low": "sat/radius_low",
}
COLUMNS = ("part", "arm", "lag", "seed", "step", "accuracy", "answers", *MEANS)


@dataclass(frozen=True)
class Grid:
    """A grid: the arm of each of its methods, with the lags at which it runs."""

    part: str
    name: str
    arms: dict[str, tuple[str, tuple[int, ...]]]
    radius: float = 0.2
    overrides: dict[str, Any] = field(default_factory=dict)
    other_sampling: bool = False


A, B = (1, 8, 32, 64), (1, 4, 8, 16)
TRAINER = {"method.denominator": "trainer"}
SAT_RADII = {"grpo": (0.045, 0.066, 0.087, 0.122), "gspo": (0.042, 0.075, 0.101, 0.136)}
AT_SATS = {
    f"{method}@{lag}": {"method.clip.eps_low": radius, "method.clip.eps_high": radius}
    for method, radii in SAT_RADII.items()
    for lag, radius in zip(B, radii, strict=True)
}


def part_b(stage: str, core: tuple[int, ...], others: tuple[int, ...], sequence: tuple[int, ...]) -> tuple[Grid, ...]:
    """Return the grids of a stage of part B: the lags at which its core arms, the others and GSPO's run."""
    trainer = {
        "grpo": ("GRPO over the trainer", core),
        "grpo-r3": ("GRPO over the trainer, R3", core),
        "icepop": ("GRPO over the trainer, IcePop", core),
        "grpo-tis": ("GRPO over the trainer, TIS", others),
        "m2po": ("M2PO", others),
        "gspo": ("GSPO over the trainer", tuple(lag for lag in sequence if lag >= 8)),
    }
    mu = {
        "grpo": ("GRPO 0.2", core),
        "sat-grpo": ("SAT-GRPO 0.2", core),
        "gspo": ("GSPO 0.2", sequence),
        "sat-gspo": ("SAT-GSPO 0.2", sequence),
    }
    at_sats = {"grpo": ("GRPO at SAT's radius", core), "gspo": ("GSPO at SAT's radius", sequence)}
    over = dict.fromkeys(("grpo", "gspo", "grpo-r3", "icepop"), TRAINER)
    return (
        Grid("B", f"{stage}-trainer", trainer, overrides=over),
        Grid("B", f"{stage}-mu", mu),
        Grid("B", f"{stage}-sat-radius", at_sats, overrides=AT_SATS),
        Grid("B", f"{stage}-wide", {"sat-grpo": ("SAT-GRPO 1.6", core)}, radius=1.6),
    )


STAGES = (
    part_b("b1", core=(1, 8), others=(), sequence=()),
    part_b("b2", core=(4, 16), others=B, sequence=B),
    (
        Grid("A", "a-0.2", {"grpo": ("GRPO 0.2", A)}),
        Grid("A", "a-0.4", {"grpo": ("GRPO 0.4", A)}, radius=0.4),
        Grid("A", "a-0.8", {"grpo": ("GRPO 0.8", A)}, radius=0.8),
        Grid("A", "a-1.6", {"sat-grpo": ("SAT-GRPO 1.6", A), "grpo": ("GRPO 1.6", (64,))}, radius=1.6),
        Grid("A", "a-capped", {"arms.capped": ("min(0.8, 0.2 lag^0.6)", (8, 32, 64))}),
        Grid("A", "a-trainer", {"grpo": ("GRPO over the trainer", A)}, overrides={"grpo": TRAINER}),
        Grid("A", "a-null", {"grpo": ("GRPO 0.8, other sampling", A)}, radius=0.8, other_sampling=True),
    ),
)
"""In each, two seeds have begun in all its grids before the next two do."""
AT_ONCE = 2
"""Grids that run at the same time, a cell of each: the last cell of a grid would have the machine for itself."""
in_turn = defaultdict[str, Lock](Lock)
"""By its name, what one thread at a time may do."""
stopped = Event()
"""A grid was ended by hand, or refused: no other begins."""
SEEDS = {"B": range(120, 130), "A": range(100, 120)}
STEPS = {32: 256, 64: 512}
"""Optimizer steps at a lag; 128 at all others."""


def grid_file(grid: Grid, checkout: Path, folder: Path, seeds: list[int]) -> Path:
    """Write the file of a grid and return its path."""
    clip = {} if "arms.capped" in grid.arms else {"method": {"clip": {"eps_low": grid.radius, "eps_high": grid.radius}}}
    longer = {
        f"@{lag}": {"pipeline.iterations": steps, "eval.every_n_iterations": steps // 8} for lag, steps in STEPS.items()
    }
    overrides = {**(longer if grid.part == "A" else {}), **grid.overrides}
    cells = {(method, lag) for method, (_, lags) in grid.arms.items() for lag in lags}
    named = {name for method, lag in cells for name in (method, f"@{lag}", f"{method}@{lag}")}
    given = {
        "extends": str(checkout / "sat_slime/configs/grid/lab.yaml"),
        "name": grid.name,
        "output_dir": str(folder),
        "run": str(checkout / "sat_slime/configs/lab/base.yaml"),
        "methods": [method for method, (_, lags) in grid.arms.items() if lags],
        "lags": sorted({lag for _, lags in grid.arms.values() for lag in lags}),
        "seeds": seeds,
        "parallel": 1,
        "settings": {
            **clip,
            "eval": {"final_repeats": 4},
            "diagnose": {"split_every_n_steps": 0},
            "logging": {"samples_every_n_iterations": 0},
            "rollout": {"startup_timeout_s": 1800, "request_timeout_s": 1800},  # the machine may do other work
        },
        "overrides": {cell: settings for cell, settings in overrides.items() if cell in named},
    }
    path = folder / f"{grid.name}.yaml"
    path.write_text(yaml.safe_dump(given, sort_keys=False))
    return path


def rows(grid: Grid, method: str, lag: int, seed: int, run: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a finished run, one for each evaluation."""
    arm = grid.arms[method][0]
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    before = 0
    for line in (run / "eval.jsonl").read_text().splitlines():
        evaluation = json.loads(line)
        since = [row for row in steps if before < row["step"] <= evaluation["step"]]
        means: dict[str, Any] = {}
        for column, metric in MEANS.items():
            values = [row[metric] for row in since if metric in row]
            means[column] = f"{sum(values) / len(values):.4g}" if values else ""
        yield {
            "part": grid.part,
            "arm": arm,
            "lag": lag,
            "seed": seed,
            "step": evaluation["step"],
            "accuracy": f"{evaluation['accuracy']:.6g}",
            "answers": evaluation["n_samples"],
            **means,
        }
        before = evaluation["step"]


def prepare(checkout: Path) -> None:
    """Make the frozen checkout where there is none."""
    if not checkout.exists():
        subprocess.run(["git", "worktree", "add", "--detach", checkout, FROZEN], cwd=HERE, check=True)
        subprocess.run(["git", "apply", HERE / "sampling.patch"], cwd=checkout, check=True)
    subprocess.run(["./scripts/setup.sh"], cwd=checkout, check=True)  # does nothing where that is done


def main() -> None:
    checkout, dry = Path(sys.argv[1]).resolve(), "--dry-run" in sys.argv
    if not dry:
        prepare(checkout)
    folder = checkout / "grids/one-radius"
    for stage in STAGES:
        seeds = SEEDS[stage[0].part]
        turns = [(grid, seeds[i : i + 2]) for i in range(0, len(seeds), 2) for grid in stage]
        with ThreadPoolExecutor(1 if dry else AT_ONCE) as pool:
            list(pool.map(lambda turn: run_block(*turn, checkout, folder, dry), turns))


def run_block(grid: Grid, seeds: Sequence[int], checkout: Path, folder: Path, dry: bool) -> None:
    """Run the cells of a grid and of these seeds that the table lacks, and append them to it; or name them."""
    done = finished()
    cells = [
        (method, lag, seed)
        for method, (arm, lags) in grid.arms.items()
        for lag in lags
        for seed in seeds
        if (grid.part, arm, str(lag), str(seed)) not in done
    ]
    if dry:
        print(grid.part, grid.name, *(f"{method}@{lag}-seed{seed}" for method, lag, seed in cells))
    if dry or not cells:
        return
    if len({frozenset(cell[:2] for cell in cells if cell[2] == seed) for seed in seeds}) > 1:
        for seed in seeds:  # together a grid would take what one of them lacks for all
            run_block(grid, [seed], checkout, folder, dry)
        return
    environment = os.environ | {"PYTHONPATH": f"{checkout}:{HERE}", "CUDA_VISIBLE_DEVICES": ""}
    if grid.other_sampling:
        environment["SAT_OTHER_SAMPLING"] = "1"
    folder.mkdir(parents=True, exist_ok=True)
    path = grid_file(grid, checkout, folder, list(SEEDS[grid.part]))
    only = [word for method, lag in sorted({cell[:2] for cell in cells}) for word in ("--only", f"{method}@{lag}")]
    command = [str(checkout / ".venv/bin/sat-slime"), "grid", str(path), "--retry-failed", *only]
    command += ["--seeds", ",".join(str(seed) for seed in sorted({cell[2] for cell in cells}))]
    with in_turn[grid.name]:
        if stopped.is_set():  # while it waited
            return
        code = subprocess.run(command, env=environment, cwd=checkout).returncode
        if code not in (0, 1):
            stopped.set()
    if code not in (0, 1) and not (folder / grid.name / "state.json").exists():  # bad input
        sys.exit(code)
    state = json.loads((folder / grid.name / "state.json").read_text())["cells"]
    ended = {(row["method"], row["lag"], row["seed"]): row for row in state if row["state"] == "finished"}
    new = (rows(grid, *cell, folder / grid.name / "runs" / ended[cell]["cell"]) for cell in cells if cell in ended)
    with in_turn["table"]:
        append(TABLE, itertools.chain.from_iterable(new))
    if code not in (0, 1):  # an end by hand
        sys.exit(code)


def append(table: Path, new: Iterable[dict[str, Any]]) -> None:
    """Add rows to a table, all or none: a run that it has in part would never be run again."""
    new = list(new)
    old, beside = table.read_text() if table.exists() else "", table.with_suffix(".new")
    with beside.open("w", newline="") as file:
        file.write(old)
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not old:
            writer.writeheader()
        writer.writerows(new)
    beside.replace(table)


def finished() -> set[tuple[str, ...]]:
    """Return part, arm, lag and seed of the runs that the table has."""
    if not TABLE.exists():
        return set()
    with TABLE.open(newline="") as file:
        return {(row["part"], row["arm"], row["lag"], row["seed"]) for row in csv.DictReader(file)}


if __name__ == "__main__":
    main()
