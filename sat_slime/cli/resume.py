"""Which checkpoint a run goes on from: the newest one, looked at before anything starts. An older one only where it is
asked for, since that drops what was trained after it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sat_slime.config import ConfigError, load_config
from sat_slime.config.loader import RunConfig
from sat_slime.config.marks import differences
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.rows import read_rows

if TYPE_CHECKING:
    from sat_slime.cli.launch import Plan
    from sat_slime.embedded.checkpoint import Checkpoint


@dataclass(frozen=True)
class GoingBack:
    """What can be done about a run whose checkpoint is damaged."""

    folder: Path
    config: RunConfig
    """As the command line has it."""
    damage: str
    damaged: int
    """Iterations of the damaged checkpoint."""
    fallback: int
    """Iterations of the whole one to take instead; 0: there is none, and the run begins again."""
    asked: bool = False
    """Whether the command line names the damaged one."""

    def explanation(self) -> str:
        """What is damaged, what is whole, and what going back to it costs."""
        return f"{self.damage}; the run can go on from {self._where()}, {self._cost()}"

    def _where(self) -> str:
        if not self.fallback:
            return "its beginning alone"
        before = f" before iteration {self.damaged}" if self.asked and self.fallback < self.damaged else ""
        return f"iteration {self.fallback}, its newest whole checkpoint{before}"

    def _cost(self) -> str:
        steps = self.config.pipeline.optimizer_steps_per_rollout
        rows = read_rows(RunFolder(self.folder).metrics)
        trained = [-(-row["step"] // steps) for row in rows if isinstance(row.get("step"), int)]
        first, last = self.fallback + 1, max([self.damaged, *trained])
        if last < first:
            return "which costs nothing"
        again = f"iteration {last} is" if last == first else f"iterations {first} to {last} are"
        return f"which costs this: {again} trained again, and their rows, samples and dumps are dropped"

    def command(self) -> str:
        """What does it, with the settings that the command line changed."""
        saved = load_config(RunFolder(self.folder).config)
        settings = [
            f"{key}={json.dumps(new)}"
            for key, _, new in differences(saved, self.config)
            if key not in ("name", "output_dir")  # of a run that was moved
        ]
        words = ["sat-slime", "launch", str(self.folder), "--resume-from", str(self.fallback)]
        return shlex.join([*words, *(word for setting in settings for word in ("--set", setting))])

    def refusal(self) -> ConfigError:
        return ConfigError([f"{self.explanation()}; to do so: {self.command()}"])

    def ask(self) -> None:
        """Returns where somebody at a terminal agrees. Raises ConfigError where not, or where there is no terminal."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise self.refusal()
        typer.echo(self.explanation(), err=True)
        try:
            agreed = typer.confirm("Go on from there?", default=False, err=True)
        except typer.Abort:  # Ctrl-C, or the end of the input
            raise KeyboardInterrupt from None
        if not agreed:
            raise ConfigError([f"not resumed, and nothing is changed; to do so: {self.command()}"])


def find_checkpoint(plan: Plan, may_ask: bool) -> Checkpoint | None:
    """The checkpoint that an embedded run goes on from, its files held against their checksums; None: from the
    beginning.

    Args:
        may_ask: where files are damaged and a terminal is there, ask whether to go on from an older checkpoint.

    Raises:
        ConfigError: files are damaged; the message says what is whole, what going back to it costs, and the command.
    """
    from sat_slime.embedded import checkpoint

    checkpoints, wanted = RunFolder(plan.folder).checkpoints, plan.resume_from
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
        back = GoingBack(plan.folder, plan.config, str(damage), number, fallback, asked=wanted is not None)
        if not may_ask:
            raise back.refusal() from None
        back.ask()
    if saved is not None:
        _check_initial(plan, saved)
    return saved


def instead_of(damaged: int, there: Iterable[int]) -> list[int]:
    """Checkpoints in the order in which they are offered in place of a damaged one: from it back, then the newer ones,
    the newest of these first."""
    return sorted(there, key=lambda number: (number > damaged, -number))


def no_such_checkpoint(wanted: int, checkpoints: Path, there: list[int]) -> ConfigError:
    known = ", ".join(map(str, there)) or "none"
    return ConfigError([f"--resume-from {wanted}: {checkpoints} has no checkpoint of that iteration, but: {known}"])


def _check_initial(plan: Plan, saved: Checkpoint) -> None:
    """Raises ConfigError for an initial model that is another, and for one that would be copied again and is another in
    the cache. One that is not there either is warmed up again, and compared then."""
    from sat_slime.embedded import checkpoint
    from sat_slime.embedded.initial_model import cached_model, is_model

    initial, cached = plan.folder / "initial", cached_model(plan.config)
    faults = checkpoint.initial_faults(saved, initial) if is_model(initial) else None
    if faults == {}:
        return
    if is_model(cached) and checkpoint.initial_faults(saved, cached):
        raise ConfigError([checkpoint.lost_initial(initial, cached)])
    if faults:
        again = f"copies it again from the cache ({cached})" if is_model(cached) else "warms it up again"
        damage = checkpoint.DamagedCheckpoint(initial, faults)
        raise ConfigError([f"{damage}; delete {initial}, and a resume {again}"])
