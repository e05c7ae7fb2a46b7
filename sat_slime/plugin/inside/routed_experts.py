"""Routed experts of a response are checked as they arrive in slime's rollout process, and kept in a narrow type.

R3 replays them in the trainer. Rows that do not belong to the response's tokens are replayed without an error, so
rollout/validation.py checks a response before it is trained on, and here it is seen whether the engines routed the
prompt alike in all responses to it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sat_slime.rollout.validation import RejectedResponse

NARROW = (torch.uint8, torch.int16)
"""Types in which routes are kept: for up to 256 experts, and for more. torch has neither arange nor promotion for
uint16."""

MIN_PROMPT_AGREEMENT = 0.5
"""Share of experts that two engines must choose alike for the same prompt and weights. Flips by rounding cost a few
percent. Routes of another text agree by chance, which is top-k / experts, and a little more."""
MAX_PROMPT_ROWS = 64
"""Rows of a prompt that are compared."""


def narrow_type(experts: int) -> torch.dtype:
    """Return the smallest type with which torch computes and that holds 0 .. experts - 1."""
    return torch.uint8 if experts <= 256 else torch.int16


def joined(routes: Any, layers: int, top_k: int) -> Tensor:
    """Return the routes of one of slime's samples as one (rows, layers, top-k) tensor. A sample has them as a tensor,
    an array or nested lists, or as a list of such, each with some of the rows. Raises RejectedResponse where they are
    something else."""
    kind = type(routes).__name__
    try:
        if isinstance(routes, (list, tuple)) and len(routes):
            pieces = [torch.as_tensor(piece) for piece in routes]
            routes = torch.cat([piece.reshape(-1, *piece.shape[-2:]) for piece in pieces])
        whole = torch.as_tensor(routes).cpu()
        torch.iinfo(whole.dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise RejectedResponse("routed_experts_shape", f"a {kind} that is no routed experts: {why}") from None
    if whole.dim() != 3 or whole.shape[1:] != (layers, top_k):
        raise RejectedResponse("routed_experts_shape", f"{tuple(whole.shape)}, not of {layers} layers and top-{top_k}")
    return whole if whole.dtype.is_signed or whole.dtype in NARROW else whole.long()


def narrow(routes: Tensor, experts: int) -> Tensor:
    """Return the (rows, layers, top-k) routes of any integer type in the narrow type, in memory of their own. Raises
    RejectedResponse where a number is not in [0, experts)."""
    if routes.dtype == narrow_type(experts):
        return routes
    if routes.numel():
        low, high = (int(bound) for bound in routes.aminmax())
        if low < 0 or high >= experts:
            raise RejectedResponse("expert_range", f"{low} to {high}, not in [0, {experts})")
    return routes.to(narrow_type(experts))


def routed_layers(args: Namespace) -> list[int]:
    """Return the numbers of the layers that have a router; what a row holds for other layers means nothing."""
    frequency = getattr(args, "moe_layer_freq", 1)
    if isinstance(frequency, int):
        return list(range(0, args.num_layers, frequency))
    return [layer for layer, routed in enumerate(frequency[: args.num_layers]) if routed]


def stand_in(n_tokens: int, args: Namespace) -> Tensor:
    """Return valid routes for a response that is not trained on: (tokens - 1, layers, top-k), counting up as slime's
    own padding does, so that its tokens load all experts alike."""
    shape = (max(n_tokens - 1, 0), args.num_layers, args.moe_router_topk)
    count = torch.arange(shape[0] * shape[1] * shape[2], dtype=torch.int32)
    return (count % args.num_experts).to(narrow_type(args.num_experts)).reshape(shape)


def strangers(samples: Sequence[Any], layers: Sequence[int]) -> list[Any]:
    """Return the samples whose prompt was routed unlike the same prompt, by the same weights, in the other responses to
    it: their routes are of another text. Where only two differ, the later one is taken for the stranger."""
    alike: dict[tuple[Any, ...], list[Any]] = {}
    for sample in samples:
        if sample.rollout_routed_experts is not None and not sample.remove_sample:
            key = tuple(sample.weight_versions), tuple(sample.tokens[: _prompt_length(sample)])
            alike.setdefault(key, []).append(sample)
    return [stranger for group in alike.values() for stranger in _strangers_in(group, layers)]


def _strangers_in(group: list[Any], layers: Sequence[int]) -> list[Any]:
    prompts = [_prompt_rows(sample, layers) for sample in group]
    for routes in prompts:
        unlike = [sample for sample, others in zip(group, prompts, strict=True) if not _alike(routes, others)]
        if 2 * len(unlike) <= len(group):
            return unlike
    return group  # no half of the group is alike


def _prompt_length(sample: Any) -> int:
    return len(sample.tokens) - sample.response_length


def _prompt_rows(sample: Any, layers: Sequence[int]) -> Tensor:
    """Return the (rows, layers, top-k) routes of tokens that are spread over the prompt."""
    n = min(_prompt_length(sample), len(sample.rollout_routed_experts))
    rows = torch.arange(0, n, max(1, n // MAX_PROMPT_ROWS))[:MAX_PROMPT_ROWS]
    return torch.as_tensor(sample.rollout_routed_experts)[rows][:, list(layers)]


def _alike(first: Tensor, second: Tensor) -> bool:
    if not first.numel():
        return True
    # The order of a token's experts may differ, so this is only a lower bound; mostly it is enough, and it is cheap.
    if (first == second).float().mean() >= MIN_PROMPT_AGREEMENT:
        return True
    return bool((first[..., :, None] == second[..., None, :]).any(-1).float().mean() >= MIN_PROMPT_AGREEMENT)
