"""Starts runs of the real slime on a CPU by the command, and reads them from the run folder, as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from sat_slime.cli import main; main()"]
"""The command sat-slime of this checkout, in the Python of the tests."""
FILE = ROOT / "configs" / "slime" / "laptop.yaml"


@dataclass(frozen=True)
class WholeRun:
    """A run that has ended."""

    folder: Path
    code: int
    output: str

    def rows(self, name: str = "metrics.jsonl") -> list[dict]:
        """The rows of metrics.jsonl or eval.jsonl."""
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def column(self, key: str) -> list[float]:
        """A metric of every optimizer step."""
        return [row[key] for row in self.rows()]

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()


@dataclass(frozen=True)
class Slime:
    """The real slime, and the folder for its runs."""

    slime_dir: Path
    megatron_dir: Path
    laptop: Path
    """The folder with the model and the prompts of `sat-slime prepare laptop`."""
    runs: Path

    @property
    def settings(self) -> dict[str, Path | str]:
        """Where slime is, and what it reads."""
        return {
            "cluster.slime_dir": self.slime_dir,
            "cluster.megatron_dir": self.megatron_dir,
            "slime.hf-checkpoint": self.laptop / "model",
            "slime.ref-load": self.laptop / "model",
            "slime.prompt-data": self.laptop / "prompts.jsonl",
            "slime.eval-prompt-data": f"[held_out, {self.laptop / 'held_out.jsonl'}]",
        }

    @property
    def places(self) -> list[str]:
        """`--set` options of `settings`."""
        return [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]

    def command(self, name: str, *options: str, file: Path = FILE) -> list[str]:
        """The command `sat-slime launch` for the laptop's run. options: more of its options, which win."""
        where = ["--set", f"output_dir={self.runs}", *self.places]
        return [*COMMAND, "launch", str(file), "--name", name, *where, *options]

    def launch(self, name: str, *options: str) -> WholeRun:
        """Runs to the end, whatever that is."""
        return self._run(self.command(name, *options), name)

    def resume(self, name: str, *options: str) -> WholeRun:
        """Goes on with a run of `launch`."""
        words = ["launch", str(self.runs / name), "--resume", *options]
        return self._run([*COMMAND, *words], name)

    def _run(self, command: Sequence[str], name: str) -> WholeRun:
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        return WholeRun(self.runs / name, done.returncode, done.stdout + done.stderr)

    def stop(self, name: str) -> None:
        """Ends a run's job and the Ray that was started for it."""
        subprocess.run([*COMMAND, "stop", str(self.runs / name)], capture_output=True, env=environment())


def environment() -> dict[str, str]:
    """This process's environment, in which this checkout comes before an installed package."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
