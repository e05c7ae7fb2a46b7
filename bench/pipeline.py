"""What asynchrony gains on this machine: iteration time against its parts, in one run.

    python bench/pipeline.py [--rounds 12] [--set KEY=VALUE ...]

Each round times, one after the other: a batch generated alone, a batch trained alone, a synchronous iteration (first
generate, then train) and two asynchronous ones (generate the next batch while training this one). Medians over rounds.
The share of the possible overlap is (rollout + train - asynchronous) / min(rollout, train), all measured here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

from pipeline_parts import generate, running

from sat_slime.config.loader import load_config
from sat_slime.embedded.batch import training_requests

CONFIG = Path(__file__).parents[1] / "configs/embedded/quickstart.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the config")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    # lr 0: the weights stay those of the warm-up, so that every batch of the measurement has the same length.
    config = load_config(options.config, ["train.lr=1e-12", "diagnose.split_every_n_steps=0", *options.set])

    times: dict[str, list[float]] = {"rollout": [], "train": [], "synchronous": [], "asynchronous": [], "engine": []}
    tokens = []
    with running(config) as (trainer, engines):

        def timed(name: str, action) -> None:
            started = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - started)

        for warm in range(3):
            batch = generate(config, engines, warm)
            trainer.train(batch)

        def asynchronous() -> None:
            nonlocal batch
            problems, requests = training_requests(config, 0)
            flight = engines.generate(requests, config.rollout.samples_per_prompt)
            trainer.train(batch)
            batch = engines.collect(flight, 0, problems)

        for _ in range(options.rounds):
            timed("rollout", lambda: generate(config, engines, 0))
            timed("train", lambda: trainer.train(batch))
            timed("synchronous", lambda: trainer.train(generate(config, engines, 0)))
            for _ in range(2):
                timed("asynchronous", asynchronous)
            times["engine"].append(batch.seconds)
            tokens.append(sum(len(r.output_ids) for r in batch.responses))

    median = {name: statistics.median(values) for name, values in times.items()}
    longer, shorter = max(median["rollout"], median["train"]), min(median["rollout"], median["train"])
    overlap = (median["rollout"] + median["train"] - median["asynchronous"]) / shorter
    print(f"{os.cpu_count()} cores, {options.rounds} rounds, {statistics.median(tokens):.0f} response tokens a batch")
    for name in ("rollout", "train", "synchronous", "asynchronous"):
        spread = sorted(times[name])
        print(
            f"{name:13} {median[name]:6.3f} s   (quartiles {spread[len(spread) // 4]:.3f} to "
            f"{spread[3 * len(spread) // 4]:.3f})"
        )
    print(f"asynchronous against the longer part   {median['asynchronous'] / longer:5.2f}")
    print(f"asynchronous against synchronous       {median['asynchronous'] / median['synchronous']:5.2f}")
    print(f"share of the possible overlap          {overlap:5.0%}")
    print(f"tokens per second, asynchronous        {statistics.median(tokens) / median['asynchronous']:5.0f}")


if __name__ == "__main__":
    main()
