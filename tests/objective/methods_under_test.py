"""The methods whose values and gradients are held against their equations."""

from __future__ import annotations

from dataclasses import replace

from sat_slime.objective import SAT, Clip, Method, Stabilizer, compose, method_names, named_method
from sat_slime.objective.gates import DPPO, IcePop
from sat_slime.objective.method import STABILIZERS

GSPO = named_method("gspo").base
LENGTHS = [5, 1, 0, 9, 3, 12, 2, 8]


def at(name: str, *beside: Stabilizer, called: str = "", **settings: object) -> Method:
    """The method on a base with these settings."""
    method = compose(STABILIZERS[name](**settings), beside)
    return method.called_by(called) if called else method


def beside(name: str, **settings: object) -> Stabilizer:
    """What stands beside a base, with these settings."""
    return STABILIZERS[name](**settings)


GRPO = "grpo"
ACTING = [  # each with settings at which it treats some tokens of a spread of 0.5 otherwise than others
    at("m2po", threshold=0.01, scope="microbatch", called="m2po-microbatch"),
    at("m2po", threshold=0.01, power=1.5, scope="microbatch", called="m2po-by-lag"),
    at("m2po", threshold=0.002, power=0.9, called="m2po-by-lag-step"),
    at("cispo", eps_low=0.3, eps_high=0.4, called="cispo-narrow"),
    at("topr", good_by="advantage", cap=1.1, called="topr-advantage"),
    at("aspo", eps_low=0.5, eps_high=0.5, cap=1.2, called="aspo-low-cap"),
    at("flash", delta=0.06, called="flash-wide"),
    at("vespo", k_pos=1.1, lambda_pos=0.7, k_neg=0.3, lambda_neg=1.3, called="vespo-other"),
    at("ipo", eps=0.05, kl_tau=0.3, called="ipo-strong"),
    at(GRPO, beside("mis-geo", low=0.9, high=1.2), called="mis-geo-wide"),
    at(GRPO, beside("opsm", delta=0.05), called="opsm-wide"),
    at(GRPO, beside("trm-max", delta=0.3), called="trm-max-narrow"),
    at(GRPO, beside("trm-mean", delta=0.1), called="trm-mean-wide"),
    at(GRPO, beside("veto", low=0.5), called="veto-low"),
    at(GRPO, beside("veto", high=2.0), called="veto-high"),
    at(GRPO, beside("veto", low=0.8, form="suffix"), called="veto-suffix"),
    at("gspo", SAT(), beside("estr", tau=0.05, floor=0.2), called="gspo-estr"),
    at(GRPO, beside("tis", cap=1.2), called="tis-low-cap"),
    at(GRPO, beside("decoupled", cap=1.2), called="decoupled-low-cap"),
    at(GRPO, beside("decoupled", cap=1.2, form="clamp"), called="decoupled-clamp"),
    at(GRPO, beside("seq-tis", cap=1.5), called="seq-tis-low-cap"),
    at(GRPO, beside("seq-tis", cap=1.5, form="mask"), called="seq-tis-mask"),
    at(GRPO, beside("seq-mask-tis", low=0.9, high=1.2), called="seq-mask-tis-wide"),
]
METHODS = [
    *map(named_method, method_names()),
    *ACTING,
    compose(IcePop(0.8, 1.3, "weight")).called_by("icepop-weight-narrow"),
    compose(DPPO(delta=0.1)).called_by("dppo-wide"),
    compose(DPPO("kl", delta_kl=0.01)).called_by("dppo-kl-narrow"),
    replace(named_method("sat-grpo"), denominator="checkpoint", called="grpo-checkpoint"),
    *map(named_method, ("sat-dppo", "sat-grpo-tis", "sat-gspo-tis")),
    compose(GSPO, [SAT(alpha=0.7, exponent=3.0)], clip=Clip(0.1, 0.3)).called_by("gspo-p3"),
    replace(named_method("grpo"), called="grpo-dual", clip=Clip(dual=1.3)),
    replace(named_method("sat-gspo"), called="gspo-dual", clip=Clip(dual=1.1)),
    replace(named_method("grpo"), called="unclipped", clip=None),
    at("gipo", sigma=0.3, called="gipo-narrow"),
    compose(GSPO, [beside("lag-power", power=2.0)], clip=Clip(0.01, 0.02)).called_by("gspo-lag-squared"),
    at(GRPO, beside("bapo", share=0.55, upper_max=1.5, step=0.07), called="bapo-narrow"),
    at(GRPO, beside("bapo", share=0.99, scope="microbatch"), called="bapo-at-its-end"),
    compose(GSPO, [SAT(), beside("lag-power")], clip=Clip(0.4, 0.6, dual=1.2)).called_by("gspo-lag-dual"),
    replace(named_method("cispo"), denominator="checkpoint", called="cispo-checkpoint"),
    *map(
        named_method,
        (
            *("sat-grpo-decoupled", "gspo-lag-power", "sat-grpo-lag-power", "sat-gspo-lag-power", "dppo-lag-power"),
            *("grpo-lag-power-decoupled-a3po", "gspo-bapo", "sat-gspo-mis-geo", "cispo-mis-geo-veto", "cispo-tis"),
            *("gspo-seq-tis", "sat-grpo-decoupled-a3po", "sat-gspo-opsm-trm-max-trm-mean-r3", "m2po-opsm-veto"),
            *("gmpo-decoupled", "cpgd-a3po", "sapo-tis", "dro-seq-mask-tis"),
        ),
    ),
]
