"""Groups the methods by what they judge by, as reports show them."""

from __future__ import annotations

from sat_slime.objective import Method, Row

TOKEN_RATIO, TOKEN_PROBABILITY = "token ratio", "token probability"
RESPONSE, STATE, BATCH = "response", "state", "batch"
JUDGED_BY = (TOKEN_RATIO, TOKEN_PROBABILITY, RESPONSE, STATE, BATCH)
"""The groups. Token ratio: each token by its ratio alone. Token probability: each token by its two probabilities, as
their difference or a divergence. Response: all tokens of a response at once. State: by both distributions. Batch: by a
threshold over all tokens of a micro-batch or step."""

_PROBABILITIES = ("π − μ", "KL")
"""Signs in the discriminator of a row that judges a token by its two probabilities, and not by their ratio alone."""


def judged_by(method: Method) -> str:
    """Return the group of a method: of all that it judges by, the one that takes most together."""
    if method.judge is not None:
        return BATCH
    return max((_of(row) for row in method.rows), key=JUDGED_BY.index)


def _of(row: Row) -> str:
    if row.unit.startswith("sequence"):
        return RESPONSE
    if row.unit == "state":
        return STATE
    if row.unit == "batch":
        return BATCH
    return TOKEN_PROBABILITY if any(sign in row.discriminator for sign in _PROBABILITIES) else TOKEN_RATIO
