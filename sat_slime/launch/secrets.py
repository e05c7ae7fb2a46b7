"""Recognizes the names of secrets, and takes their values out of text. Ray shows, saves and keeps a job's command,
environment and files, so no secret may be among them: jobs find secrets in the environment of the cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

SECRET_NAME = re.compile(
    r"(?i)(token|(api_?key|wandb_?key|access_?key(_?id)?|private_?key|secret|passw(or)?d|credential)s?)$"
)
_SECRET_VARIABLE = re.compile(r"(^|_)(KEY|PAT|DSN)$")
"""Of environment variables alone, such as OPENAI_KEY and GITHUB_PAT: slime has flags such as `input-key`."""
_IN_URL = re.compile(r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://[^\s/:@]*:)[^\s/]+@", re.IGNORECASE)
"""A URL with a password, as in DATABASE_URL. Each place of a line, which may be long, is looked at once."""
_NAMED = re.compile(r"(?i)(api_?key|token|secret|passw(or)?d)[\"']?\s*[=:]")
"""A secret beside its name, as in the JSON of slime's --train-env-vars."""
SHORTEST = 8
"""The fewest characters of a value that is taken out: a shorter one, such as `none`, may be something else in a log."""


def is_secret(name: str) -> bool:
    """Return whether a variable or flag of this name holds a secret: WANDB_API_KEY, HF_TOKEN, wandb-key."""
    return bool(SECRET_NAME.search(name.replace("-", "_")) or _SECRET_VARIABLE.search(name))


def secret_names(values: Mapping[str, Any]) -> list[str]:
    """Return the names whose values are secrets: by the name, or since the value names one or has a URL's password."""
    return [
        name
        for name, value in values.items()
        # numbers of tokens, such as sglang-bucket-time-to-first-token, are none
        if (is_secret(name) and (isinstance(value, str) or not name.endswith("token")))
        or _IN_URL.search(str(value))
        or _NAMED.search(str(value))
    ]


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return `text` with this process's secrets replaced by their names, and without passwords in URLs."""
    environment = os.environ if environment is None else environment
    for name, value in sorted(environment.items(), key=lambda item: -len(item[1])):  # one may begin another
        for line in (value, *value.splitlines()):  # of a key in PEM's form: a log is read and written by lines
            if len(line) >= SHORTEST and line in text and is_secret(name):
                text = text.replace(line, f"<{name}>")
    return _IN_URL.sub(r"\1<password>@", text)
