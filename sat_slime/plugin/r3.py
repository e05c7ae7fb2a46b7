"""R3: the experts that the engines chose for each token, from their reply to the routers that replay them.

A number of an expert is a byte from the engine on (two above 256 experts). A response's routes are put into Ray's
object store as they arrive; what travels with its batch is their reference, all ranks of a node read the same memory,
and a router gets its layer of a micro-batch when it asks for it. slime's way keeps a batch about seven times, in int32
(slime issue 2384).

Routes that do not belong to a response's tokens are replayed without an error, so their shape and range are checked on
arrival (rollout_hooks.py). In training each router's own choice is compared with the replayed one of the same token and
of both neighbours: where the replay is right they agree but for rounding and the lag, where it is off by one token by
chance. Other implementations shipped that shift, and the loss does not show it.
"""

from __future__ import annotations

import os
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sat_slime.plugin.compat import is_newest, locate, wrap_once
from sat_slime.plugin.versions import DRIVEN
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


def travel_by_reference(args: Namespace) -> bool:
    """Return whether a batch carries references of its routes. It does where our trainer takes it, and slime's own
    functions carry it as they are known to."""
    return bool(
        getattr(args, DRIVEN, False)
        and getattr(args, "rollout_data_transport", "object-store") == "object-store"
        and not getattr(args, "custom_convert_samples_to_train_data_path", None)
        and not is_newest()
    )


# ------------------------------------------------------------------------------------------------- the rollout process


def read_narrow_replies() -> None:
    """Has slime's samples in this process keep the bytes of engines that send a byte an expert
    (rollout/sglang_routes.py). slime would read four of them as one int32."""
    wrap_once(*locate("decode_int32_meta_array"), _decode)


def _decode(decode_int32: Callable[..., Any], /, meta_info: Mapping[str, Any], keys: Any) -> Any:
    encoded = meta_info.get(keys) if keys == "routed_experts" else None
    if not isinstance(encoded, str):
        return decode_int32(meta_info, keys)
    import pybase64

    raw = pybase64.b64decode_as_bytearray(encoded)
    # Of int32 below 65,536 every second pair of bytes is 0; of bytes it cannot be, since no expert is twice in a token.
    wide = len(raw) % 4 == 0 and not np.frombuffer(raw, np.uint16)[1::2].any()
    return torch.frombuffer(raw, dtype=torch.int32 if wide else torch.uint8) if raw else torch.zeros(0).byte()


def narrow_type(experts: int) -> torch.dtype:
    """Return the smallest type with which torch computes and that holds 0 .. experts - 1: it has neither arange nor
    promotion for uint16."""
    return torch.uint8 if experts <= 256 else torch.int16


def narrow(routes: Any, args: Namespace) -> Tensor:
    """Return the routes of one of slime's samples as one (rows, layers, top-k) tensor in the narrow type, in memory of
    their own. A sample has them as a tensor, an array or nested lists, or as a list of such, each with some rows.

    Raises:
        RejectedResponse: they are something else, or a number is not in [0, experts).
    """
    try:
        if isinstance(routes, (list, tuple)) and len(routes):
            pieces = [torch.as_tensor(piece) for piece in routes]
            routes = torch.cat([piece.reshape(-1, *piece.shape[-2:]) for piece in pieces])
        whole = torch.as_tensor(routes).cpu()
        torch.iinfo(whole.dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise RejectedResponse(
            "routed_experts_shape", f"a {type(routes).__name__} that is no routed experts: {why}"
        ) from None
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


class StoredRoutes(Tensor):
    """Routes on the memory of Ray's object store, which nobody may change in place. Ray pickles their reference, which
    `received` takes, and everybody else what they hold."""

    reference: Any
    # Slices and results are plain tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)


def store(routes: Tensor | None) -> Tensor | None:
    """Return a response's routes on Ray's object store; without Ray they stay where they are."""
    import ray

    if routes is None or not ray.is_initialized():
        return routes
    # As an array: every version of Ray hands those out without a copy, and of torch's tensors only its newest do.
    reference = ray.put(routes.numpy())
    (tensor,) = received([reference])
    stored = tensor.as_subclass(StoredRoutes)
    stored.reference = reference
    ray.util.register_serializer(StoredRoutes, serializer=lambda one: one.reference, deserializer=lambda one: one)
    return stored


def received(routes: Sequence[Any]) -> list[Tensor]:
    """Return the routes of a batch's responses, those that came by reference on the object store's memory."""
    import ray

    stored = [one for one in routes if isinstance(one, ray.ObjectRef)]
    arrays = iter(ray.get(stored) if stored else [])  # any ray.get starts a Ray where there is none
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return [torch.from_numpy(next(arrays)) if isinstance(one, ray.ObjectRef) else one for one in routes]


# ---------------------------------------------------------------------------------------------------------- the trainer


class LayerRoutes:
    """The routes of a micro-batch in one layer, of which nothing is copied until its router asks."""

    def __init__(self, responses: Sequence[Tensor], rows: Tensor, layer: int, experts: int) -> None:
        """
        Args:
            responses: (rows, layers, top-k) narrow routes of each response.
            rows: (N,) the micro-batch in slime's layout: -1 - n for row n of all responses, and for padding the number
                of its row from 0.
        """
        self.responses, self.rows, self.layer, self.experts = responses, rows, layer, experts

    def materialize_for_routing_replay(self, _: str) -> Tensor:
        """Return the (N, top-k) int32 experts on the device: so slime after v0.3.1 asks."""
        return self.to(torch.cuda.current_device() if torch.cuda.is_available() else "cpu")

    def to(self, device: Any) -> Tensor:
        """Return the (N, top-k) int32 experts on a device: so v0.3.1 asks."""
        _, layers, k = self.responses[0].shape
        ours = torch.cat([routes[:, self.layer] for routes in self.responses])
        experts = ours[(-1 - self.rows).clamp(min=0)].int()
        padding = self.rows >= 0
        counted = (self.rows[padding, None] * layers + self.layer) * k + torch.arange(k)
        experts[padding] = (counted % self.experts).int()
        return experts.to(device)


class MicroBatchRoutes:
    """The routes of a micro-batch, which slime takes apart by layers."""

    def __init__(self, responses: Sequence[Tensor], rows: Tensor, experts: int) -> None:
        self._of = responses, rows, experts

    def __getitem__(self, index: tuple[slice, int]) -> LayerRoutes:
        """Return `[:, layer]`, as slime takes it."""
        responses, rows, experts = self._of
        return LayerRoutes(responses, rows, index[1], experts)


def replay_from_store() -> None:
    """Has slime's trainer replay narrow routes from where they are; what its routers get equals what they get of int32,
    to the bit. Routes of the wide types stay slime's matter."""
    from slime.utils.routing_replay import RoutingReplay

    wrap_once(*locate("prepare_routed_experts_for_routing_replay"), _refer)
    if not hasattr(RoutingReplay, "assert_all_consumed"):  # v0.3.1 copies whatever it records
        wrap_once(RoutingReplay, "record", _record)


def _refer(
    prepare: Callable[..., Any],
    /,
    routes: Sequence[Tensor],
    tokens: Sequence[Tensor],
    *,
    num_experts: int,
    **layout: Any,
) -> Any:
    if any(response.dtype != narrow_type(num_experts) for response in routes):
        return prepare(routes, tokens, num_experts=num_experts, **layout)
    # slime lays out the rows' numbers in the place of the rows. They are negative, since its padding counts from 0.
    numbers = -1 - torch.arange(sum(len(response) for response in routes))[:, None, None]
    rows = prepare(numbers.split([len(response) for response in routes]), tokens, num_experts=2**62, **layout)
    return MicroBatchRoutes(routes, rows.flatten(), num_experts)


def _record(record: Callable[[Any, Any], None], /, replay: Any, top_indices: Any) -> None:
    if isinstance(top_indices, LayerRoutes):
        replay.top_indices_list.append(top_indices)
    else:
        record(replay, top_indices)


class Agreement:
    """The comparison of routers and replay on the first micro-batch of a step that each router of this rank replays.

    Sums stay on the device until `metrics`, so that no forward pass waits for the host.
    """

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
        of a gloo group, which must all call; {} where too few were compared.

        Raises:
            RuntimeError: the replay fits the tokens better when shifted by one, or no router replayed.
        """
        counts = torch.zeros(len(SHIFTS) + 1, dtype=torch.int64) if self._sums is None else self._sums.cpu().long()
        if group is not None:
            dist.all_reduce(counts, group=group)
        *matches, slots = counts.tolist()
        if slots == 0:
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
    """Compares whatever slime's routers replay with their own choice, from the next forward pass on. slime's patch of
    Megatron asks for the wrapped top-k in every routing.

    Args:
        current: gives the agreement of the step in progress, which takes the comparisons.
    """
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
