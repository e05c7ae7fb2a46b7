"""What `sat-slime methods` prints: every stabilizer in a line, or one method in full."""

from __future__ import annotations

from collections.abc import Iterator

from sat_slime.config import ConfigError
from sat_slime.config.method_section import MethodConfig, key_of, section_name
from sat_slime.config.section import meanings
from sat_slime.objective import DENOMINATORS, PAPER_METHODS, Stabilizer, check_method, method_names, named_method
from sat_slime.objective.method import bases, switches


def all_methods() -> Iterator[str]:
    """Yield the stabilizers with formula and source, the names of methods, and how others are written."""
    for kind in (*bases(), *switches()):
        yield f"{_written(kind):21}  {_one_line(kind.__doc__)}"
    yield "\nr = π / denominator, rho its geometric mean over the response, d = log r, k = π_proximal / μ"
    yield "π: the policy in training, μ: the rollout engine's, both on the sampled token"
    yield f"\nNamed methods, the first {len(PAPER_METHODS)} of them the paper's:\n{' '.join(method_names())}"
    suffixes = " ".join(f"-{kind.name}" for kind in switches() if kind.place == "suffix")
    yield f"\nA base with what goes beside it is a method too, as sat-gspo-mis-geo-r3:\nsat- BASE {suffixes}"
    yield "in this order; a base may be left out where it is grpo."
    yield "\nWhere to start: grpo, with the radius for your lag; sat-gspo over gspo at 0.2: docs/choosing.md."
    yield "sat-gspo-r3 is the paper's method; in full: sat-slime methods sat-gspo-r3"


def one_method(name: str) -> Iterator[str]:
    """Yield formula, needs and parameters of a method, or of what goes beside one. Raises ConfigError if unknown."""
    if kind := {kind.name: kind for kind in switches()}.get(name):
        key = f"method.{key_of(kind)}"
        yield _one_line(kind.__doc__)
        yield f"switched on by {key}: true, or {_written(kind)} as the method's name"
        yield from _parameters(key, kind())
        return
    try:
        method = named_method(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    yield f"{name}: {method.label}"
    try:
        check_method(method)
    except ValueError as error:
        yield f"refused: {error}"
        return
    for stabilizer in method.stabilizers:
        yield _one_line(stabilizer.__doc__)
    yield f"denominator: {method.denominator}, {DENOMINATORS[method.denominator]}"
    yield f"needs: {', '.join(['rollout log-probs', *method.needs])}"
    yield f"runs on: {'slime' if method.has('topp') else 'lab, slime'}\n"
    if method.clip:
        yield from _parameters("method.clip", method.clip)
    for stabilizer in sorted(method.stabilizers, key=lambda each: each.place != "prefix"):  # SAT's are the clip's too
        yield from _parameters(f"method.{section_name(method, stabilizer)}", stabilizer)
    yield f"method.denominator = {method.denominator}: {_one_line(meanings(MethodConfig)['denominator'])}"


def _parameters(section: str, values: object) -> Iterator[str]:
    for field, meaning in meanings(type(values)).items():
        value = getattr(values, field)
        yield f"{section}.{field} = {'unset' if value is None else value}: {_one_line(meaning)}"


def _written(kind: type[Stabilizer]) -> str:
    forms = {"base": kind.name, "prefix": f"{kind.name}-BASE"}
    return forms.get(kind.place, f"BASE-{kind.name}")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").replace("`", "").split())
