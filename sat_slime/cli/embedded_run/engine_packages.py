"""The packages that the embedded runtime stands on: whether they are installed, and how to install them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass

from sat_slime.config import EmbeddedConfig

INSTALL_ENGINES = "run sat-slime prepare engines, or in a checkout scripts/setup.sh"


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


def missing_engines() -> list[str]:
    """Packages of the embedded runtime that are not installed."""
    return [engine.package for engine in ENGINES if not is_installed(engine)]


def is_installed(engine: Engine) -> bool:
    """Whether the package is there; its import may fail all the same."""
    return importlib.util.find_spec(engine.module.partition(".")[0]) is not None


def installed_version(package: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def verifier_error(config: EmbeddedConfig) -> str | None:
    """Why the configured verifier cannot be used, or None."""
    if config.verifier.mode == "exact" or importlib.util.find_spec("math_verify") is not None:
        return None
    return (
        f"verifier.mode is {config.verifier.mode}, but math-verify is not installed: pip install 'sat-slime[reward]', "
        "or set verifier.mode to exact"
    )
