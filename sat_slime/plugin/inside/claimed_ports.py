"""Ports that slime gives its engines, routers and trainers are claimed until their process ends, so that two runs on a
machine never meet.

slime looks for engines' ports from 15000 on as it starts, and an engine binds its own once its model is loaded. A run
that starts meanwhile would be given the same, and slime then takes whatever engine answers there for its own.
"""

from __future__ import annotations

from typing import Any

from sat_slime.runs.ray_start import claim

INSTALL = f"{__name__}.install"
"""What each process of a run calls first, by Ray's `worker_process_setup_hook`."""
OF_OTHERS = range(15_000, 16_000)
"""Left to slime runs that are not ours, which claim nothing: 16 engines take about 550 of them."""


def install() -> None:
    """Has slime take only ports that can be claimed, in this process, which has imported nothing of slime yet."""
    from slime.utils import http_utils

    look = getattr(http_utils, "is_port_available", None)
    if look is None:  # in a slime that was not read
        return

    def is_port_available(port: Any) -> bool:
        return port not in OF_OTHERS and look(port) and claim(port)

    http_utils.is_port_available = is_port_available
