"""Writes the signatures of slime after its pull request 2391, as far as single files could be read, as a package.

newest_slime.json has what those files say. No such slime runs here: the package is only for the probe to look at. What
no file showed is written as plugin/slime_names.py takes it to be: that part shows nothing of slime, only that the probe
has no other reason to refuse.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sat_slime.plugin.slime_names import NAMES, NEWEST, Form

READ: list[dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())["read"]


def recorded(file: str, name: str) -> dict[str, Any] | None:
    """What was read of a function: what it `takes` and `does`, and its file's `commit` and `repository`."""
    for one in READ:
        if one["file"] == file and name in one["functions"]:
            return {"does": [], **one["functions"][name], "commit": one["commit"], "repository": one["repository"]}
    return None


def write_newest_slime(root: Path) -> Path:
    """Writes the package, and returns its folder. It has every recorded function, and those of the table of which
    nothing is recorded."""
    functions = {
        (one["file"], name): (it["takes"], it.get("does", [])) for one in READ for name, it in one["functions"].items()
    }
    for form in (form for name in NAMES for form in name.forms if NEWEST in form.seen):
        functions.setdefault((form.file, form.name), _taken_for_granted(form))
    files: dict[str, str] = {}
    for file, name in sorted(functions):
        takes, does = functions[file, name]
        owner, _, method = name.rpartition(".")
        if owner or takes is not None:
            body = [*does, "pass"]
            indent = " " * 4 * (1 + bool(owner))
            head = f"class {owner}:\n    def {method}{takes}:\n" if owner else f"def {name}{takes}:\n"
            files[file] = files.get(file, "") + head + "".join(f"{indent}{line}\n" for line in body)
        else:
            files[file] = files.get(file, "") + f"class {name}:\n    pass\n"
    for file, text in files.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    return root


def _taken_for_granted(form: Form) -> tuple[str | None, list[str]]:
    if form.name[0].isupper() and "." not in form.name:
        return None, []
    does = [json.dumps(part) for part in form.body]
    return f"({', '.join(form.parameters or [])})", does
