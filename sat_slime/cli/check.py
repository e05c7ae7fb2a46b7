"""Whether a run's settings and this machine are fit for it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from sat_slime.config import ConfigError, EmbeddedConfig, config_errors, config_warnings, load_config
from sat_slime.config.loader import RunConfig, further_errors
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.log import tracker_error

GIB = 2**30
ENGINE_MEMORY_GIB = 2.5
"""Resident memory of one SGLang server with a tiny model, with room to load weights."""
RANK_MEMORY_GIB = 1.0
"""Resident memory of one trainer rank with a tiny model."""
DISK_GIB = 1.0
"""Free disk that a run wants: checkpoints, weights and the warmed-up model."""
IMPORT_TIMEOUT_S = 180


@dataclass(frozen=True)
class Engine:
    """A package of the embedded runtime and the module that proves it works."""

    package: str
    module: str
    before: str = ""
    """Statement to run before the import."""


ENGINES = (
    Engine("megatron-core", "megatron.core"),
    Engine(
        "sglang",
        "sglang.srt.server_args",
        "from sat_slime.rollout.sglang_on_cpu import patches; patches.apply()",
    ),
    Engine("ray", "ray"),
    Engine("transformers", "transformers"),
    Engine("safetensors", "safetensors"),
    Engine("httpx", "httpx"),
)


@dataclass(frozen=True)
class Finding:
    """One line of `sat-slime check`."""

    mark: str
    """OK, WARN or FAIL."""
    what: str
    detail: str
    of_config: bool = False

    def columns(self) -> tuple[str, str, str]:
        colour = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}[self.mark]
        return f"[{colour}]{self.mark:4}[/]", f"{self.what:14}", escape(self.detail)


def missing_engines() -> list[str]:
    """Packages of the embedded runtime that are not installed."""
    return [engine.package for engine in ENGINES if not _is_installed(engine)]


def _is_installed(engine: Engine) -> bool:
    return importlib.util.find_spec(engine.module.partition(".")[0]) is not None


def verifier_error(config: EmbeddedConfig) -> str | None:
    """Why the configured verifier cannot be used, or None."""
    if config.verifier.mode == "exact" or importlib.util.find_spec("math_verify") is not None:
        return None
    return (
        f"verifier.mode is {config.verifier.mode}, but math-verify is not installed: pip install 'sat-slime[reward]', "
        "or set verifier.mode to exact"
    )


def installed_version(package: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def load_run(file: Path, overrides: Sequence[str], settings: Mapping[str, Any] | None = None) -> RunConfig:
    """load_config. Where it raises ConfigError, that also holds what the sections do not agree on."""
    try:
        return load_config(file, overrides, settings)
    except ConfigError as error:
        more = [f"{file}: {line}" for line in further_errors(error, settings_errors)]
        raise ConfigError([*error.errors, *more]) from None


def settings_errors(config: RunConfig) -> list[str]:
    """Faults of a run's settings, each in one line."""
    if isinstance(config, EmbeddedConfig):
        return config_errors(config)
    from sat_slime.plugin.launch import checks

    return checks.settings_errors(config)


def check_all(file: Path, overrides: Sequence[str], address: str | None = None) -> Iterator[Finding]:
    """Every check of a run, one after another. address: that of a slime run's cluster."""
    try:
        config = load_run(file, overrides)
    except ConfigError as error:
        yield from (Finding("FAIL", "settings", line, of_config=True) for line in error.errors)
        return
    if not isinstance(config, EmbeddedConfig):
        from sat_slime.cli.slime import check_slime_run

        yield from check_slime_run(config, file, address)
        return
    errors = config_errors(config)
    yield from (Finding("FAIL", "settings", error, of_config=True) for error in errors)
    yield from (Finding("WARN", "settings", warning, of_config=True) for warning in config_warnings(config))
    if not errors:
        yield Finding("OK", "settings", str(file))
    yield from (_engine(engine) for engine in ENGINES)
    if lacking := verifier_error(config):
        yield Finding("FAIL", "math-verify", lacking)
    yield from _trackers(config)
    yield _folder(config)
    yield _cache(config)
    yield from _disk(config)
    yield _memory(config)


def _engine(engine: Engine) -> Finding:
    if not _is_installed(engine):
        return Finding(
            "FAIL", engine.package, 'not installed: run scripts/setup.sh, or pip install "sat-slime[embedded]"'
        )
    program = f"{engine.before}\nimport {engine.module}"
    # As the servers are started: without dynamo, SGLang's import does not need a compiler.
    environment = {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    try:
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            capture_output=True,
            text=True,
            timeout=IMPORT_TIMEOUT_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return Finding("FAIL", engine.package, f"its import took more than {IMPORT_TIMEOUT_S} s: reinstall it")
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        return Finding("FAIL", engine.package, f"cannot be imported ({reason}): run scripts/setup.sh again")
    return Finding("OK", engine.package, installed_version(engine.package) or "version unknown")


def _trackers(config: EmbeddedConfig) -> Iterator[Finding]:
    if config.logging.tensorboard:
        if version := installed_version("tensorboard"):
            yield Finding("OK", "tensorboard", version)
        else:
            yield Finding("WARN", "tensorboard", "not installed: the run goes without it; pip install tensorboard")
    if error := tracker_error(config.logging.wandb_project):
        yield Finding("FAIL", "wandb", error)


def _folder(config: EmbeddedConfig) -> Finding:
    folder = RunFolder(Path(config.output_dir).expanduser() / config.name)
    if error := _place_error(folder.path, "output_dir"):
        return Finding("FAIL", "run folder", error)
    if folder.has_data():
        return Finding("WARN", "run folder", f"{folder.path} holds an earlier run: use --resume, --name or --overwrite")
    return Finding("OK", "run folder", str(folder.path))


def _cache(config: EmbeddedConfig) -> Finding:
    cache = Path(config.cache_dir).expanduser()
    if error := _place_error(cache, "cache_dir"):
        return Finding("FAIL", "cache folder", error)
    return Finding("OK", "cache folder", str(cache))


def _place_error(path: Path, key: str) -> str | None:
    """Why nothing can be made at `path`, which the setting `key` names, or None."""
    parent = _existing(path)
    if not parent.is_dir():
        return f"{parent} is not a folder: choose another {key}"
    if not os.access(parent, os.W_OK | os.X_OK):
        return f"{parent} is not writable: choose another {key}"
    return None


def _disk(config: EmbeddedConfig) -> Iterator[Finding]:
    for key in ("output_dir", "cache_dir"):
        place = _existing(Path(getattr(config, key)).expanduser())
        free = shutil.disk_usage(place).free / GIB
        if free < DISK_GIB:
            yield Finding("FAIL", "disk", f"{free:.1f} GiB free at {place}, {DISK_GIB:g} wanted: set {key} elsewhere")
        else:
            yield Finding("OK", "disk", f"{free:.0f} GiB free at {place} ({key})")


def _existing(path: Path) -> Path:
    """The nearest folder at or above `path` that exists."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path


def _memory(config: EmbeddedConfig) -> Finding:
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / GIB
    except (ValueError, OSError):
        return Finding("WARN", "memory", "free memory is not known here")
    need = config.rollout.engines * ENGINE_MEMORY_GIB + config.train.world_size * RANK_MEMORY_GIB + 1
    if free < need:
        return Finding(
            "WARN", "memory", f"{free:.1f} GiB free, about {need:.1f} wanted: fewer rollout.engines or ranks"
        )
    return Finding("OK", "memory", f"{free:.0f} GiB free, about {need:.1f} wanted")
