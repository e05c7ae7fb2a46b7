"""The comparisons of a study, each against its numbers by hand."""

from statistics import fmean

import pytest
from made_up_study import LAGS, SEEDS, accuracy, d_pi, write_grid

from sat_slime.report.comparison.studies import load_study
from sat_slime.report.comparison.study_contrasts import (
    best_radius_contrasts,
    lag_contrasts,
    method_contrasts,
    primary_contrasts,
    radius_of_same_mismatch,
    sat_contrasts,
    stabilizer_contrasts,
    variant_contrasts,
)


@pytest.fixture(scope="module")
def study(folder):
    return load_study(folder)


def late(effect):
    return pytest.approx(effect["late"].mean, abs=1e-12)


def test_sat_against_its_base_at_each_lag_and_over_the_long_ones(study):
    effects = {effect.where: effect for effect in sat_contrasts(study.base)}
    assert list(effects) == [*(f"lag {lag}" for lag in LAGS), "mean of lag 8, 32"]
    for lag in LAGS:
        one = effects[f"lag {lag}"]
        assert one.label == "SAT-GSPO − GSPO" and one["late"].n == len(SEEDS)
        assert fmean(accuracy("sat-gspo", lag, s) - accuracy("gspo", lag, s) for s in SEEDS) == late(one)
        expected = fmean(d_pi("sat-gspo", lag, s) - d_pi("gspo", lag, s) for s in SEEDS)
        assert one["d_pi"].mean == pytest.approx(expected, abs=1e-12)
    pooled = effects["mean of lag 8, 32"]
    assert (effects["lag 8"]["late"].mean + effects["lag 32"]["late"].mean) / 2 == late(pooled)
    # corrected together: six comparisons, so that the least p is multiplied by six
    least = min(effects.values(), key=lambda one: one["late"].p_value)
    assert least["late"].p_holm == pytest.approx(6 * least["late"].p_value)


def test_each_lag_against_lag_1_of_the_same_method(study):
    effects = {(one.label, one.where): one for one in lag_contrasts(study.base)}
    assert set(effects) == {(m, f"lag {lag} − 1") for m in ("GSPO", "SAT-GSPO") for lag in LAGS if lag != 1}
    one = effects["GSPO", "lag 32 − 1"]
    assert one["late"].n == len(SEEDS)
    assert late(one) == fmean(accuracy("gspo", 32, s) - accuracy("gspo", 1, s) for s in SEEDS)
    assert late(effects["SAT-GSPO", "lag 0 − 1"]) == fmean(
        accuracy("sat-gspo", 0, s) - accuracy("sat-gspo", 1, s) for s in SEEDS
    )


def test_a_changed_setting_against_the_same_method_in_the_base(study):
    effects = {(one.label, one.where): one for one in variant_contrasts(study, "gspo")}
    assert set(effects) == {
        *((f"eps-{radius}", f"lag {lag}") for radius in (0.01, 0.05) for lag in (8, 32)),
        ("half-lr", "lag 8"),
    }
    assert late(effects["eps-0.05", "lag 32"]) == 0.005 * 32 and late(effects["half-lr", "lag 8"]) == 0.0


def test_other_methods_against_grpo_or_whichever_there_is(study):
    effects = {(one.label, one.where): one for one in method_contrasts(study, "gspo")}
    one = effects["GRPO − GSPO", "lag 8"]
    assert one["late"].n == 2 and late(one) == fmean(accuracy("grpo", 8, s) - accuracy("gspo", 8, s) for s in (0, 1))
    assert [where for label, where in effects if label == "SAT-GSPO − GSPO"] == ["lag 1", "lag 8"]  # as `methods` has


def test_a_stabilizer_against_the_same_method_without_it(tmp_path):
    write_grid(tmp_path, "sweep", ("gspo", "sat-gspo", "grpo"), (1, 8))
    write_grid(tmp_path, "more", ("gspo-r3", "sat-gspo-r3", "cispo"), (8,), seeds=(0, 1))
    write_grid(tmp_path, "half-lr", ("grpo", "grpo-tis", "gspo-r3"), (8,), {"train.lr": 1e-4})
    study = load_study(tmp_path)
    of = {grid.name: stabilizer_contrasts(study, grid) for grid in study.grids}
    # At the base's settings a partner may be the base's; at others it must have run at those.
    assert [one.label for one in of["more"]] == ["GSPO w/ R3 − GSPO", "SAT-GSPO w/ R3 − SAT-GSPO"]
    assert [one.label for one in of["half-lr"]] == ["GRPO w/ TIS − GRPO"] and of["sweep"] == []
    assert late(of["more"][1]) == 0.01 and of["more"][1]["late"].n == 2 and of["more"][1].where == "lag 8"


def test_the_radius_of_the_same_mismatch_is_chosen_by_d_pi(study):
    """SAT's d_pi is 0.3 times that of its radius: 0.06 is nearest to 0.05."""
    assert radius_of_same_mismatch(study, "sat-gspo") == 0.05
    assert radius_of_same_mismatch(study, "gspo") is None


def test_the_comparisons_that_were_planned(study):
    long, same, equal = primary_contrasts(study)
    assert long.where == "radius 0.2, mean of lag 8, 32"
    assert late(long) == fmean(accuracy("sat-gspo", lag, 0) - accuracy("gspo", lag, 0) for lag in (8, 32))
    assert same.where == "radius 0.2 − 0.05, where d_pi is nearest; mean of lag 8, 32"
    assert late(same) == fmean(accuracy("sat-gspo", lag, 0) - accuracy("gspo", lag, 0, 0.05) for lag in (8, 32))
    assert equal.where == "equal radius, mean of 0.05, 0.01 and lag 8, 32"
    assert late(equal) == fmean(0.002 * lag for lag in (8, 32))
    assert {effect["late"].n for effect in (long, same, equal)} == {len(SEEDS)}


def test_the_best_radius_of_a_seed_is_that_of_the_others(study, monkeypatch):
    own, tuned = best_radius_contrasts(study)
    assert late(own) == fmean(accuracy("sat-gspo", lag, 0) - accuracy("gspo", lag, 0, 0.05) for lag in (8, 32))
    assert late(own) == tuned["late"].mean  # SAT's accuracy here does not depend on the radius
    # A seed whose luck at one radius is its own does not get to choose that radius.
    lucky = study.by_radius[0.2]
    original = type(lucky).scores

    def scores(grid, method, lag, quantity):
        found = original(grid, method, lag, quantity)
        if grid is lucky and method == "gspo" and quantity == "late":
            return {**found, 0: 0.99}
        return found

    monkeypatch.setattr(type(lucky), "scores", scores)
    (own, _) = best_radius_contrasts(study)
    picked = {seed: accuracy("gspo", 8, seed, 0.05) + accuracy("gspo", 32, seed, 0.05) for seed in SEEDS}
    mine = {seed: accuracy("sat-gspo", 8, seed) + accuracy("sat-gspo", 32, seed) for seed in SEEDS}
    # seeds 1 and 2 see the luck of seed 0 and choose its radius; seed 0 itself does not
    plain = {seed: accuracy("gspo", 8, seed) + accuracy("gspo", 32, seed) for seed in SEEDS}
    expected = [(mine[0] - picked[0]) / 2, *((mine[seed] - plain[seed]) / 2 for seed in (1, 2))]
    assert own["late"].mean == pytest.approx(fmean(expected), abs=1e-12)
