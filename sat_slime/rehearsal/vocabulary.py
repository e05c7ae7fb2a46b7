"""The words of a rehearsal: the run's own tokenizer, or one of the same size with the same special tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

OWN_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "generation_config.json"),
)
"""Files of a Hugging Face folder that are the tokenizer's, and its stop tokens'."""
WORDS = 151_643
"""Qwen's words; its special tokens begin behind them."""
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
"""Qwen's special tokens by their numbers, from WORDS on."""
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen cuts a text before words are looked for."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, without the system message and the tools of the models' own templates."""


def write_tokenizer(own: Path | None, vocab_size: int, out: Path) -> tuple[bool, str]:
    """Writes the run's tokenizer, or a stand-in where it is not on this machine, into a model's folder; returns whether
    it is the run's own, and what it is in words.

    Args:
        own: the run's Hugging Face folder; None where it names none.
        vocab_size: rows of the run's embedding.
    """
    if own is not None and any((own / name).is_file() for name in OWN_FILES[:5]):
        for name in OWN_FILES:
            if (own / name).is_file():
                shutil.copyfile(own / name, out / name)
        return True, f"the run's own, of {own}"
    special = SPECIAL if vocab_size >= WORDS + len(SPECIAL) else SPECIAL[:3]
    first = WORDS if special is SPECIAL else vocab_size - len(special)
    if first < 256:
        raise ValueError(f"a vocabulary of {vocab_size} has no room for the 256 bytes")
    letters = _bytes_to_unicode()
    words = {letters[byte]: byte for byte in range(256)} | {f"<unused-{n}>": n for n in range(256, first)}
    _write(out, words, special)
    rest = "with the special tokens of Qwen and plain ChatML"
    return False, f"a stand-in of {first:,} words, of which only the 256 bytes occur, {rest}"


def _bytes_to_unicode() -> dict[int, str]:
    """Return the letter that stands for each byte in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


def _write(out: Path, words: dict[str, int], special: tuple[str, ...]) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(words, [], fuse_unk=False))
    tokenizer.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(out / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": special[0],
        "pad_token": special[0],
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        "chat_template": TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
