import pickle

import pytest

from sat_slime.config import build_method, load_config, method_label
from sat_slime.config.loader import read_section
from sat_slime.config.method_section import MethodConfig, method_in, method_switches, unused_settings
from sat_slime.config.source import ConfigError
from sat_slime.objective import SAT, Clip, method_names, named_method
from sat_slime.objective.gates import DPPO, IcePop, KPop, SeqClip
from sat_slime.objective.method import TRPO, base_names
from sat_slime.objective.penalties import DRPO, SPO
from sat_slime.objective.weights import TIS


@pytest.mark.parametrize("name", [*method_names(), "sat-dppo-kl-r3", "sat-icepop-weight-topp", "kpop-tis"])
def test_named_methods_survive_the_config(name):
    assert build_method(MethodConfig(**method_switches(name))) == named_method(name)


@pytest.mark.parametrize("before", ["dppo-kl", "icepop-weight", "gspo-topp", "sat-grpo-tis-r3"])
@pytest.mark.parametrize("name", [*base_names(), "sat-gspo-r3"])
def test_a_name_leaves_nothing_of_the_one_before(name, before, tmp_path):
    (tmp_path / "a.yaml").write_text(f"method: {before}")
    (tmp_path / "b.yaml").write_text(f"extends: a.yaml\nmethod: {name}")
    assert build_method(load_config(tmp_path / "b.yaml").method) == named_method(name)


@pytest.mark.parametrize(
    "settings, part, component",
    [
        ({"base": "dppo", "dppo": {"delta": 0.5}}, "gates", (DPPO(delta=0.5),)),
        ({"base": "dppo", "dppo": {"divergence": "kl", "delta_kl": 0.5}}, "gates", (DPPO("kl", delta_kl=0.5),)),
        ({"base": "icepop", "icepop": {"low": 0.9, "high": 2}}, "gates", (IcePop(0.9, 2),)),
        ({"base": "icepop", "icepop": {"form": "weight"}}, "gates", (IcePop(form="weight"),)),
        ({"base": "kpop", "kpop": {"phi": 2}}, "gates", (KPop(2),)),
        ({"base": "seqclip", "seqclip": {"low": 0.99, "high": 1.01}}, "gates", (SeqClip(0.99, 1.01),)),
        ({"base": "spo", "spo": {"eps": 0.3}}, "instead", SPO(0.3)),
        ({"base": "drpo", "drpo": {"delta": 2}}, "instead", DRPO(2)),
        (
            {"base": "trpo", "trpo": {"delta": 0.5, "over": "state", "max_backtracks": 3}},
            "step_constraint",
            TRPO(0.5, "state", 3),
        ),
    ],
)
def test_every_parameter_reaches_the_objective(settings, part, component, tmp_path):
    assert getattr(build_method(MethodConfig(**settings)), part) == component
    assert unused_settings(MethodConfig(**settings)) == []


def test_forms_make_names():
    assert build_method(MethodConfig(base="dppo", dppo={"divergence": "kl"})).name == "dppo-kl"
    assert build_method(MethodConfig(base="icepop", icepop={"form": "weight"}, sat=True)).name == "sat-icepop-weight"
    assert build_method(MethodConfig(base="grpo", top_p_replay=True)).name == "grpo-topp"
    assert method_in({"base": "dppo"}).base_name == "dppo" and method_in({}).base_name == "?"


def test_settings_of_another_base_are_told():
    (line,) = unused_settings(MethodConfig(base="grpo", kpop={"phi": 2}))
    assert line == "method.kpop has settings, which base grpo does not read: set method.base to kpop"


@pytest.mark.parametrize(
    ("section", "told"),
    [
        (
            {"base": "grpo", "mis_geo": {"low": 0.9}, "tis": {"enabled": True, "cap": 3}},
            "method.mis_geo has settings (low), and it is off: set method.mis_geo.enabled to true",
        ),
        (
            {"base": "grpo", "sat": {"score": "tv", "scope": "step"}},
            "method.sat has settings (scope, score), and it is off: set method.sat.enabled to true",
        ),
        (
            {"base": "dppo", "dppo": {"divergence": "kl", "delta": 0.1}},
            "method.dppo.delta is not read with the other settings of method.dppo: leave it out",
        ),
    ],
)
def test_settings_that_nothing_reads_are_told(section, told):
    assert unused_settings(MethodConfig(**section)) == [told]


@pytest.mark.parametrize("section", ["icepop", "seqclip"])
@pytest.mark.parametrize("low, high", [(1.1, 2), (0.5, 0.9)])
def test_a_range_without_one_is_refused(section, low, high):
    with pytest.raises(ValueError, match="does not hold 1"):
        MethodConfig(**{"base": section, section: {"low": low, "high": high}})


def test_settings_reach_the_objective():
    clip = {"eps_low": 0.1, "eps_high": 0.3}
    sat = build_method(
        MethodConfig(base="grpo", clip=clip, sat={"enabled": True, "alpha": 0.8, "exponent": 3, "scope": "step"})
    )
    assert sat.clip == Clip(0.1, 0.3)
    assert sat.sat == SAT(alpha=0.8, exponent=3, scope="step")
    dppo = build_method(MethodConfig(base="dppo", clip=clip, dppo={"delta": 0.5}, tis={"enabled": True, "cap": 5}))
    assert (dppo.clip, dppo.gates, dppo.weights) == (Clip(0.1, 0.3), (DPPO(delta=0.5),), (TIS(5),))
    assert build_method(MethodConfig(base="gspo", denominator="checkpoint")).denominator == "checkpoint"


def test_sat_with_tis_builds_a_method_of_its_own():
    config = MethodConfig(base="grpo", sat=True, tis=True)
    assert (build_method(config).name, build_method(config).denominator) == ("sat-grpo-tis", "checkpoint")
    assert method_label(config.model_dump()) == "SAT-GRPO w/ TIS"


@pytest.mark.parametrize(
    "name, label",
    [
        ("sat-gspo-r3", "SAT-GSPO w/ R3"),
        ("grpo-tis-r3", "GRPO w/ TIS + R3"),
        ("dppo", "DPPO"),
        ("dppo-kl", "DPPO-KL"),
        ("gspo-topp", "GSPO w/ top-p"),
    ],
)
def test_labels_are_the_papers(name, label):
    assert method_label(MethodConfig(**method_switches(name)).model_dump()) == label


def test_a_fault_of_the_section_as_a_whole_is_told():
    with pytest.raises(ConfigError, match=r"method\.settings is for a base that is not ours: leave it out$"):
        read_section(MethodConfig, {"base": "grpo", "settings": {"x": 1}}, "a place")
    with pytest.raises(ConfigError, match=r"leave it out, or write those of dppo below method\.dppo"):
        read_section(MethodConfig, {"base": "dppo", "settings": {"x": 1}}, "a place")


def test_a_section_can_be_pickled():
    section = MethodConfig(**method_switches("sat-dppo-kl-tis"))
    assert pickle.loads(pickle.dumps(section)) == section
