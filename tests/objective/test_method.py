from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest

from sat_slime.objective import (
    DPPO,
    PAPER_METHODS,
    SAT,
    SPO,
    TIS,
    TRPO,
    Clip,
    Gate,
    IcePop,
    Judge,
    KPop,
    Row,
    base_names,
    check_method,
    compose,
    compose_method,
    method_names,
    named_method,
)
from sat_slime.objective.stabilizers import STABILIZERS, switches

SUFFIXES = [kind.name for kind in switches() if kind.place == "suffix"]


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
    since = {*base_names(), *(f"grpo-{suffix}" for suffix in SUFFIXES), "grpo-decoupled-a3po"}
    assert set(method_names()) - set(known) <= since, "what was added since"


def test_what_a_name_stands_for() -> None:
    method = named_method("sat-gspo-r3")
    assert (method.ratio, method.denominator, method.routing_replay) == ("sequence", "rollout", True)
    assert method.trust_region == Clip(0.2, 0.2)
    assert method.sat == SAT(alpha=0.9, exponent=2.0)
    assert (named_method("gspo").trust_region, named_method("gspo").sat) == (Clip(0.2, 0.2), None)
    assert named_method("grpo-tis").weights == (TIS(2.0),)
    assert named_method("grpo-tis").denominator == "trainer"
    assert named_method("dppo").gates == (DPPO("tv", delta=1e-3),)
    assert named_method("dppo-kl").gates == (DPPO("kl", delta_kl=0.05),)
    assert named_method("icepop-weight").gates == (IcePop(form="weight"),)
    assert named_method("icepop-weight").denominator == "trainer"
    assert named_method("trpo").step_constraint == TRPO(0.07, "mean", 10)
    assert named_method("gspo-topp").top_p_replay and not named_method("gspo").top_p_replay


@pytest.mark.parametrize(
    "base, scope, meant",
    [
        ("gspo", None, "step"),  # a micro-batch of long responses has too few of them
        ("gspo", "microbatch", "microbatch"),
        ("grpo", None, "microbatch"),
        ("grpo", "step", "step"),
    ],
)
def test_the_scope_of_sats_quantile_follows_the_ratio_unless_it_is_set(base, scope, meant) -> None:
    method = compose(named_method(base).base, [SAT(scope=scope)])
    assert (method.scope, method.threshold_is_of_the_step) == (meant, meant == "step")


def test_the_scope_left_open_follows_the_method_to_another_base() -> None:
    assert named_method("sat-gspo").on("grpo").scope == "microbatch"
    assert named_method("gspo").scope is None, "it has no judge"


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


@pytest.mark.parametrize("start", ["grpo", "sat-gspo", "icepop-weight", "score-centering", "sat-rollout-is"])
def test_a_name_with_two_suffixes_reads_back(start: str) -> None:
    base = start.removeprefix("sat-")
    for first, second in itertools.combinations(SUFFIXES, 2):
        name = f"{start}-{first}-{second}"
        method = named_method(name)
        assert method.name == name and method.has(first) and method.has(second)
        switched = {suffix.replace("-", "_"): True for suffix in (first, second)}
        assert method == compose_method(base, sat=base != start, **switched)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_suffix_without_a_base_stands_beside_grpo(suffix: str) -> None:
    assert named_method(suffix) == named_method(f"grpo-{suffix}")
    assert named_method(f"sat-{suffix}") == named_method(f"sat-grpo-{suffix}")


def test_what_the_newer_methods_need() -> None:
    needs = {name: named_method(name).needs for name in method_names() if named_method(name).needs}
    assert needs == {
        "topr": ("rewards",),
        "score-centering": ("heads",),
        "m2po-lag": ("lags",),
        "grpo-lag-power": ("lags",),
        "grpo-a3po": ("lags",),
        "grpo-decoupled-a3po": ("lags",),
    }
    assert compose(STABILIZERS["topr"](good_by="advantage")).needs == ()
    assert named_method("topr-a3po").needs == ("rewards", "lags")


@pytest.mark.parametrize(
    ("name", "denominator"),
    [
        ("grpo-mis-geo", "rollout"),
        ("grpo-decoupled", "trainer"),
        ("gspo-seq-tis", "trainer"),
        ("sat-grpo-decoupled", "checkpoint"),
        ("sat-gspo-seq-mask-tis", "checkpoint"),
        ("grpo-a3po", "a3po"),
        ("sat-grpo-decoupled-a3po", "a3po"),
        ("cispo", "rollout"),
        ("cispo-tis", "trainer"),
        ("m2po", "rollout"),
    ],
)
def test_the_denominator_that_a_method_takes(name: str, denominator: str) -> None:
    method = named_method(name)
    assert method.denominator == denominator
    check_method(method)


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


@pytest.mark.parametrize(("name", "meant"), [("sat", "'sat-gspo' or 'sat-grpo'"), ("dapo", "'grpo' with")])
def test_what_other_projects_call_a_method_is_known_and_the_answer_is_short(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean {meant}") as raised:
        named_method(name)
    assert len(str(raised.value)) < 120


def test_unknown_base() -> None:
    with pytest.raises(ValueError, match=r"unknown base 'gsop' \(did you mean 'gspo'\?\)"):
        compose_method("gsop")


@pytest.mark.parametrize("name", method_names())
@pytest.mark.parametrize("steps", [1, 4])
def test_named_methods_pass_the_check(name: str, steps: int) -> None:
    check_method(named_method(name), steps)


PPO = named_method("ppo").base


@dataclass(frozen=True)
class TwoJudges(Gate, Judge):
    """A gate of a package of its own that judges by a threshold too."""

    scope: str = "step"
    name = "two"
    row = Row("Two", *["-"] * 9)


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
        (compose_method("spo", sat=True), "SPO's penalty replaces the clip.*turn sat off"),
        (
            replace(compose_method("drpo"), trust_region=Clip()),
            "DRPO's penalty replaces.*trust_region to None",
        ),
        (compose_method("grpo", tis=True, denominator="rollout"), "twice: set method.denominator to trainer"),
        (compose_method("icepop-weight", denominator="rollout"), "twice: set method.denominator to trainer"),
        (
            compose_method("icepop-weight", tis=True),
            "TIS and IcePop's weight both weight.*one of them out, or take IcePop's form",
        ),
        (compose(DPPO(), [DPPO("kl", delta_kl=0.1)]), "DPPO stands twice"),
        (compose_method("trpo", sat=True), "TRPO's constraint replaces the clip.*turn sat off"),
        (compose(TRPO(), [SPO()]), "SPO's penalty replaces the clip.*beside TRPO: build the method on spo"),
        (compose(PPO, [STABILIZERS["m2po"]()]), "M2PO's gate replaces the clip.*beside PPO: build the method on m2po"),
        (compose(PPO, [SAT(), TwoJudges()]), "SAT and Two both judge by a threshold.*leave one of them out"),
        (named_method("grpo-tis-decoupled"), "TIS and Decoupled PPO both weight.*leave one of them out$"),
        (named_method("gspo-seq-tis-seq-mask-tis"), "Seq-TIS and Seq-Mask-TIS both weight"),
        (compose_method("grpo", decoupled=True, denominator="rollout"), "twice: set method.denominator to trainer"),
        (
            compose_method("grpo", seq_tis=True, sat=True, denominator="rollout"),
            "twice: set method.denominator to chec",
        ),
        (
            named_method("m2po-tis"),
            "M2PO is defined over denominator rollout, and TIS makes it trainer: leave that out",
        ),
        (
            named_method("flash-a3po"),
            "FlashREINFORCE is defined over denominator rollout, and A-3PO makes it a3po: leave",
        ),
        (
            compose_method("vespo", denominator="checkpoint"),
            "VESPO is defined over denominator rollout, and method.denominator makes it checkpoint",
        ),
        (compose_method("grpo", a3po=True, denominator="rollout"), "A-3PO makes up the denominator.*is rollout"),
        (compose_method("grpo", denominator="a3po"), "A-3PO makes up the denominator a3po.*turn method.a3po on"),
        (compose_method("dro", denominator="trainer"), "identically 1 and the penalty has no gradient"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(method, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_method(method)


@pytest.mark.parametrize(
    "base, reason",
    [
        ("m2po", "M2PO's gate replaces the clip"),
        ("cispo", "CISPO's score form takes no gradient away at the end of an interval"),
        ("rollout-is", "Rollout IS's score form"),
        ("topr", "TOPR's score form"),
        ("flash", "FlashREINFORCE's score form"),
        ("vespo", "VESPO's score form"),
        ("score-centering", "Score centering's score form"),
        ("aspo", "ASPO's interval is of another kind"),
        ("gmpo", "GMPO's interval is of another kind"),
        ("cpgd", "CPGD's interval is of another kind"),
        ("sapo", "SAPO's sigmoid replaces the clip"),
        ("ipo", "IPO's gate and penalty replace the clip"),
        ("dro", "DRO's penalty replaces the clip"),
    ],
)
def test_sat_is_refused_where_there_is_no_interval_of_ppos_kind(base: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"sat-{base}: {reason}.*so it has no interval of PPO's kind.*turn sat off"):
        check_method(named_method(f"sat-{base}"))
    with pytest.raises(ValueError, match="for a clip: set trust_region to None"):
        check_method(replace(named_method(base), trust_region=Clip()))


def test_allowed_beside_them() -> None:
    for base in ("grpo", "sat-grpo", "sat-gspo", "dppo", "m2po", "cispo", "vespo", "sapo", "gmpo", "score-centering"):
        check_method(named_method(f"{base}-mis-geo-opsm-trm-max-trm-mean-veto-r3-topp-vcpo"))
    for base in ("grpo", "gspo", "dppo", "cispo", "aspo", "sapo", "gmpo", "cpgd", "dro"):
        for weight in ("tis", "seq-tis", "seq-mask-tis", "decoupled"):
            check_method(named_method(f"{base}-{weight}-mis-geo"))
            check_method(named_method(f"{base}-{weight}-a3po"))
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
