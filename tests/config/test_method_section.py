import pytest

from sat_slime.config import build_method, method_label
from sat_slime.config.method import method_switches
from sat_slime.config.schema import MethodConfig
from sat_slime.objective import DPPO, SAT, TIS, Clip, method_names, named_method


@pytest.mark.parametrize("name", method_names())
def test_named_methods_survive_the_config(name):
    assert build_method(MethodConfig(**method_switches(name))) == named_method(name)


def test_settings_reach_the_objective():
    clip = {"eps_low": 0.1, "eps_high": 0.3}
    sat = build_method(
        MethodConfig(base="grpo", clip=clip, sat={"enabled": True, "alpha": 0.8, "exponent": 3, "scope": "step"})
    )
    assert sat.trust_region == SAT(0.1, 0.3, alpha=0.8, exponent=3, scope="step")
    dppo = build_method(MethodConfig(base="dppo", clip=clip, dppo={"delta": 0.5}, tis={"enabled": True, "cap": 5}))
    assert (dppo.trust_region, dppo.gates, dppo.tis) == (Clip(0.1, 0.3), (DPPO(0.5),), TIS(5))
    assert build_method(MethodConfig(base="gspo", denominator="checkpoint")).denominator == "checkpoint"


def test_sat_with_tis_builds_a_method_of_its_own():
    config = MethodConfig(base="grpo", sat=True, tis=True)
    assert (build_method(config).name, build_method(config).denominator) == ("sat-grpo-tis", "checkpoint")
    assert method_label(config.model_dump()) == "SAT-GRPO w/ TIS"


@pytest.mark.parametrize(
    "name, label", [("sat-gspo-r3", "SAT-GSPO w/ R3"), ("grpo-tis-r3", "GRPO w/ TIS + R3"), ("dppo", "DPPO")]
)
def test_labels_are_the_papers(name, label):
    assert method_label(MethodConfig(**method_switches(name)).model_dump()) == label
