"""One copy of R3's routes on a node: in Ray's object store, from a response's arrival to the last pass that replays it.

slime's way keeps a batch's routes about seven times: in the rollout process, pickled, in the store, once more in each
trainer rank, and in pinned memory. Here a response's routes are put into the store as they arrive (`store`); what
travels with the batch, in each response's `Origin`, is their reference (`send`); all ranks of a node read the same
memory (`received`); and a router gets its layer of a micro-batch when it asks for it (`MicroBatchRoutes`).

They are numpy arrays there, which every version of Ray hands out without a copy; of torch's tensors only its newest do.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import warnings
import weakref
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sat_slime.plugin.compat import locate, wrap_once
from sat_slime.plugin.inside import versions
from sat_slime.plugin.inside.routed_experts import narrow_type

_references: dict[int, Any] = {}
"""Ray's reference of each tensor that `store` returned, by the tensor's id, as long as the tensor lives."""


def are_shared(args: Namespace) -> bool:
    """Return whether the routes of this run travel by reference. They do where our trainer takes them from a response's
    `Origin`, they were checked on arrival, and slime's own functions carry the batch as they are known to."""
    return bool(
        getattr(args, "use_rollout_routing_replay", False)
        and versions.are_steps(args)
        and getattr(args, "rollout_data_transport", "object-store") == "object-store"
        and getattr(args, "custom_convert_samples_to_train_data_path", None) is None
        and not is_newest()
    )


@functools.cache
def is_newest() -> bool:
    """Return whether this slime is one after pull request 2391: it makes up routes where a sample has none, and how it
    decodes those of a reply could not be read."""
    return importlib.util.find_spec("slime") is not None and importlib.util.find_spec("slime.data") is not None


# ------------------------------------------------------------------------------------------------- the rollout process


def store(routes: Tensor) -> Tensor:
    """Return a response's routes as a tensor on Ray's object store, which nobody may change in place. Without Ray they
    stay where they are."""
    import ray

    if not ray.is_initialized():
        return routes
    reference = ray.put(routes.numpy())
    stored = _tensor(ray.get(reference))
    _references[id(stored)] = reference
    weakref.finalize(stored, _references.pop, id(stored), None)
    return stored


def send(samples: Sequence[Any]) -> None:
    """Moves the routes of samples into their origins, which are in place: as references, or as arrays where they were
    never stored. slime then carries none of its own. Where a sample has no routes all stay, and slime says so."""
    if any(sample.rollout_routed_experts is None for sample in samples):
        return
    for sample in samples:
        routes, sample.rollout_routed_experts = sample.rollout_routed_experts, None
        carried = _references.get(id(routes), routes.numpy())
        sample.metadata[versions.CARRIER] = replace(sample.metadata[versions.CARRIER], routes=carried)


# ---------------------------------------------------------------------------------------------------------- the trainer


def received(origins: Sequence[versions.Origin]) -> list[Tensor] | None:
    """Return the routes that came with the origins of a rank's responses, on the object store's memory; None where none
    did."""
    if not origins or origins[0].routes is None:
        return None
    import ray

    stored = [origin.routes for origin in origins if isinstance(origin.routes, ray.ObjectRef)]
    arrays = iter(ray.get(stored) if stored else [])  # any ray.get starts a Ray where there is none
    return [_tensor(next(arrays) if isinstance(o.routes, ray.ObjectRef) else o.routes) for o in origins]


def _tensor(routes: np.ndarray) -> Tensor:
    """Return a tensor on an array's memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(routes)


class MicroBatchRoutes:
    """The routes of a micro-batch, in slime's layout of its rows, of which nothing is copied until a router asks."""

    def __init__(self, pieces: Sequence[Tensor]) -> None:
        """
        Args:
            pieces: (rows, layers, top-k) narrow routes each; together they are the micro-batch.
        """
        self.pieces = pieces

    def __getitem__(self, index: tuple[slice, int]) -> LayerRoutes:
        """Return `[:, layer]`, as slime takes it."""
        return LayerRoutes(self.pieces, index[1])


class LayerRoutes:
    """The routes of a micro-batch in one layer, in the place of slime's pinned copy of them."""

    def __init__(self, pieces: Sequence[Tensor], layer: int) -> None:
        self.pieces, self.layer = pieces, layer

    def materialize_for_routing_replay(self, _: str) -> Tensor:
        """Return the (rows, top-k) int32 experts on the device: so slime after v0.3.1 asks."""
        return self.to(torch.cuda.current_device() if torch.cuda.is_available() else "cpu")

    def to(self, device: Any) -> Tensor:
        """Return the (rows, top-k) int32 experts on a device: so v0.3.1 asks."""
        rows, k = sum(len(piece) for piece in self.pieces), self.pieces[0].shape[2]
        on_gpu = torch.cuda.is_available()
        out = torch.empty((rows, k), dtype=self.pieces[0].dtype, pin_memory=on_gpu)
        word = _word(out)  # a token's experts are copied as few words, ten times as fast as bytes
        torch.cat([piece.view(word)[:, self.layer] for piece in self.pieces], out=out.view(word))
        return out.to(device, non_blocking=True).int() if on_gpu else out.int()


def _word(routes: Tensor) -> torch.dtype:
    """Return the widest integers of which the experts of a token in one layer are a whole number."""
    size = routes.shape[-1] * routes.element_size()
    words = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
    return next(word for n_bytes, word in words.items() if size % n_bytes == 0)


def replay_from_store() -> None:
    """Has slime's trainer replay routes from where they are; routes of the wide types stay slime's matter."""
    from slime.utils.routing_replay import RoutingReplay

    wrap_once(*locate("prepare_routed_experts_for_routing_replay"), _prepare_or_refer)
    wrap_once(RoutingReplay, "record", _record_or_keep)


def _record_or_keep(record: Callable[[Any, Any], None], replay: Any, top_indices: Any) -> None:
    if isinstance(top_indices, LayerRoutes):
        replay.top_indices_list.append(top_indices)
    else:
        record(replay, top_indices)


def _prepare_or_refer(
    prepare: Callable[..., Any], routes: Sequence[Tensor], tokens: Sequence[Tensor], *, num_experts: int, **layout: Any
) -> Any:
    if any(response.dtype != narrow_type(num_experts) for response in routes):
        return prepare(routes, tokens, num_experts=num_experts, **layout)
    starts = np.cumsum([0, *(len(response) for response in routes)])
    # slime lays out the rows' numbers in the place of the rows, which tells where each row goes. They are negative,
    # since slime's padding counts upwards from 0.
    numbers = [-1 - torch.arange(start, end)[:, None, None] for start, end in itertools.pairwise(starts)]
    laid_out = prepare(numbers, tokens, num_experts=2**62, **layout).flatten().numpy()
    return MicroBatchRoutes([_piece(run, routes, starts, num_experts) for run in _runs(laid_out, -1 - starts)])


def _runs(laid_out: np.ndarray, firsts: np.ndarray) -> list[np.ndarray]:
    """Return the parts of a layout that are rows of one response one after another, or padding that counts upwards.

    firsts: the numbers of the responses' first rows.
    """
    place, is_row = np.arange(len(laid_out)), laid_out < 0
    run = np.where(is_row, laid_out + place, laid_out - place)
    begins = (np.diff(run) != 0) | (np.diff(is_row) != 0) | np.isin(laid_out[1:], firsts)
    return np.split(laid_out, np.flatnonzero(begins) + 1)


def _piece(run: np.ndarray, routes: Sequence[Tensor], starts: np.ndarray, experts: int) -> Tensor:
    """Return the routes of a run."""
    if run[0] >= 0:
        _, *shape = routes[0].shape
        width = shape[0] * shape[1]
        count = torch.arange(int(run[0]) * width, int(run[-1] + 1) * width) % experts
        return count.to(routes[0].dtype).reshape(len(run), *shape)
    row = int(-1 - run[0])
    index = int(np.searchsorted(starts, row, side="right")) - 1
    return routes[index][row - starts[index] :][: len(run)]
