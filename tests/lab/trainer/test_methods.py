"""What methods read of a batch reaches them: their thresholds, weights and lags in a real trainer, beside the
same by hand from the log-probs of the weights before each step."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from trainer_process import SPLITS, assert_same_weights, in_trainer, make_config, make_samples

from sat_slime.config.method_section import method_switches
from sat_slime.rollout.types import Response

pytest.importorskip("megatron.core", reason="the trainer needs megatron-core")
pytestmark = pytest.mark.engine

STEPS = 3


def config_of(name: str, sections: dict | None = None, top_p: float = 1.0, **train):
    method = method_switches(name)
    for key, values in (sections or {}).items():
        method[key] = {**method.get(key, {}), **values}
    return make_config(
        method=method,
        model={"experts": 0},
        train=train,
        rollout={"top_p": top_p},
        loss={"kl_coef": 0.0},
        diagnose={"split_every_n_steps": 0},
    )


START = 3
"""Updates of the weights that a test begins with."""


def near(samples: list[Response]) -> list[Response]:
    """The responses with the engine's distributions, near to those of weights at the start, of lags 0 to 2 and more."""
    rng = np.random.default_rng(5)
    found = []
    for sample in samples:
        logits = 0.4 * rng.standard_normal((len(sample.output_ids), 16))
        mu = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
        sampled = mu[np.arange(len(mu)), list(sample.output_ids)]
        versions = np.full(len(mu), int(rng.integers(0, START + 1)))
        found.append(dataclasses.replace(sample, log_probs=sampled, distribution=mu, versions=versions))
    return found


def train(trainer, initial: str, out: str | None = None) -> dict:
    """Metrics of each step, and log pi of each response before it."""
    trainer.load_initial(Path(initial))
    trainer.updates = START
    samples, metrics, before = near(make_samples(trainer.config, routed=False)), [], []
    for _ in range(STEPS):
        before.append({k: v.tolist() for k, v in trainer.score(samples, replay=False).items()})
        metrics.append(trainer.train(samples)[0].metrics)
    if out:
        trainer.export_weights(Path(out))
    return {"metrics": json.dumps(metrics), "before": json.dumps(before)}


class Tokens:
    """The tokens of one step as a user of numpy sees them."""

    def __init__(self, log_probs: dict[str, list[float]], step: int) -> None:
        samples = near(make_samples(config_of("grpo"), routed=False))
        lengths = [len(s.output_ids) for s in samples]
        self.log_pi = np.concatenate([log_probs[s.request_id] for s in samples])
        self.log_mu = np.concatenate([s.log_probs for s in samples]).astype(np.float64)
        self.d = self.log_pi - self.log_mu
        self.advantages = np.repeat([s.advantage for s in samples], lengths)
        self.rewards = np.repeat([s.reward for s in samples], lengths)
        self.lags = START + step - np.concatenate([s.versions for s in samples])
        self.of_response = np.repeat(np.arange(len(samples)), lengths)


def m2po(tokens: Tokens) -> dict[str, float]:
    outward = tokens.advantages * tokens.d > 0
    squares = np.sort(tokens.d[outward] ** 2)
    kept = squares[np.cumsum(squares) <= 0.04 * np.arange(1, len(squares) + 1)]
    dropped = outward & (tokens.d**2 > kept[-1] + 1e-9)
    return {"m2po/largest": kept[-1], "m2po/masked": dropped.mean()}


def m2po_by_lag(tokens: Tokens) -> dict[str, float]:
    growth = np.maximum(tokens.lags, 1) ** 0.9
    outward = tokens.advantages * tokens.d > 0
    squares = np.sort((tokens.d**2 / growth)[outward])
    kept = squares[np.cumsum(squares) <= 0.04 * np.arange(1, len(squares) + 1)]
    return {"m2po/largest": kept[-1]}


def lag_power(tokens: Tokens) -> dict[str, float]:
    radius, ratio = 0.2 * np.sqrt(np.maximum(tokens.lags, 1)), np.exp(tokens.d)
    up, down = tokens.advantages > 0, tokens.advantages < 0
    clipped = (up & (ratio > 1 + radius)) | (down & (ratio < 1 - radius))
    return {"radius/high": radius.mean(), "radius/low": radius.mean(), "clip/fraction": clipped.mean()}


def topr(tokens: Tokens) -> dict[str, float]:
    return {"topr/weight": np.where(tokens.rewards > 0, 1, np.minimum(np.exp(tokens.d), 1)).mean()}


def decoupled_a3po(tokens: Tokens) -> dict[str, float]:
    weight = np.exp(a3po(tokens))
    return {"decoupled/weight": np.where(weight <= 5, weight, 0).mean()}


def a3po(tokens: Tokens) -> np.ndarray:
    """log pi_proximal - log mu."""
    return np.maximum(tokens.lags - 1, 0) / np.maximum(tokens.lags, 1) * tokens.d


def sat_of_tv(tokens: Tokens) -> dict[str, float]:
    gaps = np.sort(np.abs(np.exp(tokens.log_pi) - np.exp(tokens.log_mu)))
    return {"sat/q": gaps[int(np.ceil(0.9 * len(gaps))) - 1]}


BY_HAND = {
    "m2po": ("m2po", None, m2po),
    "m2po by lag": ("m2po", {"m2po": {"threshold": 0.04, "power": 0.9}}, m2po_by_lag),
    "lag-power": ("grpo-lag-power", None, lag_power),
    "topr": ("topr", None, topr),
    "decoupled-a3po": ("grpo-decoupled-a3po", None, decoupled_a3po),
    "sat by tv": ("sat-grpo", {"sat": {"score": "tv", "scope": "step", "alpha": 0.9}}, sat_of_tv),
}


@pytest.mark.parametrize("name, sections, by_hand", BY_HAND.values(), ids=BY_HAND.keys())
def test_a_method_gets_what_it_reads(name, sections, by_hand, initial, tmp_path):
    found = {}
    for split, settings in SPLITS.items():
        config = config_of(name, sections, **settings)
        result = in_trainer(train, config, initial["dense"], str(tmp_path / split))
        found[split] = json.loads(result["metrics"])
        for step, (row, log_probs) in enumerate(zip(found[split], json.loads(result["before"]), strict=True)):
            assert all(np.isfinite(value) for value in row.values()), row
            for metric, value in by_hand(Tokens(log_probs, step)).items() if by_hand else ():
                assert row[metric] == pytest.approx(value, rel=1e-4), (metric, step)
    for one, many in zip(*found.values(), strict=True):
        assert one == pytest.approx(many, rel=2e-3, abs=2e-5)
    assert_same_weights(*(tmp_path / split for split in SPLITS), atol=2e-4)


def lags_of_the_second_step(trainer, initial: str) -> dict:
    """What `token_batch` is given at each optimizer step of one rollout."""
    trainer.load_initial(Path(initial))
    trainer.updates = START
    samples = near(make_samples(trainer.config, routed=False))
    trainer.updates = 10
    given, own = [], trainer._token_batch
    trainer._token_batch = lambda *arguments: given.append(own(*arguments)) or given[-1]
    results = trainer.train(samples)
    lags = [float(batch.lags.mean()) for batch in given]
    return {"lags": lags, "expected": [result.metrics["lag/mean"] for result in results]}


def test_lags_follow_the_optimizer_steps_of_a_rollout(initial):
    config = config_of("grpo-decoupled-a3po", tokens_per_microbatch=4096)
    config = config.model_copy(
        update={"pipeline": config.pipeline.model_copy(update={"optimizer_steps_per_rollout": 3})}
    )
    found = in_trainer(lags_of_the_second_step, config, initial["dense"])
    assert found["lags"] == pytest.approx(found["expected"]) and len(found["lags"]) == 3
