import subprocess
import sys
import textwrap

import pytest
import torch

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
    from sat_slime.rollout.sglang_on_cpu import patches
    patches.apply()
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
        print("equal")
"""


EXPERTS_AGAINST_STOCK = """
    import types, torch
    from sat_slime.rollout.sglang_on_cpu import patches
    patches.apply()
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
    print("equal")
"""


@pytest.mark.engine
def test_batched_attention_and_experts_that_are_activated_together_are_sglangs_own():
    """In a process of its own, where SGLang is patched."""
    program = textwrap.dedent(BATCHED_AGAINST_STOCK) + textwrap.dedent(EXPERTS_AGAINST_STOCK)
    environment = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert result.stdout.decode().split() == ["equal"] * 3, result.stderr.decode()
