"""Runs steps of one trainer rank of a slime file at its real size on one GPU, and holds what they take against what
`sat-slime check` estimates.

    PYTHONPATH=SLIME:MEGATRON python bench/rank.py configs/paper/qwen3-30b-a3b.yaml [--response 8192] [--set KEY=VALUE]

The rank is the real one: Megatron's GPTModel, gradient buffers and, unless it is offloaded, distributed optimizer, with
the file's tensor and expert parallelism, and slime's loss with ours in it. The ranks that are not there are taken to
hold what this one holds, so a collective is a copy: numbers mean nothing, sizes and times of kernels do. Nothing is
sent between GPUs, experts are chosen equally often, and norms, attention and experts' products are torch's in place of
Transformer Engine's.

Each of --tokens (of a micro-batch) and --response (tokens of each response in it, prompt included) may be given more
than once. Without a GPU a model made thin with --set goes the same way on a CPU, with no memory to tell; what stands in
for CUDA there needs TORCHDYNAMO_DISABLE=1 SAT_SLIME_DEVICE=cpu and sat_slime/cpu/site first on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

GIB = 2**30


# ------------------------------------------------------------------------------------- the ranks that are not there


class Done:
    """The handle of a collective that has ended."""

    def wait(self) -> None:
        pass


def answer_as_this_rank() -> None:
    """Has torch.distributed's collectives answer as if each other rank held what this one holds; a sum is taken for a
    mean, so that numbers stay finite. Called before Megatron is imported, which keeps some of them."""

    def size(group: Any) -> int:
        return dist.get_world_size(group)

    def all_reduce(tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> Done:
        return Done()

    def all_gather_into_tensor(output: Tensor, input: Tensor, group: Any = None, async_op: bool = False) -> Done:
        for part in output.view(size(group), *input.shape):
            if part.data_ptr() != input.data_ptr():  # Megatron gathers into a buffer that holds its own part
                part.copy_(input)
        return Done()

    def all_gather(outputs: list[Tensor], input: Tensor, group: Any = None, async_op: bool = False) -> Done:
        for output in outputs:
            output.copy_(input)
        return Done()

    def reduce_scatter_tensor(
        output: Tensor, input: Tensor, op: Any = None, group: Any = None, async_op: bool = False
    ) -> Done:
        output.copy_(input.view(size(group), -1)[dist.get_rank(group)].view_as(output))
        return Done()

    def all_to_all_single(
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Done:
        def parts(tensor: Tensor, sizes: Sequence[int] | None) -> Sequence[Tensor]:
            equal = len(tensor) // size(group)
            return tensor.split(equal if sizes is None else [int(n) for n in sizes])

        to = parts(input, input_split_sizes)[dist.get_rank(group)]
        for part in parts(output, output_split_sizes):
            part.zero_()
            rows = min(len(part), len(to))
            part[:rows].copy_(to[:rows])
        return Done()

    for function in (all_reduce, all_gather_into_tensor, all_gather, reduce_scatter_tensor, all_to_all_single):
        setattr(dist, function.__name__, function)


# ---------------------------------------------------------------------------------------------------------- the rank


MODEL = re.compile(
    r"num-(layers|attention-heads|query-groups|experts)|(ffn-)?hidden-size|kv-channels|norm.*|qk-layernorm|"
    r"add-qkv-bias|moe-.*"
)
"""Flags that are fields of Megatron's configuration and describe the model."""
FIELDS = {"num-experts": "num_moe_experts", "norm-epsilon": "layernorm_epsilon"}
"""Flags of the model whose field in Megatron's configuration has another name."""
LEFT_OUT = {"moe_layer_freq", "moe_permute_fusion", "moe_token_drop_policy"}
"""Fields that are not taken from the flags: all layers are alike here, and the fusion needs Transformer Engine."""


def build(config: Any, device: torch.device) -> tuple[Any, Any]:
    """Return the rank's model in its DistributedDataParallel, and its optimizer, or None where it is offloaded."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.moe import moe_utils

    from sat_slime.launch.memory import padded_vocabulary
    from sat_slime.models.layers import block, decoder_layer

    flags, train, model = config.model.flags, config.train, config.model
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    named = {FIELDS.get(flag, flag.replace("-", "_")): value for flag, value in flags.items() if MODEL.fullmatch(flag)}
    own: dict[str, Any] = {name: value for name, value in named.items() if name in known - LEFT_OUT}
    own |= {"moe_router_dtype": "fp32", "moe_router_force_load_balancing": True} if model.is_moe else {}
    if train.recompute == "full":
        own |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    transformer = TransformerConfig(
        **own,
        tensor_model_parallel_size=train.tensor_parallel,
        sequence_parallel=train.tensor_parallel > 1,
        expert_model_parallel_size=train.expert_parallel,
        expert_tensor_parallel_size=train.expert_tensor_parallel,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=F.silu,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        params_dtype=torch.bfloat16,
        bf16=True,
        pipeline_dtype=torch.bfloat16,
        bias_activation_fusion=device.type == "cuda",
        bias_dropout_fusion=device.type == "cuda",
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        use_cpu_initialization=device.type == "cpu",
    )
    moe_utils.te_general_gemm = None  # bound only with Transformer Engine, and read without
    layers = block(decoder_layer(model.experts or None, bool(flags.get("qk-layernorm")), slime_names=True), transformer)
    with device:
        module = GPTModel(
            transformer,
            layers,
            vocab_size=padded_vocabulary(model, train.tensor_parallel),
            max_sequence_length=model.max_positions,
            share_embeddings_and_output_weights=model.tied_embeddings,
            position_embedding_type="rope",
            rotary_base=model.rope_base,
            parallel_output=True,
        ).to(device)
    in_fp32 = config.slime.get("accumulate-allreduce-grads-in-fp32")
    buckets = DistributedDataParallelConfig(grad_reduce_in_fp32=in_fp32, use_distributed_optimizer=True)
    part = DistributedDataParallel(transformer, buckets, Float16Module(transformer, module))
    if train.optimizer_offload:
        return part, None
    settings = OptimizerConfig(
        optimizer="adam", lr=train.lr, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True
    )
    return part, get_megatron_optimizer(settings, [part], use_gloo_process_groups=False)


def step_inputs(tokens: int, response: int, vocabulary: int, device: torch.device) -> dict[str, Any]:
    """Return a micro-batch of responses of equal length, prompt included, as slime's loss takes it."""
    from megatron.core.packed_seq_params import PackedSeqParams

    count = max(1, tokens // response)
    ids = torch.randint(0, vocabulary, (count, response), device=device)
    edges = torch.arange(count + 1, dtype=torch.int32, device=device) * response
    masks = list(torch.ones(count, response - 1, dtype=torch.int, device=device))
    return {
        "row": ids.view(1, -1),
        "packed": PackedSeqParams("thd", edges, edges, max_seqlen_q=response, max_seqlen_kv=response),
        "unconcat_tokens": list(ids),
        "tokens": list(ids),
        "total_lengths": [response] * count,
        "response_lengths": [response - 1] * count,
        "loss_masks": masks,
        "rollout_mask_sums": torch.stack([mask.sum() for mask in masks]).float(),
        "advantages": list(torch.randn(count, response - 1, device=device)),
    }


class Meter:
    """Seconds and GiB of the parts of a step."""

    def __init__(self, gpu: bool) -> None:
        self.gpu = gpu
        self.seconds: dict[str, list[float]] = {}
        self.peaks: dict[str, float] = {}

    def held(self) -> float:
        return torch.cuda.memory_allocated() / GIB if self.gpu else 0.0

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        if self.gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        result = work()
        if self.gpu:
            torch.cuda.synchronize()
            self.peaks[name] = torch.cuda.max_memory_allocated() / GIB
        self.seconds.setdefault(name, []).append(time.perf_counter() - started)
        return result

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name][1:] or self.seconds[name])


def run_steps(
    config: Any, part: Any, optimizer: Any, inputs: dict[str, Any], method: str, steps: int, gpu: bool
) -> Meter:
    """Return what a forward pass alone and whole steps take: forward, slime's loss, backward, and the optimizer's."""
    from loss import arguments
    from slime.backends.megatron_utils.loss import get_log_probs_and_entropy, loss_function

    from sat_slime.plugin.step import current

    args = arguments(method, "gspo" if "gspo" in method else "grpo")
    args.rollout_temperature = config.rollout.temperature
    lengths = {key: inputs[key] for key in ("unconcat_tokens", "total_lengths", "response_lengths")}
    meter = Meter(gpu)

    def forward() -> Tensor:
        logits: Tensor = part(inputs["row"], None, None, packed_seq_params=inputs["packed"])
        return logits

    def score() -> list[Tensor]:
        _, scored = get_log_probs_and_entropy(forward(), args=args, **lengths)
        return list(scored["log_probs"])

    part.eval()
    with torch.no_grad():
        for _ in range(2):
            mu = meter("forward pass alone", score)
    inputs["rollout_log_probs"] = [row + 0.02 * torch.randn_like(row) for row in mu]
    part.train()
    for _ in range(steps):
        part.zero_grad_buffer()
        held = [meter("forward", forward)]
        # the loss alone keeps the logits, as in Megatron's schedule
        loss, _, _ = meter("loss", lambda: loss_function(args, dict(inputs), 1, len(inputs["tokens"]), held.pop()))  # noqa: B023
        meter("backward", loss.backward)
        del loss
        part.finish_grad_sync()
        if optimizer is not None:
            meter("optimizer", optimizer.step)
        meter("metrics", lambda: current().end_step(None))
    return meter


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="of runtime slime, without context or pipeline parallelism")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tokens", type=int, action="append", help="of a micro-batch; the file's max-tokens-per-gpu")
    parser.add_argument("--response", type=int, action="append", help="8,192, and the whole micro-batch")
    parser.add_argument("--method", default="sat-gspo")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args(argv)
    answer_as_this_rank()

    from sat_slime.config import load_config

    config = load_config(options.file, options.overrides)
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    join(config, gpu)
    if gpu:
        torch.cuda.init()
        context = torch.cuda.mem_get_info()
    meter = Meter(gpu)
    part, optimizer = meter("build", lambda: build(config, device))
    built = meter.held()
    print(f"{torch.cuda.get_device_name() if gpu else 'CPU'}: a rank of {config.train.world_size} of "
          f"{' with '.join([options.file.name, ', '.join(options.overrides)]).removesuffix(' with ')}, "
          f"{sum(p.numel() for p in part.parameters()) / 1e9:.2f} billion parameters, "
          f"built in {meter.median('build'):.1f} s", flush=True)  # fmt: skip
    for tokens in options.tokens or [config.train.max_tokens_per_gpu]:
        for response in options.response or [min(8192, tokens), tokens]:
            if gpu:
                torch.cuda.empty_cache()
            inputs = step_inputs(tokens, response, config.model.vocab_size, device)
            tell(config, tokens, response, built, run_steps(
                config, part, optimizer, inputs, options.method, options.steps, gpu
            ))  # fmt: skip
    if gpu:
        free, total = torch.cuda.mem_get_info()
        reserved = torch.cuda.memory_reserved()
        print(f"CUDA's own {(total - free - reserved) / GIB:.2f} GiB, before the first kernel "
              f"{(context[1] - context[0]) / GIB:.2f}; the card has {total / GIB:.1f}")  # fmt: skip


def join(config: Any, gpu: bool) -> None:
    """Makes the process groups of a rank of the file, whose other ranks are not there."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from megatron.core.tensor_parallel.random import initialize_rng_tracker

    train = config.train
    dist.init_process_group("fake", rank=0, world_size=train.world_size, store=FakeStore())
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=train.tensor_parallel,
        expert_model_parallel_size=train.expert_parallel,
        expert_tensor_parallel_size=train.expert_tensor_parallel,
        create_gloo_process_groups=False,
    )
    if gpu:
        model_parallel_cuda_manual_seed(0)
    else:
        initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)


def tell(config: Any, tokens: int, response: int, built: float, meter: Meter) -> None:
    """Prints memory beside the estimate, and times beside the speed that the estimate of a run's time is given."""
    from sat_slime.launch.duration import forward_flops
    from sat_slime.launch.memory import text_of, training_need

    flags = {"max-tokens-per-gpu": tokens, "rollout-max-response-len": response, "rollout-max-prompt-len": 1,
             "n-samples-per-prompt": 1}  # fmt: skip
    flags["rollout-batch-size"] = max(1, tokens // response) * config.train.data_parallel
    own = config.model_copy(update={"slime": {**config.slime, **flags}})
    need = training_need(own)
    print(f"\n{tokens:,} tokens in responses of {response:,}")
    if meter.gpu:
        peak = max(meter.peaks[name] for name in ("forward", "loss", "backward"))
        print(f"  estimated {sum(need.values()) / GIB:6.1f} GiB: {text_of(need)}")
        print(f"  measured  {peak:6.1f} GiB at the peak: built {built:.1f}, "
              + ", ".join(f"{name} {peak:.1f}" for name, peak in meter.peaks.items())
              + f"; reserved by the allocator {torch.cuda.memory_reserved() / GIB:.1f}")  # fmt: skip
    flops = forward_flops(own, response) / config.train.world_size
    one = meter.median("forward pass alone")
    step = sum(meter.median(name) for name in ("forward", "loss", "backward"))
    passes = 3 + (config.train.recompute == "full")
    print("  seconds: " + ", ".join(f"{name} {meter.median(name):.3f}" for name in meter.seconds))
    print(f"  {flops / one / 1e12:.0f} TFLOP/s in a forward pass alone, {passes * flops / step / 1e12:.0f} in a step; "
          f"the estimate of a run's time is given {config.estimate.trainer_tflops:.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
