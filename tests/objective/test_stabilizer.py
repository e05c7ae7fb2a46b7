from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sat_slime.objective import (
    DENOMINATORS,
    DPPO,
    BatchView,
    Gate,
    IcePop,
    Row,
    Style,
    TokenBatch,
    Weight,
    base_names,
    compose,
    compose_method,
    method_names,
    policy_surrogate,
)
from sat_slime.objective import named_method as named
from sat_slime.objective.metrics import metrics_of
from sat_slime.objective.ratio import Denominator
from sat_slime.objective.stabilizer import Stabilizer
from sat_slime.objective.stabilizers import STABILIZERS, rows, switches


def forms(kind: type[Stabilizer]) -> list[Stabilizer]:
    """A stabilizer in each of its forms: where a setting is a choice, one for each of its values."""
    choices = {
        field.name: typing.get_args(annotation)
        for field in dataclasses.fields(kind)
        if typing.get_origin(annotation := typing.get_type_hints(kind)[field.name]) is typing.Literal
    }
    return [kind(**{name: value}) for name, values in choices.items() for value in values] or [kind()]


@pytest.mark.parametrize("kind", STABILIZERS.values())
def test_every_stabilizer_has_a_row_in_each_of_its_forms(kind: type[Stabilizer]) -> None:
    made = forms(kind)
    names = {form.part for form in made}
    assert names <= rows().keys() | {"grpo"}
    assert len(names) == (len(made) if kind in (DPPO, IcePop) else 1)
    assert all(form.own_row == rows().get(form.part, kind.row) for form in made)


@pytest.mark.parametrize("name", [*method_names(), "sat-gspo-tis-r3-topp"])
def test_every_method_is_made_of_rows(name: str) -> None:
    assert set(named(name).parts) <= rows().keys()
    assert named(name).rows == tuple(rows()[part] for part in named(name).parts)


def test_every_row_is_of_a_method_and_complete() -> None:
    used = {part for base in base_names() for part in compose_method(base).parts}
    used |= set(compose_method("grpo", **{kind.prefix(): True for kind in switches()}).parts)
    assert used == rows().keys()
    for name, row in rows().items():
        assert all(text.strip() for text in dataclasses.astuple(row)), name


def test_every_denominator_is_described() -> None:
    assert list(DENOMINATORS) == list(typing.get_args(Denominator))


def test_the_papers_columns() -> None:
    """The rows are those of Table designspace, as far as its cells are words."""
    paper = {
        "ppo": ("token", "asymmetric"),
        "trpo": ("state", "asymmetric"),
        "dppo": ("token", "asymmetric"),
        "drpo": ("token", "asymmetric"),
        "tis": ("token", "one-sided"),
        "icepop": ("token", "symmetric"),
        "kpop": ("token", "symmetric"),
        "gspo": ("sequence", "asymmetric"),
        "seqclip": ("sequence", "symmetric"),
        "r3": ("forward pass", "—"),
        "sat": ("token or sequence", "asymmetric, adaptive"),
    }
    assert {name: (rows()[name].unit, rows()[name].direction) for name in paper} == paper


def test_no_two_bases_are_drawn_alike() -> None:
    styles = [named(name).style for name in base_names() if "-" not in name]
    assert len({(style.colour, style.dash, style.marker) for style in styles}) == len(styles)
    assert named("sat-grpo").style == Style("blue", "--", "o")
    assert named("grpo-tis-r3").style == Style("orange", ":", "o", filled=True)
    assert (named("sat-kpop").family, named("spo").family, named("trpo").family) == ("gate", "penalty", "constraint")


@dataclass(frozen=True)
class Careless(Gate):
    """A gate whose author gives no thought to gradients."""

    name = "careless"
    row = Row("Careless", *["-"] * 9)
    style = Style("green", "-", "*")

    def factor(self, batch: BatchView) -> Tensor:
        return batch.ratio * batch.engine_ratio * batch.mu * batch.log_pi.exp() * batch.d.exp()


def test_a_gate_runs_without_gradient_whatever_it_reads() -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs = (-torch.rand(12, generator=generator, dtype=torch.float64)).requires_grad_()
    mu = log_probs.detach() - 0.1 * torch.randn(12, generator=generator, dtype=torch.float64)
    batch = TokenBatch(log_probs, mu, torch.ones_like(mu), torch.ones(12, dtype=torch.bool), [12])
    method = compose(Careless(), trust_region=None)
    (gradient,) = torch.autograd.grad(policy_surrogate(method, batch).values.sum(), log_probs)
    d = (log_probs - mu).detach()
    assert torch.allclose(gradient, d.exp() * (d.exp() ** 3 * mu.exp() * log_probs.detach().exp()))
    assert [metric.pattern for metric in metrics_of(Careless)] == ["careless/masked"]


@dataclass(frozen=True)
class Half(Weight):
    """A weight whose author declares no metric."""

    name = "half"
    row = Row("Half", *["-"] * 9)

    def factor(self, batch: BatchView) -> Tensor:
        return torch.full_like(batch.d, 0.5)


def test_the_mean_of_a_weight_is_in_the_table_of_metrics() -> None:
    zeros = torch.zeros(2, requires_grad=True)
    batch = TokenBatch(zeros, zeros.detach(), torch.ones(2), torch.ones(2, dtype=torch.bool), [2])
    surrogate = policy_surrogate(compose(Half()), batch)
    assert surrogate.values.tolist() == [0.5, 0.5] and surrogate.metrics["half/weight"] == 0.5
    assert [metric.pattern for metric in metrics_of(Half)] == ["half/weight"]


@dataclass(frozen=True)
class Writing(Careless):
    column: str = "d"
    name = "writing"

    def factor(self, batch: BatchView) -> Tensor:
        return getattr(batch, self.column).abs_()


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize(
    "column", ["d", "ratio", "log_pi", "log_mu", "log_proximal", "mu", "engine_ratio", "advantages"]
)
def test_a_gate_that_writes_into_the_batch_is_told(column: str, active: bool) -> None:
    mu = torch.full((4,), -1.0)
    mask = torch.tensor([True, True, True, active])
    batch = TokenBatch((mu - 0.1).requires_grad_(), mu, torch.ones(4), mask, [4])
    with pytest.raises(ValueError, match="writing writes into the batch"):
        policy_surrogate(compose(Writing(column)), batch)


def test_a_view_has_nothing_to_write() -> None:
    mu = torch.zeros(2)
    view = BatchView(TokenBatch(mu, mu, mu, mu == 0, [2]), "rollout", mu.requires_grad_(), mu)
    names = ("d", "ratio", "engine_ratio", "mu", "log_mu", "log_pi", "log_proximal", "lengths", "mask")
    assert not any(getattr(view, name).requires_grad for name in names)
    for name in ("mask", "lengths"):
        with pytest.raises(AttributeError):
            setattr(view, name, mu)
