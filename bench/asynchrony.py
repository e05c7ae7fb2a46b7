"""Times iterations of the synchronous loop, of one batch ahead (lag 1) and of full asynchrony, all in one run.

    python bench/asynchrony.py [--rounds 5] [--iterations 5] [--set KEY=VALUE ...]

The three modes take turns on the same trainer and engines: each round runs a few iterations of each, after one that is
not timed, and every iteration has a broadcast. Seconds are per iteration. The ratio to the synchronous loop is formed
within each round, where the machine was the same, and its median over rounds is printed with its range.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline_parts import running

from sat_slime.config.loader import load_config
from sat_slime.lab.failures import wait_any
from sat_slime.lab.grading import Grader
from sat_slime.lab.loop.batch_order import BatchPipeline
from sat_slime.lab.loop.interruption import Interruption
from sat_slime.lab.loop.pipeline import Pipeline
from sat_slime.lab.loop.stream_order import StreamingPipeline

CONFIG = Path(__file__).parents[1] / "configs/lab/streaming.yaml"
MODES = {
    "synchronous": (BatchPipeline, {"mode": "batch", "lag": 0}),
    "one batch ahead": (BatchPipeline, {"mode": "batch", "lag": 1}),
    "streaming": (StreamingPipeline, {"mode": "streaming", "lag": 1}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the config")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=5, help="timed iterations of each mode in a round")
    options = parser.parse_args()
    # With lr 0 the weights stay those of the warm-up, so that all modes generate responses of one length.
    config = load_config(options.config, ["train.lr=1e-12", "diagnose.split_every_n_steps=0", *options.set])

    seconds: dict[str, list[float]] = {name: [] for name in MODES}
    metrics: dict[str, list[dict[str, Any]]] = {name: [] for name in MODES}
    log = SimpleNamespace(status=lambda **_: None, message=lambda *_: None)
    grader = Grader(config.verifier, config.task)
    with running(config) as (trainer, engines), tempfile.TemporaryDirectory() as folder:
        updates = 0
        for round_ in range(options.rounds + 1):  # the first is not timed
            for name, (kind, order) in MODES.items():
                trained = updates // config.pipeline.optimizer_steps_per_rollout
                iterations = trained + options.iterations + 3
                pipeline_config = config.pipeline.model_copy(update={**order, "iterations": iterations})
                mode = config.model_copy(update={"pipeline": pipeline_config})
                pipeline = kind(mode, Path(folder), log, Interruption())
                pipeline.trainer, pipeline.engines, pipeline.grader = trainer, engines, grader
                pipeline.iteration, pipeline.updates, pipeline.versions = trained, updates, [updates]
                if isinstance(pipeline, StreamingPipeline):
                    pipeline.stream.seek(trained)
                iteration(pipeline)
                started = time.perf_counter()
                rows = [iteration(pipeline) for _ in range(options.iterations)]
                spent = (time.perf_counter() - started) / options.iterations
                updates = pipeline.updates
                finish(pipeline)
                if round_:
                    seconds[name].append(spent)
                    metrics[name] += rows

    print(f"{options.rounds} rounds of {options.iterations} iterations each")
    for name, values in seconds.items():
        ratios = [one / base for one, base in zip(values, seconds["synchronous"], strict=True)]
        lag = statistics.mean(row["lag/mean"] for row in metrics[name])
        print(
            f"{name:16} {statistics.median(values):6.2f} s an iteration   "
            f"{statistics.median(ratios):5.2f} of synchronous ({min(ratios):.2f} to {max(ratios):.2f})   lag {lag:.2f}"
        )


def iteration(pipeline: Pipeline) -> dict[str, Any]:
    """Runs one iteration as the loop does, without records; returns its metrics."""
    pipeline.seconds = dict.fromkeys(("wait", "train", "sync"), 0.0)
    batch = pipeline._next_batch()
    results = pipeline._train(batch, dump=False)
    pipeline.iteration += 1
    pipeline.updates += len(results)
    pipeline._settle()
    pipeline._broadcast()
    return results[-1].metrics


def finish(pipeline: Pipeline) -> None:
    """Waits for the responses in generation, so that the next mode has the engines for itself."""
    pipeline._settle()
    if isinstance(pipeline, StreamingPipeline):
        pipeline.stream.held = True
        while pipeline.futures:
            pipeline._take(wait_any(list(pipeline.futures)))


if __name__ == "__main__":
    main()
