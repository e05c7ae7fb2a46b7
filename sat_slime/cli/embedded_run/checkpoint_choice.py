"""Which checkpoint a run of the embedded runtime goes on from: the newest one, looked at before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sat_slime.config import ConfigError, EmbeddedConfig
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.going_back import GoingBack, instead_of, no_such_checkpoint

if TYPE_CHECKING:
    from sat_slime.embedded.checkpoint import Checkpoint


def find_checkpoint(folder: Path, config: EmbeddedConfig, wanted: int | None, *, may_ask: bool) -> Checkpoint | None:
    """The checkpoint that an embedded run goes on from, its files held against their checksums; None: from the
    beginning.

    Args:
        config: the settings that the run is to go on with.
        wanted: the iteration of the checkpoint to go on from, 0 for the beginning; None: the newest checkpoint.
        may_ask: where files are damaged and a terminal is there, ask whether to go on from an older checkpoint.

    Raises:
        ConfigError: files are damaged; the message says what is whole, what going back to it costs, and the command.
    """
    from sat_slime.embedded import checkpoint

    checkpoints = RunFolder(folder).checkpoints
    there = checkpoint.numbered(checkpoints)
    if wanted and wanted not in there:
        raise no_such_checkpoint(wanted, checkpoints, list(there))
    number = max(there, default=0) if wanted is None else wanted
    if number == 0:
        return None
    saved: Checkpoint | None
    try:
        saved = checkpoint.verified(there[number])
    except checkpoint.DamagedCheckpoint as damage:
        saved = checkpoint.first_whole(there[n] for n in instead_of(number, there) if n != number)
        fallback = saved.state.iteration if saved else 0
        back = GoingBack(folder, config, str(damage), number, fallback, asked=wanted is not None)
        if not may_ask:
            raise back.refusal() from None
        _ask(back)
    if saved is not None:
        _check_initial(folder, config, saved)
    return saved


def _ask(back: GoingBack) -> None:
    """Ask at the terminal whether to go back. Raises ConfigError where nobody agrees, or where there is no terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise back.refusal()
    typer.echo(back.explanation(), err=True)
    try:
        agreed = typer.confirm("Go on from there?", default=False, err=True)
    except typer.Abort:  # Ctrl-C, or the end of the input
        raise KeyboardInterrupt from None
    if not agreed:
        raise ConfigError([f"not resumed, and nothing is changed; to do so: {back.command()}"])


def _check_initial(folder: Path, config: EmbeddedConfig, saved: Checkpoint) -> None:
    """Hold the initial model against the checksums in the checkpoint. Raises ConfigError where it is another one, or
    where it is missing and the cache, from which it would be copied again, holds another one. Where the cache has none
    either, a resume warms it up again and compares it then."""
    from sat_slime.embedded import checkpoint
    from sat_slime.embedded.initial_model import cached_model, is_model

    initial, cached = folder / "initial", cached_model(config)
    faults = checkpoint.initial_faults(saved, initial) if is_model(initial) else None
    if faults == {}:
        return
    if is_model(cached) and checkpoint.initial_faults(saved, cached):
        raise ConfigError([checkpoint.lost_initial(initial, cached)])
    if faults:
        again = f"copies it again from the cache ({cached})" if is_model(cached) else "warms it up again"
        damage = checkpoint.DamagedCheckpoint(initial, faults)
        raise ConfigError([f"{damage}; delete {initial}, and a resume {again}"])
