"""R3 in slime's trainer: narrow routes are replayed as slime replays its own, and shown to belong to the tokens.

For every token the router's own choice is compared with the replayed one, and with the ones replayed for the tokens
before and after. Where the replay is right, both agree but for rounding and the lag; where it is off by one token, they
agree by chance. Other implementations shipped that shift, and nothing else tells of it: the loss stays finite and the
run only learns less.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sat_slime.plugin.compat import wrap_once
from sat_slime.plugin.inside.routed_experts import NARROW

logger = logging.getLogger(__name__)

SHIFTS = (0, 1, -1)
"""Row t of the router is compared with row t + shift of the replay."""
MARGIN = 0.05
"""Lead in agreement, as a share of the experts, above which the replay fits better with a shift, or without one."""
MIN_SLOTS = 256
"""With fewer compared experts than this there is no verdict."""


def accept_narrow_routes() -> None:
    """Lets slime's trainer take routes in narrow types; what it replays equals what it replays in int32, to the bit.

    slime's padding counts upwards in the type of the routes, which overflows in a narrow one (and divides by zero for
    256 experts), and v0.3.1 indexes with that type, which torch refuses.
    """
    from slime.backends.megatron_utils import cp_utils
    from slime.utils.routing_replay import RoutingReplay

    if hasattr(cp_utils, "_pad_routed_experts"):  # slime's newest already counts its padding in wide integers
        wrap_once(cp_utils, "_pad_routed_experts", _pad_narrow)
    for name in ("pop_forward", "pop_backward"):
        wrap_once(RoutingReplay, name, _pop_int32)


def _pad_narrow(pad_routed_experts: Callable[..., Tensor], experts: Tensor, pad: int, num_experts: int) -> Tensor:
    if pad == 0 or experts.dtype not in NARROW:
        return pad_routed_experts(experts, pad, num_experts)
    rows = pad_routed_experts(experts[:0].int(), pad, num_experts)
    return torch.cat([experts, rows.to(experts.dtype)])


def _pop_int32(pop: Callable[[Any], Tensor], replay: Any) -> Tensor:
    top_indices = pop(replay)
    return top_indices.int() if top_indices.dtype in NARROW else top_indices


class Agreement:
    """The comparison of routers and replay on the first micro-batch that each router of this rank replays in a rollout.

    Sums stay on the device until `counts`, so that no forward pass waits for the host.
    """

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._seen: set[int] = set()

    def wants(self, replay: Any) -> bool:
        """Return whether this router's comparison is still to be made; True only the first time in a rollout."""
        is_new = id(replay) not in self._seen
        self._seen.add(id(replay))
        return is_new

    def add(self, own: Tensor, replayed: Tensor, experts: int) -> None:
        """Compares a router's choice with the replayed one.

        Args:
            own, replayed: (rows, top-k) experts; row t of both is of the same token if all is well.
        """
        if len(own) < 3:
            return
        real = ~_is_padding(replayed, experts)[1:-1, None]
        matches = [_is_replayed(own, torch.roll(replayed, -shift, 0))[1:-1] & real for shift in SHIFTS]
        sums = torch.stack([*(match.sum() for match in matches), real.sum() * own.shape[1]])
        self._sums = sums if self._sums is None else self._sums + sums

    def counts(self) -> list[int]:
        """Return how many experts agree at each of SHIFTS, and how many were compared, over all ranks. All ranks must
        call."""
        counts = torch.zeros(len(SHIFTS) + 1, dtype=torch.int64) if self._sums is None else self._sums.cpu().long()
        if dist.is_initialized():
            from slime.utils.distributed_utils import get_gloo_group

            dist.all_reduce(counts, group=get_gloo_group())
        return counts.tolist()

    def verdict(self, rollout_id: int, *, must_have_replayed: bool) -> dict[str, float]:
        """Return the verdict of this rollout's comparisons, the same on all ranks; all ranks must call.

        Args:
            must_have_replayed: the training forward has run, so that every router must have replayed.

        Returns:
            `routing/agreement`, the share of replayed experts that the routers would have chosen; nothing where no
            forward pass has replayed yet.

        Raises:
            RuntimeError: the replay fits the tokens better when shifted by one, or no router replayed.
        """
        *matches, slots = self.counts()
        if slots == 0 and must_have_replayed:
            raise RuntimeError(
                "R3 is on, but no router replayed anything: Megatron lacks slime's patch, or routes in one fused "
                "kernel (leave out --moe-router-fusion)"
            )
        if slots < MIN_SLOTS:
            return {}
        here, later, earlier = (match / slots for match in matches)
        shares = f"{here:.3f} in the rows of their tokens, {later:.3f} in the next rows, {earlier:.3f} in those before"
        if max(later, earlier) > here + MARGIN:
            raise RuntimeError(
                f"rollout {rollout_id}: the replayed experts are off by one token: routers agree with {shares}; the "
                "engine reports its routes shifted, so use an SGLang with slime's patch of the version that slime pins"
            )
        if here < max(later, earlier) + MARGIN:
            logger.warning(
                "rollout %d: routers agree with the replayed experts %s, which is no more than by chance: either the "
                "texts repeat one token, or the routes are of another model",
                rollout_id,
                shares,
            )
        return {"routing/agreement": here}


def _is_replayed(own: Tensor, replayed: Tensor) -> Tensor:
    """Return the (rows, top-k) bool: whether the expert is among the replayed ones of its row."""
    return (own[:, :, None] == replayed[:, None, :]).any(-1)


def _is_padding(replayed: Tensor, experts: int) -> Tensor:
    """Return the (rows,) bool: whether slime put the row in where no token was routed. The experts of such a row count
    upwards, which those of a router hardly ever do; fewer than three of them say too little."""
    if replayed.shape[1] < 3:
        return torch.zeros(len(replayed), dtype=torch.bool, device=replayed.device)
    return (torch.diff(replayed, dim=1) % experts == 1).all(1)


def watch(current: Callable[[], Agreement]) -> None:
    """Compares whatever slime's routers replay, from the next forward pass on.

    Args:
        current: gives the agreement of the batch in training, which takes the comparisons.
    """
    from slime.utils import routing_replay

    wrap_once(routing_replay, "get_routing_replay_compute_topk", functools.partial(_watched, routing_replay, current))


def _watched(
    module: ModuleType,
    current: Callable[[], Agreement],
    get_compute_topk: Callable[..., Any],
    old_compute_topk: Callable[..., Any],
) -> Callable[..., Any]:
    """Return the top-k of get_compute_topk with a comparison inside: slime's patch of Megatron asks for it in every
    routing."""
    compute_topk = get_compute_topk(old_compute_topk)

    def compute_and_compare(scores: Tensor, topk: int, num_groups: Any = None, group_topk: Any = None) -> Any:
        replays = (
            os.environ.get("ENABLE_ROUTING_REPLAY", "0") == "1"
            and os.environ.get("ROUTING_REPLAY_STAGE") == "replay_forward"
        )
        probs, top_indices = compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        if replays and current().wants(module.ROUTING_REPLAY):
            with torch.no_grad():
                _, own = old_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
                current().add(own, top_indices, scores.shape[1])
        return probs, top_indices

    return compute_and_compare
