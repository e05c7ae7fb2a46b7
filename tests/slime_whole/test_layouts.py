"""slime's trainer does the same with a batch on one rank and on two: tensor, expert, data and context parallelism."""

from __future__ import annotations

import itertools

import pytest
from one_batch import EPSILON, assert_same_metrics, make_batch, train_on_slime, worst_difference

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

LAYOUTS = {
    "tensor": (
        "slime.tensor-model-parallel-size=2",
        "slime.expert-tensor-parallel-size=2",
    ),  # sequence parallelism comes with it
    "tensor-expert": ("slime.tensor-model-parallel-size=2", "slime.expert-model-parallel-size=2"),
    "data": (),
    "data-expert": ("slime.expert-model-parallel-size=2",),
    "context": ("slime.context-parallel-size=2",),
}
METHODS = {
    "grpo": ("method=grpo",),
    "sat-gspo-r3-step": ("method=sat-gspo-r3", "method.sat.scope=step"),
    "sat-gspo-tis": ("method=sat-gspo-tis",),
}
"""Methods, by name. The last has the quantile of a micro-batch, which data-parallel ranks take only of their own
responses."""
CELLS = [
    (method, layout)
    for method, layout in itertools.product(METHODS, LAYOUTS)
    if method != "sat-gspo-tis" or layout in ("tensor", "context")
]
UNCUT = ("slime.actor-num-gpus-per-node=2", "slime.tensor-model-parallel-size=2", "slime.expert-tensor-parallel-size=1")
"""A layout in which each rank has every expert whole; the launcher refuses it."""


@pytest.fixture(scope="module")
def trained(slime, tmp_path_factory):
    """What one rank made of each method, and what two ranks made of each layout and method."""
    folder = tmp_path_factory.mktemp("layouts")
    batch = make_batch(slime.laptop, folder)
    cases = {method: (*settings, EPSILON) for method, settings in METHODS.items()}
    cases["uncut"] = (*cases["grpo"], *UNCUT)
    for method, layout in CELLS:
        cases[f"{method}-{layout}"] = (*cases[method], "slime.actor-num-gpus-per-node=2", *LAYOUTS[layout])
    return train_on_slime(slime, batch, cases, folder / "slime")


@pytest.mark.parametrize("method, layout", CELLS)
def test_two_ranks_report_have_and_score_what_one_does(method, layout, trained):
    one, two = trained[method], trained[f"{method}-{layout}"]
    assert two.metrics[0].keys() >= one.metrics[0].keys()
    # With two experts a token, padding is not told from tokens, and each layout pads otherwise.
    assert_same_metrics(one.metrics, two.metrics, apart=["routing/agreement"])
    assert worst_difference(one.weights, two.weights) < 2e-6
    assert one.canary.shape == two.canary.shape and abs(one.canary - two.canary).max() < 1e-4


def test_megatron_leaves_copies_of_experts_apart(trained):
    """This is why the launcher refuses the layout. If Megatron ever sums the gradients of copies, it need not."""
    one, two = trained["grpo"].metrics[0], trained["uncut"].metrics[0]
    assert two["loss/policy"] == pytest.approx(one["loss/policy"], abs=1e-6)
    assert abs(two["grad_norm"] - one["grad_norm"]) > 0.01
