"""A tokenizer's chat template, the way slime applies it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from sat_slime.prompts import PromptError


class ChatTokenizer:
    """A Hugging Face tokenizer. No code of its folder is run."""

    def __init__(self, given: str) -> None:
        """given: a folder, or the hub's id of a model. Raises PromptError."""
        if importlib.util.find_spec("transformers") is None:
            raise PromptError(
                "transformers is not installed, which reads tokenizers: pip install '.[data]' in a checkout"
            )
        if not Path(given).is_dir() and not re.fullmatch(r"[\w.-]+/[\w.-]+", given):
            raise PromptError(f"{given}: there is no such folder, and it is no id of the hub such as OWNER/NAME")
        from transformers import AutoTokenizer

        self.given = given
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(given, trust_remote_code=False)
        except Exception as error:  # a broken folder or the hub may raise anything
            reason = (str(error).strip() or repr(error)).splitlines()[0]
            raise PromptError(
                f"{given}: no tokenizer could be read ({reason}): name a folder that holds one"
            ) from error

    @property
    def chat_template(self) -> str:
        """The chat template's text; empty where there is none."""
        return str(self._tokenizer.chat_template or "")

    def chat(self, messages: list[dict[str, Any]]) -> str:
        """Return the messages in the chat template, up to where the answer begins. Raises PromptError."""
        if not self.chat_template:
            raise PromptError(f"{self.given}: the tokenizer has no chat template: name one that has")
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template may raise anything
            raise PromptError(f"{self.given}: its chat template fails on a prompt ({error})") from error
