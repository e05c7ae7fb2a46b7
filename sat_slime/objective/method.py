"""Method: what a run optimizes, as data; the named methods, and what does not go together."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

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
    """Gate on the divergence of the sampled token (Eq. app-dppo-mask): drops outward tokens above delta.

    `tv` is the paper's |pi - mu| (Eq. app-bintv) with its delta. `kl` has the Bernoulli KL(mu || pi) in its place, in
    nats; the paper names it and has no delta for it.
    """

    delta: float = 1e-3
    divergence: Literal["tv", "kl"] = "tv"

    @property
    def name(self) -> str:
        return "dppo" if self.divergence == "tv" else "dppo-kl"


@dataclass(frozen=True)
class IcePop:
    """Gate on k = pi_trainer / mu in [low, high] (Eq. app-icepop); form `weight` multiplies by k as well. The paper
    gives no bounds; these are the usual ones of public code."""

    low: float = 0.5
    high: float = 5.0
    form: Literal["mask", "weight"] = "mask"

    @property
    def name(self) -> str:
        return "icepop" if self.form == "mask" else "icepop-weight"


@dataclass(frozen=True)
class KPop:
    """Gate on the Bernoulli KL of the sampled token, at most phi nats in both directions (Eq. app-kpop). The paper
    gives no phi; this one is the smaller of two found in public examples."""

    phi: float = 0.1
    name: ClassVar[str] = "kpop"


@dataclass(frozen=True)
class SeqClip:
    """Gate on the sequence ratio to mu in [low, high] (Eq. app-seqclip). The paper gives no bounds; these are the
    nominal clip interval, made symmetric in the logarithm."""

    low: float = 0.8
    high: float = 1.25
    name: ClassVar[str] = "seqclip"


@dataclass(frozen=True)
class SPO:
    """Quadratic penalty in place of the clip, stationary at 1 +- eps (Eq. app-spo)."""

    eps: float = 0.2
    name: ClassVar[str] = "spo"


@dataclass(frozen=True)
class DRPO:
    """The quadratic penalty weighted by mu (Eq. app-drpo). The paper gives no delta; this one is of DRPO's public
    code."""

    delta: float = 12.5
    name: ClassVar[str] = "drpo"


@dataclass(frozen=True)
class TIS:
    """Truncated importance sampling (Eq. app-tis): weight min(pi_proximal / mu, cap), detached."""

    cap: float = 2.0
    name: ClassVar[str] = "tis"


@dataclass(frozen=True)
class TRPO:
    """Constraint on the optimizer step (Table designspace): the total variation between mu and pi over the whole
    vocabulary is at most delta, or the step does not raise it; a step that breaks it is halved.

    The paper gives no delta. This one is sqrt(0.01 / 2): the KL of 0.01 that public TRPO code allows, through
    Pinsker's inequality.
    """

    delta: float = 0.07
    over: Literal["state", "mean"] = "mean"
    """mean: in the mean over the batch's states, as in public TRPO code; state: at every one of them, as in the paper's
    table, which a single state on which the engines disagree can make impossible."""
    max_backtracks: int = 10
    """Halvings of a step before it is given up."""
    name: ClassVar[str] = "trpo"


Gate = DPPO | IcePop | KPop | SeqClip
Penalty = SPO | DRPO


@dataclass(frozen=True)
class Method:
    """What a run optimizes. Data only: two equal methods are the same objective.

    At most one of `trust_region` and `penalty` is set; neither means the unclipped surrogate r A. What happens outside
    the surrogate is the runtime's work, and no formula of it reads them: `step_constraint`, `routing_replay` and
    `top_p_replay`.
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
    step_constraint: TRPO | None = None
    """What the weights may move by in one optimizer step; see step_constraint.py."""
    routing_replay: bool = False
    """R3: the forward pass replays the experts of the rollout engine."""
    top_p_replay: bool = False
    """The trainer's softmax is over the tokens that the rollout engine sampled from; see support.py."""

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the rows of the design space that it is made of, that of its ratio first."""
        region = self.penalty or self.step_constraint
        names = [region.name if region else "gspo" if self.ratio == "sequence" else "ppo"]
        names += ["sat"] if isinstance(self.trust_region, SAT) else []
        names += [gate.name for gate in self.gates]
        names += ["tis"] if self.tis else []
        return (*names, *(name for name, on in (("r3", self.routing_replay), ("topp", self.top_p_replay)) if on))


# In the order of Table designspace.
_BASES: dict[str, Method] = {
    # The same surrogate: PPO and GRPO differ in the advantage estimator, which is not part of it.
    "ppo": Method("ppo"),
    "grpo": Method("grpo"),
    "trpo": Method("trpo", trust_region=None, step_constraint=TRPO()),
    "dppo": Method("dppo", gates=(DPPO(),)),
    # The threshold of public DPPO code for this divergence.
    "dppo-kl": Method("dppo-kl", gates=(DPPO(0.05, "kl"),)),
    "spo": Method("spo", trust_region=None, penalty=SPO()),
    "drpo": Method("drpo", trust_region=None, penalty=DRPO()),
    "icepop": Method("icepop", gates=(IcePop(),)),
    "icepop-weight": Method("icepop-weight", denominator="trainer", gates=(IcePop(form="weight"),)),
    "kpop": Method("kpop", gates=(KPop(),)),
    "gspo": Method("gspo", ratio="sequence"),
    "seqclip": Method("seqclip", ratio="sequence", gates=(SeqClip(),)),
}


def base_names() -> list[str]:
    """Names of the base recipes, in the order of the paper's table."""
    return list(_BASES)


def compose_method(
    base: str,
    *,
    sat: bool = False,
    tis: bool = False,
    r3: bool = False,
    topp: bool = False,
    denominator: Denominator | None = None,
) -> Method:
    """A base recipe with the switches of a configuration; `dataclasses.replace` sets anything finer.

    `denominator` unset is what the method needs: rollout; with a weight that carries mu (TIS, IcePop's), trainer, and
    checkpoint where SAT wants a ratio that is not 1. Combinations are not judged here: see check_method.

    Raises:
        ValueError: `base` is unknown.
    """
    if base not in _BASES:
        raise ValueError(f"unknown base {base!r}{_nearest(base, list(_BASES))}; bases: {', '.join(_BASES)}")
    recipe = _BASES[base]
    suffixes = [name for name, on in (("tis", tis), ("r3", r3), ("topp", topp)) if on]
    method = replace(
        recipe,
        name="-".join([*(["sat"] if sat else []), base, *suffixes]),
        trust_region=SAT() if sat else recipe.trust_region,
        tis=TIS() if tis else None,
        routing_replay=r3,
        top_p_replay=topp,
    )
    if denominator is None:
        denominator = ("checkpoint" if sat else "trainer") if _engine_weights(method) else "rollout"
    return replace(method, denominator=denominator)


def _engine_weights(method: Method) -> list[str]:
    """What weights a token by pi / mu, in words."""
    weights = ["TIS"] if method.tis else []
    return weights + ["IcePop's weight" for gate in method.gates if isinstance(gate, IcePop) and gate.form == "weight"]


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

_TOP_P_METHODS = (compose_method("grpo", topp=True), compose_method("gspo", topp=True))
_METHODS = {method.name: method for method in (*PAPER_METHODS, *_BASES.values(), *_TOP_P_METHODS)}


def method_names() -> list[str]:
    """The paper's thirteen in its order, the other bases, and top-p mask replay. named_method knows any composition."""
    return list(_METHODS)


def named_method(name: str) -> Method:
    """The method of that name, such as `sat-gspo-r3`, with the paper's settings: one of method_names, or any base with
    `sat-` before it and `-tis`, `-r3`, `-topp` behind it, in that order.

    Raises:
        ValueError: the name is unknown; names the nearest known one.
    """
    if name in _METHODS:
        return _METHODS[name]
    base, on = name.removeprefix("sat-"), set()
    for suffix in ("topp", "r3", "tis"):
        if base.endswith(f"-{suffix}"):
            base = base.removesuffix(f"-{suffix}")
            on.add(suffix)
    if base not in _BASES:
        raise ValueError(
            f"unknown method {name!r}{_nearest(name, list(_METHODS))}; methods: {', '.join(_METHODS)}, or any other "
            "sat-BASE-tis-r3-topp"
        )
    return compose_method(base, sat=name.startswith("sat-"), tis="tis" in on, r3="r3" in on, topp="topp" in on)


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
    weights = _engine_weights(method)
    if len(weights) > 1:
        raise ValueError(
            f"{method.name}: {' and '.join(weights)} both weight a token by pi / mu, which would count it twice: leave "
            "one of them out, or take IcePop's form mask"
        )
    if twice := {type(gate).__name__ for gate in method.gates if [type(g) for g in method.gates].count(type(gate)) > 1}:
        raise ValueError(f"{method.name}: {', '.join(sorted(twice))} stands twice among the gates: leave one out")
    if method.step_constraint is not None and (method.trust_region is not None or method.penalty is not None):
        raise ValueError(
            f"{method.name}: TRPO's constraint replaces the clip, so there is no interval for "
            f"{'SAT to contract: turn sat off' if sat else 'a clip or a penalty: set both to None'}, or choose a "
            "clipping base such as grpo"
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
            f"and {no_op}: set method.denominator to {split if weights else 'rollout (or checkpoint)'}"
        )
    if weights and method.denominator == "rollout":
        raise ValueError(
            f"{method.name}: with denominator rollout the ratio already divides by mu, and the weight pi / mu would "
            f"count it twice: set method.denominator to {split if no_op else 'trainer (or checkpoint)'}"
        )


def no_op_at_ratio_one(method: Method) -> str | None:
    """What makes the method pointless where its ratio is identically 1, in words; None where it means something."""
    if isinstance(method.trust_region, SAT):
        return "SAT's gate can never open (all |d| are 0)"
    return "the penalty has no gradient" if method.penalty is not None else None
