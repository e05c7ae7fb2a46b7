"""Measures how far the real engines are apart at equal weights: Megatron in fp32 against SGLang in fp32 and bf16.

    python bench/parity.py [--batches 8] [--dtype float32] [--json]

The trainer scores the same responses with its own routing and, of a model with experts, with the engine's experts
replayed (R3) and with those experts shifted by one token, to prove that the replayed experts belong to the tokens that
they are given to.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from pipeline_parts import generate, running

from sat_slime.config.loader import load_config
from sat_slime.config.schema import LabConfig
from sat_slime.lab.initial_model import cached_model
from sat_slime.lab.responses import Response
from sat_slime.lab.trainer import Trainer

CONFIG = Path(__file__).parents[1] / "configs/lab/quickstart.yaml"
DTYPES = ("float32", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the config")
    parser.add_argument("--batches", type=int, default=8, help="batches of the config's size to score")
    parser.add_argument("--dtype", choices=DTYPES, help="the engine's; default: both")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    configs = {
        dtype: load_config(options.config, [*options.set, f"rollout.dtype={dtype}"])
        for dtype in ([options.dtype] if options.dtype else DTYPES)
    }
    trainer = Trainer(next(iter(configs.values())))  # all of them have its settings
    table = {dtype: measure(config, trainer, options.batches) for dtype, config in configs.items()}
    print(json.dumps(table) if options.json else as_text(table))


def measure(config: LabConfig, trainer: Trainer, batches: int) -> dict[str, dict[str, float]]:
    """Statistics of |log pi - log mu| over response tokens, for each way in which the trainer routes."""
    with running(config) as (_, engine):
        responses = [response for i in range(batches) for response in generate(config, engine, i).responses]
    trainer.load_initial(cached_model(config))
    mu = np.concatenate([response.log_probs for response in responses])
    scores = {"free": score(trainer, responses, False)}
    if config.model.is_moe:
        scores["replayed"] = score(trainer, responses, True)
        scores["shifted"] = score(trainer, [shift_routes(response) for response in responses], True)
    result = {}
    for name, log_probs in scores.items():
        d = np.abs(log_probs - mu)
        result[name] = {
            "tokens": d.size,
            "mean": float(d.mean()),
            "q99": float(np.quantile(d, 0.99, method="inverted_cdf")),
            "max": float(d.max()),
        }
    return result


@torch.no_grad()
def score(trainer: Trainer, responses: Sequence[Response], replay: bool) -> np.ndarray:
    """log pi of each token of the responses, in their order. replay: along the engine's routes."""
    micros = trainer._microbatches(responses)
    return torch.cat([trainer.log_probs(trainer.model, micro, replay=replay) for micro in micros]).numpy()


def shift_routes(response: Response) -> Response:
    """The response with each token given the experts of the token before it."""
    return dataclasses.replace(response, routed_experts=np.roll(response.routed_experts, 1, axis=0))


def as_text(table: dict) -> str:
    lines = ["engine    trainer's routing   tokens      mean |d|      99 %       largest"]
    for dtype, rows in table.items():
        for name, row in rows.items():
            lines.append(
                f"{dtype:9} {name:18} {row['tokens']:7d}   {row['mean']:10.2e}   {row['q99']:9.2e}   {row['max']:9.2e}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
