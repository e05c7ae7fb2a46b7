"""Measures what asynchrony gains on this machine: iteration time against its parts, in one run.

    python bench/pipeline.py [--rounds 12] [--set KEY=VALUE ...]

Each round times, one after the other: a batch generated alone, a batch trained alone, a synchronous iteration (first
generate, then train) and two asynchronous ones (generate the next batch while training this one). Figures are medians
over rounds. Overlap saves rollout + train - asynchronous. Two figures compare that saving with a bound: with
min(rollout, train), which a machine with cores to spare could save; and with what these cores can save, on which an
iteration takes at least the core-seconds of both parts divided by the cores. Core-seconds are those of all processes of
the run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import psutil
from pipeline_parts import collect, generate, running

from sat_slime.config.loader import load_config
from sat_slime.lab.batch import training_requests

CONFIG = Path(__file__).parents[1] / "configs/lab/quickstart.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the config")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    # With lr 0 the weights stay those of the warm-up, so that every batch of the measurement has the same length.
    config = load_config(options.config, ["train.lr=1e-12", "diagnose.split_every_n_steps=0", *options.set])

    times: dict[str, list[float]] = {"rollout": [], "train": [], "synchronous": [], "asynchronous": [], "engine": []}
    core_seconds = dict.fromkeys(times, 0.0)
    tokens = []
    with running(config) as (trainer, engine):

        def timed(name: str, action) -> None:
            used, started = used_core_seconds(), time.perf_counter()
            action()
            times[name].append(time.perf_counter() - started)
            core_seconds[name] += used_core_seconds() - used

        for warm in range(3):
            batch = generate(config, engine, warm)
            trainer.call("train", batch.graded())

        def asynchronous() -> None:
            nonlocal batch
            problems, requests = training_requests(config, 0)
            flight = engine.generate(requests)
            trainer.call("train", batch.graded())
            batch = collect(config, flight, 0, problems)

        for _ in range(options.rounds):
            timed("rollout", lambda: generate(config, engine, 0))
            timed("train", lambda: trainer.call("train", batch.graded()))
            timed("synchronous", lambda: trainer.call("train", generate(config, engine, 0).graded()))
            for _ in range(2):
                timed("asynchronous", asynchronous)
            times["engine"].append(batch.seconds)
            tokens.append(sum(len(r.output_ids) for r in batch.responses))

    median = {name: statistics.median(values) for name, values in times.items()}
    cores = {name: core_seconds[name] / len(values) for name, values in times.items()}
    n_cores = os.cpu_count() or 1
    longer, shorter = max(median["rollout"], median["train"]), min(median["rollout"], median["train"])
    floor = max(longer, (cores["rollout"] + cores["train"]) / n_cores)
    saved = median["rollout"] + median["train"] - median["asynchronous"]
    possible = median["rollout"] + median["train"] - floor
    print(f"{n_cores} cores, {options.rounds} rounds, {statistics.median(tokens):.0f} response tokens a batch")
    for name in ("rollout", "train", "synchronous", "asynchronous"):
        spread = sorted(times[name])
        print(
            f"{name:13} {median[name]:6.3f} s   (quartiles {spread[len(spread) // 4]:.3f} to "
            f"{spread[3 * len(spread) // 4]:.3f})   {cores[name]:6.3f} core-seconds"
        )
    print(f"asynchronous against the longer part        {median['asynchronous'] / longer:5.2f}")
    print(f"asynchronous against synchronous            {median['asynchronous'] / median['synchronous']:5.2f}")
    print(f"cores busy in an asynchronous iteration     {cores['asynchronous'] / median['asynchronous']:5.2f}")
    print(f"share of the overlap, cores to spare        {saved / shorter:5.0%}")
    print(f"share of the overlap that {n_cores} cores allow     {saved / possible:5.0%}")
    print(f"tokens per second, asynchronous             {statistics.median(tokens) / median['asynchronous']:5.0f}")


def used_core_seconds() -> float:
    """CPU seconds of this process and all of its descendants: the trainer and the servers."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            spent = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += spent.user + spent.system
    return total


if __name__ == "__main__":
    main()
