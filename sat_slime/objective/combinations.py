"""Refuses what does not go together in a method, or means nothing, and says the remedy."""

from __future__ import annotations

from .method import Method
from .stabilizer import Judge, RadiusPolicy


def check_method(method: Method, optimizer_steps_per_rollout: int = 1) -> None:
    """Refuses a combination that means nothing, or not what it says.

    Plain clipping against `trainer` at one optimizer step per rollout is allowed: the clip never acts, and that is
    slime's default and, with TIS, the gradient of Eq. app-tis.

    Raises:
        ValueError: with the reason and the remedy.
    """
    _check_trust_region(method)
    _check_stabilizers(method)
    _check_denominator(method, optimizer_steps_per_rollout)


def _check_trust_region(method: Method) -> None:
    clip = method.trust_region
    if method.no_interval and (clip is not None or method.sat):
        raise ValueError(
            f"{method.name}: {method.no_interval}, so it has no interval of PPO's kind "
            f"for {'SAT to contract: turn sat off' if method.sat else 'a clip: set trust_region to None'}, or choose a "
            "clipping base such as grpo"
        )
    if method.sat and clip is None:
        raise ValueError(f"{method.name}: SAT has no interval to contract: set trust_region to a Clip, or turn sat off")
    policies = [stabilizer.row.title for stabilizer in method.stabilizers if isinstance(stabilizer, RadiusPolicy)]
    if len(policies) > 1:
        raise ValueError(f"{method.name}: {' and '.join(policies)} both set the radii of the clip: leave one out")
    if policies and clip is None:
        what = method.no_interval or "trust_region is None"
        raise ValueError(
            f"{method.name}: {what}, so {policies[0]} has no radii to set: choose a clipping base such as grpo, or "
            f"turn {policies[0]} off"
        )
    if clip is not None and clip.dual is not None and clip.dual <= 1:
        raise ValueError(
            f"{method.name}: dual is {clip.dual}, and a bound dual * A at or above A would cut tokens "
            "inside the clip interval: set method.clip.dual above 1, or leave it out"
        )


def _check_stabilizers(method: Method) -> None:
    weights = method.engine_weights
    if len(weights) > 1:
        or_mask = ", or take IcePop's form mask" if "IcePop's weight" in weights else ""
        raise ValueError(
            f"{method.name}: {' and '.join(weights)} both weight a token by pi / mu, which would count it twice: leave "
            f"one of them out{or_mask}"
        )
    kinds = [type(stabilizer) for stabilizer in method.stabilizers]
    if twice := {kind.__name__ for kind in kinds if kinds.count(kind) > 1}:
        raise ValueError(f"{method.name}: {', '.join(sorted(twice))} stands twice in it: leave one out")
    if misplaced := next((stabilizer for stabilizer in method.stabilizers[1:] if stabilizer.no_interval), None):
        raise ValueError(
            f"{method.name}: {misplaced.row.title}'s {misplaced.no_interval}, so it cannot stand beside "
            f"{method.base.row.title}: build the method on {misplaced.name}, or leave it out"
        )
    judges = [stabilizer.row.title for stabilizer in method.stabilizers if isinstance(stabilizer, Judge)]
    if len(judges) > 1:
        raise ValueError(
            f"{method.name}: {' and '.join(judges)} both judge by a threshold over a batch, and a method has one: "
            "leave one of them out"
        )


def _check_denominator(method: Method, optimizer_steps_per_rollout: int) -> None:
    made_up = method.proximal_policy
    if made_up and method.denominator != made_up.denominator:
        raise ValueError(
            f"{method.name}: {made_up.row.title} makes up the denominator of the ratio, and method.denominator is "
            f"{method.denominator}: leave that out, or turn method.{made_up.name} off"
        )
    if made_up is None and method.denominator == "a3po":
        raise ValueError(f"{method.name}: A-3PO makes up the denominator a3po, and it is off: turn method.a3po on")
    for stabilizer in method.stabilizers:
        if stabilizer.denominators and method.denominator not in stabilizer.denominators:
            others = _moving_the_denominator(method)
            raise ValueError(
                f"{method.name}: {stabilizer.row.title} is defined over denominator "
                f"{' or '.join(stabilizer.denominators)}, and "
                f"{' and '.join(others) or 'method.denominator'} makes it {method.denominator}: leave that out"
            )
    no_op, weights = method.no_op_at_ratio_one, method.engine_weights
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


def _moving_the_denominator(method: Method) -> list[str]:
    """Return what is on that wants another denominator than the base."""
    return [*method.engine_weights, *([method.proximal_policy.row.title] if method.proximal_policy else [])]
