"""What each process that Ray starts for a run does first."""

from __future__ import annotations

from sat_slime.plugin.compat import claim_ports


def setup_worker() -> None:
    """Prepares a process of the run, which has imported nothing of slime yet: Ray's `worker_process_setup_hook`."""
    claim_ports()
