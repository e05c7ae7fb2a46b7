"""Patches with which SGLang 0.5.15 from PyPI runs on CPU torch: no GPU, no sgl_kernel, no Triton, no C++ compiler.

Each patch is one function that says why it is there; one of a module takes that module. `apply` installs them all,
before SGLang's server is imported. Only arithmetic that SGLang has in Triton alone, or in a slow loop, is replaced.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pkgutil
from typing import Any

import torch

from sat_slime.models.families import FAMILIES
from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for


def apply() -> None:
    """Installs every patch into this process."""
    stand_in_for("triton", "torchvision", "IPython")
    load_only_known_families()
    fork_subprocesses()

    from sglang.srt import batch_invariant_ops
    from sglang.srt.layers import sampler
    from sglang.srt.layers.moe import fused_moe_native
    from sglang.srt.state_capturer import base

    allocate_routed_experts_unpinned(base)
    hash_seeds_in_torch(sampler)
    keep_torch_matmuls(batch_invariant_ops)
    activate_experts_together(fused_moe_native)
    register_batched_attention()


def load_only_known_families() -> None:
    """SGLang imports its 200 models to know their names, which takes seconds. This is its own switch to skip some."""
    sglang = importlib.util.find_spec("sglang")
    assert sglang is not None and sglang.submodule_search_locations
    models = pkgutil.iter_modules([f"{sglang.submodule_search_locations[0]}/srt/models"])
    needed = {module for family in FAMILIES.values() for module in family.sglang_modules}
    os.environ["SGLANG_DISABLED_MODEL_ARCHS"] = ",".join(model.name for model in models if model.name not in needed)


def fork_subprocesses() -> None:
    """SGLang spawns its scheduler and detokenizer, because CUDA does not survive a fork. Each then imports everything
    again, ten seconds of CPU: forked, they start with it, and with these patches."""
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *args, **kwargs: None


def allocate_routed_experts_unpinned(base: Any) -> None:
    """The host buffer of routed experts is allocated in pinned memory, which needs CUDA."""

    def init(self: Any, num_tokens: int, num_layers: int, topk_size: int, name: str) -> None:
        self.buffer = torch.zeros((num_tokens, num_layers, topk_size), dtype=torch.int32)
        self.num_tokens, self.num_layers, self.topk_size, self.name = num_tokens, num_layers, topk_size, name

    base.BaseHostCache.__init__ = init


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 of (seed: 64 bits, position, column), as `sglang.srt.layers.utils.hash` computes it in Triton:
    seed (n,), positions (n,), columns (m,) -> (n, m) int64 in [0, 2^32)."""
    mask = 0xFFFFFFFF

    def mix(h: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        k = _multiply32(k & mask, 0xCC9E2D51)
        k = ((k << 15) | (k >> 17)) & mask
        h = h ^ _multiply32(k, 0x1B873593)
        h = ((h << 13) | (h >> 19)) & mask
        return (h * 5 + 0xE6546B64) & mask

    seed = seed.view(torch.int64)
    h = mix(torch.zeros_like(seed), seed)
    h = mix(h, seed >> 32)
    h = mix(h, positions.to(torch.int64))
    h = mix(h[:, None], columns.to(torch.int64)[None, :]) ^ 16
    h = _multiply32(h ^ (h >> 16), 0x85EBCA6B)
    h = _multiply32(h ^ (h >> 13), 0xC2B2AE35)
    return h ^ (h >> 16)


def _multiply32(a: torch.Tensor, constant: int) -> torch.Tensor:
    """a * constant modulo 2^32 for a in [0, 2^32), in two halves so that int64 does not overflow."""
    return ((a * (constant & 0xFFFF)) + (((a * (constant >> 16)) & 0xFFFF) << 16)) & 0xFFFFFFFF


def hash_seeds_in_torch(sampler: Any) -> None:
    """A request's `sampling_seed` is hashed with the position into Gumbel noise by a Triton kernel."""
    sampler.murmur_hash32 = murmur_hash32


def keep_torch_matmuls(ops: Any) -> None:
    """`--enable-deterministic-inference`, which turns sampling seeds on, also swaps matmul, mean and log-softmax for
    Triton kernels. On a CPU torch's own stay; reproducible to the bit is then what the composition of a batch makes it.
    """
    ops.enable_batch_invariant_mode = lambda *args, **kwargs: None


def register_batched_attention() -> None:
    """SGLang's CPU attention without AMX calls SDPA once per sequence and layer. With many short sequences these calls
    are most of a decoding step: here one padded call does them all. Registered the way SGLang's plugins do."""
    from sglang.srt import server_args
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    class BatchedAttentionBackend(TorchNativeAttnBackend):
        def init_forward_metadata(self, forward_batch: Any) -> None:
            """slots (sequences, keys): where each sequence's keys lie in the cache, padded with its first slot;
            mask (sequences, 1, queries, keys): the causal mask; real (sequences, queries): which queries exist."""
            super().init_forward_metadata(forward_batch)
            lengths = forward_batch.seq_lens[:, None]
            keys = torch.arange(int(lengths.max()))
            slots = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices][:, : len(keys)]
            self.slots = torch.where(keys < lengths, slots, slots[:, :1])
            if forward_batch.forward_mode.is_decode():
                positions = lengths - 1
            else:
                queries = torch.arange(int(forward_batch.extend_seq_lens.max()))
                positions = forward_batch.extend_prefix_lens[:, None] + queries
                self.real = queries < forward_batch.extend_seq_lens[:, None]
            self.mask = (keys <= positions[:, :, None])[:, None]

        def _attend(self, queries: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scale: float) -> Any:
            """queries (sequences, queries, heads, dim) -> the same shape."""
            keys, values = (self._gathered(cache).transpose(1, 2) for cache in (k_cache, v_cache))
            attend = torch.nn.functional.scaled_dot_product_attention
            out = attend(queries.transpose(1, 2), keys, values, self.mask, scale=scale, enable_gqa=True)
            return out.transpose(1, 2)

        def _gathered(self, cache: torch.Tensor) -> torch.Tensor:
            """Gather (slots of the cache, heads, dim) -> (sequences, keys, heads, dim), a row at a time: indexing would
            go by elements."""
            return cache.flatten(1).index_select(0, self.slots.flatten()).view(*self.slots.shape, *cache.shape[1:])

        def _run_sdpa_forward_decode(self, query, output, k_cache, v_cache, *rest, scaling, **options) -> Any:
            output[:] = self._attend(query[:, None], k_cache, v_cache, scaling)[:, 0]

        def _run_sdpa_forward_extend(self, query, output, k_cache, v_cache, *rest, scaling, **options) -> Any:
            padded = query.new_zeros((*self.real.shape, *query.shape[1:]))
            padded[self.real] = query
            output[:] = self._attend(padded, k_cache, v_cache, scaling)[self.real]

    # Under SGLang's own name, by which the rest of it knows that there is no Triton.
    register_attention_backend("torch_native")(BatchedAttentionBackend)
    server_args.add_deterministic_attention_backend_choices(["torch_native"])


def experts(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, expert_weights: torch.Tensor, expert_ids: torch.Tensor
) -> torch.Tensor:
    """Return a layer of SwiGLU experts: what SGLang's `moe_forward_native` computes, to the bit, in half as many calls:
    x (tokens, hidden), w13 (experts, 2 x width, hidden), w2 (experts, hidden, width), expert_weights and expert_ids
    (tokens, top-k) -> (tokens, hidden)."""
    if not len(x):
        return torch.empty_like(x)
    linear, chosen = torch.nn.functional.linear, expert_ids.view(-1)
    order = chosen.argsort()
    counts = torch.bincount(chosen, minlength=len(w13)).tolist()
    parts = x.index_select(0, order // expert_ids.shape[1]).split(counts)
    mine = [expert for expert, count in enumerate(counts) if count]
    gate, up = torch.cat([linear(parts[expert], w13[expert]) for expert in mine]).chunk(2, dim=-1)
    inner = (torch.nn.functional.silu(gate) * up).split(counts)
    outputs = torch.cat([linear(inner[expert], w2[expert]) for expert in mine])
    by_choice = torch.empty_like(outputs).index_copy_(0, order, outputs).view(*expert_ids.shape, -1)
    return by_choice.type(expert_weights.dtype).mul_(expert_weights[..., None]).sum(1).type(x.dtype)


def activate_experts_together(fused_moe_native: Any) -> None:
    """SGLang's experts on a CPU without AMX are called one after the other, each with a module of its own for the
    activation: a quarter of a decoding step. All models that are served here have plain SwiGLU experts."""

    def forward(layer: Any, x: torch.Tensor, topk_output: Any, config: Any) -> torch.Tensor:
        assert config.activation == "silu" and config.gemm1_alpha is None and not config.apply_router_weight_on_input
        expert_weights, expert_ids, _ = topk_output
        return experts(x, layer.w13_weight, layer.w2_weight, expert_weights, expert_ids)

    fused_moe_native.moe_forward_native = forward
