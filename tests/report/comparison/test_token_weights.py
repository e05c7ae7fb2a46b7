import numpy as np
import pytest

from sat_slime.objective import named_method
from sat_slime.report.comparison.objective_figures import (
    WEIGHT_MU,
    WEIGHT_RATIOS,
    draw_token_weights,
    methods_by_token,
    token_weights,
)

R = WEIGHT_RATIOS


def clear(*kinks):
    """Ratios that are none of the kinks."""
    return np.all([np.abs(R - kink) > 1e-9 for kink in kinks], axis=0)


@pytest.mark.parametrize(
    ("name", "up", "down", "kinks"),
    [
        ("grpo", np.where(R <= 1.2, R, 0), np.where(R >= 0.8, R, 0), (0.8, 1.2)),
        ("cispo", np.minimum(R, 5), np.minimum(R, 5), (5,)),
        ("rollout-is", R * ((R > 0.8) & (R < 1.2)), R * ((R > 0.8) & (R < 1.2)), (0.8, 1.2)),
        ("topr", np.ones_like(R), np.minimum(R, 1), (1,)),
        ("aspo", np.where(R <= 1.2, np.minimum(1 / R, 3), 0), np.where(R >= 0.8, np.minimum(R, 3), 0), (0.8, 1.2, 3)),
        ("cpgd", np.where(R <= 1.2, 1, 0), np.where(R >= 0.8, 1, 0), (0.8, 1.2)),
        ("grpo-tis", np.minimum(R, 2), np.minimum(R, 2), (2,)),
        ("grpo-decoupled", R * (R <= 5), R * (R <= 5), (5,)),
        ("dro", 1 - 0.1 * np.log(R), 1 + 0.1 * np.log(R), ()),
        ("ipo", R * (np.abs(R - 1) * WEIGHT_MU <= 0.1) - 2e-3 * np.log(R),
         R * (np.abs(R - 1) * WEIGHT_MU <= 0.1) + 2e-3 * np.log(R),
         (1 - 0.1 / WEIGHT_MU, 1 + 0.1 / WEIGHT_MU)),
    ],
)  # fmt: skip
def test_weights_are_those_of_the_equations(name, up, down, kinks):
    at = clear(*kinks)
    np.testing.assert_allclose(token_weights(named_method(name), 1)[at], up[at], atol=1e-9)
    np.testing.assert_allclose(token_weights(named_method(name), -1)[at], down[at], atol=1e-9)


def test_only_what_is_a_function_of_the_token_is_drawn():
    names = methods_by_token()
    assert {"grpo", "dppo", "kpop", "sapo", "topr", "grpo-decoupled"} <= set(names)
    others = {
        "gspo",
        "gmpo",
        "vespo",
        "m2po",
        "sat-grpo",
        "trpo",
        "grpo-mis-geo",
        "grpo-a3po",
        "ppo",
    }
    assert not others & set(names)
    table = draw_token_weights().table
    assert len(table) == 1 + 2 * len(names) and all(np.isfinite(values).all() for values in table.values())
