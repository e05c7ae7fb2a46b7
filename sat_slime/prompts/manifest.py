"""The manifest says how a folder of prompts was made, and how to make the same again."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import sat_slime
from sat_slime.prompts.build import Gathered
from sat_slime.prompts.locations import sha256
from sat_slime.prompts.output import Written

PACKAGES = ("huggingface-hub", "pyarrow", "math-verify", "transformers")


def manifest(
    gathered: Sequence[Gathered], settings: Mapping[str, Any], different: Sequence[str], written: Mapping[str, Written]
) -> dict[str, Any]:
    """Return the manifest of a folder. It holds no time: the same input gives the same bytes.

    Args:
        different: in what the sets differ from the paper's.
    """
    versions = {"sat-slime": sat_slime.__version__, "python": platform.python_version()}
    return {
        "schema": "sat_slime.prompts/1",
        "versions": versions | {package: _version(package) for package in PACKAGES},
        "settings": dict(settings),
        "differs_from_paper": list(different),
        "sources": [_source(gathered_set) for gathered_set in gathered],
        "files": {name: dataclasses.asdict(file) for name, file in written.items()},
    }


def _source(gathered_set: Gathered) -> dict[str, Any]:
    files, source = gathered_set.files, gathered_set.files.source
    hub = {"repository": source.repository, "revision": source.revision, "commit": files.commit}
    return {
        "name": gathered_set.data_set.name,
        "given": source.given,
        **({"path": str(source.path.absolute())} if source.path else hub),
        "files": [
            {"name": files.name(path), "bytes": path.stat().st_size, "sha256": sha256(path)} for path in files.paths
        ],
        "counts": {name: count for name, count in dataclasses.asdict(gathered_set.account).items() if name != "name"},
        "paper": {gathered_set.data_set.counted: gathered_set.data_set.expected},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
