"""Method: what a run optimizes, as data; the named methods, and what does not go together."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

Ratio = Literal["token", "sequence"]
Denominator = Literal["rollout", "checkpoint", "trainer"]


@dataclass(frozen=True)
class Clip:
    """PPO's interval [1 - eps_low, 1 + eps_high] (Eq. ppo-objective)."""

    eps_low: float = 0.2
    eps_high: float = 0.2
    dual: float | None = None
    """Dual clip: with a negative advantage the surrogate is at least dual * A, dual > 1. None: off, as in the paper."""


@dataclass(frozen=True)
class SAT:
    """The staleness-adaptive trust region (Eqs. quantile, kernel, gate, adaptive-eps): PPO's interval, contracted on
    the tokens whose |d| is above the alpha-quantile, by 1 / (1 + (|d| / q)^exponent), on the side of sign(d)."""

    eps_low: float = 0.2
    eps_high: float = 0.2
    dual: float | None = None
    """As in Clip; never contracted."""
    alpha: float = 0.9
    exponent: float = 2.0
    scope: Literal["microbatch", "step"] = "microbatch"
    """Tokens that the quantile is taken over: one micro-batch (the paper's), or the optimizer step on all ranks."""


@dataclass(frozen=True)
class DPPO:
    """Gate on the sampled total variation (Eq. app-dppo-mask): drops outward tokens with |pi - mu| > delta."""

    delta: float = 1e-3


@dataclass(frozen=True)
class IcePop:
    """Gate on k = pi_trainer / mu in [low, high] (Eq. app-icepop); form `weight` multiplies by k as well."""

    low: float = 0.5
    high: float = 5.0
    form: Literal["mask", "weight"] = "mask"


@dataclass(frozen=True)
class KPop:
    """Gate on the Bernoulli KL of the sampled token, at most phi nats in both directions (Eq. app-kpop). The paper
    gives no phi; this one is our choice."""

    phi: float = 0.1


@dataclass(frozen=True)
class SeqClip:
    """Gate on the sequence ratio to mu in [low, high] (Eq. app-seqclip). The paper gives no bounds; these are the
    nominal clip interval, made symmetric in the logarithm."""

    low: float = 0.8
    high: float = 1.25


@dataclass(frozen=True)
class SPO:
    """Quadratic penalty in place of the clip, stationary at 1 +- eps (Eq. app-spo)."""

    eps: float = 0.2


@dataclass(frozen=True)
class DRPO:
    """The quadratic penalty weighted by mu (Eq. app-drpo). The paper gives no delta; this one is our choice."""

    delta: float = 12.5


@dataclass(frozen=True)
class TIS:
    """Truncated importance sampling (Eq. app-tis): weight min(pi_proximal / mu, cap), detached."""

    cap: float = 2.0


Gate = DPPO | IcePop | KPop | SeqClip
Penalty = SPO | DRPO


@dataclass(frozen=True)
class Method:
    """What a run optimizes. Data only: two equal methods are the same objective.

    At most one of `trust_region` and `penalty` is set; neither means the unclipped surrogate r A.
    """

    name: str
    ratio: Ratio = "token"
    """token: each token's own ratio (GRPO); sequence: their geometric mean over the response (GSPO, Eq. gspo-ratio)."""
    denominator: Denominator = "rollout"
    """Policy below the ratio: `rollout` is mu, `checkpoint` the trainer under the generating weights, `trainer` the
    trainer at the start of the step. The last two are read from `TokenBatch.proximal_log_probs`."""
    trust_region: Clip | SAT | None = Clip()
    gates: tuple[Gate, ...] = ()
    penalty: Penalty | None = None
    tis: TIS | None = None
    routing_replay: bool = False
    """R3: the forward pass replays the experts of the rollout engine. The runtime's work; no formula here reads it."""


_BASES: dict[str, Method] = {
    # The same surrogate: PPO and GRPO differ in the advantage estimator, which is not part of it.
    "ppo": Method("ppo"),
    "grpo": Method("grpo"),
    "gspo": Method("gspo", ratio="sequence"),
    "dppo": Method("dppo", gates=(DPPO(),)),
    "icepop": Method("icepop", gates=(IcePop(),)),
    "kpop": Method("kpop", gates=(KPop(),)),
    "seqclip": Method("seqclip", ratio="sequence", gates=(SeqClip(),)),
    "spo": Method("spo", trust_region=None, penalty=SPO()),
    "drpo": Method("drpo", trust_region=None, penalty=DRPO()),
}


def compose_method(
    base: str, *, sat: bool = False, tis: bool = False, r3: bool = False, denominator: Denominator | None = None
) -> Method:
    """A base recipe with the switches of a configuration; `dataclasses.replace` sets anything finer.

    `denominator` unset is what the method needs: rollout; with TIS, whose weight carries mu, trainer, and checkpoint
    where SAT wants a ratio that is not 1. Combinations are not judged here: see check_method.

    Raises:
        ValueError: `base` is unknown.
    """
    if base not in _BASES:
        raise ValueError(f"unknown base {base!r}{_nearest(base, list(_BASES))}; bases: {', '.join(_BASES)}")
    recipe = _BASES[base]
    if denominator is None:
        denominator = ("checkpoint" if sat else "trainer") if tis else "rollout"
    return Method(
        name=f"{'sat-' if sat else ''}{base}{'-tis' if tis else ''}{'-r3' if r3 else ''}",
        ratio=recipe.ratio,
        denominator=denominator,
        trust_region=SAT() if sat else recipe.trust_region,
        gates=recipe.gates,
        penalty=recipe.penalty,
        tis=TIS() if tis else None,
        routing_replay=r3,
    )


PAPER_METHODS: tuple[Method, ...] = (
    compose_method("grpo"),
    compose_method("gspo"),
    compose_method("grpo", r3=True),
    compose_method("gspo", r3=True),
    compose_method("grpo", tis=True),
    compose_method("gspo", tis=True),
    compose_method("grpo", tis=True, r3=True),
    compose_method("gspo", tis=True, r3=True),
    compose_method("dppo"),
    compose_method("grpo", sat=True),
    compose_method("gspo", sat=True),
    compose_method("grpo", sat=True, r3=True),
    compose_method("gspo", sat=True, r3=True),
)
"""The thirteen methods of Table main-combined, in its order."""

_METHODS = {method.name: method for method in (*PAPER_METHODS, *_BASES.values())}


def method_names() -> list[str]:
    """Names that named_method knows: the paper's thirteen in its order, then the other bases."""
    return list(_METHODS)


def named_method(name: str) -> Method:
    """The method of that name, such as `sat-gspo-r3`, with the paper's settings.

    Raises:
        ValueError: the name is unknown; names the nearest known one.
    """
    if name not in _METHODS:
        raise ValueError(f"unknown method {name!r}{_nearest(name, list(_METHODS))}; methods: {', '.join(_METHODS)}")
    return _METHODS[name]


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_method(method: Method, optimizer_steps_per_rollout: int = 1) -> None:
    """Refuses a combination that means nothing, or not what it says.

    Plain clipping against `trainer` at one optimizer step per rollout is allowed: the clip never acts, and that is
    slime's default and, with TIS, the gradient of Eq. app-tis.

    Raises:
        ValueError: with the reason and the remedy.
    """
    sat = isinstance(method.trust_region, SAT)
    weights_by_engine_ratio = method.tis is not None or any(
        isinstance(gate, IcePop) and gate.form == "weight" for gate in method.gates
    )
    if method.penalty is not None and method.trust_region is not None:
        raise ValueError(
            f"{method.name}: {type(method.penalty).__name__} replaces the clip, so there is no interval for "
            f"{'SAT to contract: turn sat off' if sat else 'a clip: set trust_region to None'}, or choose a clipping "
            "base such as grpo"
        )
    if method.trust_region is not None and method.trust_region.dual is not None and method.trust_region.dual <= 1:
        raise ValueError(
            f"{method.name}: dual is {method.trust_region.dual}, and a bound dual * A at or above A would cut tokens "
            "inside the clip interval: set method.clip.dual above 1, or leave it out"
        )
    no_op = no_op_at_ratio_one(method)
    split = "checkpoint, so that the ratio is pi / pi_l, the staleness of the policy, and the weight carries pi_l / mu"
    if no_op and method.denominator == "trainer" and optimizer_steps_per_rollout == 1:
        raise ValueError(
            f"{method.name}: with denominator trainer and one optimizer step per rollout the ratio is identically 1 "
            f"and {no_op}: set method.denominator to {split if weights_by_engine_ratio else 'rollout (or checkpoint)'}"
        )
    if weights_by_engine_ratio and method.denominator == "rollout":
        raise ValueError(
            f"{method.name}: with denominator rollout the ratio already divides by mu, and the weight pi / mu would "
            f"count it twice: set method.denominator to {split if no_op else 'trainer (or checkpoint)'}"
        )


def no_op_at_ratio_one(method: Method) -> str | None:
    """What makes the method pointless where its ratio is identically 1, in words; None where it means something."""
    if isinstance(method.trust_region, SAT):
        return "SAT's gate can never open (all |d| are 0)"
    return "the penalty has no gradient" if method.penalty is not None else None
