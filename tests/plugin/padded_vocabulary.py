"""Makes an output layer with padded rows, as slime's model has one; tests in several processes can use it, too."""

from __future__ import annotations

from argparse import Namespace

import torch

from sat_slime.plugin.inside.padded_vocabulary import leave_out_padding

REAL, WIDTH, HIDDEN = 11, 16, 8


class OutputLayer(torch.nn.Module):
    """Returns (logits, bias) like Megatron's output layer; its weight is this rank's part of the padded vocabulary."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight)
        self.output_size_per_partition = len(weight)

    def forward(self, hidden):
        return hidden @ self.weight.T, None


class Chunk(torch.nn.Module):
    """A model chunk as slime wraps it."""

    def __init__(self, weight):
        super().__init__()
        self.module = torch.nn.Module()
        self.module.module = torch.nn.Module()
        self.module.module.output_layer = OutputLayer(weight)

    def forward(self, hidden):
        return self.module.module.output_layer(hidden)[0]


def weights(dtype=torch.float64):
    """(WIDTH, HIDDEN) weights, whose padded rows are zero as slime's are."""
    weight = torch.randn(WIDTH, HIDDEN, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight[REAL:] = 0
    return weight.to(dtype)


def hidden_states(dtype=torch.float64):
    return torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def slimes_log_probs(layout):
    """Log-probs and entropy on this tensor-parallel rank: first with the hook, then without any padding."""
    from megatron.core import mpu
    from slime.backends.megatron_utils.loss import get_log_probs_and_entropy

    args = Namespace(rollout_temperature=1.0, log_probs_chunk_size=-1, allgather_cp=False, entropy_coef=0.0)
    tokens = torch.tensor([1, 4, 10, 0, 7])
    rank, ranks = mpu.get_tensor_model_parallel_rank(), layout.tp

    def scored(weight):
        model = Chunk(weight.chunk(ranks)[rank].float())
        leave_out_padding([model], REAL, rank)
        logits = model(hidden_states(torch.float32))[None]
        _, result = get_log_probs_and_entropy(
            logits, args=args, unconcat_tokens=[tokens], total_lengths=[5], response_lengths=[3], with_entropy=True
        )
        return torch.stack([result["log_probs"][0], result["entropy"][0]]).detach()

    real = (hidden_states(torch.float32) @ weights(torch.float32)[:REAL].T).log_softmax(-1)[1:4]
    expected = torch.stack([real.gather(-1, tokens[2:, None])[:, 0], -(real.exp() * real).sum(-1)])
    return scored(weights()), expected
