"""Builds Megatron's own GPTModel as one rank of many has it, on a group of processes that are not there, and prints the
sizes of its parameters: `python real_models.py CASES` with JSON of the cases, an answer for each."""

import json
import sys
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_decoder_block_spec,
)
from megatron.core.transformer import MLATransformerConfig, TransformerConfig, multi_latent_attention  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

# What Megatron takes to a GPU whatever it is told: positions of latent attention, tied embeddings of two stages.
torch.Tensor.cuda = lambda self, *_, **__: self
torch.cuda.current_device = lambda: "cpu"
multi_latent_attention.TELinear = type(None)  # asked for where Transformer Engine is not installed


class NoAttention(torch.nn.Module):
    """Stands for the product of attention, which has no parameters; Megatron's own takes no latent one."""

    def __init__(self, **_):
        super().__init__()


def sizes(case):
    """[[elements, whether it is an expert's], ...] of a rank's parameters."""
    world, rank = case["world"], case["rank"]
    torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=case["tensor"],
        pipeline_model_parallel_size=case["pipeline"],
        expert_model_parallel_size=case["expert"],
        expert_tensor_parallel_size=case["expert_tensor"],
        create_gloo_process_groups=False,
    )
    kind = MLATransformerConfig if case["config"].get("multi_latent_attention") else TransformerConfig
    config = kind(
        tensor_model_parallel_size=case["tensor"],
        pipeline_model_parallel_size=case["pipeline"],
        pipeline_dtype=torch.float32,
        expert_model_parallel_size=case["expert"],
        expert_tensor_parallel_size=case["expert_tensor"],
        gated_linear_unit=case["swiglu"],
        activation_func=F.silu,
        use_cpu_initialization=True,
        perform_initialization=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        **case["config"],
    )
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=config.normalization)
    for layer in spec.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = NoAttention
    model = GPTModel(
        config,
        spec,
        vocab_size=case["vocabulary"],
        max_sequence_length=64,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=case["tied"],
        position_embedding_type="rope",
        rotary_percent=1.0,
    )
    found = [[one.numel(), "experts" in name.split(".")] for name, one in model.named_parameters()]
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    return found


if __name__ == "__main__":
    print("SIZES " + json.dumps([sizes(case) for case in json.loads(sys.argv[1])]))
