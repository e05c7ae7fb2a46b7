"""A finding of a check, as a line for a person: of settings, of a machine, of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple


class Finding(NamedTuple):
    """One line of what was checked."""

    mark: str
    """OK, WARN or FAIL."""
    what: str
    """The subject in a word, such as `memory`."""
    detail: str
    """A text of what was found; of a failure also the remedy."""
    of_settings: bool = False
    """True where the settings alone are at fault, whatever the machine is."""


ok = partial(Finding, "OK")
"""A check that passed."""
warn = partial(Finding, "WARN")
"""What the run can live with, and of which its owner should know."""
fail = partial(Finding, "FAIL")
"""What the run would fail with, or be meaningless."""


def settings_findings(errors: Iterable[str], warnings: Iterable[str] = ()) -> Iterator[Finding]:
    """Yield the faults of settings, and what their owner should know, as findings."""
    yield from (Finding("FAIL", "settings", error, of_settings=True) for error in errors)
    yield from (Finding("WARN", "settings", warning, of_settings=True) for warning in warnings)
