import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest

from sat_slime.config.schema import ModelConfig

VOCAB_SIZE = 16


def save_random_model(folder: Path, model: ModelConfig, seed: int) -> str:
    """A Hugging Face folder with random weights large enough that its answers depend on the input."""
    import torch

    from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for

    stand_in_for("torchvision")  # transformers imports it where it is installed, and PyPI's needs CUDA
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.attention_heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.ffn_size,
        "max_position_embeddings": model.max_positions,
        "rope_theta": model.rope_base,
        "rms_norm_eps": model.norm_eps,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if model.is_moe:
        experts = {
            "num_experts": model.experts,
            "num_experts_per_tok": model.experts_per_token,
            "moe_intermediate_size": model.ffn_size,
            "norm_topk_prob": model.experts_per_token > 1,
        }
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts)).save_pretrained(folder)
    else:
        Qwen3ForCausalLM(Qwen3Config(**sizes)).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def random_models(tmp_path_factory) -> dict[str, str]:
    """Folders of two MoE models of equal shape, `a` and `b`, and a `dense` one, all in the default sizes."""
    root = tmp_path_factory.mktemp("models")
    return {
        "a": save_random_model(root / "a", ModelConfig(), seed=0),
        "b": save_random_model(root / "b", ModelConfig(), seed=1),
        "dense": save_random_model(root / "dense", ModelConfig(experts=0), seed=2),
    }
