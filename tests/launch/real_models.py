"""Builds Megatron's own GPTModel and its optimizer as one rank of many has them, without storage and on a group of
processes that are not there, and prints what they hold: `python real_models.py CASES` with JSON of the cases, the
elements of weights and of the optimizer's state for each."""

import contextlib
import dataclasses
import io
import json
import sys
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_decoder_block_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._device import DeviceContext  # noqa: E402

from sat_slime.cpu.cuda import Stream, is_gpu  # noqa: E402


def rank_elements(model, optimizer):
    """Return the elements that a rank holds, as sat_slime/launch/memory.py counts them.

    Args:
        model: the parts of the model, each in Megatron's DistributedDataParallel.
        optimizer: Megatron's, with distributed optimizers in it whose state is there.

    Returns:
        `weights`, and `master`, `exp_avg` and `exp_avg_sq` of the optimizer. Parameters in fp32 need no `master`.
    """
    counts = {
        "weights": sum(parameter.numel() for part in model for parameter in part.parameters()),
        "master": 0,
        "exp_avg": 0,
        "exp_avg_sq": 0,
    }
    for distributed in getattr(optimizer, "chained_optimizers", [optimizer]):
        masters = [
            *(copy for group in distributed.shard_fp32_from_float16_groups for copy in group if copy is not None),
            *getattr(distributed.optimizer, "param_to_fp32_param", {}).values(),  # offloaded
        ]
        counts["master"] += sum(copy.numel() for copy in masters)
        for state in distributed.optimizer.state.values():
            for moment in ("exp_avg", "exp_avg_sq"):
                counts[moment] += state[moment].numel() if moment in state else 0
    return counts


class NoAttention(torch.nn.Module):
    """Stands for the product of attention, which has no parameters."""

    def __init__(self, **_):
        super().__init__()


def make_state(optimizer):
    """Makes the moments, and of an offloaded optimizer the gradients on the host, as the first step would."""
    for distributed in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = distributed.optimizer
        if distributed.init_state_fn is not None:
            distributed.init_state_fn(inner, distributed.config)
            continue
        # Megatron's HybridDeviceOptimizer over torch's AdamW, whose step itself would need numbers
        for group in inner.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.new_empty(parameter.shape)
        inner._set_sub_optimizer_grads()
        with _fakes():
            for adam in inner.sub_optimizers:
                for group in adam.param_groups:
                    adam._init_group(group, *([] for _ in range(6)))
        inner._sync_sub_optimizers_state_to_hdo()


@contextlib.contextmanager
def without_storage():
    """Inside, the GPU is torch's meta device, whose tensors have no storage, and Megatron takes it for one; what an
    offloaded optimizer has on the host are torch's fake tensors. For a process of its own: it changes torch."""

    class MetaInPlaceOfCuda(DeviceContext):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if is_gpu(kwargs.get("device")):
                kwargs["device"] = meta
            return super().__torch_function__(func, types, args, kwargs)

    meta, stream = torch.device("meta"), Stream()
    real_type = torch.Tensor.type

    def type_on_gpu(tensor, *args, **kwargs):
        answer = real_type(tensor, *args, **kwargs)
        return answer.replace("torch.meta.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    replaced = [
        (torch.Tensor, "type", type_on_gpu),
        (torch.Tensor, "is_cuda", property(lambda tensor: tensor.device == meta)),
        (torch.Tensor, "pin_memory", lambda tensor, *_: tensor),
        (torch.Tensor, "cuda", lambda tensor, *_, **__: tensor.to(meta)),
        (torch.nn.Module, "cuda", lambda module, *_, **__: module.to(meta)),
        (torch.cuda, "current_device", lambda: meta),
        (torch.cuda, "current_stream", lambda *_: stream),
        (torch.cuda, "stream", lambda *_: contextlib.nullcontext()),
        (torch.cuda, "Stream", Stream),
        (torch.cuda, "Event", Stream),
        *(
            (HybridDeviceOptimizer, name, _fakes()(vars(HybridDeviceOptimizer)[name]))
            for name in ("_init_sub_optimizers", "_set_sub_optimizer_grads")
        ),
    ]
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        with MetaInPlaceOfCuda(meta):
            yield
    finally:
        for owner, name, value in before:
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextlib.contextmanager
def _fakes():
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def rank_contents(case):
    """Elements of each kind that a rank holds."""
    torch.distributed.init_process_group("fake", rank=case["rank"], world_size=case["world"], store=FakeStore())
    parallel = {
        "tensor_model_parallel_size": case["tensor"],
        "pipeline_model_parallel_size": case["pipeline"],
        "context_parallel_size": case.get("context", 1),
        "expert_model_parallel_size": case["expert"],
        "expert_tensor_parallel_size": case["expert_tensor"],
    }
    parallel_state.initialize_model_parallel(**parallel, create_gloo_process_groups=False)
    config = TransformerConfig(
        **parallel,
        pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16,
        bf16=True,
        gated_linear_unit=case["swiglu"],
        activation_func=F.silu,
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
    with without_storage():
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
        # as megatron.training.get_model and slime's setup_model_and_optimizer do
        grads = DistributedDataParallelConfig(
            grad_reduce_in_fp32=case.get("fp32_gradients", True), use_distributed_optimizer=True
        )
        parts = [DistributedDataParallel(config, grads, Float16Module(config, model))]
        offload = case.get("offload", False)
        names = {field.name for field in dataclasses.fields(OptimizerConfig)}
        asked = {
            "optimizer": "adam", "lr": 1e-6, "bf16": True, "params_dtype": torch.bfloat16,
            "use_distributed_optimizer": True, "optimizer_cpu_offload": offload,
            "overlap_cpu_optimizer_d2h_h2d": offload, "optimizer_offload_fraction": 1.0,
        }  # fmt: skip
        settings = OptimizerConfig(**{name: value for name, value in asked.items() if name in names})
        settings.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = offload  # it would look for Transformer Engine
        optimizer = get_megatron_optimizer(settings, parts, use_gloo_process_groups=False)
        make_state(optimizer)
        answer = rank_elements(parts, optimizer)
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    return answer


if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()):
        answers = [rank_contents(case) for case in json.loads(sys.argv[1])]
    print("RANKS " + json.dumps(answers))
