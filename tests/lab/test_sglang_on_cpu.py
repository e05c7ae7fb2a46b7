"""SGLang on a CPU: what is patched computes what SGLang does, and its stop tokens are those that checks name."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from sat_slime.lab.engine import server_environment
from sat_slime.launch.hf_checkpoint import read_tokenizer, stop_tokens
from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for
from sat_slime.rollout.sglang_on_cpu.patches import murmur_hash32


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """MurmurHash3_x86_32 of whole 4-byte blocks, from its definition."""
    mask, h = 0xFFFFFFFF, seed
    for i in range(0, len(data), 4):
        k = int.from_bytes(data[i : i + 4], "little") * 0xCC9E2D51 & mask
        k = ((k << 15 | k >> 17) & mask) * 0x1B873593 & mask
        h ^= k
        h = ((h << 13 | h >> 19) & mask) * 5 + 0xE6546B64 & mask
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    return h ^ h >> 16


def test_seeds_are_hashed_as_by_sglangs_kernel():
    seeds = [0, 1, 2**31, 2**40 + 7, 2**62 + 12345]
    positions = [0, 1, 17, 2**20, 127]
    hashed = murmur_hash32(torch.tensor(seeds).to(torch.uint64), torch.tensor(positions), torch.arange(16))
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        for column in range(16):
            words = seed.to_bytes(8, "little") + position.to_bytes(4, "little") + column.to_bytes(4, "little")
            assert hashed[row, column] == murmur3_32(words)


BATCHED_AGAINST_STOCK = """
    import types, torch
    from sglang.srt.layers.attention import attention_registry
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    torch.manual_seed(0)
    heads, kv_heads, dim, slots = 4, 2, 16, 64
    pool = types.SimpleNamespace(req_to_token=torch.randperm(slots)[:48].reshape(4, 12).int())
    runner = types.SimpleNamespace(device="cpu", req_to_token_pool=pool, token_to_kv_pool=None)
    batched = attention_registry.ATTENTION_BACKENDS["torch_native"]
    keys, values = torch.randn(slots, kv_heads, dim), torch.randn(slots, kv_heads, dim)
    requests, lengths = torch.tensor([2, 0, 3]), torch.tensor([5, 12, 1])
    for decode, new in ((True, torch.ones(3, dtype=torch.long)), (False, torch.tensor([5, 4, 1]))):
        mode = types.SimpleNamespace(is_decode=lambda: decode)
        batch = types.SimpleNamespace(
            forward_mode=mode, req_pool_indices=requests, seq_lens=lengths, extend_seq_lens=new,
            extend_prefix_lens=lengths - new, out_cache_loc=None,
        )
        query = torch.randn(int(new.sum()), heads, dim)
        outputs = []
        for backend in (TorchNativeAttnBackend(runner), batched(runner)):
            backend.init_forward_metadata(batch)
            output = torch.empty_like(query)
            common = (query, output, keys, values, pool.req_to_token, requests, lengths)
            if decode:
                backend._run_sdpa_forward_decode(*common, None, scaling=0.25, enable_gqa=True, causal=False)
            else:
                extend = (lengths - new, new, None)
                backend._run_sdpa_forward_extend(*common, *extend, scaling=0.25, enable_gqa=True, causal=True)
            outputs.append(output)
        torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-6)
"""


EXPERTS_AGAINST_STOCK = """
    import types, torch
    from sglang.srt.layers.moe import fused_moe_native
    from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    import importlib.util
    stock = importlib.util.module_from_spec(fused_moe_native.__spec__)
    fused_moe_native.__spec__.loader.exec_module(stock)
    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy"))
    torch.manual_seed(0)
    config = MoeRunnerConfig(activation="silu")
    for dtype in (torch.float32, torch.bfloat16):
        for sizes in ((1, 64, 64, 8, 2), (7, 64, 32, 8, 2), (250, 64, 64, 8, 2), (33, 32, 16, 4, 1)):
            tokens, hidden, width, experts, top_k = sizes
            layer = types.SimpleNamespace(
                num_experts=experts,
                w13_weight=torch.randn(experts, 2 * width, hidden, dtype=dtype),
                w2_weight=torch.randn(experts, hidden, width, dtype=dtype),
            )
            x = torch.randn(tokens, hidden, dtype=dtype)
            weights, ids = torch.randn(tokens, experts).softmax(-1).topk(top_k)
            routed = weights, ids.int(), None
            assert stock.moe_forward_native is not fused_moe_native.moe_forward_native
            expected = stock.moe_forward_native(layer, x.clone(), routed, config)
            assert torch.equal(fused_moe_native.moe_forward_native(layer, x, routed, config), expected)
"""


NAMES_IN_SHARED_MEMORY = """
    from pathlib import Path
    from sat_slime.rollout import scratch
    scratch.name_shared_memory(Path("/tmp/sat_slime-mine"))
    from sglang.srt.utils.stale_shm_cleanup import make_shm_name
    assert make_shm_name("mq").startswith("sgl_shm_sat_slime-mine_mq_")
"""


STOP_TOKENS = """
    import json, sys
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer
    stops = {}
    for folder in sys.argv[1:]:
        tokenizer = get_tokenizer(folder)
        ends = {tokenizer.eos_token_id, *(tokenizer.additional_stop_token_ids or ())} - {None}
        stops[folder] = sorted(ends | ModelConfig(folder).hf_eos_token_id)
    print(json.dumps(stops))
"""

GENERATION = {"eos_token_id": None, "transformers_version": "5.0.0"}
TEXT_END, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


@pytest.fixture(scope="module")
def base_model(tmp_path_factory) -> Path:
    """The files of a base model, all of which name <|endoftext|>, with a byte-level tokenizer; without weights."""
    stand_in_for("torchvision")  # transformers imports it where it is installed, and PyPI's needs CUDA
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config

    folder = tmp_path_factory.mktemp("base") / "model"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=TEXT_END)
    wrapped.add_special_tokens({"additional_special_tokens": [TURN_START, TURN_END]})
    wrapped.save_pretrained(folder)
    end = wrapped.convert_tokens_to_ids(TEXT_END)
    Qwen3Config(vocab_size=272, architectures=["Qwen3ForCausalLM"], eos_token_id=end).save_pretrained(folder)
    GenerationConfig(eos_token_id=end).save_pretrained(folder)
    return folder


def shapes(base_model, root):
    """Copies of the model whose files say otherwise where a text ends. <|endoftext|> is 256, <|im_end|> is 258."""
    tokenizer = json.loads((base_model / "tokenizer_config.json").read_text())
    renamed = {
        name: (base_model / name).read_text().replace("<|im_start|>", "<|eom_id|>")
        for name in ("tokenizer.json", "tokenizer_config.json")
    }
    changes = {
        "a base model": {},
        "an instruct model": {
            "config.json": {"eos_token_id": 258},
            "generation_config.json": {**GENERATION, "eos_token_id": [258, 256]},
            "tokenizer_config.json": {**tokenizer, "eos_token": "<|im_end|>"},
        },
        "a base model whose tokenizer ends a turn": {"tokenizer_config.json": {**tokenizer, "eos_token": "<|im_end|>"}},
        "a list in the config": {"config.json": {"eos_token_id": [256, 7]}},
        "nothing in the config": {"config.json": {"eos_token_id": None}},
        "zero in the generation config": {"generation_config.json": {**GENERATION, "eos_token_id": 0}},
        "a number in the generation config": {"generation_config.json": {**GENERATION, "eos_token_id": 9}},
        "no generation config": {"generation_config.json": None},
        "a broken generation config": {"generation_config.json": "{"},
        "an end that is a word": {"tokenizer_config.json": {**tokenizer, "eos_token": "A"}},
        "no end in the tokenizer": {"tokenizer_config.json": {**tokenizer, "eos_token": None}},
        "no end anywhere": {
            "config.json": {"eos_token_id": None},
            "generation_config.json": None,
            "tokenizer_config.json": {**tokenizer, "eos_token": None},
        },
        "Llama's end of a message": renamed,
    }
    folders = {}
    for number, (name, files) in enumerate(changes.items()):
        folder = folders[name] = root / str(number)
        folder.mkdir()
        for file in base_model.iterdir():
            (folder / file.name).symlink_to(file)
        for file, values in files.items():
            old = json.loads((base_model / file).read_text()) if file == "config.json" else {}
            (folder / file).unlink(missing_ok=True)
            if values is not None:
                (folder / file).write_text(values if isinstance(values, str) else json.dumps({**old, **values}))
    return folders


PROGRAMS = (BATCHED_AGAINST_STOCK, EXPERTS_AGAINST_STOCK, NAMES_IN_SHARED_MEMORY, STOP_TOKENS)


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_patches_compute_what_sglang_does_and_checks_know_on_which_tokens_it_stops(base_model, tmp_path):
    """In a process of its own, where SGLang is patched."""
    folders = shapes(base_model, tmp_path)
    program = "from sat_slime.lab.sglang_process import import_sglang\nimport_sglang()\n"
    program += "".join(map(textwrap.dedent, PROGRAMS))
    command = [sys.executable, "-c", program, *map(str, folders.values())]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | server_environment())
    assert result.returncode == 0, result.stderr[-3000:]
    theirs = json.loads(result.stdout.splitlines()[-1])
    ours = {name: sorted(stop_tokens(folder, read_tokenizer(folder))) for name, folder in folders.items()}
    assert ours == {name: theirs[str(folder)] for name, folder in folders.items()}
    assert len({tuple(stops) for stops in ours.values()}) >= 7
