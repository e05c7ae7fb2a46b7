"""Versions of weights are numbered by optimizer steps, and travel with each response to the trainer.

slime numbers its pushes. Under our driver the number of a push is that of the optimizer steps that its weights have
had, so the version that comes back with a response says exactly which weights made it. Of a sample's metadata slime
hands only the entry `round_number`, made for the turns of a conversation, on to the trainer, with one value for each
response. So what the trainer needs to know of a response is put there, an `Origin`, and the trainer takes it out before
slime would log it as turns.

A response that a push cut off goes on under the new weights. Its length at the cut is kept with it, so that the version
of each token is known too.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

DRIVEN = "sat_slime_driven"
"""slime's argument by which our driver marks a run as its own."""
CARRIER = "round_number"
"""Key of a sample's metadata whose values slime hands on to the trainer."""
NEVER_PUSHED = "default"
"""SGLang's version of weights that were never pushed."""
LAGS = "sat_slime_lags"
"""Attribute of the tensor of a response's tokens: their lags."""
CUTS = "sat_slime_cuts"
"""Key of a sample's metadata: the number of response tokens that it had at each interruption."""


@dataclass(frozen=True)
class Origin:
    """The weights that a response is of, and what else of it the trainer needs."""

    parts: tuple[tuple[int, int], ...]
    """Tokens and version, in optimizer steps, of each part of the response in order."""
    rollout_metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the whole rollout; each of its responses has the same."""


def are_steps(args: Namespace) -> bool:
    """Return whether the versions of this run are optimizer steps, as they are under our driver."""
    return bool(getattr(args, DRIVEN, False))


def note_interruption(sample: Any) -> None:
    """Keeps the length at which a push cut a sample off. The sample hook calls it, at each interruption. An answer
    without a token may come without a version, and is none then. Tokens come without one where slime itself breaks a
    stream off: they are not of the version of those that follow."""
    metadata = sample.metadata or {}
    cuts = metadata.get(CUTS, [])
    answers = list(sample.weight_versions or [])
    if sample.response_length > (cuts[-1] if cuts else 0) and len(answers) <= len(cuts):
        sample.weight_versions = answers = [*answers, "none"]
    if len(answers) > len(cuts):
        sample.metadata = {**metadata, CUTS: [*cuts, sample.response_length]}


def parts_of(sample: Any) -> tuple[tuple[int, int], ...]:
    """Return the tokens and the version of each part of a sample's response, one for each answer of an engine; where
    there are not as many as interruptions, as in a conversation of several turns, or the response was begun anew and
    is shorter than it was at one, all tokens and the oldest version. Raises ValueError where a version is not known."""
    answers = [int(version) for version in sample.weight_versions]
    ends = [*(sample.metadata or {}).get(CUTS, []), sample.response_length]
    if 1 < len(ends) == len(answers) + 1 and ends[-1] == ends[-2]:  # it was cut off at its last possible token
        ends.pop()
    parts = [(end - start, version) for start, end, version in zip([0, *ends], ends, answers, strict=False)]
    known = tuple(part for part in parts if part[0]) if len(ends) == len(answers) and ends == sorted(ends) else ()
    return known or ((sample.response_length, min(answers)),)


def send_origins(samples: Sequence[Any], rollout_metrics: Mapping[str, float]) -> str | None:
    """Puts the origins of slime's samples where they reach the trainer, and with them metrics of the whole rollout.
    Returns the reason why the batch carries no versions, that of no sample then, or None."""
    for sample in samples:
        if isinstance((sample.metadata or {}).get(CARRIER), Origin):  # it is trained on once more
            sample.metadata = {key: value for key, value in sample.metadata.items() if key != CARRIER}
    if any(CARRIER in (sample.metadata or {}) for sample in samples):
        return f"the samples use metadata[{CARRIER!r}] themselves"
    try:
        origins = [Origin(parts_of(sample), rollout_metrics) for sample in samples]
    except ValueError:
        odd = {str(version) for sample in samples for version in sample.weight_versions or ["none"]}
        return f"not every response came with the version of its weights: {', '.join(sorted(odd)[:4])}"
    for sample, origin in zip(samples, origins, strict=True):
        sample.metadata = {key: value for key, value in (sample.metadata or {}).items() if key != CUTS}
        sample.metadata[CARRIER] = origin
    return None


def take_origins(rollout_data: dict[str, Any]) -> list[Origin] | None:
    """Takes the origins of this rank's responses out of a trainer's batch, in the order of its responses; None where it
    has none. Round numbers that a user put there stay, and slime logs them."""
    if not all(isinstance(value, Origin) for value in rollout_data.get(CARRIER) or [None]):
        return None
    origins: list[Origin] = rollout_data.pop(CARRIER)
    return origins


def tell_lags(tokens: Sequence[Tensor], lags: Sequence[Tensor]) -> None:
    """Ties to the tensor of each response's tokens, prompt included, (response tokens,) lags, counted to the weights at
    the first step on its batch. slime passes a fixed list of keys to the loss; that tensor is among them, the same
    object in the batch and in each of its micro-batches."""
    for response, of_response in zip(tokens, lags, strict=True):
        setattr(response, LAGS, of_response)


def told_lags(tokens: Sequence[Tensor]) -> list[Tensor]:
    """Return the lags of these responses, which `tell_lags` has tied to them."""
    return [getattr(response, LAGS) for response in tokens]
