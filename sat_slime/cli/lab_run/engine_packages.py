"""The packages that the lab runtime stands on: whether they are installed, and `sat-slime prepare engines`, which
installs them beside this package as scripts/setup.sh does in a checkout."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sat_slime.rollout import sglang_on_gpu

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
"""The folder of what SGLang needs on a CPU, and of the versions that were tested; they come with the package."""
EXTRA = "lab"
FOR_GPUS = ("sglang-kernel", "flashinfer_python", "triton", "torchvision", "ipython")
"""What SGLang imports where it serves a text model on a GPU, and for which something stands in on a CPU."""

INSTALL_ENGINES = "run sat-slime prepare engines, or in a checkout scripts/setup.sh"


@dataclass(frozen=True)
class Engine:
    """A package of the lab runtime and a module of it."""

    package: str
    module: str


ENGINES = (
    Engine("megatron-core", "megatron"),
    Engine("sglang", "sglang"),
    Engine("transformers", "transformers"),
    Engine("safetensors", "safetensors"),
    Engine("httpx", "httpx"),
)


def missing_engines() -> list[str]:
    """Return the packages of the lab runtime that are not installed."""
    return [engine.package for engine in ENGINES if not is_installed(engine)]


def is_installed(engine: Engine) -> bool:
    """Return whether the package is there; its import may fail all the same."""
    return importlib.util.find_spec(engine.module) is not None


def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# ------------------------------------------------------------------------------------------------------ installation


def pip_install(*arguments: str) -> list[str]:
    """Return a call of this Python's pip."""
    return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]


def refuse_without_pip() -> None:
    """Raise ConfigError where this Python has no pip."""
    from sat_slime.config import ConfigError

    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            [
                f"{sys.executable} has no pip: install it (python -m ensurepip, or uv pip install pip), or run what "
                "--dry-run prints with your own installer"
            ]
        )


def install_commands(constraints: Path) -> Iterator[list[str]]:
    """Yield the calls of pip, in their order.

    SGLang goes in without its own list of dependencies, which asks for a CUDA build of torch, and last, since pip holds
    what it installs against the lists of all that is there.
    """
    pip = pip_install("--constraint", str(constraints))
    yield [*pip, "--requirement", str(REQUIREMENTS / "lab.txt"), *_of_the_extra()]
    yield [*pip, "--no-deps", "sglang"]


def _of_the_extra() -> list[str]:
    """Return the package's own requirements for the lab runtime."""
    marker = f'extra == "{EXTRA}"'
    requirements = [line.partition(";") for line in importlib.metadata.requires("sat-slime") or []]
    return [package.strip() for package, _, condition in requirements if marker in condition.replace("'", '"')]


def tested_versions(torch: str) -> str:
    """Return the tested versions, with the installed one of torch, which may be a build for this machine."""
    lines = (REQUIREMENTS / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [f"torch=={torch}" if line.startswith("torch==") else line for line in lines]
    return "\n".join(kept) + "\n"


def install_engines(dry_run: bool, tell: Callable[[str], None]) -> int:
    """Install the engines, or tell the commands; returns the exit code of pip.

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
    missing = [package for package in FOR_GPUS if installed_version(package) is None]
    if missing and sglang_on_gpu.gpu_available():
        sglang = next(line for line in tested_versions(torch).splitlines() if line.startswith("sglang=="))
        tell(
            f"this machine has a GPU, on which SGLang imports {', '.join(missing)} too: pip install {sglang}, with its "
            "own list and its torch"
        )
    if not dry_run:
        tell("the engines are installed; sat-slime check FILE looks at a run's settings and this machine")
    return 0
