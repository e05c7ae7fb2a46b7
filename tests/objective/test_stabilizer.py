from __future__ import annotations

import dataclasses
import typing

import pytest

from sat_slime.objective import DENOMINATORS, DPPO, STABILIZERS, IcePop, base_names, compose_method, method_names
from sat_slime.objective import named_method as named
from sat_slime.objective.gates import GATES
from sat_slime.objective.method import TIS, TRPO, Denominator
from sat_slime.objective.penalties import PENALTIES


def forms(kind: type) -> list[object]:
    """A component in each of its forms: of a gate with a choice, one for every value of it."""
    choices = {
        field.name: typing.get_args(annotation)
        for field in dataclasses.fields(kind)
        if typing.get_origin(annotation := typing.get_type_hints(kind)[field.name]) is typing.Literal
    }
    return [kind(**{name: value}) for name, values in choices.items() for value in values] or [kind()]


@pytest.mark.parametrize("kind", [*GATES, *PENALTIES, TIS, TRPO])
def test_every_component_has_a_row_in_each_of_its_forms(kind: type) -> None:
    names = {form.name for form in forms(kind)}
    assert names <= STABILIZERS.keys()
    assert len(names) == (len(forms(kind)) if kind in (DPPO, IcePop) else 1)


@pytest.mark.parametrize("name", [*method_names(), "sat-gspo-tis-r3-topp"])
def test_every_method_is_made_of_rows(name: str) -> None:
    assert set(named(name).components) <= STABILIZERS.keys()


def test_every_row_is_of_a_method_and_complete() -> None:
    used = {part for base in base_names() for part in compose_method(base).components}
    used |= set(compose_method("grpo", sat=True, tis=True, r3=True, topp=True).components)
    assert used == STABILIZERS.keys()
    for name, row in STABILIZERS.items():
        assert row.name == name
        assert all(text.strip() for text in dataclasses.astuple(row)), name


def test_every_denominator_is_described() -> None:
    assert list(DENOMINATORS) == list(typing.get_args(Denominator))


def test_the_papers_columns() -> None:
    """Table designspace, as far as its cells are words."""
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
    assert {name: (STABILIZERS[name].unit, STABILIZERS[name].direction) for name in paper} == paper
