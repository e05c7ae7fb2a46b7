"""What runs on this machine stand on: the packages of the lab runtime, which `sat-slime prepare engines` installs as
scripts/setup.sh does in a checkout, and the checkouts of the real slime, which `sat-slime prepare slime` makes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sat_slime.config import ConfigError

REQUIREMENTS = Path(__file__).parents[1] / "requirements"
"""The folder of what SGLang needs on a CPU, and of the versions that were tested; they come with the package."""
EXTRA = "lab"

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


# ------------------------------------------------------------------------------------------------------- the engines


def pip_install(*arguments: str) -> list[str]:
    """Return a call of this Python's pip."""
    return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]


def refuse_without_pip() -> None:
    """Raise ConfigError where this Python has no pip."""
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
    if not dry_run:
        tell("the engines are installed; sat-slime check FILE looks at a run's settings and this machine")
    return 0


# ---------------------------------------------------------------------------------------------- slime for a CPU

SLIME_URL = "https://github.com/THUDM/slime"
MEGATRON_URL = "https://github.com/NVIDIA/Megatron-LM"
SLIME_COMMIT = "624b824a898ab0ec1fcb4d373004c7f3852bf515"
MEGATRON_COMMIT = "1dcf0dafa884ad52ffb243625717a3471643e087"
PATCHES = ("docker/patch/latest/megatron.patch", "docker/patch/latest/megatron-sglang-aligned.patch")
"""slime's patches of Megatron-LM, in slime's checkout and in their order."""
PACKAGES = REQUIREMENTS / "slime-cpu.txt"


def missing_packages() -> list[str]:
    """Return the lines of requirements/slime-cpu.txt that this Python does not have as they are."""
    lines = [line for line in PACKAGES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    pins = {line: line.partition("==") for line in lines}
    return [line for line, (package, _, version) in pins.items() if installed_version(package) != version]


def prepare_checkouts(out: Path, dry_run: bool, tell: Callable[[str], None]) -> int:
    """Make what is missing of slime, Megatron-LM with slime's patches, both at the commits that were tested, and the
    packages, or tell the commands; returns the exit code of the command that failed, or 0.

    Raises:
        ConfigError: before anything runs: a folder that is there is something else, or git or pip is missing.
    """
    if shutil.which("git") is None:
        raise ConfigError(["git is not installed: install it"])
    slime, megatron = out / "slime", out / "Megatron-LM"
    wanted = (
        (slime, SLIME_URL, SLIME_COMMIT, ()),
        (megatron, MEGATRON_URL, MEGATRON_COMMIT, tuple(slime / patch for patch in PATCHES)),
    )
    for folder, _, commit, _ in wanted:
        if os.path.lexists(folder) and (head := _head(folder)) != commit:
            raise ConfigError(
                [
                    f"{folder} is there at commit {head[:9] or 'none'} and not {commit[:9]}: choose another --out, or "
                    "use it as it is with --set cluster.slime_dir and cluster.megatron_dir"
                ]
            )
    packages = missing_packages()
    if packages and not dry_run:
        refuse_without_pip()
    for folder, url, commit, patches in wanted:
        if folder.is_dir():
            tell(f"{folder} is there")
        elif code := _run(_commands(folder, url, commit, patches), dry_run, tell):
            return code
    return _run([pip_install("--no-deps", "--requirement", str(PACKAGES))], dry_run, tell) if packages else 0


def _commands(folder: Path, url: str, commit: str, patches: Sequence[Path]) -> Iterator[list[str]]:
    """Yield the commands that make a checkout, also out of a part that was broken off; it is moved once it is whole."""
    part = folder.with_name(f"{folder.name}.part")
    git = ["git", "-C", str(part)]
    yield ["git", "init", "--quiet", str(part)]
    yield [*git, "fetch", "--depth", "1", url, commit]
    yield [*git, "checkout", "--quiet", "--force", "--detach", commit]
    if patches:
        yield [*git, "apply", *map(str, patches)]
    yield ["mv", str(part), str(folder)]


def _head(folder: Path) -> str:
    """Return the commit of a checkout; empty where the folder itself is none."""
    command = ["git", "-C", str(folder), "rev-parse", "--show-prefix", "HEAD"]
    answer = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    prefix, _, head = answer.stdout.partition("\n")
    return "" if answer.returncode or prefix else head.strip()


def _run(commands: Iterable[list[str]], dry_run: bool, tell: Callable[[str], None]) -> int:
    for command in commands:
        tell(shlex.join(command))
        if not dry_run and (code := subprocess.run(command, env=_environment()).returncode):
            return code
    return 0


def _environment() -> dict[str, str]:
    """Return this process's environment, without the repository of a git that called it, and with no question for a
    password."""
    callers = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    return {k: v for k, v in os.environ.items() if k not in callers} | {"GIT_TERMINAL_PROMPT": "0"}
