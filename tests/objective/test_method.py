from __future__ import annotations

from dataclasses import replace

import pytest

from sat_slime.objective import (
    DPPO,
    PAPER_METHODS,
    SAT,
    SPO,
    TIS,
    TRPO,
    Clip,
    IcePop,
    KPop,
    base_names,
    check_method,
    compose,
    compose_method,
    method_names,
    named_method,
)


def test_the_papers_methods_in_its_order() -> None:
    assert [method.name for method in PAPER_METHODS] == [
        "grpo",
        "gspo",
        "grpo-r3",
        "gspo-r3",
        "grpo-tis",
        "gspo-tis",
        "grpo-tis-r3",
        "gspo-tis-r3",
        "dppo",
        "sat-grpo",
        "sat-gspo",
        "sat-grpo-r3",
        "sat-gspo-r3",
    ]
    known = [method.name for method in PAPER_METHODS] + [
        "ppo",
        "trpo",
        "dppo-kl",
        "spo",
        "drpo",
        "icepop",
        "icepop-weight",
        "kpop",
        "seqclip",
        "grpo-topp",
        "gspo-topp",
    ]
    assert [name for name in method_names() if name in known] == known
    assert set(method_names()) - set(known) <= set(base_names()), "what was added since"


def test_what_a_name_stands_for() -> None:
    method = named_method("sat-gspo-r3")
    assert (method.ratio, method.denominator, method.routing_replay) == ("sequence", "rollout", True)
    assert method.trust_region == Clip(0.2, 0.2)
    assert method.sat == SAT(alpha=0.9, exponent=2.0, scope="microbatch")
    assert (named_method("gspo").trust_region, named_method("gspo").sat) == (Clip(0.2, 0.2), None)
    assert named_method("grpo-tis").weights == (TIS(2.0),)
    assert named_method("grpo-tis").denominator == "trainer"
    assert named_method("dppo").gates == (DPPO("tv", delta=1e-3),)
    assert named_method("dppo-kl").gates == (DPPO("kl", delta_kl=0.05),)
    assert named_method("icepop-weight").gates == (IcePop(form="weight"),)
    assert named_method("icepop-weight").denominator == "trainer"
    assert named_method("trpo").step_constraint == TRPO(0.07, "mean", 10)
    assert named_method("gspo-topp").top_p_replay and not named_method("gspo").top_p_replay


def test_methods_are_values() -> None:
    assert named_method("sat-grpo") == compose_method("grpo", sat=True)
    assert len({hash(named_method(name)) for name in method_names()}) == len(method_names())


def test_compositions_have_names_too() -> None:
    assert named_method("sat-gspo-tis-r3-topp") == compose_method("gspo", sat=True, tis=True, r3=True, topp=True)
    assert named_method("sat-icepop-weight") == compose_method("icepop-weight", sat=True)
    assert named_method("sat-icepop-weight").denominator == "checkpoint"
    for name in (*method_names(), "sat-dppo-kl-topp", "kpop-tis"):
        assert named_method(name).name == name
    with pytest.raises(ValueError, match="unknown method 'grpo-r3-tis'"):
        named_method("grpo-r3-tis")


@pytest.mark.parametrize(
    "name, components",
    [
        ("grpo", ("ppo",)),
        ("sat-gspo-tis-r3", ("gspo", "sat", "tis", "r3")),
        ("dppo-kl-topp", ("ppo", "dppo-kl", "topp")),
        ("seqclip", ("gspo", "seqclip")),
        ("drpo", ("drpo",)),
        ("trpo-r3", ("trpo", "r3")),
    ],
)
def test_what_a_method_is_made_of(name: str, components: tuple[str, ...]) -> None:
    assert named_method(name).parts == components


@pytest.mark.parametrize("name, near", [("sat-gsop", "sat-gspo"), ("GRPO", "grpo"), ("dppoo", "dppo")])
def test_unknown_names_get_the_nearest_known_one(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"unknown method '{name}' \\(did you mean '{near}'\\?\\)"):
        named_method(name)


def test_unknown_base() -> None:
    with pytest.raises(ValueError, match=r"unknown base 'gsop' \(did you mean 'gspo'\?\)"):
        compose_method("gsop")


@pytest.mark.parametrize("name", method_names())
@pytest.mark.parametrize("steps", [1, 4])
def test_named_methods_pass_the_check(name: str, steps: int) -> None:
    check_method(named_method(name), steps)


@pytest.mark.parametrize(
    "method, message",
    [
        (compose_method("grpo", sat=True, denominator="trainer"), "identically 1.*method.denominator to rollout"),
        (compose_method("grpo", sat=True, tis=True, denominator="trainer"), "identically 1.*denominator to checkpoint"),
        (
            compose_method("gspo", sat=True, tis=True, denominator="rollout"),
            "count it twice.*denominator to checkpoint",
        ),
        (compose_method("spo", denominator="trainer"), "penalty has no gradient"),
        (compose_method("spo", sat=True), "SPO replaces the clip.*turn sat off"),
        (replace(compose_method("drpo"), trust_region=Clip()), "DRPO replaces the clip.*set trust_region to None"),
        (compose_method("grpo", tis=True, denominator="rollout"), "twice: set method.denominator to trainer"),
        (compose_method("icepop-weight", denominator="rollout"), "twice: set method.denominator to trainer"),
        (compose_method("icepop-weight", tis=True), "TIS and IcePop's weight both weight.*leave one of them out"),
        (compose(DPPO(), [DPPO("kl", delta_kl=0.1)]), "DPPO stands twice among the gates"),
        (compose_method("trpo", sat=True), "TRPO's constraint replaces the clip.*turn sat off"),
        (compose(TRPO(), [SPO()]), "TRPO's constraint replaces the clip.*leave both out"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(method, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_method(method)


def test_allowed_beside_them() -> None:
    check_method(compose_method("grpo", denominator="trainer"))
    check_method(compose_method("grpo", sat=True, denominator="trainer"), optimizer_steps_per_rollout=2)
    check_method(compose_method("gspo", sat=True, denominator="checkpoint"))
    check_method(compose_method("grpo", tis=True, denominator="checkpoint"))
    check_method(compose_method("dppo", sat=True))
    check_method(compose_method("icepop-weight", sat=True))
    check_method(compose_method("icepop", tis=True))
    check_method(compose(DPPO(), [KPop()]))
    check_method(compose_method("gspo", sat=True, tis=True, denominator="trainer"), optimizer_steps_per_rollout=2)


@pytest.mark.parametrize("r3", [False, True])
@pytest.mark.parametrize("base", ["grpo", "gspo"])
def test_sat_composes_with_tis_and_r3(base: str, r3: bool) -> None:
    method = compose_method(base, sat=True, tis=True, r3=r3)
    assert method.name == f"sat-{base}-tis" + ("-r3" if r3 else "")
    assert (method.denominator, method.sat, method.weights) == ("checkpoint", SAT(), (TIS(),))
    check_method(method)


def test_a_dual_clip_inside_the_interval_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dual is 1\.0"):
        check_method(replace(named_method("grpo"), trust_region=Clip(dual=1.0)))
