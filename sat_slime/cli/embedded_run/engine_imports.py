"""A check that the packages of the embedded runtime can be imported, which takes seconds: it is tried once for what is
installed, and remembered in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sat_slime
from sat_slime.cli.embedded_run.engine_packages import Engine
from sat_slime.runs.rows import write_atomically

TIMEOUT_S = 180
REMEMBERED = "imported-engines.json"
"""The file in the cache folder: a digest of what was installed when every import worked."""
_MARK = "imported\t"
_PROGRAM = """
import json, sys
for package, program in json.loads(sys.argv[1]):
    try:
        exec(program, {})
        error = ""
    except BaseException as fault:
        error = f"{type(fault).__name__}: {fault}"
    print("\\nimported", package, error, sep="\\t", flush=True)
"""


def import_errors(engines: Sequence[Engine], cache: Path) -> tuple[dict[str, str], bool]:
    """Import packages that are installed, in processes beside this one.

    Args:
        cache: folder in which it is remembered that all imports worked.

    Returns:
        What is wrong with the packages that cannot be imported, by name, and whether nothing was imported now, since
        all worked before and nothing was installed or removed since.
    """
    digest = _what_is_installed(engines)
    with contextlib.suppress(OSError):
        if (cache / REMEMBERED).read_text(encoding="utf-8") == digest:
            return {}, True
    alone = [[engine] for engine in engines if engine.before]  # what is done before its import is not for the others
    with ThreadPoolExecutor() as pool:
        together = [engine for engine in engines if not engine.before]
        errors = {name: error for part in pool.map(_try_imports, [*alone, together]) for name, error in part.items()}
    if not errors:
        with contextlib.suppress(OSError):  # then they are imported again the next time
            cache.mkdir(parents=True, exist_ok=True)
            write_atomically(cache / REMEMBERED, digest)
    return errors, False


def _try_imports(engines: Sequence[Engine]) -> dict[str, str]:
    """Import packages in one process, since they share much of what they import. One that a package ends or holds up is
    followed by another for the packages behind it."""
    # As the servers are started: without dynamo, SGLang's import does not need a compiler.
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    errors: dict[str, str] = {}
    left = list(engines)
    while left:
        programs = json.dumps([(engine.package, f"{engine.before}\nimport {engine.module}") for engine in left])
        command = [sys.executable, "-W", "ignore", "-c", _PROGRAM, programs]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
            output = result.stdout
            ended = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode(errors="replace")  # it is bytes, whatever `text` says
            ended = f"its import took more than {TIMEOUT_S} s"
        for line in output.splitlines():
            if line.startswith(_MARK):
                _, package, error = line.split("\t", 2)
                errors |= {package: error} if error else {}
                left.pop(0)
        if left:
            errors[left.pop(0).package] = ended
    return errors


def _what_is_installed(engines: Sequence[Engine]) -> str:
    """Return a digest of the packages beside the engines, and of ours that their imports run. Whatever an installer
    adds, replaces or removes changes the time of a folder there."""
    names = [engine.module.partition(".")[0] for engine in engines]
    specs = [spec for name in names if (spec := importlib.util.find_spec(name)) is not None]
    ours = Path(sat_slime.__file__).parent
    places = {ours / "rollout" / "sglang_on_cpu", ours / "models"}
    for spec in specs:
        places |= {Path(place).parent for place in spec.submodule_search_locations or [spec.origin or ""]}
    seen = [f"{sys.executable} {sys.version}", *(f"{engine.module} {engine.before}" for engine in engines)]
    for place in sorted(places):
        with os.scandir(place) as entries:
            found = [(entry.path, entry.stat().st_mtime_ns) for entry in entries if entry.name != "__pycache__"]
        seen += [f"{path} {time}" for path, time in sorted(found)]
    return hashlib.sha256("\n".join(seen).encode()).hexdigest() + "\n"
