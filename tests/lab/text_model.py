"""A tiny Qwen3 that reads and writes any text: a token is a byte. It knows nothing; its server is a real one."""

from __future__ import annotations

import itertools
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT_END, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def save_text_model(folder: Path, positions: int = 4096, seed: int = 0, answer: str | None = None) -> Path:
    """A Hugging Face folder: weights, and a byte-level tokenizer with a chat template.

    Without `answer` the weights are random and the text ends where a turn does. With it the model is a base model
    under a chat template: its files all name <|endoftext|>, and it says turn after turn, each of them `answer`, whose
    letters have to differ, and <|im_end|>.
    """
    import torch

    from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for

    stand_in_for("torchvision")  # transformers imports it where it is installed, and PyPI's needs CUDA
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = TURN_END if answer is None else TEXT_END
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)
    wrapped.add_special_tokens({"additional_special_tokens": [TURN_START, *([] if answer is None else [TURN_END])]})
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=272,
        hidden_size=32 if answer is None else 272,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=64,
        max_position_embeddings=positions,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=wrapped.convert_tokens_to_ids(end),
        pad_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    if answer is not None:
        said = [*wrapped.encode(answer, add_special_tokens=False), wrapped.convert_tokens_to_ids(TURN_END)]
        _say(model, said)
    model.save_pretrained(folder)
    return folder


def _say(model, tokens: list[int]) -> None:
    """Makes each token certain by the one before it, and the first by all others: the layers add nothing, and a token
    has a dimension of its own."""
    import torch

    follows = dict(itertools.pairwise(tokens))
    head = torch.zeros_like(model.lm_head.weight)
    for token in range(len(head)):
        head[follows.get(token, tokens[0]), token] = 3.0  # times the norm of a state, 16.5: e^49 to 1
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(len(head)))
        model.lm_head.weight.copy_(head)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
