"""Stabilizer: an entry of the design space (Table designspace). One class for each, in stabilizers/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt

from .batch import Need
from .batch_view import BatchView
from .metric import Metric
from .ratio import Denominator, Ratio, bounded_ratio

PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Place = Literal["base", "prefix", "suffix"]
Scope = Literal["microbatch", "step"]


@dataclass(frozen=True)
class Row:
    """A row of the table, and what a user has to know beside it. r is the ratio, rho that of the sequence, A the
    advantage, pi the policy in training, mu the rollout engine's, both on the sampled token."""

    title: str
    """The name as the paper writes it."""
    unit: str
    """The tokens that are judged together."""
    discriminator: str
    """The quantity that it is judged by."""
    constraint: str
    weight: str
    """Factor on the token's gradient."""
    direction: str
    """Says whether an update that leads back towards mu is spared."""
    formula: str
    source: str
    """Labels of the equations in the paper, and where our defaults come from if not from there."""
    needs: str = "rollout log-probs"
    """The things that the runtime has to give it."""
    excludes: str = "nothing"
    """The stabilizers with which it cannot be combined, and why."""


@dataclass(frozen=True)
class Style:
    """The look of a method in figures."""

    colour: str
    """A colour of report.looks by its name, such as `blue`, or any of CSS."""
    dash: Any
    """The dash of lines: `-`, `--`, `:`, `-.`, or (0, (6, 1)), lengths on and off in widths of the line."""
    marker: str = ""
    """The marker of a base, one of report.looks; empty for what stands beside one, since the base's marker stays."""
    filled: bool = False
    """True where the marker is filled."""


@dataclass(frozen=True)
class Variant:
    """Settings of a stabilizer that make it another row of the table."""

    name: str
    """The suffix that it adds to the stabilizer's name: `kl` makes NAME-kl."""
    settings: Mapping[str, Any]
    row: Row
    marker: str = ""
    """Its marker in figures. Unset: that of the plain one."""


class Stabilizer:
    """One entry of the design space. A subclass is a frozen dataclass: its fields are its settings.

    A field has a type with its bounds, a default and a docstring; the YAML section, its checks and its help follow.
    """

    name: ClassVar[str]
    """The name of the base, or the part of a method's name; its YAML section and its metrics bear it too."""
    place: ClassVar[Place] = "base"
    """base: a method is built on it. prefix, suffix: where its name goes when it is switched on beside a base."""
    label: ClassVar[str] = ""
    """In figures and tables. Unset: its name in capitals."""
    row: ClassVar[Row]
    """Its row of the table; where it has variants, that of the plain one."""
    variants: ClassVar[tuple[Variant, ...]] = ()
    """Its variants, if it has some."""
    style: ClassVar[Style | None] = None
    """The look of a base in figures; of what stands beside one, the colour and dash that it gives it, if it does."""
    family: ClassVar[str] = ""
    """The kind of stabilizer, in a word."""
    ratio: ClassVar[Ratio] = "token"
    """The ratio of a method that is built on it."""
    key: ClassVar[str] = ""
    """Its key in the YAML section `method`. Unset: its name."""
    help: ClassVar[str] = ""
    """The help of that key, where it is not a base."""
    switch_help: ClassVar[str] = ""
    """The help of the setting `enabled` in its section, where it is not a base."""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """The metrics that it measures."""
    no_op_at_ratio_one: ClassVar[str] = ""
    """The reason why it is pointless where the ratio is identically 1, in words; empty where it is not."""
    no_interval: ClassVar[str] = ""
    """The reason why a method on this base has no clip interval for SAT to contract: what follows its title and "'s",
    such as "penalty replaces the clip"; empty where it has one."""
    denominators: ClassVar[tuple[Denominator, ...]] = ()
    """The denominators that it is defined over, the usual one first; empty: all."""

    @classmethod
    def prefix(cls) -> str:
        """Return what the names of its metrics begin with."""
        return cls.name.replace("-", "_")

    @property
    def needs(self) -> tuple[Need, ...]:
        """The columns of TokenBatch that it reads besides log-probs, advantages and mask."""
        return ()

    @property
    def variant(self) -> Variant | None:
        """The variant that its settings make. None: the plain one."""
        for variant in self.variants:
            if all(getattr(self, key) == value for key, value in variant.settings.items()):
                return variant
        return None

    @property
    def part(self) -> str:
        """The name of its row: its own, with its variant."""
        return f"{self.name}-{self.variant.name}" if self.variant else self.name

    @property
    def own_row(self) -> Row:
        """Its row of the table: that of its variant."""
        return self.variant.row if self.variant else self.row

    @property
    def in_words(self) -> str:
        """Its label, with its variant."""
        label = self.label or self.name.upper()
        return f"{label}-{self.variant.name.upper()}" if self.variant else label

    @property
    def engine_weight(self) -> str:
        """The part of it that weights a token by pi_proximal / mu, in words, so that the clip must not divide by mu
        too; empty where nothing does."""
        return ""

    @property
    def unread(self) -> tuple[str, ...]:
        """Settings that its variant does not read."""
        return ()


def around_one(low: float, high: float) -> None:
    """Raises ValueError unless the range of a ratio holds 1, its value where the policies agree."""
    if not low <= 1 <= high:
        raise ValueError(
            f"the range of low {low} and high {high} does not hold 1, and would drop the tokens on which "
            "the policies agree: set low to 1 or less and high to 1 or more"
        )


class TrustRegion(Stabilizer):
    """Changes the clip interval."""

    family = "trust region"


class Clipping(Stabilizer):
    """PPO's interval with nothing beside it; it has no settings but the interval's."""

    family = "clip"


class Gate(Stabilizer):
    """Keeps or drops tokens, beside the clip. Its metric NAME/masked is the share of tokens that it drops."""

    family = "gate"

    def factor(self, batch: BatchView) -> torch.Tensor:
        """Return 0 on the tokens that it drops, 1 (or their weight) on the others, (N,). Runs without gradient."""
        raise NotImplementedError

    def measured(self, batch: BatchView) -> dict[str, torch.Tensor]:
        """Return the 0-dim metrics besides that share."""
        return {}


class Weight(Stabilizer):
    """Weights the surrogate of each token."""

    family = "weight"

    def factor(self, batch: BatchView) -> torch.Tensor:
        """Return the (N,) weights. Runs without gradient."""
        raise NotImplementedError

    def sums(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the 0-dim sums over the tokens, 0 on inactive ones, whose means are its metrics."""
        return {f"{self.prefix()}/weight": weights.sum()}


class Judge(Stabilizer):
    """Judges each token by a threshold that is taken over all tokens of its scope, on all ranks. Beside Gate or another
    kind."""

    scope: Scope | None
    """Tokens that the threshold is taken over: one micro-batch, or the whole optimizer step on all ranks. None: as
    `Method.scope` says."""

    def scores(self, batch: BatchView) -> torch.Tensor:
        """Return the (n,) scores of the tokens that count, not negative."""
        raise NotImplementedError

    def threshold_of(self, scores: torch.Tensor, group: torch.distributed.ProcessGroup | None = None) -> torch.Tensor:
        """Return the 0-dim threshold of this rank's (n,) scores. The same on all ranks of `group`, for a number of
        bytes that does not depend on n."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class PolicyTerms:
    """The terms that carry the gradient to the policy in training."""

    d: torch.Tensor
    """(N,) log r of the method; 0 on inactive tokens."""
    log_pi: torch.Tensor
    """(N,) log pi of the sampled tokens; 0 on inactive ones."""
    head: torch.Tensor | None = None
    """(N, k) log pi of the tokens that `BatchView.rollout_head` is of."""

    @property
    def ratio(self) -> torch.Tensor:
        """(N,) r = e^d, saturated where it is huge."""
        return bounded_ratio(self.d)


class Replacement(Stabilizer):
    """Stands in place of the clip."""

    no_interval = "surrogate replaces the clip"

    def values(self, policy: PolicyTerms, batch: BatchView) -> torch.Tensor:
        """Return (N,) S, with its gradient through what `policy` holds."""
        raise NotImplementedError

    def sums(self, batch: BatchView) -> dict[str, torch.Tensor]:
        """Return the 0-dim sums over the active tokens, whose means are its metrics. Runs without gradient."""
        return {}


class Penalty(Replacement):
    """A function of the ratio."""

    family = "penalty"
    no_interval = "penalty replaces the clip"
    no_op_at_ratio_one = "the penalty has no gradient"

    def values(self, policy: PolicyTerms, batch: BatchView) -> torch.Tensor:
        return self.surrogate(policy.ratio, batch)

    def surrogate(self, ratio: torch.Tensor, batch: BatchView) -> torch.Tensor:
        """Return (N,) S, with its gradient through the (N,) ratio r."""
        raise NotImplementedError


class Score(Replacement):
    """w A log pi with a detached weight w. Its gradient in log pi is w A; its value alone means nothing.

    Its metrics are NAME/weight, the mean of w, and NAME/masked, the share of tokens whose w is 0.
    """

    family = "score"
    no_interval = "score form takes no gradient away at the end of an interval"

    def weight(self, batch: BatchView) -> torch.Tensor:
        """Return (N,) w. Runs without gradient."""
        raise NotImplementedError

    def values(self, policy: PolicyTerms, batch: BatchView) -> torch.Tensor:
        return self._weight(batch) * batch.advantages * policy.log_pi

    def sums(self, batch: BatchView) -> dict[str, torch.Tensor]:
        weight = torch.where(batch.mask, self._weight(batch), 0.0)
        dropped = batch.mask & (weight == 0)
        return {f"{self.prefix()}/weight": weight.sum(), f"{self.prefix()}/masked": dropped.sum()}

    def _weight(self, batch: BatchView) -> torch.Tensor:
        with torch.no_grad():
            return batch.once(self.weight)


class Replay(Stabilizer):
    """Changes the trainer's forward pass; no formula of the loss reads it."""

    family = "replay"
    place = "suffix"


class StepConstraint(Stabilizer):
    """Bounds the optimizer's step, in place of the clip: the trainer halves a step until it stands."""

    family = "constraint"
    no_interval = "constraint replaces the clip"
    max_backtracks: int
    """Halvings of a step before it is given up and the weights stay as they were."""

    def stands(
        self, before: torch.Tensor, after: torch.Tensor, group: torch.distributed.ProcessGroup | None = None
    ) -> bool:
        """Return whether an optimizer step may stand.

        Args:
            before, after: (N,) divergence from mu at this rank's states under the weights before and after the step.
            group: ranks that hold parts of the states, some perhaps none. All get the same answer.
        """
        raise NotImplementedError


class ProximalPolicy(Stabilizer):
    """Makes up the denominator of the ratio from what the batch holds, in place of a forward pass."""

    family = "proximal policy"
    place = "suffix"
    denominator: ClassVar[Denominator]
    """The name of the denominator."""

    def log_probs(self, log_pi: torch.Tensor, log_mu: torch.Tensor, lags: torch.Tensor) -> torch.Tensor:
        """Return the (N,) log-probs of the denominator. Runs without gradient.

        Args:
            log_pi: (N,) of the policy in training.
            log_mu: (N,) of the rollout engine.
            lags: (N,) optimizer updates between the weights that generated each token and those in training.
        """
        raise NotImplementedError


class RadiusPolicy(Stabilizer):
    """Sets the radii of the clip interval; SAT contracts what it leaves. Its metrics are radius/{low,high}."""

    family = "trust region"
    place = "suffix"

    def radii(self, low: float, high: float, batch: BatchView) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the radii below and above 1, each (N,) or 0-dim. Runs without gradient.

        Args:
            low, high: those of the section `clip`.
        """
        raise NotImplementedError


class RadiusControl(RadiusPolicy):
    """A radius policy with a state: one factor on the radii of the section `clip` for all tokens of a step, which
    follows what the steps before measured. The runtime keeps the state, and a checkpoint holds it."""

    def start(self) -> dict[str, float]:
        """Return the state of a new run; `scale` is the factor."""
        return {"scale": 1.0}

    def advance(self, state: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
        """Return the state after an optimizer step. Not called at lag 0, where every share of the tokens is one of the
        engine's rounding.

        Args:
            measured: the metrics of the step, the same on all ranks, so that the state is.
        """
        raise NotImplementedError

    def told(self, state: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of a state, besides the radii."""
        return {}

    def radii(self, low: float, high: float, batch: BatchView) -> tuple[torch.Tensor, torch.Tensor]:
        return batch.d.new_tensor(low * batch.radius_scale), batch.d.new_tensor(high * batch.radius_scale)


class StepScale(Stabilizer):
    """Scales the learning rate of one optimizer step by what its responses are worth."""

    family = "optimizer"
    place = "suffix"

    def scale(self, log_weights: torch.Tensor, group: torch.distributed.ProcessGroup | None = None) -> dict[str, float]:
        """Return the factor, as `NAME/scale`, and what else it measures.

        Args:
            log_weights: (responses,) log of prod pi_proximal / mu over the active tokens of each response of this rank.
            group: ranks that hold other responses of the step. All get the same answer.
        """
        raise NotImplementedError
