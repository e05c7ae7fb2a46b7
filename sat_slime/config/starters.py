"""Files to start from: runs, grids and cluster jobs of configs/, each with the files that it names, side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sat_slime.config.source import ConfigError

CONFIGS = Path(__file__).parents[1] / "configs"
"""The files that come with the package."""
_REFERENCE = re.compile(r"^(extends|run): *(?P<path>\S+)", re.MULTILINE)


class Starter(NamedTuple):
    """A file to start from, with its place below CONFIGS."""

    path: str
    meaning: str
    then: str = "check it with: sat-slime launch {} --dry-run"
    """The next step, with braces in place of the file."""


_GRID = "check it with: sat-slime grid {} --dry-run"
STARTERS: Mapping[str, Starter] = {
    "quickstart": Starter("lab/quickstart.yaml", "a first run on this machine, two to five minutes on two cores"),
    "streaming": Starter("lab/streaming.yaml", "the same fully asynchronous: weights change while it writes"),
    "grid": Starter("grid/lab.yaml", "methods x lags x seeds on this machine", _GRID),
    "slime": Starter("recipes/qwen3-4b-8gpus.yaml", "a run on slime, of Qwen3-4B on a node of eight GPUs"),
    "paper": Starter("paper/qwen3-30b-a3b.yaml", "the paper's runs, each setting with its source"),
    "slurm": Starter(
        "clusters/slurm.sh", "a batch script for Slurm: Ray on its nodes, a run, its resume", "edit it, then: sbatch {}"
    ),
    "kuberay": Starter(
        "clusters/kuberay.yaml", "the same as a RayJob of KubeRay, for Kubernetes", "edit it, then: kubectl apply -f {}"
    ),
}


def write_starter(name: str, folder: Path) -> list[Path]:
    """Copy a starter and what it names, directly or not, into a folder; returns the paths, the starter's own first.
    Raises ConfigError where there is no such starter, or a file of that name holds something else."""
    if name not in STARTERS:
        raise ConfigError(f"init {name}: there is no such starter; there are {', '.join(STARTERS)}, plugin")
    source = CONFIGS / STARTERS[name].path
    return write_texts(folder, _with_references(source, f"{name}{source.suffix}"))


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files, by name, into a folder; returns their paths. Raises ConfigError before any takes another's place."""
    for file, text in texts.items():
        path = folder / file
        if path.exists() and (not path.is_file() or path.read_bytes() != text.encode()):
            raise ConfigError(f"{path} is there already and holds something else: choose another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in texts]


def _with_references(source: Path, name: str) -> dict[str, str]:
    """Return {name: text} of a file and of those that it names, which are then named without their folders."""
    text = source.read_text(encoding="utf-8")
    named = [source.parent / match["path"] for match in _REFERENCE.finditer(text)]
    texts = {name: _REFERENCE.sub(lambda match: f"{match[1]}: {Path(match['path']).name}", text)}
    for path in named:
        texts |= _with_references(path, path.name)
    return texts
