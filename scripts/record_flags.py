"""Records the flags of the slime on the path into sat_slime/launch/slime_flags.json, by which commands are checked
where there is no slime. With slime and Megatron-LM on PYTHONPATH (inside slime's image they are):

    python scripts/record_flags.py --record sat_slime/launch/slime_flags.json --version main --commit 624b824a8...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sat_slime.cpu.slimes_parser import answer


def installed_flags() -> dict[str, dict[str, Any]]:
    """Return the flags of the slime on the path, in the form in which they are recorded."""
    flags = answer()["flags"].items()
    return {flag: {key: value for key, value in spec.items() if key != "argument"} for flag, spec in flags}


def record(file: Path, version: str, commit: str, built_with: str) -> None:
    """Writes the installed slime's flags into `file` as those of `version`; other versions in it stay."""
    empty: dict[str, Any] = {"versions": {}, "built_with": {}, "flags": {}}
    data = json.loads(file.read_text(encoding="utf-8")) if file.exists() else empty
    versions: dict[str, str] = data["versions"]
    by_version: dict[str, dict[str, Any]] = {version: installed_flags()}  # first: it counts where others differ
    by_version |= {
        other: {
            name: {key: value for key, value in spec.items() if key != "only"}
            for name, spec in data["flags"].items()
            if other in spec.get("only", versions)
        }
        for other in versions
        if other != version
    }
    versions[version] = commit
    data["built_with"][version] = built_with
    flags: dict[str, Any] = {}
    for other, specs in by_version.items():
        for name, spec in specs.items():
            flags.setdefault(name, spec)
            flags[name].setdefault("only", []).append(other)
    for spec in flags.values():
        if len(spec["only"]) == len(versions):
            del spec["only"]
    head = json.dumps({"versions": versions, "built_with": data["built_with"]}, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(flags[name])}" for name in sorted(flags))
    file.write_text(f'{head},\n "flags": {{\n{lines}\n }}\n}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="JSON file, made or updated")
    parser.add_argument("--version", default="installed", help="what to call this version, such as main or v0.3.1")
    parser.add_argument("--commit", default="unknown", help="slime's commit")
    parser.add_argument("--built-with", default="", help="commits and versions of Megatron-LM and SGLang")
    options = parser.parse_args()
    record(options.record, options.version, options.commit, options.built_with)


if __name__ == "__main__":
    main()
