"""Recognizes the names of secrets, and takes their values out of text.

Ray shows, saves and keeps a job's command, environment and files, so no secret may be among them: jobs find secrets in
the environment of the cluster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

SECRET_NAME = re.compile(
    r"(?i)(api_?key|wandb_?key|access_?key(_?id)?|private_?key|token|secret|passw(or)?d|credentials?)$"
)
SHORTEST = 8
"""The fewest characters of a value that is taken out: a shorter one, such as `none`, is too likely to be something else
in a log."""


def is_secret(name: str) -> bool:
    """Return whether a variable or flag of this name holds a secret: WANDB_API_KEY, HF_TOKEN, wandb-key."""
    return SECRET_NAME.search(name.replace("-", "_")) is not None


def secret_names(names: Iterable[str]) -> list[str]:
    """Return the names among `names` that are names of secrets."""
    return [name for name in names if is_secret(name)]


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return `text` with the secrets of this process's environment replaced by their names."""
    environment = os.environ if environment is None else environment
    for name, value in environment.items():
        if len(value) >= SHORTEST and value in text and is_secret(name):
            text = text.replace(value, f"<{name}>")
    return text
