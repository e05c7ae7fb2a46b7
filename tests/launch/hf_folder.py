"""A Hugging Face folder without weights: config.json, and a tokenizer of bytes and special tokens that transformers
reads."""

import json

QWEN = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>' }}{%- endif %}"
)


def write_hf(folder, template=CHATML, tokens=QWEN, config=None, generation=None, special=True, **settings):
    """Writes the folder and returns it. tokens: numbers of the added tokens. config, generation: what config.json and
    generation_config.json hold; settings: what tokenizer_config.json does, besides the end of a text."""
    folder.mkdir(exist_ok=True)
    shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    added = [{"id": number, "content": content, **shape} for content, number in tokens.items()]
    letters = {f"<0x{byte:02X}>": 256 + byte for byte in range(256)}
    words = {"type": "BPE", "vocab": letters | tokens, "merges": [], "byte_fallback": True}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor"))
    files = {
        "config.json": {"model_type": "qwen3", "vocab_size": 151936, "eos_token_id": 151643, **(config or {})},
        "generation_config.json": generation or {},
        "tokenizer.json": {
            **{"version": "1.0", **empty, "added_tokens": added},
            **{"model": words, "decoder": {"type": "ByteFallback"}},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": next(iter(tokens)),
            "chat_template": template,
            **settings,
        },
    }
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    return folder
