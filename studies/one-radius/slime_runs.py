#!/usr/bin/env python3
"""Runs what is missing of the thirty runs of plan.md on the real slime, and appends finished ones to slime_runs.csv.

    python studies/one-radius/slime_runs.py SLIME MEGATRON FOLDER      # again after any end

SLIME and MEGATRON are the checkouts that configs/slime/laptop.yaml asks for; the runs are in FOLDER. Begun runs go on.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

from run import HERE, Grid, append, rows

ROOT = HERE.parents[1]
TABLE = HERE / "slime_runs.csv"
LAG, STEPS, SEEDS = 8, 64, range(1, 11)
ARMS = Grid(
    "slime",
    "slime",
    {
        "trainer": ("GRPO over the trainer", (LAG,)),
        "grpo": ("GRPO 0.2", (LAG,)),
        "sat-grpo": ("SAT-GRPO 0.2", (LAG,)),
    },
)
SETTINGS = {
    "trainer": ["--method", "grpo", "--set", "method.denominator=trainer"],
    "grpo": ["--method", "grpo"],
    "sat-grpo": ["--method", "sat-grpo"],
}


def main() -> None:
    slime, megatron, folder = (Path(word).resolve() for word in sys.argv[1:4])
    done = set()
    if TABLE.exists():
        with TABLE.open(newline="") as file:
            done = {(row["arm"], row["seed"]) for row in csv.DictReader(file)}
    for seed in SEEDS:
        for method, (arm, _) in ARMS.arms.items():
            if (arm, str(seed)) not in done:
                append(TABLE, rows(ARMS, method, LAG, seed, run(method, seed, folder, slime, megatron)))


def run(method: str, seed: int, folder: Path, slime: Path, megatron: Path) -> Path:
    """Run one to its end and return its folder. Raises CalledProcessError."""
    settings = {
        "output_dir": folder,
        "seed": seed,
        "pipeline.iterations": STEPS,
        "cluster.slime_dir": slime,
        "cluster.megatron_dir": megatron,
    }
    name = f"{method}-seed{seed}"
    command = [sys.executable, "-m", "sat_slime", "launch", "configs/slime/laptop.yaml", "--name", name]
    command += ["--lag", str(LAG), *SETTINGS[method]]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    if (folder / name / "checkpoints").exists():
        command = [sys.executable, "-m", "sat_slime", "launch", str(folder / name), "--resume"]
    elif (folder / name).exists():
        command.append("--overwrite")
    subprocess.run(command, cwd=ROOT, check=True)
    return folder / name


if __name__ == "__main__":
    main()
