"""The verifier: a response and a label to a reward of 0 or 1, in processes that may hang or die.

    from sat_slime.reward import verify

    verify(r"so it is \\boxed{1/2}", "0.5")      # Verdict(reward=1.0, extracted="1/2", reason="number")

Importing this imports neither sympy nor math-verify. docs/reward.md tells what is equal to what.
"""

from sat_slime.reward.pool import VerifierPool, shared_pool, verify
from sat_slime.reward.verdict import CORRECT, KILLED, MODES, WRONG, Mode, Verdict

__all__ = ["CORRECT", "KILLED", "MODES", "WRONG", "Mode", "Verdict", "VerifierPool", "shared_pool", "verify"]
