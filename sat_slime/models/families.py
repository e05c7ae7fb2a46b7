"""The model families: what both runtimes must know of a decoder, and the mapping of a weight between the two formats.

That is its weights in Megatron's and in Hugging Face's format, its config.json, its decoder layer without Transformer
Engine, and what SGLang serves. A new family is a line at the end; what is its own beside the others is a field.

Shapes are those of the whole model: hidden is the width of the residual stream, rows are outputs, columns are inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # so that settings are read before torch is imported
    import torch


ModelSizes = Any
"""The sizes and constants of a model, by the names of ModelConfig in config/schema.py, which stands above this."""


@dataclass(frozen=True)
class Weight:
    """One parameter of Megatron's, and the tensors that it is in Hugging Face's format."""

    megatron: str
    """Megatron's name without Transformer Engine, with `*` for the number of the layer, and for the expert's."""
    tensors: Mapping[str, tuple[int, ...]]
    """Shapes by Hugging Face's names, with `{layer}` and `{expert}`."""
    groups: int = 1
    """Groups in which the rows of several tensors alternate, as query, key and value do by kv head."""
    experts: int = 0
    """Experts that have such a weight each, which are shared among the expert-parallel ranks; 0: it is no expert's."""

    def join(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the parameter, of its tensors in the order of `tensors`."""
        import torch

        return torch.cat([tensor.unflatten(0, (self.groups, -1)) for tensor in tensors], dim=1).flatten(0, 1)

    def split(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of the parameter, in the order of `tensors`."""
        sizes = [shape[0] // self.groups for shape in self.tensors.values()]
        return [part.flatten(0, 1) for part in parameter.unflatten(0, (self.groups, -1)).split(sizes, dim=1)]


@dataclass(frozen=True)
class ModelFamily:
    """A decoder as most are: norms before attention and feed-forward layer, rotary positions, grouped queries, a gated
    feed-forward layer."""

    name: str
    """The value of `model.family`, and `model_type` in config.json, by which slime chooses its mapping of weights."""
    architecture: str
    """The class that serves it, by the name that config.json has for SGLang."""
    sglang_modules: tuple[str, ...]
    """Modules of sglang.srt.models that serve it; on a CPU SGLang imports no others."""
    has_experts: bool = False
    """True where feed-forward layers have experts, some of which a softmax router chooses, and SGLang reports them."""
    qk_norm: bool = False
    """True where each head of query and key is normalized."""
    qkv_bias: bool = False
    """True where the projections to query, key and value have a bias."""
    may_tie_embeddings: bool = True
    """True where SGLang serves it with the embedding as output layer."""

    def fits(self, flags: Mapping[str, Any]) -> bool:
        """Tells whether Megatron's flags of an architecture describe a model of this family."""
        given = {
            "swiglu": True,
            "disable-bias-linear": True,
            "multi-latent-attention": False,
            "attention-output-gate": False,
            "moe-shared-expert-intermediate-size": False,
            **dict.fromkeys(("post-self-attn-layernorm", "post-mlp-layernorm", "rotary-interleaved"), False),
            "num-experts": self.has_experts,
            "qk-layernorm": self.qk_norm,
            "add-qkv-bias": self.qkv_bias,
        }
        usual = {"rotary-percent": 1.0, "moe-router-score-function": "softmax"}
        is_usual = all((flags.get(flag) or value) == value for flag, value in usual.items())
        is_given = all(bool(flags.get(flag)) == on for flag, on in given.items())
        return flags.get("normalization") == "RMSNorm" and is_given and is_usual

    def weights(self, sizes: ModelSizes, vocab_size: int) -> list[Weight]:
        """Return every weight of the model; those of layers stand once, for all layers."""
        embedding = {"model.embed_tokens.weight": (vocab_size, sizes.hidden_size)}
        output = {"lm_head.weight": (vocab_size, sizes.hidden_size)}
        weights = [
            Weight("embedding.word_embeddings.weight", embedding),
            *self.layer_weights(sizes),
            Weight("decoder.final_layernorm.weight", {"model.norm.weight": (sizes.hidden_size,)}),
        ]
        return weights if sizes.tied_embeddings else [*weights, Weight("output_layer.weight", output)]

    def layer_weights(self, sizes: ModelSizes) -> Iterator[Weight]:
        """Yield every weight of a layer, once for all layers."""
        layer, megatron = "model.layers.{layer}", "decoder.layers.*"
        hidden, query, key = sizes.hidden_size, sizes.attention_heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        yield Weight(f"{megatron}.input_layernorm.weight", {f"{layer}.input_layernorm.weight": (hidden,)})
        yield Weight(f"{megatron}.pre_mlp_layernorm.weight", {f"{layer}.post_attention_layernorm.weight": (hidden,)})

        # Megatron has query, key and value in one matrix, by kv head.
        attention, heads = f"{megatron}.self_attention", f"{layer}.self_attn"
        rows = {"q": query, "k": key, "v": key}
        projections = {f"{heads}.{name}_proj.weight": (count, hidden) for name, count in rows.items()}
        yield Weight(f"{attention}.linear_qkv.weight", projections, groups=sizes.kv_heads)
        yield Weight(f"{attention}.linear_proj.weight", {f"{heads}.o_proj.weight": (hidden, query)})
        if self.qkv_bias:
            biases = {f"{heads}.{name}_proj.bias": (count,) for name, count in rows.items()}
            yield Weight(f"{attention}.linear_qkv.bias", biases, groups=sizes.kv_heads)
        for name in "qk" if self.qk_norm else "":  # which all heads share
            yield Weight(f"{attention}.{name}_layernorm.weight", {f"{heads}.{name}_norm.weight": (sizes.head_dim,)})

        mlp, feed_forward = f"{megatron}.mlp", f"{layer}.mlp"
        if not self.has_experts:
            yield from gated(mlp, feed_forward, hidden, sizes.ffn_size)
            return
        yield Weight(f"{mlp}.router.weight", {f"{feed_forward}.gate.weight": (sizes.experts, hidden)})
        expert, local = f"{feed_forward}.experts.{{expert}}", f"{mlp}.experts.local_experts.*"
        yield from gated(local, expert, hidden, sizes.expert_ffn_size, sizes.experts)

    def hf_config(self, sizes: ModelSizes, vocab_size: int, eos_token_id: int, dtype: str) -> dict[str, Any]:
        """Return config.json of a model, from which SGLang and slime know it. dtype: the weights' in the folder."""
        config = {
            "architectures": [self.architecture],
            "model_type": self.name,
            "bos_token_id": None,
            "eos_token_id": eos_token_id,
            "head_dim": sizes.head_dim,
            "hidden_act": "silu",
            "hidden_size": sizes.hidden_size,
            "intermediate_size": sizes.ffn_size,
            "max_position_embeddings": sizes.max_positions,
            "num_attention_heads": sizes.attention_heads,
            "num_hidden_layers": sizes.layers,
            "num_key_value_heads": sizes.kv_heads,
            "rms_norm_eps": sizes.norm_eps,
            "rope_theta": sizes.rope_base,
            "tie_word_embeddings": sizes.tied_embeddings,
            "torch_dtype": dtype,
            "use_cache": True,
            "vocab_size": vocab_size,
        }
        if not self.qkv_bias:
            config["attention_bias"] = False
        if self.has_experts:
            config |= {
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "moe_intermediate_size": sizes.expert_ffn_size,
                "norm_topk_prob": not _weighs_all_experts(sizes),
                "num_experts": sizes.experts,
                "num_experts_per_tok": sizes.experts_per_token,
            }
        return config

    # --------------------------------------------------------------------------------------------- its layers on a CPU

    def megatron_options(self, sizes: ModelSizes) -> dict[str, Any]:
        """Return the keywords of Megatron's TransformerConfig that are the family's; the others are the trainer's."""
        options: dict[str, Any] = {"qk_layernorm": self.qk_norm, "add_qkv_bias": self.qkv_bias}
        if self.has_experts:
            options |= {
                "num_moe_experts": sizes.experts,
                "moe_ffn_hidden_size": sizes.expert_ffn_size,
                "moe_router_topk": sizes.experts_per_token,
                "moe_router_pre_softmax": _weighs_all_experts(sizes),
            }
        return options

    def __call__(self, args: Any, config: Any, vp_stage: int | None) -> Any:
        """Return the layers of a pipeline stage, which Megatron's `--spec MODULE QWEN3` asks for in slime's trainer."""
        from sat_slime.models import layers  # it needs Megatron

        return layers.block(layers.decoder_layer(args.num_experts, self.qk_norm, slime_names=True), config, vp_stage)


def gated(megatron: str, hf: str, hidden: int, width: int, experts: int = 0) -> Iterator[Weight]:
    """Yield a gated feed-forward layer: gate and up, which are one matrix of Megatron's, and down."""
    first = {f"{hf}.{name}_proj.weight": (width, hidden) for name in ("gate", "up")}
    yield Weight(f"{megatron}.linear_fc1.weight", first, experts=experts)
    yield Weight(f"{megatron}.linear_fc2.weight", {f"{hf}.down_proj.weight": (hidden, width)}, experts=experts)


def _weighs_all_experts(sizes: ModelSizes) -> bool:
    """Return whether the softmax that weighs an expert is over all of them, not over the chosen ones: a single one
    would have weight 1 of itself, and the router no gradient, which Megatron refuses."""
    return bool(sizes.experts_per_token == 1)


QWEN3_MOE = ModelFamily(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    ("qwen3_moe", "qwen2_moe"),
    has_experts=True,
    qk_norm=True,
    may_tie_embeddings=False,
)
"""Qwen3-30B-A3B and Qwen3-235B-A22B: as Qwen3, but experts in place of the dense feed-forward layer."""
QWEN3 = ModelFamily("qwen3", "Qwen3ForCausalLM", ("qwen3",), qk_norm=True)
"""Qwen3-0.6B to Qwen3-32B, dense."""
QWEN2 = ModelFamily("qwen2", "Qwen2ForCausalLM", ("qwen2",), qkv_bias=True)
"""Qwen2 and Qwen2.5, 0.5B to 72B, dense."""
FAMILIES = {family.name: family for family in (QWEN3_MOE, QWEN3, QWEN2)}


def family_by_flags(flags: Mapping[str, Any]) -> ModelFamily | None:
    """Return the family that Megatron's flags of an architecture describe; None where they fit none."""
    return next((family for family in FAMILIES.values() if family.fits(flags)), None)
