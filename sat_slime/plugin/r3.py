"""R3: the experts that the engines chose for each token, from their reply to the routers that replay them.

From its arrival on a number of an expert is a byte (two above 256 experts), where slime keeps four (slime issue 2384).
Routes that do not belong to a response's tokens are replayed without an error, so their shape and range are checked on
arrival (rollout_hooks.py). In training each router's own choice is compared with the replayed one of the same token and
of both neighbours: where the replay is right they agree but for rounding and the lag, where it is off by one token by
chance. Other implementations shipped that shift, and the loss does not show it.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sat_slime.plugin.compat import locate, wrap_once
from sat_slime.rollout.validation import RejectedResponse

SHIFTS = (0, 1, -1)
"""Row t of the router is compared with row t + shift of the replay."""
MARGIN = 0.05
"""Lead in agreement, as a share of the experts, above which the replay fits better with a shift."""
MIN_SLOTS = 256
"""With fewer compared experts than this there is no verdict."""


def replays(args: Namespace) -> bool:
    """Return whether the rollout's routes are replayed in this run."""
    return bool(getattr(args, "use_rollout_routing_replay", False))


def narrow_type(experts: int) -> torch.dtype:
    """Return the smallest type with which torch computes and that holds 0 .. experts - 1: it has neither arange nor
    promotion for uint16."""
    return torch.uint8 if experts <= 256 else torch.int16


def narrow(routes: Any, args: Namespace) -> Tensor:
    """Return the routes of one of slime's samples, a tensor, an array or nested lists, as one (rows, layers, top-k)
    tensor in the narrow type, in memory of their own. Raises RejectedResponse where they are something else, or a
    number is not in [0, experts)."""
    try:
        whole = torch.as_tensor(routes).cpu()
        torch.iinfo(whole.dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        why = f"a {type(routes).__name__} that is no routed experts: {' '.join(str(error).split())}"
        raise RejectedResponse("routed_experts_shape", why) from None
    if whole.dim() != 3 or whole.shape[1:] != (args.num_layers, args.moe_router_topk):
        layers = f"{args.num_layers} layers and top-{args.moe_router_topk}"
        raise RejectedResponse("routed_experts_shape", f"{tuple(whole.shape)}, not of {layers}")
    if whole.dtype == narrow_type(args.num_experts):
        return whole
    if whole.numel():
        low, high = (int(bound) for bound in whole.long().aminmax())
        if low < 0 or high >= args.num_experts:
            raise RejectedResponse("expert_range", f"{low} to {high}, not in [0, {args.num_experts})")
    return whole.to(narrow_type(args.num_experts))


def routed_layers(args: Namespace) -> tuple[int, ...]:
    """Return the numbers of the layers that have a router; what a row holds for other layers means nothing."""
    frequency = getattr(args, "moe_layer_freq", 1)
    if isinstance(frequency, int):
        return tuple(range(0, args.num_layers, frequency))
    return tuple(layer for layer, routed in enumerate(frequency[: args.num_layers]) if routed)


def stand_in(n_tokens: int, args: Namespace) -> Tensor:
    """Return valid routes for a response that is not trained on: (tokens - 1, layers, top-k), counting up as slime's
    own padding does, so that its tokens load all experts alike."""
    shape = (max(n_tokens - 1, 0), args.num_layers, args.moe_router_topk)
    count = torch.arange(shape[0] * shape[1] * shape[2]) % args.num_experts
    return count.to(narrow_type(args.num_experts)).reshape(shape)


# ---------------------------------------------------------------------------------------------------------- the trainer


def lay_out_narrow() -> None:
    """Has slime's trainer lay out narrow routes and keep them narrow until a router asks for them."""
    from slime.utils.routing_replay import RoutingReplay

    def widened(pop: Callable[[Any], Tensor], /, replay: Any) -> Tensor:
        return pop(replay).int()

    def lay_out(prepare: Callable[..., Tensor], /, routes: Sequence[Tensor], *tokens: Any, **layout: Any) -> Tensor:
        # slime's padding counts up in the type of the routes, where a byte would overflow.
        rows = prepare([response.int() for response in routes], *tokens, **layout)
        return rows.to(routes[0].dtype)

    wrap_once(*locate("prepare_routed_experts_for_routing_replay"), lay_out)
    if not hasattr(RoutingReplay, "assert_all_consumed"):  # v0.3.1 hands the routers what it was given
        for name in ("pop_forward", "pop_backward"):
            wrap_once(RoutingReplay, name, widened)


class Agreement:
    """The comparison of routers and replay on the first micro-batch of a step that each router of this rank replays.
    Sums stay on the device until `metrics`, so that no forward pass waits for the host."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._seen: set[int] = set()

    def wants(self, replay: Any) -> bool:
        """Return whether this router's comparison is still to be made; True only the first time in a step."""
        is_new = id(replay) not in self._seen
        self._seen.add(id(replay))
        return is_new

    def add(self, own: Tensor, replayed: Tensor, experts: int) -> None:
        """Compares a router's choice with the replayed one, both (rows, top-k) experts of the same tokens."""
        if len(own) < 3:
            return
        real = ~_is_padding(replayed, experts)[1:-1, None]
        shifted = [torch.roll(replayed, -shift, 0) for shift in SHIFTS]
        matches = [(own[:, :, None] == rows[:, None, :]).any(-1)[1:-1] & real for rows in shifted]
        sums = torch.stack([*(match.sum() for match in matches), real.sum() * own.shape[1]])
        self._sums = sums if self._sums is None else self._sums + sums

    def metrics(self, group: dist.ProcessGroup | None) -> dict[str, float]:
        """Return `routing/agreement`, the share of replayed experts that the routers would have chosen, over all ranks
        of a gloo group, which must all call; {} where too few were compared. Raises RuntimeError where the replay fits
        the tokens better when shifted by one, or no router replayed."""
        counts = torch.tensor([0] * (len(SHIFTS) + 2) if self._sums is None else [*self._sums.tolist(), 1])
        if group is not None:
            dist.all_reduce(counts, group=group)
        *matches, slots, replayed = counts.tolist()
        module = sys.modules.get("slime.utils.routing_replay")
        if not replayed and module and not module.RoutingReplay.all_routing_replays:  # a stage without experts
            return {}
        if not replayed:
            raise RuntimeError(
                "R3 is on, but no router replayed anything: Megatron lacks slime's patch, or routes in one fused "
                "kernel (leave out --moe-router-fusion)"
            )
        if slots < MIN_SLOTS:
            return {}
        here, later, earlier = (match / slots for match in matches)
        if max(later, earlier) > here + MARGIN:
            raise RuntimeError(
                f"the replayed experts are off by one token: routers agree with {here:.3f} in the rows of their "
                f"tokens, {later:.3f} in the next rows, {earlier:.3f} in those before; the engine reports its routes "
                "shifted, so use an SGLang with slime's patch of the version that slime pins"
            )
        return {"routing/agreement": here}


def _is_padding(replayed: Tensor, experts: int) -> Tensor:
    """Return the (rows,) bool: whether slime put the row in where no token was routed. The experts of such a row count
    upwards, which those of a router hardly ever do; fewer than three of them say too little."""
    if replayed.shape[1] < 3:
        return torch.zeros(len(replayed), dtype=torch.bool, device=replayed.device)
    return (torch.diff(replayed, dim=1) % experts == 1).all(1)


def watch(current: Callable[[], Agreement | None]) -> None:
    """Compares whatever slime's routers replay with their own choice, from the next forward pass on. `current` gives
    the agreement of the step in progress, which takes the comparisons. slime's patch of Megatron asks for the wrapped
    top-k in every routing."""
    from slime.utils import routing_replay

    def watched(get_compute_topk: Callable[..., Any], /, old_compute_topk: Callable[..., Any]) -> Callable[..., Any]:
        compute_topk = get_compute_topk(old_compute_topk)

        def compute_and_compare(scores: Tensor, topk: int, num_groups: Any = None, group_topk: Any = None) -> Any:
            on = os.environ.get("ENABLE_ROUTING_REPLAY") == "1"
            replaying = on and os.environ.get("ROUTING_REPLAY_STAGE") == "replay_forward"
            probs, top_indices = compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
            agreement = current()
            if replaying and agreement is not None and agreement.wants(routing_replay.ROUTING_REPLAY):
                with torch.no_grad():
                    _, own = old_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
                    agreement.add(own, top_indices, scores.shape[1])
            return probs, top_indices

        return compute_and_compare

    wrap_once(routing_replay, "get_routing_replay_compute_topk", watched)
