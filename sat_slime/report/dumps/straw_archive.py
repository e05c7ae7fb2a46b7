"""slime's `.straw.json`: the index of a rollout whose samples lie in a pool of the package straw-queue.

The index itself holds no sample. Its manifest leads to one record of chunks of samples, which lie in the pool beside it
(`straw-data`) or, under `--rollout-data-transport straw`, in the pool of the run. A record of slime, `slime.v1`, is
JSON whose lists begin with a tag (slime/data/codec.py of slime's main, read at 5dcf67cd); straw finds and checks the
records. Tensors, images and references other than the chunks are passed over: nothing here needs them. straw notes who
reads a pool in the pool itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sat_slime.report.dumps.step_batch import DumpFault

SUFFIX = ".straw.json"
FORMAT, VERSION = "slime.straw-debug", 1
_CODECS = ("bytes.v1", "json.v1", "slime.v1", "tensor.v1")
_PLAIN = {"spec-info", "prefix-cache-info", "dynamic-filter"}
_PASSED_OVER = {"tensor", "ndarray", "bytes", "image-png", "record-set"}
_EXPORT = (
    'or export it where slime is installed: python -c "from slime.data.archive import RolloutArchive as A; '
    "A('IN.straw.json').export_pt('OUT.pt')\""
)


def read_archive(path: Path) -> dict[str, Any]:
    """Read `rollout_id` and `samples`, as a dump of a rollout has them. Raises DumpFault."""
    index = read_index(path)
    try:
        from straw.errors import QueueError  # type: ignore[import-not-found,unused-ignore]
        from straw.protocol import RecordSetRef  # type: ignore[import-not-found,unused-ignore]
        from straw.store import SharedFilesystemStore  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise DumpFault(
            f"its samples lie in a straw pool, and the package that reads it is not installed: pip install "
            f"straw-queue, {_EXPORT}"
        ) from error
    root = _root(index, path)
    try:
        manifest = RecordSetRef.from_dict(index["manifest"])
        with SharedFilesystemStore(root, manifest.manifest.segment.run_id, codecs=_CODECS) as store:
            contents = _Record(store, manifest).value
            chunks = [_Record(store, chunk).value for chunk in contents["chunks"]]
        return {
            "rollout_id": index["rollout_id"],
            "samples": [chunks[entry["chunk"]][entry["offset"]] for entry in contents["entries"]],
        }
    except (QueueError, KeyError, IndexError, TypeError, ValueError, OSError) as error:
        raise DumpFault(
            f"its straw pool {root} cannot be read ({type(error).__name__} {error!s:.120}), {_EXPORT}"
        ) from error


def read_index(path: Path) -> dict[str, Any]:
    """Read the index: format, version, rollout_id, evaluation, root, manifest. Raises DumpFault."""
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DumpFault(f"it is no whole JSON file ({error!s:.120})") from error
    if not isinstance(index, dict) or (index.get("format"), index.get("version")) != (FORMAT, VERSION):
        raise DumpFault(f"it is no {SUFFIX} of slime in format {FORMAT} version {VERSION}, the only one known here")
    return index


def _root(index: Mapping[str, Any], path: Path) -> Path:
    """Find the pool: where the index says, or beside the index, if the folder was copied."""
    recorded = Path(str(index.get("root")))
    root = recorded if recorded.is_dir() else path.parent / "straw-data"
    if not root.is_dir():
        raise DumpFault(
            f"its samples lie in the straw pool {recorded}, which is not here: the index alone holds none of them; "
            f"mount or copy the pool, {_EXPORT}"
        )
    return root


class _Record:
    """The value of one slime.v1 record."""

    def __init__(self, store: Any, reference: Any):
        from straw.protocol import RecordSetRef

        (record,) = store.read(reference)
        payload = json.loads(bytes(record.payload))
        if record.codec != "slime.v1" or payload.get("version") != 1:
            raise ValueError(f"record of {record.codec} version {payload.get('version')}, not of slime.v1 version 1")
        self._dependencies = [RecordSetRef.from_dict(ref) for ref in store.manifest(reference)["dependencies"]]
        self.value = self._read(payload["tree"])

    def _read(self, node: Any) -> Any:
        if not isinstance(node, list):
            return node
        tag = node[0]
        if tag == "dict":
            return {self._read(key): self._read(value) for key, value in node[1]}
        if tag in ("list", "tuple"):
            return [self._read(value) for value in node[1]]
        if tag == "sample" or tag in _PLAIN:
            return self._read(node[1])
        if tag == "status":
            return node[1]
        if tag == "float":
            return float(node[1])
        if tag == "rollout-ref":
            return self._dependencies[node[2]]
        if tag in _PASSED_OVER:
            return None
        raise ValueError(f"unknown tag {tag!r:.40}")
