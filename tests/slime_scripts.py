"""Reads the arguments of slime's own launch scripts out of a checkout."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

EXAMPLES = (
    "examples/fully_async/run-qwen2.5-0.5B-fully_async.sh",
    "examples/fully_async/run-qwen3.5-9B-fully_async.sh",
    "scripts/run-qwen3-30B-A3B.sh",
)


def arguments_of(checkout: Path, script: str, *groups: str) -> list[str]:
    """Return what a script gives slime's training file: the arrays such as GRPO_ARGS, or only the named ones, and the
    model's of the file that it sources."""
    text = (checkout / script).read_text()
    arrays = {name: array for array, name in re.findall(r"^((\w+)_ARGS=\(.*?^\))", text, re.DOTALL | re.MULTILINE)}
    variables = re.findall(r"^(?:MODEL_DIR|DATA_PATH)=.*$", text, re.MULTILINE)
    (model,) = re.findall(r"scripts/(models/[\w.-]+\.sh)|/(models/[\w.-]+\.sh)\"?$", text, re.MULTILINE)[:1]
    wanted = groups or ("MODEL", *arrays)
    lines = [f"source {checkout / 'scripts' / (model[0] or model[1])}", *variables, *arrays.values()]
    lines += [f'printf "%s\\n" "${{{name}_ARGS[@]}}"' for name in wanted]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    return [word for word in done.stdout.splitlines() if word]
