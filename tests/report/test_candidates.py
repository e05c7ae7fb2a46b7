import pytest

from sat_slime.config import ConfigError
from sat_slime.objective import PAPER_METHODS, SAT, Clip, method_names, named_method
from sat_slime.report.replay import ASYNCHRONOUS, answerable, choose, lacks


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
    assert [(one.method.sat, one.method.clip) for one in candidates[1:]] == [
        (SAT(alpha=0.8), Clip(eps_high=0.3)),
        (SAT(alpha=0.95), Clip(eps_high=0.3)),
    ]


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
    with pytest.raises(ConfigError, match=said) as caught:
        choose(names, settings)
    parts = [part.split(" ")[0] for part in str(caught.value).split(": ")]
    assert len(parts) == len(set(parts)), "what it is about is said once"


def test_what_a_dump_cannot_answer_is_left_out_with_the_reason():
    candidates = choose("gspo,sat-gspo", ["denominator=checkpoint"])
    assert candidates[0].method.denominator == "checkpoint"
    kept, left_out = answerable(candidates, frozenset())
    assert not kept
    ((reason, names),) = left_out.items()
    assert names == ["gspo denominator=checkpoint", "sat-gspo denominator=checkpoint"] and "pi_l" in reason
    assert answerable(candidates, frozenset({"checkpoint_log_probs"})) == (candidates, {})


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("topr", "rewards", "good_by=advantage"),
        ("decoupled-a3po", "lags", "versions of the generating weights"),
    ],
)
def test_a_column_that_a_method_reads_is_asked_for_by_name(name, column, said):
    others = frozenset({"checkpoint_log_probs", "lags", "rewards"}) - {column}
    assert said in lacks(named_method(name), others)
    assert lacks(named_method(name), frozenset({column})) is None


def test_every_method_can_be_answered_by_some_dump_but_those_of_another_forward_pass():
    everything = frozenset({"checkpoint_log_probs", "lags", "rewards"})
    never = {name for name in method_names() if lacks(named_method(name), everything)}
    assert never == {"grpo-topp", "gspo-topp", "grpo-estr"}


def test_usual_is_the_papers_methods_and_those_of_asynchronous_training():
    labels = {label for one in choose() for label in (one.label, *one.same)}
    assert labels == {method.name for method in PAPER_METHODS} | {*ASYNCHRONOUS}
    assert len(choose()) < len(choose("all")) / 2
