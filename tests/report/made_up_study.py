"""A made-up study whose numbers are known: constant accuracy and d_pi in every run."""

import json

from sat_slime.config import GridConfig, LabConfig, dump_config
from sat_slime.config.loader import vary
from sat_slime.config.method_section import method_switches
from sat_slime.grid.state import GridFolder

STEPS = 64
SEEDS = (0, 1, 2)
LAGS = (0, 1, 2, 8, 32)


def accuracy(method, lag, seed, radius=0.2) -> float:
    """GSPO loses a point for each lag, from a radius of 0.05 on half of it; SAT loses a third of a point.
    R3 adds a point."""
    lost = 0.003 if method.startswith("sat-") else 0.005 if radius <= 0.05 else 0.01
    gained = 0.01 if method.endswith("-r3") else 0.0
    return 0.6 + gained + 0.02 * seed - lost * lag + 0.001 * ((7 * seed + lag) % 3)


def d_pi(method, lag, seed, radius=0.2) -> float:
    return (0.3 if method.startswith("sat-") else 1.0) * radius * (1 + lag) / 10 + 0.001 * seed


def clipped(method, radius=0.2) -> float:
    return (0.004 if method.startswith("sat-") else 0.002) / radius


def write_grid(folder, name, methods, lags, settings=None, parallel=2, seeds=SEEDS, planned=SEEDS):
    """A grid as `sat-slime grid` leaves it; the seeds of `planned` that are not in `seeds` have not run."""
    values = {"name": name, "methods": list(methods), "lags": list(lags), "seeds": list(planned), "parallel": parallel}
    run = vary(LabConfig(), [("test", {"pipeline.iterations": STEPS, **(settings or {})})])
    grid = GridFolder(folder / name)
    grid.path.mkdir(parents=True)
    grid.begin(GridConfig.model_validate(values), run)
    radius = run.method.clip.eps_low
    for method in methods:
        for lag in lags:
            for seed in seeds:
                path = grid.runs / f"{method}-lag{lag}-seed{seed}"
                path.mkdir(parents=True)
                cell = {"name": path.name, "seed": seed, "pipeline.lag": lag, **_switches(method)}
                (path / "config.yaml").write_text(dump_config(vary(run, [("test", cell)])))
                (path / "state.json").write_text(json.dumps({"status": "finished"}))
                rows = [
                    {
                        "step": step,
                        "mismatch/d_pi": d_pi(method, lag, seed, radius),
                        "clip/fraction": clipped(method, radius) * (2 * step / (STEPS + 1)),
                        "time/step": 0.3 + 0.1 * (lag == 0),
                    }
                    for step in range(1, STEPS + 1)
                ]
                (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
                evals = [
                    {
                        "step": step,
                        "iteration": step,
                        "weights_step": step,
                        "accuracy": accuracy(method, lag, seed, radius) if step else 0.2,
                        "n_samples": 512,
                    }
                    for step in range(0, STEPS + 1, 16)
                ]
                (path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    return grid.path


def _switches(method):
    return {f"method.{key}": value for key, value in method_switches(method).items()}
