"""Measures what an offline replay costs: time and memory against the tokens of the dump.

    python bench/replay.py [--tokens 1000000 10000000] [--repeats 3] [--kind slime run] [--methods all]

Dumps of random tokens are written to a temporary folder and replayed with the usual methods, or with others, each
time in a new process; page and figures are not drawn. `slime` is format 2, with 1 M tokens a step in 1,024-token
responses and micro-batches of 32k tokens. `run` is the format of a lab run, with 3,500 tokens a step in 14-token
responses. CPU time is that of all threads together: on a busy machine the wall clock says little, and on idle cores it
is at least the CPU time over the number of threads. Memory is the peak of resident pages, including those of mapped
files; `above` is the part above what the imports alone take.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from sat_slime.report.replay import choose, replay

STEP_TOKENS = {"slime": 1_000_000, "run": 3_500}
RESPONSE_TOKENS = {"slime": 1_024, "run": 14}
MICROBATCH_TOKENS = 32_768


def columns(rng: np.random.Generator, tokens: int, mean: int) -> dict[str, list[np.ndarray]]:
    """Columns of responses of half to one and a half times the mean length: log-probs with heavy-tailed log-ratios, and
    one advantage for each response."""
    lengths = rng.integers(mean // 2, mean * 3 // 2 + 1, tokens // mean)
    mu = [-rng.exponential(0.4, n).astype(np.float32) for n in lengths]
    drift = [0.02 * rng.standard_t(3, n) + 0.02 * rng.standard_normal() for n in lengths]
    return {
        "rollout_log_probs": mu,
        "log_probs": [np.minimum(m + d, 0).astype(np.float32) for m, d in zip(mu, drift, strict=True)],
        "advantages": [np.full(n, rng.standard_normal(), dtype=np.float32) for n in lengths],
    }


def write_dump(path: Path, number: int, data: dict[str, list[np.ndarray]], per: int, lags: bool) -> None:
    """Writes a dump as slime's --save-debug-train-data does, with the token ids and masks that it holds too.

    Args:
        per: responses of a micro-batch.
        lags: with the column that a lab run has beside slime's.
    """
    lengths = [len(values) for values in data["log_probs"]]
    samples = [
        {"response_lengths": n, "rollout_position": i, "loss_masks": torch.ones(n, dtype=torch.int32)}
        | {"tokens": torch.zeros(n, dtype=torch.int64), "total_lengths": n, "rewards": 1.0}
        | {key: torch.from_numpy(values[i]) for key, values in data.items()}
        | ({"lags": torch.full((n,), number)} if lags else {})
        for i, n in enumerate(lengths)
    ]
    indices = [list(range(i, min(i + per, len(lengths)))) for i in range(0, len(lengths), per)]
    shard = {"partition": list(range(len(lengths))), "micro_batch_indices": indices, "num_microbatches": [len(indices)]}
    payload = {"format_version": 2, "rollout_id": number, "rank": 0, "samples": samples, "dp_shards": [shard]}
    path.parent.mkdir(exist_ok=True)
    torch.save(payload, path)


def write(folder: Path, kind: str, tokens: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(max(1, tokens // STEP_TOKENS[kind])):
        data = columns(rng, min(tokens, STEP_TOKENS[kind]), RESPONSE_TOKENS[kind])
        path = folder / f"{number}.pt" if kind == "slime" else folder / "dumps" / f"{number + 1}.pt"
        write_dump(path, number, data, max(1, MICROBATCH_TOKENS // RESPONSE_TOKENS[kind]), kind == "run")


def measure(folder: Path, methods: str) -> dict[str, float]:
    """Runs one replay and returns counts, seconds and MiB; a new process calls it, whose peak is the replay's."""
    before, cpu, wall = _peak(), time.process_time(), time.perf_counter()
    result = replay([folder], choose(methods))
    return {
        "tokens": sum(row.tokens for row in result.rows),
        "formulas": len(result.candidates),
        "steps": len(result.rows),
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "peak": _peak(),
        "above": _peak() - before,
    }


def _peak() -> float:
    """The peak of this process's resident memory in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--kind", nargs="+", choices=list(STEP_TOKENS), default=list(STEP_TOKENS))
    parser.add_argument("--methods", default="usual", help="as of sat-slime replay")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.methods)))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    print(f"{'kind':6}{'tokens':>12}{'steps':>7}{'formulas':>9}{'CPU s':>8}{'wall s':>8}{'best':>7}{'tokens/CPU s':>14}"
          f"{'peak MiB':>10}{'above':>7}")  # fmt: skip
    for kind in arguments.kind:
        for tokens in arguments.tokens:
            with tempfile.TemporaryDirectory() as name:
                write(Path(name), kind, tokens)
                runs = []
                for _ in range(arguments.repeats):
                    command = [sys.executable, __file__, "--measure", name, "--methods", arguments.methods]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    runs.append(json.loads(done.stdout))
            middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            best = min(run["wall"] for run in runs)
            print(f"{kind:6}{middle['tokens']:>12,.0f}{middle['steps']:>7.0f}{middle['formulas']:>9.0f}"
                  f"{middle['cpu']:>8.1f}{middle['wall']:>8.1f}{best:>7.1f}{middle['tokens'] / middle['cpu']:>14,.0f}"
                  f"{middle['peak']:>10.0f}{middle['above']:>7.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
