"""The methods whose values and gradients are held against their equations."""

from __future__ import annotations

from dataclasses import replace

from sat_slime.objective import SAT, Clip, Method, Stabilizer, compose, method_names, named_method
from sat_slime.objective.gates import DPPO, IcePop
from sat_slime.objective.method import STABILIZERS

GSPO = named_method("gspo").base
LENGTHS = [5, 1, 0, 9, 3, 12, 2, 8]


def at(name: str, *beside: Stabilizer, **settings: object) -> Method:
    """The method on a base with these settings."""
    return compose(STABILIZERS[name](**settings), beside)


def beside(name: str, **settings: object) -> Stabilizer:
    """What stands beside a base, with these settings."""
    return STABILIZERS[name](**settings)


GRPO = "grpo"
ACTING = [  # each with settings at which it treats some tokens of a spread of 0.5 otherwise than others
    at("m2po", threshold=0.01, scope="microbatch"),
    at("m2po", threshold=0.01, power=1.5, scope="microbatch"),
    at("m2po", threshold=0.002, power=0.9),
    at("cispo", eps_low=0.3, eps_high=0.4),
    at("topr", cap=1.1),
    at("aspo", eps_low=0.5, eps_high=0.5, cap=1.2),
    at("gipo", sigma=0.3),
    at("flash", delta=0.06),
    at("vespo", k_pos=1.1, lambda_pos=0.7, k_neg=0.3, lambda_neg=1.3),
    at("ipo", eps=0.05, kl_tau=0.3),
    at(GRPO, beside("mis-geo", low=0.9, high=1.2)),
    at(GRPO, beside("opsm", delta=0.05)),
    at(GRPO, beside("trm-max", delta=0.3)),
    at(GRPO, beside("trm-mean", delta=0.1)),
    at(GRPO, beside("veto", low=0.5)),
    at(GRPO, beside("veto", high=2.0)),
    at(GRPO, beside("veto", low=0.8, form="suffix")),
    at("gspo", SAT(), beside("estr", tau=0.05, floor=0.2)),
    at(GRPO, beside("tis", cap=1.2)),
    at(GRPO, beside("decoupled", cap=1.2)),
    at(GRPO, beside("decoupled", cap=1.2, form="clamp")),
    at(GRPO, beside("seq-tis", cap=1.5)),
    at(GRPO, beside("seq-tis", cap=1.5, form="mask")),
    at(GRPO, beside("seq-mask-tis", low=0.9, high=1.2)),
]
METHODS = [
    *map(named_method, method_names()),
    *ACTING,
    compose(IcePop(0.8, 1.3, "weight")),
    compose(DPPO(delta=0.1)),
    compose(DPPO("kl", delta_kl=0.01)),
    replace(named_method("sat-grpo"), denominator="checkpoint"),
    *map(named_method, ("sat-dppo", "sat-grpo-tis", "sat-gspo-tis")),
    compose(GSPO, [SAT(alpha=0.7, exponent=3.0)], clip=Clip(0.1, 0.3)),
    replace(named_method("grpo"), clip=Clip(dual=1.3)),
    replace(named_method("sat-gspo"), clip=Clip(dual=1.1)),
    replace(named_method("grpo"), clip=None),
    compose(GSPO, [beside("lag-power", power=2.0)], clip=Clip(0.01, 0.02)),
    at(GRPO, beside("bapo", share=0.55, upper_max=1.5, step=0.07)),
    at(GRPO, beside("bapo", share=0.99, scope="microbatch")),
    compose(GSPO, [SAT(), beside("lag-power")], clip=Clip(0.4, 0.6, dual=1.2)),
    replace(named_method("cispo"), denominator="checkpoint"),
    *map(
        named_method,
        (
            *("sat-grpo-decoupled", "gspo-lag-power", "sat-grpo-lag-power", "sat-gspo-lag-power", "dppo-lag-power"),
            *("grpo-lag-power-decoupled-a3po", "gspo-bapo", "sat-gspo-mis-geo", "cispo-mis-geo-veto", "cispo-tis"),
            *("gspo-seq-tis", "sat-grpo-decoupled-a3po", "sat-gspo-opsm-trm-max-trm-mean-r3", "m2po-opsm-veto"),
            *("sapo-tis", "gmpo-decoupled", "cpgd-a3po", "dro-seq-mask-tis"),
        ),
    ),
]
