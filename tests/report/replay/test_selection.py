import pytest

from sat_slime.config import ConfigError
from sat_slime.objective import SAT, Clip, compose_method, method_names
from sat_slime.report.replay.selection import answerable, choose


def test_all_is_every_named_method_each_formula_once():
    candidates = choose("all")
    labels = [label for one in candidates for label in (one.label, *one.same)]
    assert sorted(labels) == sorted(method_names())
    same = {one.label: set(one.same) for one in candidates}
    assert {"ppo", "grpo-r3"} <= same["grpo"]
    assert "sat-gspo-r3" in same["sat-gspo"]


def test_settings_reach_the_methods_that_read_them_and_lists_are_swept():
    candidates = choose("gspo, sat-gspo", ["sat.alpha=[0.8,0.95]", "method.clip.eps_high=0.3"])
    assert [one.label for one in candidates] == [
        "gspo clip.eps_high=0.3",
        "sat-gspo sat.alpha=0.8 clip.eps_high=0.3",
        "sat-gspo sat.alpha=0.95 clip.eps_high=0.3",
    ]
    assert [(one.method.sat, one.method.trust_region) for one in candidates[1:]] == [
        (SAT(alpha=0.8), Clip(eps_high=0.3)),
        (SAT(alpha=0.95), Clip(eps_high=0.3)),
    ]


def test_a_value_of_the_default_among_others_is_replayed_too():
    assert [one.method.sat.alpha for one in choose("sat-grpo", ["sat.alpha=[0.9, 0.99]"])] == [0.9, 0.99]


@pytest.mark.parametrize(
    ("names", "settings", "said"),
    [
        ("gspo,sat-gsop", [], "did you mean 'sat-gspo'"),
        (" , ", [], "--methods names none"),
        ("gspo", ["sat.alpha=0.8"], "changes none of the methods gspo"),
        ("gspo", ["sat.alpah=0.8"], "did you mean 'sat.alpha'"),
        ("sat-gspo", ["sat.alpha=2"], "sat.alpha is 2"),
        ("sat-gspo", ["sat.alpha"], "expected key=value"),
        ("sat-gspo", ["sat.alpha=[0.8"], "not valid YAML"),
        ("sat-gspo", ["denominator=trainer"], "the ratio is identically 1"),
    ],
)
def test_bad_choices_are_told(names, settings, said):
    with pytest.raises(ConfigError, match=said):
        choose(names, settings)


def test_what_a_dump_cannot_answer_is_left_out_with_the_reason():
    candidates = choose("gspo,sat-gspo", ["denominator=checkpoint"])
    assert compose_method("gspo", denominator="checkpoint").denominator == candidates[0].method.denominator
    kept, left_out = answerable(candidates, has_checkpoint=False)
    assert not kept
    assert [one.label for one in left_out] == ["gspo denominator=checkpoint", "sat-gspo denominator=checkpoint"]
    assert "pi_l" in left_out[0].reason
    assert answerable(candidates, has_checkpoint=True) == (candidates, [])
