"""Methods as data: names, denominators, defaults, refusals, and stabilizers of one's own."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from sat_slime.objective import PAPER_METHODS, SAT, Clip, Method, check_method, compose, method_names, named_method
from sat_slime.objective.gates import M2PO, TIS, IcePop
from sat_slime.objective.method import STABILIZERS


def test_the_papers_methods_are_the_first_names() -> None:
    assert method_names()[:13] == [method.name for method in PAPER_METHODS] and len(PAPER_METHODS) == 13
    assert len(set(method_names())) == len(method_names())


def test_every_name_is_that_of_its_method() -> None:
    for name in method_names():
        assert named_method(name).name == name
    for prefix, base, suffix in itertools.product(("", "sat-"), ("grpo", "gspo", "dppo"), ("", "-tis-r3", "-mis-geo")):
        assert named_method(f"{prefix}{base}{suffix}").name == f"{prefix}{base}{suffix}"
    assert named_method("mis-geo").name == "grpo-mis-geo" and named_method("sat-veto").name == "sat-grpo-veto"
    assert named_method("grpo-seq-mask-tis").weights[0].name == "seq-mask-tis"


@pytest.mark.parametrize(
    "name, label",
    [("sat-gspo-tis-r3", "SAT-GSPO w/ TIS + R3"), ("icepop", "IcePop"), ("grpo-lag-power", "GRPO w/ Lag-power")],
)
def test_labels_are_as_the_paper_writes_them(name: str, label: str) -> None:
    assert named_method(name).label == label


@pytest.mark.parametrize("name, near", [("gspo-sat", "sat-gspo"), ("grpo-r3-tis", "grpo-tis-r3"), ("sapoo", "sapo")])
def test_an_unknown_name_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{near}'"):
        named_method(name)


@pytest.mark.parametrize(
    "name, denominator",
    [
        *(("sat-gspo-r3", "rollout"), ("grpo-tis", "trainer"), ("sat-grpo-tis", "checkpoint"), ("m2po", "rollout")),
        *(("spo-tis", "checkpoint"), ("icepop", "rollout"), ("grpo-decoupled-a3po", "a3po")),
    ],
)
def test_the_denominator_that_a_method_needs(name: str, denominator: str) -> None:
    assert named_method(name).denominator == denominator


def test_methods_are_values() -> None:
    assert named_method("sat-grpo") == compose(named_method("grpo").base, [SAT()])
    assert len({named_method(name) for name in method_names()}) == len(method_names())
    assert len({kind() for kind in STABILIZERS.values()}) == len(STABILIZERS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        named_method("grpo").base.name = "another"


@pytest.mark.parametrize(
    "name, same",
    [("ppo", True), ("grpo-r3", True), ("grpo-tis", False), ("gspo", False), ("sat-grpo", False), ("dppo", False)],
)
def test_methods_of_one_formula(name: str, same: bool) -> None:
    assert (named_method(name).formula == named_method("grpo").formula) == same


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
    assert compose(named_method(base).base, [SAT(scope=scope)]).scope == meant


def test_a_method_without_a_stabilizer_needs_what_is_left() -> None:
    assert named_method("sat-grpo-tis").without("tis") == named_method("sat-grpo")
    assert named_method("sat-grpo-tis").without("sat") == named_method("grpo-tis")
    assert named_method("grpo-decoupled-a3po").without("decoupled", "a3po").denominator == "rollout"


DEFAULTS = {
    **{"dppo": [0.001, 0.05], "spo": [0.2], "drpo": [12.5], "icepop": [0.5, 5.0], "kpop": [0.1]},
    **{"seqclip": [0.8, 1.25], "gmpo": [0.4, 0.4], "cpgd": [0.2], "m2po": [0.04, 0.0], "cispo": [1.0, 4.0]},
    **{"rollout-is": [0.2, 0.2], "topr": [1.0], "aspo": [0.2, 0.2, 3.0], "gipo": [1.0], "flash": [0.005]},
    **{"vespo": [2.0, 3.0, 3.0, 2.0], "sapo": [1.0, 1.05], "ipo": [0.1, 0.001], "dro": [0.1], "sat": [0.9, 2.0]},
    **{"lag-power": [0.5], "bapo": [0.5, 0.6, 0.9, 1.2, 3.0, 0.05], "tis": [2.0], "seq-tis": [2.0]},
    **{"seq-mask-tis": [0.99, 1.01], "decoupled": [5.0], "mis-geo": [0.99, 1.01], "opsm": [1e-4], "trm-max": [2.5]},
    **{"trm-mean": [0.01], "veto": [1e-4], "estr": [0.1, 0.1]},
}


def test_defaults_are_those_of_the_paper_and_of_public_code() -> None:
    numbers = {
        name: [f.default for f in dataclasses.fields(kind) if type(f.default) in (int, float)]
        for name, kind in STABILIZERS.items()
    }
    assert {name: values for name, values in numbers.items() if values} == DEFAULTS
    assert Clip() == Clip(0.2, 0.2, None)


def changed(name: str, **changes: object) -> Method:
    return dataclasses.replace(named_method(name), **changes)


REFUSED = [
    (named_method("sat-cispo"), 1, "no clip interval"),
    (named_method("sat-m2po"), 1, "no clip interval"),
    (named_method("spo-lag-power"), 1, "no clip interval"),
    (changed("spo", clip=Clip()), 1, "no clip interval"),
    (changed("sat-grpo", clip=None), 1, "SAT has no interval"),
    (changed("grpo-lag-power", clip=None), 1, "Lag-power has no interval"),
    (named_method("grpo-lag-power-bapo"), 1, "both set the radii"),
    (named_method("sat-grpo-bapo"), 1, "both judge"),
    (named_method("grpo-tis-seq-tis"), 1, "both weight a token"),
    (compose(IcePop(form="weight"), [TIS()]), 1, "form mask"),
    (changed("grpo", stabilizers=(named_method("grpo").base, SAT(), SAT())), 1, "in it twice"),
    (changed("grpo", stabilizers=(named_method("grpo").base, M2PO())), 1, "build the method on it"),
    (changed("grpo", denominator="a3po"), 1, "A-3PO makes the denominator a3po"),
    (changed("grpo-a3po", denominator="trainer"), 1, "A-3PO makes the denominator a3po"),
    (changed("m2po", denominator="trainer"), 1, "defined over denominator rollout"),
    (named_method("topr-tis"), 1, "TIS makes it trainer"),
    (named_method("ipo-a3po"), 1, "A-3PO makes it a3po"),
    (changed("sat-grpo", denominator="trainer"), 1, "set method.denominator to rollout"),
    (changed("spo", denominator="trainer"), 1, "identically 1"),
    (changed("sat-grpo-tis", denominator="trainer"), 1, "to checkpoint"),
    (changed("grpo-tis", denominator="rollout"), 1, "to trainer"),
    (changed("sat-grpo-tis", denominator="rollout"), 2, "to checkpoint"),
    (changed("topr-tis", denominator="rollout"), 1, "leave TIS out"),
    (changed("grpo", clip=Clip(dual=1.0)), 1, "above 1"),
]


@pytest.mark.parametrize("method, steps, says", REFUSED, ids=[f"{m.name}-{m.denominator}" for m, _, _ in REFUSED])
def test_a_combination_without_a_meaning_is_refused_with_the_remedy(method: Method, steps: int, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        check_method(method, steps)
    assert str(error.value).startswith(f"{method.name}: ")


def test_what_means_something_is_accepted() -> None:
    for name in method_names():
        check_method(named_method(name))
    for base in ("grpo", "sat-grpo", "sat-gspo", "dppo", "m2po", "cispo", "vespo", "sapo"):
        check_method(named_method(f"{base}-mis-geo-opsm-trm-max-trm-mean-veto-r3-topp"))
    check_method(changed("sat-grpo", denominator="trainer"), 2)
    check_method(changed("grpo", denominator="trainer"))
    check_method(changed("grpo-tis", denominator="checkpoint"))
    check_method(changed("grpo", clip=Clip(dual=1.01)))
    check_method(named_method("icepop-tis"))


@pytest.mark.parametrize("name", ["icepop", "seqclip", "mis-geo", "seq-mask-tis", "veto"])
def test_a_range_that_does_not_hold_1_is_refused(name: str) -> None:
    for low, high in ((1.1, 2.0), (0.5, 0.9)):
        with pytest.raises(ValueError, match="does not hold 1"):
            STABILIZERS[name](low=low, high=high)
    STABILIZERS[name](low=1.0, high=1.0)
    with pytest.raises(ValueError, match="do not ascend"):
        STABILIZERS["bapo"](lower_start=0.9, lower_max=0.8)


@pytest.mark.parametrize(("name", "meant"), [("sat", "'sat-gspo' or 'sat-grpo'"), ("dapo", "'grpo' with")])
def test_what_other_projects_call_a_method_is_known_and_the_answer_is_short(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean {meant}") as raised:
        named_method(name)
    assert len(str(raised.value)) < 120
