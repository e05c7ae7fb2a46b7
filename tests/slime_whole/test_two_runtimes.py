"""The lab trainer and slime's make the same of one batch: loss, gradient, metrics and weights, in fp32."""

from __future__ import annotations

import pytest
from one_batch import EPSILON, assert_same_metrics, make_batch, train_lab, train_on_slime, worst_difference

from sat_slime.config.loader import vary
from sat_slime.config.schema import LabConfig

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

BASES = ("grpo", "gspo", "sat-grpo", "sat-gspo", "grpo-tis", "gspo-tis", "sat-grpo-tis", "sat-gspo-tis")
METHODS = {f"{base}{r3}": (f"method={base}{r3}",) for base in BASES for r3 in ("", "-r3")}
CASES = METHODS | {
    "lag-power": ("method=sat-grpo-lag-power",),
    "token-mean-entropy": ("method=sat-grpo-r3", "loss.reduction=token_mean", "loss.entropy_coef=0.01"),
    "several-microbatches": ("method=sat-gspo-r3", "method.sat.scope=step"),
}
LAB_EPSILON = EPSILON.replace("slime.adam-eps", "train.adam_eps")
LAB_ALONE = {"response/length_max", "response/truncated", "reward/flat_groups"}
"""Metrics that a run of slime has in another place, or not at all."""


def tokens(case: str) -> int:
    """The most tokens of a micro-batch; less than the batch has in one case."""
    return 300 if case == "several-microbatches" else 8192


@pytest.fixture(scope="module")
def trained(slime, tmp_path_factory):
    """What slime and the lab trainer made of each case."""
    folder = tmp_path_factory.mktemp("two-runtimes")
    batch = make_batch(slime.laptop, folder)
    of_slime = {name: [*case, EPSILON, f"slime.max-tokens-per-gpu={tokens(name)}"] for name, case in CASES.items()}
    of_lab = {name: [*case, LAB_EPSILON, f"train.tokens_per_microbatch={tokens(name)}"] for name, case in CASES.items()}
    configs = {name: vary(LabConfig(), [], [*case, "diagnose.split_every_n_steps=0"]) for name, case in of_lab.items()}
    return train_on_slime(slime, batch, of_slime, folder / "slime"), train_lab(batch, configs)


@pytest.mark.parametrize("case", CASES)
def test_metrics_and_weights_are_equal(case, trained):
    on_slime, lab = (side[case] for side in trained)
    assert lab.metrics[0].keys() - on_slime.metrics[0].keys() <= LAB_ALONE
    assert_same_metrics(on_slime.metrics, lab.metrics)
    assert worst_difference(on_slime.weights, lab.weights) < 2e-6


def test_the_batch_brings_out_what_the_methods_do(trained):
    on_slime, _ = trained

    def at_most(name: str, metric: str) -> float:
        return max(row[metric] for row in on_slime[name].metrics)

    untruncated = [name for name in METHODS if "tis" not in name]
    assert all(0 < at_most(name, "clip/fraction") < 0.5 for name in untruncated)
    assert all(at_most(name, "sat/newly_clipped") > 0 for name in untruncated if name.startswith("sat"))
    assert all(at_most(name, "tis/capped") > 0 for name in METHODS if "tis" in name)
    assert all(at_most(name, "loss/kl") > 0 for name in METHODS)


@pytest.mark.parametrize("name", ["gspo", "sat-grpo", "grpo-tis", "grpo-r3"])
def test_other_methods_make_other_weights(name, trained):
    on_slime, _ = trained
    assert worst_difference(on_slime[name].weights, on_slime["grpo"].weights) > 1e-4
