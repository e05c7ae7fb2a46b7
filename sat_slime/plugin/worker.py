"""What each process that Ray starts for a run does first."""

from __future__ import annotations

import os

from sat_slime.plugin.compat import claim_ports
from sat_slime.rollout import sglang_routes


def setup_worker() -> None:
    """Prepares a process of the run, which has imported nothing of slime yet: Ray's `worker_process_setup_hook`."""
    claim_ports()
    if os.environ.get(sglang_routes.VARIABLE) == "1":
        from sat_slime.plugin import r3

        r3.read_narrow_replies()
