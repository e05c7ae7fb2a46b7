"""Method: a base and what is switched on beside it; names such as `sat-gspo-tis-r3`; combinations without a meaning."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar, get_args

from .. import outside
from . import clips, gates, scores
from .clips import GRPO, GSPO, PPO, Clip
from .sat import SAT
from .stabilizer import Gate, Judge, Radii, Scope, Stabilizer, Surrogate, Weight
from .terms import Denominator, Need, Ratio

Kind = TypeVar("Kind", bound=Stabilizer)


# ------------------------------------------------------------------------------- what happens around the surrogate


@dataclass(frozen=True)
class A3PO(Stabilizer):
    """A-3PO: the denominator log mu + a (log pi - log mu), a = (lag - 1) / lag, without a forward pass.
    arXiv 2512.06547 and AReaL's public code (loglinear)."""

    name, place, needs = "a3po", "suffix", ("lags",)


@dataclass(frozen=True)
class R3(Stabilizer):
    """R3: the trainer's forward pass replays the experts that the engine chose, g_e = I_e exp(z_e) / sum I exp(z)
    (Eq. r3). The runtime's work; it needs an MoE model."""

    name, place = "r3", "suffix"


@dataclass(frozen=True)
class TopP(Stabilizer):
    """top-p: the trainer's softmax is over the tokens that the engine sampled from (Eq. app-top-p-replay). The
    runtime's work; it needs slime's rollout-top-p below 1."""

    name, place, key = "topp", "suffix", "top_p_replay"


STABILIZERS: dict[str, type[Stabilizer]] = {
    kind.name: kind
    for kind in (
        # bases: those of Table designspace in its order, then the newer ones
        *(PPO, GRPO, gates.DPPO, scores.SPO, scores.DRPO, gates.IcePop, gates.KPop, GSPO, gates.SeqClip),
        *(clips.GMPO, clips.CPGD, gates.M2PO, scores.CISPO, scores.RolloutIS, scores.TOPR, scores.ASPO, scores.GIPO),
        *(scores.Flash, scores.VESPO, scores.SAPO, scores.IPO, scores.DRO),
        # beside them, in the order in which a method's name has them: a name that ends another comes before it
        *(SAT, clips.LagPower, clips.BAPO, gates.TIS, gates.SeqTIS, gates.SeqMaskTIS, gates.Decoupled, A3PO),
        *(gates.MISGeo, gates.OPSM, gates.TRMMax, gates.TRMMean, gates.Veto, gates.ESTR, R3, TopP),
    )
}
"""The stabilizers of this package, by name."""
_OWN: dict[str, type[Stabilizer]] = {}
"""Stabilizers outside this package that were asked for, by their dotted path."""


def bases() -> list[type[Stabilizer]]:
    """The stabilizers that a method can be built on."""
    return [kind for kind in STABILIZERS.values() if kind.place == "base"]


def switches() -> list[type[Stabilizer]]:
    """The stabilizers that are switched on beside a base."""
    return [kind for kind in STABILIZERS.values() if kind.place != "base"]


def known() -> tuple[type[Stabilizer], ...]:
    """The stabilizers of this package, and those outside it that were asked for."""
    return (*STABILIZERS.values(), *_OWN.values())


def imported() -> tuple[str, ...]:
    """The dotted paths of the stabilizers outside this package that were asked for."""
    return tuple(_OWN)


def find(name: str) -> type[Stabilizer] | None:
    """The stabilizer of that name, or the one in the module at that dotted path; None: there is none. Raises ValueError
    where the module cannot be imported, or holds no base; says what to do."""
    if "." not in name:
        return STABILIZERS.get(name)
    if name not in _OWN:
        outside.importing(name)
        try:
            module = importlib.import_module(name)
        except Exception as error:  # whatever a module does as it is imported, such as a SyntaxError
            what = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{name} cannot be imported ({what}): name a module that Python finds, on every machine of the run"
            ) from error
        found = [x for x in vars(module).values() if isinstance(x, type) and issubclass(x, Stabilizer)]
        own = [kind for kind in found if kind.__module__ == module.__name__]
        if len(own) != 1:
            classes = ", ".join(kind.__name__ for kind in own) or "none"
            raise ValueError(f"{name} defines {classes}: it must define one subclass of Gate, Weight, Score or another")
        if fault := _fault(own[0]):
            raise ValueError(f"{name}: {own[0].__name__}{fault}")
        _OWN[name] = own[0]
    return _OWN[name]


def _fault(kind: type[Stabilizer]) -> str:
    """What keeps a class that is not ours from being a base, with the remedy; empty where nothing does."""
    name, parameters = getattr(kind, "name", ""), vars(kind).get("__dataclass_params__")
    if kind.place != "base":
        return f".place is {kind.place}: leave it out, a stabilizer of your own is a base"
    if not re.fullmatch(r"\w+", name):
        return f".name is {name!r}: set it to the word that its metrics begin with, such as 'mine'"
    if name in STABILIZERS:
        return f".name is {name!r}, the name of one of ours: choose another"
    if parameters is None or not parameters.frozen:
        return " is no frozen dataclass: write @dataclass(frozen=True) above it"
    if unset := [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]:  # type: ignore[arg-type]
        return f".{unset[0]} has no default: give every setting one"
    if not set(needs := kind().needs) <= set(get_args(Need)):
        return f".needs is {needs!r}: it may have 'lags' and 'entropies', as ('lags',)"
    return ""


def _all(kind: type[Kind]) -> cached_property[tuple[Kind, ...]]:
    return cached_property(lambda method: tuple(part for part in method.stabilizers if isinstance(part, kind)))


def _first(kind: type[Kind]) -> cached_property[Kind | None]:
    return cached_property(lambda method: next((part for part in method.stabilizers if isinstance(part, kind)), None))


@dataclass(frozen=True)
class Method:
    """The objective that a run optimizes. Data only: two equal methods are the same objective."""

    stabilizers: tuple[Stabilizer, ...]
    """The stabilizers that it is made of, its base first."""
    denominator: Denominator = "rollout"
    """The denominator of the ratio: `rollout` is mu, `checkpoint` the trainer under the generating weights, `trainer`
    the trainer as the batch begins, `a3po` A-3PO's."""
    clip: Clip | None = Clip()
    """The clip interval. None: the unclipped surrogate r A, or what a stabilizer has in its place."""

    @property
    def base(self) -> Stabilizer:
        """The stabilizer that it is built on."""
        return self.stabilizers[0]

    @property
    def ratio(self) -> Ratio:
        """token: each token's own ratio; sequence: that of its response."""
        return self.base.ratio

    sat = _first(SAT)
    """What contracts the clip interval."""
    judge = _first(Judge)
    """What judges each token by a threshold over all tokens of its scope."""
    instead = _first(Surrogate)
    """What computes S in place of the clip."""
    radius_policy = _first(Radii)
    """What sets the radii of the clip interval."""
    gates = _all(Gate)
    """What keeps or drops tokens."""
    weights = _all(Weight)
    """What weights tokens."""

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """The columns of TokenBatch that it reads besides log-probs, advantages and mask."""
        return tuple(dict.fromkeys(need for stabilizer in self.stabilizers for need in stabilizer.needs))

    @property
    def scope(self) -> Scope | None:
        """The tokens that its judge's threshold is taken over: the micro-batch, or the whole optimizer step, before
        which it is taken then; where the judge leaves it open, the step under the sequence ratio and else the
        micro-batch. None: it has no judge."""
        if self.judge is None:
            return None
        return self.judge.scope or ("step" if self.ratio == "sequence" else "microbatch")

    def has(self, name: str) -> bool:
        """Whether a stabilizer of that name is among its own."""
        return any(stabilizer.name == name for stabilizer in self.stabilizers)

    @property
    def formula(self) -> tuple[object, ...]:
        """Equal for methods that compute the same of the same log-probs: PPO, GRPO, GRPO with R3."""
        others = [part for part in self.stabilizers if not isinstance(part, (PPO, GSPO, R3))]
        return self.ratio, self.denominator, self.clip, *others

    # ----------------------------------------------------------------------------------------- how it is called

    @property
    def name(self) -> str:
        """Such as `sat-gspo-r3`; `named_method` knows it."""
        before, behind = ([part.name for part in self._beside(place)] for place in ("prefix", "suffix"))
        return "-".join([*before, self.base_path, *behind])

    @property
    def label(self) -> str:
        """The name as the paper writes it, such as `SAT-GSPO w/ TIS + R3`."""
        name = "-".join(part.title() for part in (*self._beside("prefix"), self.base))
        suffixes = " + ".join(part.title() for part in self._beside("suffix"))
        return f"{name} w/ {suffixes}" if suffixes else name

    def _beside(self, place: str) -> list[Stabilizer]:
        return [part for part in self.stabilizers if part.place == place]

    @property
    def base_is_ours(self) -> bool:
        """True where its base is one of this package."""
        return STABILIZERS.get(self.base.name) is type(self.base)

    @property
    def base_path(self) -> str:
        """The name by which a configuration calls its base: its own, or of one that is not ours its module's path."""
        return self.base.name if self.base_is_ours else type(self.base).__module__

    # ------------------------------------------------------------------------------------------- what it is not

    def without(self, *names: str) -> Method:
        """The method without these stabilizers, and with the denominator that it needs then."""
        kept = [stabilizer for stabilizer in self.stabilizers if stabilizer.name not in names]
        return compose(kept[0], kept[1:], clip=self.clip)

    def check_interval(self) -> None:
        """Raises ValueError where it has a clip, or what changes one, on a base without an interval."""
        if not self.base.has_interval and (self.clip or self.sat or self.radius_policy):
            policy = self.radius_policy
            remedy = "turn sat off" if self.sat else f"leave {policy.name} out" if policy else "set clip to None"
            raise ValueError(
                f"{self.name}: {self.base.title()} has no clip interval: {remedy}, or choose a base with one, such as "
                "grpo"
            )


def compose(
    base: Stabilizer,
    beside: Iterable[Stabilizer] = (),
    *,
    denominator: Denominator | None = None,
    clip: Clip | None = Clip(),
) -> Method:
    """The method that is built on `base`, with others beside it in whatever order.

    Args:
        denominator: unset, what the method needs: rollout; with a weight that carries mu (TIS, IcePop's), trainer, and
            checkpoint where SAT or a penalty wants a ratio that is not 1; A-3PO's with that.
        clip: the clip interval; left out where something stands in its place.
    """
    order = list(STABILIZERS)
    beside = sorted(beside, key=lambda part: order.index(part.name) if part.name in order else len(order))
    method = Method((base, *beside), clip=clip if base.has_interval else None)
    if denominator is None:
        weighs, idle = (any(getattr(s, what) for s in method.stabilizers) for what in ("weighs_by_mu", "idle_at_one"))
        denominator = "rollout" if not weighs else "checkpoint" if idle else "trainer"
        denominator = "a3po" if method.has("a3po") else denominator
    return replace(method, denominator=denominator)


def named_method(name: str) -> Method:
    """The method of that name, such as `sat-gspo-r3`, with the paper's settings: any base, ours or a dotted path, with
    `sat-` before it and suffixes behind it in their order, such as `-tis-r3`. Suffixes without a base stand beside
    grpo: `mis-geo` is `grpo-mis-geo`.

    Raises:
        ValueError: the name is unknown; names the nearest known one.
    """
    rest = name.removeprefix(f"{SAT.name}-")
    beside = [SAT()] if rest != name else []
    for base in (rest, f"grpo-{rest}"):
        suffixes: list[Stabilizer] = []
        for kind in reversed(switches()):
            if kind.place == "suffix" and base.endswith(f"-{kind.name}"):
                base = base.removesuffix(f"-{kind.name}")
                suffixes.append(kind())
        if (kind_of_base := find(base)) is not None and kind_of_base.place == "base":
            return compose(kind_of_base(), [*beside, *suffixes])
    raise ValueError(f"unknown method {name!r}{_nearest(name, method_names())}: `sat-slime methods` lists them")


ELSEWHERE = {"sat": "'sat-gspo' or 'sat-grpo'", "dapo": "'grpo' with method.clip.eps_high 0.28"}
"""What else methods are called."""


def _nearest(name: str, names: list[str]) -> str:
    if meant := ELSEWHERE.get(name.lower()):
        return f" (did you mean {meant}?)"
    words = sorted(name.lower().split("-"))
    near = [other for other in names if sorted(other.split("-")) == words]  # the same words in another order
    near += difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


PAPER_METHODS: tuple[Method, ...] = tuple(
    named_method(name)
    for name in (
        *("grpo", "gspo", "grpo-r3", "gspo-r3", "grpo-tis", "gspo-tis", "grpo-tis-r3", "gspo-tis-r3"),
        *("dppo", "sat-grpo", "sat-gspo", "sat-grpo-r3", "sat-gspo-r3"),
    )
)
"""The thirteen methods of Table main-combined, in its order."""


def method_names() -> list[str]:
    """The paper's thirteen in its order, the other bases, each suffix on grpo. named_method knows any composition."""
    suffixes = [f"grpo-{kind.name}" for kind in switches() if kind.place == "suffix"]
    others = [*(kind.name for kind in bases()), *suffixes, "grpo-decoupled-a3po", "gspo-topp"]
    return list(dict.fromkeys([*(method.name for method in PAPER_METHODS), *others]))


def check_method(method: Method, optimizer_steps_per_rollout: int = 1) -> None:
    """Refuses a combination that means nothing, or not what it says.

    Plain clipping against `trainer` at one optimizer step per rollout is allowed: the clip never acts, and that is
    slime's default and, with TIS, the gradient of Eq. app-tis.

    Raises:
        ValueError: with the reason and the remedy.
    """

    def titles(parts: Iterable[Stabilizer]) -> list[str]:
        return [part.title() for part in parts]

    def refuse(reason: str) -> None:
        raise ValueError(f"{method.name}: {reason}")

    parts, over, clip = method.stabilizers, method.denominator, method.clip
    kinds = [type(part) for part in parts]
    weighing = titles(part for part in parts if part.weighs_by_mu)
    idle = titles(part for part in parts if part.idle_at_one)
    radii, judges = (titles(part for part in parts if isinstance(part, kind)) for kind in (Radii, Judge))
    method.check_interval()
    if clip is None and (method.sat or radii):
        refuse(f"without a clip {(['SAT'] if method.sat else radii)[0]} has no interval: set clip, or turn it off")
    if clip is not None and clip.dual is not None and clip.dual <= 1:
        refuse(
            f"dual is {clip.dual}, and a bound dual * A at or above A would cut tokens inside the clip interval: set "
            "method.clip.dual above 1, or leave it out"
        )
    if twice := {kind.__name__ for kind in kinds if kinds.count(kind) > 1}:
        refuse(f"{', '.join(sorted(twice))} is in it twice: leave one out")
    if misplaced := titles(part for part in parts[1:] if not part.has_interval):
        refuse(f"{misplaced[0]} replaces the clip: build the method on it, or leave it out")
    for what, several in (("set the radii of the clip", radii), ("judge by a threshold over a batch", judges)):
        if len(several) > 1:
            refuse(f"{' and '.join(several)} both {what}: leave one out")
    if len(weighing) > 1:
        or_mask = ", or take IcePop's form mask" if "IcePop" in weighing else ""
        refuse(
            f"{' and '.join(weighing)} both weight a token by pi / mu, which would count it twice: leave one of them "
            f"out{or_mask}"
        )
    if (over == "a3po") != method.has("a3po"):
        refuse(f"A-3PO makes the denominator a3po and no other, and method.denominator is {over}: set both or neither")
    for part in parts:
        if part.only_over and over not in part.only_over:
            others = [*weighing, *(["A-3PO"] if method.has("a3po") else [])]
            refuse(
                f"{part.title()} is defined over denominator {' or '.join(part.only_over)}, and "
                f"{' and '.join(others) or 'method.denominator'} makes it {over}: leave that out"
            )
    split = "checkpoint, so that the ratio is pi / pi_l, the staleness of the policy, and the weight carries pi_l / mu"
    if idle and over == "trainer" and optimizer_steps_per_rollout == 1:
        refuse(
            "with denominator trainer and one optimizer step per rollout the ratio is identically 1 and "
            f"{' and '.join(idle)} would do nothing: set method.denominator to "
            f"{split if weighing else 'rollout (or checkpoint)'}"
        )
    if weighing and over == "rollout":
        remedy = f"set method.denominator to {split if idle else 'trainer (or checkpoint)'}"
        refuse(
            "with denominator rollout the ratio already divides by mu, and the weight pi / mu would count it twice: "
            + (f"leave {weighing[0]} out" if any(part.only_over for part in parts) else remedy)
        )
