"""Installs the engines of the embedded runtime beside the package, as scripts/setup.sh does in a checkout."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sat_slime.config import ConfigError

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
"""What SGLang needs on a CPU, and the versions that were tested; they come with the package."""
EXTRA = "embedded"


def pip_install(*arguments: str) -> list[str]:
    """A call of this Python's pip."""
    return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]


def refuse_without_pip() -> None:
    """Raises ConfigError where this Python has no pip."""
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            [
                f"{sys.executable} has no pip: install it (python -m ensurepip, or uv pip install pip), or run what "
                "--dry-run prints with your own installer"
            ]
        )


def install_commands(constraints: Path) -> Iterator[list[str]]:
    """The calls of pip, in their order.

    SGLang goes in without its own list of dependencies, which asks for a CUDA build of torch.
    """
    pip = pip_install("--constraint", str(constraints))
    yield [*pip, "--requirement", str(REQUIREMENTS / "embedded.txt")]
    yield [*pip, "--no-deps", "sglang"]
    yield [*pip, *_of_the_extra()]


def _of_the_extra() -> list[str]:
    """The package's own requirements for the embedded runtime."""
    marker = f'extra == "{EXTRA}"'
    found = [line.split(";") for line in importlib.metadata.requires("sat-slime") or []]
    return [parts[0].strip() for parts in found if len(parts) == 2 and marker in parts[1].replace("'", '"')]


def tested_versions(torch: str) -> str:
    """The tested versions, but for torch, of which the installed version stays: it may be a build for this machine."""
    lines = (REQUIREMENTS / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [f"torch=={torch}" if line.startswith("torch==") else line for line in lines]
    return "\n".join(kept) + "\n"


def install_engines(dry_run: bool, tell: Callable[[str], None]) -> int:
    """Install them, or tell the commands; returns the exit code of pip.

    Raises:
        ConfigError: this Python has no pip.
    """
    torch = importlib.metadata.version("torch").partition("+")[0]
    with tempfile.TemporaryDirectory() as folder:
        constraints = REQUIREMENTS / "constraints.txt" if dry_run else Path(folder) / "constraints.txt"
        if not dry_run:
            refuse_without_pip()
            constraints.write_text(tested_versions(torch), encoding="utf-8")
        for command in install_commands(constraints):
            tell(shlex.join(command))
            if not dry_run and (code := subprocess.run(command).returncode):
                return code
    if not dry_run:
        tell("the engines are installed; sat-slime check FILE looks at a run's settings and this machine")
    return 0
