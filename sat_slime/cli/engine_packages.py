"""The packages of the lab runtime, which scripts/setup.sh installs."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from sat_slime.config import ConfigError

ENGINES = {
    "megatron-core": "megatron",
    "sglang": "sglang",
    "transformers": "transformers",
    "safetensors": "safetensors",
    "httpx": "httpx",
}
"""Each package with a module of it."""
INSTALL_ENGINES = "run scripts/setup.sh of a checkout, or pip as docs/start.md says"


def missing_engines() -> list[str]:
    """Return the packages that are not installed. The import of one that is may fail all the same."""
    return [package for package, module in ENGINES.items() if importlib.util.find_spec(module) is None]


def refuse_without_engines() -> None:
    """Raise ConfigError where packages are missing."""
    if missing := missing_engines():
        raise ConfigError([f"the lab runtime needs {', '.join(missing)}: {INSTALL_ENGINES}"])


def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
