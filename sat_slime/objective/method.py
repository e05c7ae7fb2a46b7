"""Method: what a run optimizes, as data; and the named methods."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from .batch import Need
from .ratio import Denominator, Ratio
from .stabilizer import (
    Clipping,
    Gate,
    Judge,
    Place,
    ProximalPolicy,
    RadiusControl,
    RadiusPolicy,
    Replacement,
    Row,
    Scope,
    Stabilizer,
    StepConstraint,
    StepScale,
    Style,
    Weight,
)
from .stabilizers import STABILIZERS, bases, find, switches
from .stabilizers.clips.ppo import Clip
from .stabilizers.clips.sat import SAT

Kind = TypeVar("Kind", bound=Stabilizer)


@dataclass(frozen=True)
class Method:
    """The objective that a run optimizes. Data only: two equal methods are the same objective.

    What happens outside the surrogate is the runtime's work, and no formula of it reads them: `step_constraint`,
    `routing_replay` and `top_p_replay`.
    """

    stabilizers: tuple[Stabilizer, ...]
    """The stabilizers that it is made of, its base first."""
    denominator: Denominator = "rollout"
    """The denominator of the ratio: `rollout` is mu, `checkpoint` the trainer under the generating weights, `trainer`
    the trainer at the start of the step. The last two are read from `TokenBatch.proximal_log_probs`."""
    trust_region: Clip | None = Clip()
    """The clip interval. None: the unclipped surrogate r A, or what a penalty has in its place."""
    called: str = ""
    """The name of its base. Unset: the name of that stabilizer."""

    def __hash__(self) -> int:
        return hash((self.name, self.stabilizers, self.denominator, self.trust_region))

    @property
    def base(self) -> Stabilizer:
        """The stabilizer that it is built on."""
        return self.stabilizers[0]

    @property
    def ratio(self) -> Ratio:
        """token: each token's own ratio; sequence: that of its response."""
        return self.base.ratio

    @cached_property
    def sat(self) -> SAT | None:
        """The stabilizer that contracts the clip interval."""
        return self._first(SAT)

    @cached_property
    def radius_policy(self) -> RadiusPolicy | None:
        """The radius policy that scales the radii of the clip interval."""
        return self._first(RadiusPolicy)

    @cached_property
    def radius_control(self) -> RadiusControl | None:
        """The switch that scales those radii by a state of the run."""
        return self._first(RadiusControl)

    @cached_property
    def gates(self) -> tuple[Gate, ...]:
        """The stabilizers that keep or drop tokens."""
        return self._all(Gate)

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """The stabilizers that weight tokens."""
        return self._all(Weight)

    @cached_property
    def replacement(self) -> Replacement | None:
        """The stabilizer that stands in place of the clip."""
        return self._first(Replacement)

    @cached_property
    def judge(self) -> Judge | None:
        """The stabilizer that judges each token by a threshold over all tokens of its scope."""
        return self._first(Judge)

    @cached_property
    def proximal_policy(self) -> ProximalPolicy | None:
        """The stabilizer that makes up the denominator of the ratio."""
        return self._first(ProximalPolicy)

    @cached_property
    def step_scale(self) -> StepScale | None:
        """The stabilizer that scales the learning rate of each step."""
        return self._first(StepScale)

    @property
    def no_interval(self) -> str:
        """The reason why it has no clip interval, such as `SPO's penalty replaces the clip`; empty where it has one."""
        return f"{self.base.row.title}'s {self.base.no_interval}" if self.base.no_interval else ""

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """The columns of TokenBatch that it reads besides log-probs, advantages and mask."""
        return tuple(dict.fromkeys(need for stabilizer in self.stabilizers for need in stabilizer.needs))

    @cached_property
    def step_constraint(self) -> StepConstraint | None:
        """The stabilizer that bounds how far the weights move in one optimizer step."""
        return self._first(StepConstraint)

    @property
    def routing_replay(self) -> bool:
        """R3: the forward pass replays the experts of the rollout engine."""
        return self.has("r3")

    @property
    def top_p_replay(self) -> bool:
        """The trainer's softmax is over the tokens that the rollout engine sampled from."""
        return self.has("topp")

    @cached_property
    def scope(self) -> Scope | None:
        """The tokens that its judge's threshold is taken over; where the judge leaves it open, the step under the
        sequence ratio and else the micro-batch. None: it has no judge."""
        if self.judge is None:
            return None
        return self.judge.scope or ("step" if self.ratio == "sequence" else "microbatch")

    @property
    def threshold_is_of_the_step(self) -> bool:
        """True where its judge's threshold is over all tokens of the optimizer step, so that it is taken beforehand."""
        return self.scope == "step"

    def has(self, name: str) -> bool:
        """Return whether a stabilizer of that name is among its own."""
        return any(stabilizer.name == name for stabilizer in self.stabilizers)

    def _all(self, kind: type[Kind]) -> tuple[Kind, ...]:
        return tuple(stabilizer for stabilizer in self.stabilizers if isinstance(stabilizer, kind))

    def _first(self, kind: type[Kind]) -> Kind | None:
        return next(iter(self._all(kind)), None)

    @property
    def formula(self) -> tuple[object, ...]:
        """Equal for methods that compute the same of the same log-probs: PPO, GRPO, GRPO with R3 or VCPO."""
        outside = (Clipping, StepScale)
        formulas = tuple(
            stabilizer
            for stabilizer in self.stabilizers
            if not isinstance(stabilizer, outside) and stabilizer.name != "r3"
        )
        return self.ratio, self.denominator, self.trust_region, formulas

    # ----------------------------------------------------------------------------------------- how it is called

    @cached_property
    def name(self) -> str:
        """Such as `sat-gspo-r3`; `named_method` knows it, unless it is `called` something."""
        prefixes, suffixes = self._beside("prefix"), self._beside("suffix")
        return "-".join(
            [
                *(stabilizer.name for stabilizer in prefixes),
                self.base_name,
                *(stabilizer.name for stabilizer in suffixes),
            ]
        )

    @property
    def base_is_ours(self) -> bool:
        """True where its base is one of this package."""
        return STABILIZERS.get(self.base.name) is type(self.base)

    @property
    def base_path(self) -> str:
        """The name by which a configuration calls its base: its own, or the module's dotted path of one that is not
        ours."""
        return self.base.name if self.base_is_ours else type(self.base).__module__

    @property
    def base_name(self) -> str:
        """The same with its variant, such as `dppo-kl`."""
        name = f"{self.base_path}-{self.base.variant.name}" if self.base.variant else self.base_path
        return self.called or name

    @property
    def label(self) -> str:
        """The name as the paper writes it, such as `SAT-GSPO w/ TIS + R3`."""
        name = "-".join(
            [*(stabilizer.in_words for stabilizer in self._beside("prefix")), self.called.upper() or self.base.in_words]
        )
        suffixes = [stabilizer.in_words for stabilizer in self._beside("suffix")]
        return f"{name} w/ {' + '.join(suffixes)}" if suffixes else name

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of its rows of the design space, that of its ratio, or of what stands in place of the clip, first."""
        first = self.base.part if self.no_interval else "gspo" if self.ratio == "sequence" else "ppo"
        beside = (*self._beside("prefix"), *self.gates, *self.weights, *self._beside("suffix"))
        return tuple(dict.fromkeys((first, *(stabilizer.part for stabilizer in beside))))

    @property
    def rows(self) -> tuple[Row, ...]:
        """Its rows of the design space."""
        table = {name: kind.row for name, kind in STABILIZERS.items()} | {s.part: s.own_row for s in self.stabilizers}
        return tuple(table[part] for part in self.parts)

    @property
    def family(self) -> str:
        """The kind of stabilizer that its base is: clip, gate, weight, penalty or constraint."""
        return self.base.family

    @property
    def style(self) -> Style:
        """Its style in figures: colour and dash of what is switched on beside its base, where that has some, else of
        its base; the base's marker, or its variant's; filled with R3."""
        lines = [stabilizer.style for stabilizer in self.line_givers if stabilizer.style]
        variant = self.base.variant
        assert lines and self.base.style is not None, "a base has a style"
        marker = (variant and variant.marker) or self.base.style.marker
        return Style(lines[0].colour, lines[-1].dash, marker, self.routing_replay)

    @property
    def line_givers(self) -> tuple[Stabilizer, ...]:
        """Its stabilizers which give its lines colour, the first of them, and dash, the last."""
        beside = (*self._beside("prefix"), *self._beside("suffix"))
        return tuple(stabilizer for stabilizer in beside if stabilizer.style) or (self.base,)

    def _beside(self, place: str) -> tuple[Stabilizer, ...]:
        return tuple(stabilizer for stabilizer in self.stabilizers if stabilizer.place == place)

    # -------------------------------------------------------------------------------------------- what it means

    @property
    def engine_weights(self) -> list[str]:
        """Its stabilizers that weight a token by pi_proximal / mu, in words."""
        weighing = (*self.weights, *self.gates)
        return [stabilizer.engine_weight for stabilizer in weighing if stabilizer.engine_weight]

    @property
    def no_op_at_ratio_one(self) -> str:
        """The reason why it is pointless where its ratio is identically 1, in words; empty where it means something."""
        return next(
            (stabilizer.no_op_at_ratio_one for stabilizer in self.stabilizers if stabilizer.no_op_at_ratio_one), ""
        )

    def without(self, *names: str) -> Method:
        """Return the method without these stabilizers, and with the denominator that it needs then."""
        kept = [stabilizer for stabilizer in self.stabilizers if stabilizer.name not in names]
        return compose(kept[0], kept[1:], trust_region=self.trust_region)

    def called_by(self, name: str) -> Method:
        """Return the method under another name of its base."""
        return replace(self, called=name)

    def on(self, base: str) -> Method:
        """Return what it is made of, on another base. Raises ValueError as compose_method."""
        return compose(_base(base), self.stabilizers[1:], trust_region=self.trust_region)


def compose(
    base: Stabilizer,
    beside: Iterable[Stabilizer] = (),
    *,
    denominator: Denominator | None = None,
    trust_region: Clip | None = Clip(),
) -> Method:
    """Return the method that is built on `base`, with others beside it in whatever order.

    Args:
        denominator: unset, what the method needs: rollout; with a weight that carries mu (TIS, IcePop's), trainer, and
            checkpoint where SAT or a penalty wants a ratio that is not 1; A-3PO's with that.
        trust_region: the clip interval; left out where something stands in its place.
    """
    order = list(STABILIZERS)
    others = sorted(
        beside, key=lambda stabilizer: order.index(stabilizer.name) if stabilizer.name in order else len(order)
    )
    method = Method((base, *others), trust_region=None if base.no_interval else trust_region)
    return replace(method, denominator=denominator or _usual_denominator(method))


def _usual_denominator(method: Method) -> Denominator:
    if method.proximal_policy:
        return method.proximal_policy.denominator
    if method.engine_weights:
        return "checkpoint" if method.no_op_at_ratio_one else "trainer"
    return "rollout"


def compose_method(base: str, *, denominator: Denominator | None = None, **switched: bool) -> Method:
    """Return a base with the switches of a configuration (sat, tis, r3, topp), all with their defaults;
    `dataclasses.replace` sets anything finer. Combinations are not judged here: see check_method.

    Raises:
        ValueError: `base` is unknown, or a switch.
    """
    known = {kind.prefix(): kind for kind in switches()}
    if unknown := switched.keys() - known.keys():
        raise ValueError(f"unknown switches {', '.join(sorted(unknown))}; switches: {', '.join(known)}")
    beside = [kind() for name, kind in known.items() if switched.get(name)]
    return compose(_base(base), beside, denominator=denominator)


def _base(name: str) -> Stabilizer:
    """Return a base with its default settings, those of its variant in `NAME-VARIANT` set."""
    stem, variant = (name, "") if "-" not in name or name in STABILIZERS else name.rsplit("-", 1)
    kind = find(stem)
    variants = {variant.name: variant.settings for variant in kind.variants} if kind else {}
    if kind is None or kind.place != "base" or variant not in ("", *variants):
        known = base_names()
        raise ValueError(f"unknown base {name!r}{_nearest(name, known)}; bases: {', '.join(known)}")
    return kind(**variants[variant]) if variant else kind()


def base_names() -> list[str]:
    """Return the names of the bases, in the order of the paper's table, each before its variants."""
    return [
        name for kind in bases() for name in (kind.name, *(f"{kind.name}-{variant.name}" for variant in kind.variants))
    ]


# ------------------------------------------------------------------------------------------------ the named methods

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

_OTHERS = (
    *map(compose_method, base_names()),
    *(
        compose_method("grpo", **{kind.prefix(): True})  # type: ignore[arg-type]
        for kind in switches()
        if kind.place == "suffix"
    ),
    compose_method("grpo", decoupled=True, a3po=True),
    compose_method("gspo", topp=True),
)
_METHODS = {method.name: method for method in (*PAPER_METHODS, *_OTHERS)}


def method_names() -> list[str]:
    """Return the paper's thirteen in its order, the other bases, each suffix on grpo. named_method knows any
    composition."""
    return list(_METHODS)


def named_method(name: str) -> Method:
    """Return the method of that name, such as `sat-gspo-r3`, with the paper's settings: one of method_names, or any
    base, ours or a dotted path, with `sat-` before it and the suffixes behind it in their order, such as `-tis-r3`.
    Suffixes without a base stand beside grpo: `mis-geo` is `grpo-mis-geo`.

    Raises:
        ValueError: the name is unknown; names the nearest known one.
    """
    if name in _METHODS:
        return _METHODS[name]
    rest = name
    beside: list[Stabilizer] = []
    for kind in _beside_a_base("prefix"):
        if rest.startswith(f"{kind.name}-"):
            rest = rest.removeprefix(f"{kind.name}-")
            beside.append(kind())
    for whole in (rest, f"grpo-{rest}"):
        base, suffixes = _split(whole)
        if "." in base or base in base_names():
            return compose(_base(base), [*beside, *suffixes])
    raise ValueError(f"unknown method {name!r}{_nearest(name, list(_METHODS))}: `sat-slime methods` lists them")


def _split(name: str) -> tuple[str, list[Stabilizer]]:
    """Return (base, what its suffixes switch on)."""
    found: list[Stabilizer] = []
    for kind in reversed(_beside_a_base("suffix")):
        if name.endswith(f"-{kind.name}"):
            name = name.removesuffix(f"-{kind.name}")
            found.append(kind())
    return name, found


def _beside_a_base(place: Place) -> list[type[Stabilizer]]:
    return [kind for kind in switches() if kind.place == place]


ELSEWHERE = {"sat": "'sat-gspo' or 'sat-grpo'", "dapo": "'grpo' with method.clip.eps_high 0.28"}
"""What else methods are called."""


def _nearest(name: str, known: list[str]) -> str:
    if meant := ELSEWHERE.get(name.lower()):
        return f" (did you mean {meant}?)"
    words = sorted(name.lower().split("-"))
    near = [other for other in known if sorted(other.split("-")) == words]  # the same words in another order
    near += difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
