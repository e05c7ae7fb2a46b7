"""Makes what the real slime takes on a CPU: its checkout, Megatron-LM's with slime's patches, and a few packages; and
for rehearsals Qwen's words, a file of a package on PyPI, which is downloaded and not installed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sat_slime.cli.lab_run.engine_packages import REQUIREMENTS, installed_version, pip_install, refuse_without_pip
from sat_slime.cli.terminal import complain
from sat_slime.config import ConfigError
from sat_slime.rehearsal.vocabulary import RANKS

SLIME_URL = "https://github.com/THUDM/slime"
MEGATRON_URL = "https://github.com/NVIDIA/Megatron-LM"
SLIME_COMMIT = "624b824a898ab0ec1fcb4d373004c7f3852bf515"
MEGATRON_COMMIT = "1dcf0dafa884ad52ffb243625717a3471643e087"
PATCHES = ("docker/patch/latest/megatron.patch", "docker/patch/latest/megatron-sglang-aligned.patch")
"""slime's patches of Megatron-LM, in slime's checkout and in their order."""
PACKAGES = REQUIREMENTS / "slime-cpu.txt"
WORDS_PACKAGE, WORDS_FILE = "dashscope==2.0.2", "dashscope/resources/qwen.tiktoken"
"""The package of Qwen's words, whose licence is Apache 2.0, and where they are in it."""


@dataclass(frozen=True)
class Checkout:
    """A repository at a commit, with patches."""

    folder: Path
    url: str
    commit: str
    patches: tuple[Path, ...] = ()

    @property
    def part(self) -> Path:
        """The folder in which it is made; it is moved to its folder once it is whole."""
        return self.folder.with_name(f"{self.folder.name}.part")

    def commands(self) -> Iterator[list[str]]:
        """Yield the commands that make it, also out of a part that was broken off."""
        yield ["git", "init", "--quiet", str(self.part)]
        yield [*self._git(), "fetch", "--depth", "1", self.url, self.commit]
        yield [*self._git(), "checkout", "--quiet", "--force", "--detach", self.commit]
        if self.patches:
            yield [*self._git(), "apply", *map(str, self.patches)]
        yield ["mv", str(self.part), str(self.folder)]

    def difference(self) -> str | None:
        """Return what the folder that is there is instead, with the remedy; None where it is this checkout."""
        git = ["git", "-C", str(self.folder)]
        answer = _answer([*git, "rev-parse", "--show-toplevel", "HEAD"])
        top, _, head = os.fsdecode(answer.stdout).strip().partition("\n")
        other = "choose another --out, or use it as it is with --set cluster.slime_dir and cluster.megatron_dir"
        if answer.returncode or Path(top).resolve() != self.folder.resolve():
            reason = os.fsdecode(answer.stderr).strip().partition("\n")[0] or f"it is a part of {top}"
            return f"{self.folder} is there and no checkout ({reason}): {other}"
        if head != self.commit:
            return f"{self.folder} is there at commit {head[:9]} and not {self.commit[:9]}: {other}"
        files = [patch for patch in self.patches if patch.is_file()]  # slime may be to be made yet
        together = b"".join(patch.read_bytes() for patch in files)  # as one, git takes them back in their order
        if together and _answer([*git, "apply", "--reverse", "--check"], together).returncode:
            apply = shlex.join([*git, "apply", *map(str, files)])
            return f"{self.folder} is there without slime's patches: choose another --out, or apply them: {apply}"
        return None

    def _git(self) -> list[str]:
        return ["git", "-C", str(self.part)]


def checkouts(out: Path) -> tuple[Checkout, Checkout]:
    """Return slime and Megatron-LM, in a folder; both at the commits with which the whole was tested."""
    slime = Checkout(out / "slime", SLIME_URL, SLIME_COMMIT)
    patches = tuple(slime.folder / patch for patch in PATCHES)
    return slime, Checkout(out / "Megatron-LM", MEGATRON_URL, MEGATRON_COMMIT, patches)


def missing_packages() -> list[str]:
    """Return the lines of requirements/slime-cpu.txt that this Python does not have as they are."""
    lines = [line for line in PACKAGES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    pins = {line: line.partition("==") for line in lines}
    return [line for line, (package, _, version) in pins.items() if installed_version(package) != version]


def prepare_checkouts(wanted: Sequence[Checkout], dry_run: bool, tell: Callable[[str], None]) -> int:
    """Make what is missing of the checkouts and the packages, or tell the commands; returns the exit code of the
    command that failed, or 0.

    Raises:
        ConfigError: before anything runs: a folder that is there is something else, or git or pip is missing.
    """
    if shutil.which("git") is None:
        raise ConfigError(["git is not installed: install it"])
    there = [checkout for checkout in wanted if os.path.lexists(checkout.folder)]
    if errors := [difference for checkout in there if (difference := checkout.difference())]:
        raise ConfigError(errors)
    packages = missing_packages()
    if packages and not dry_run:
        refuse_without_pip()
    for checkout in wanted:
        if checkout in there:
            if error := checkout.difference():
                raise ConfigError([error])
            tell(f"{checkout.folder} is there")
        elif code := _run(checkout.commands(), dry_run, tell):
            return code
    return _run([pip_install("--no-deps", "--requirement", str(PACKAGES))], dry_run, tell) if packages else 0


def _run(commands: Iterator[list[str]] | Sequence[list[str]], dry_run: bool, tell: Callable[[str], None]) -> int:
    for command in commands:
        tell(shlex.join(command))
        if not dry_run and (code := subprocess.run(command, env=_environment()).returncode):
            return code
    return 0


def _answer(command: Sequence[str], given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, env=_environment(), input=given, capture_output=True)


def _environment() -> dict[str, str]:
    """Return this process's environment, without the repository of a git that called it, and with no question for a
    password."""
    callers = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    return {k: v for k, v in os.environ.items() if k not in callers} | {"GIT_TERMINAL_PROMPT": "0"}


def get_words(dry_run: bool, tell: Callable[[str], None]) -> int:
    """Put Qwen's words where a rehearsal looks for them, unless they are there, or tell the command; returns the exit
    code of pip. Raises ConfigError where this Python has no pip."""
    if RANKS.is_file():
        tell(f"{RANKS} is there")
        return 0
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*pip, "--only-binary=:all:", "--dest", folder, WORDS_PACKAGE]
        tell(shlex.join(command))
        if dry_run:
            return 0
        refuse_without_pip()
        if code := subprocess.run(command).returncode:
            complain(["Qwen's words could not be downloaded, see above: without them a rehearsal has a stand-in"])
            return code
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            words = wheel.read(WORDS_FILE)
    RANKS.parent.mkdir(parents=True, exist_ok=True)
    RANKS.write_bytes(words)
    tell(f"Qwen's words are in {RANKS}")
    return 0
