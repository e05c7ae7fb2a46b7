"""Groups the methods by what they judge by, as reports show them."""

from __future__ import annotations

from sat_slime.objective import Method

TOKEN_RATIO, TOKEN_PROBABILITY = "token ratio", "token probability"
RESPONSE, STATE, BATCH = "response", "state", "batch"
JUDGED_BY = (TOKEN_RATIO, TOKEN_PROBABILITY, RESPONSE, STATE, BATCH)
"""The groups. Token ratio: each token by its ratio alone. Token probability: each token by its two probabilities, as
their difference or a divergence. Response: all tokens of a response at once. State: by both distributions. Batch: by a
threshold over all tokens of a micro-batch or step."""

_BY_PROBABILITY = {"dppo", "drpo", "kpop", "ipo"}
_BY_RESPONSE = {
    *("gmpo", "flash", "vespo", "seq-tis", "seq-mask-tis", "mis-geo", "opsm", "trm-max", "trm-mean", "veto"),
}


def judged_by(method: Method) -> str:
    """Return the group of a method: of all that it judges by, the one that takes most together."""
    names = {stabilizer.name for stabilizer in method.stabilizers}
    if method.judge is not None:
        return BATCH
    if method.step_constraint is not None:
        return STATE
    if method.ratio == "sequence" or names & _BY_RESPONSE:
        return RESPONSE
    return TOKEN_PROBABILITY if names & _BY_PROBABILITY else TOKEN_RATIO
