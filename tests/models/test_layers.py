"""The layers without Transformer Engine equal attention that is written out, and Megatron's own blocks."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("megatron.core")
from sat_slime.models.layers import Grid, PackedAttention

LENGTHS = [4, 12, 8]


def edges(lengths=LENGTHS):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def rows_of(rank, ranks):
    """The rows of the packed whole that a rank of context parallelism holds, as slime cuts them."""
    rows, start = [], 0
    for length in LENGTHS:
        piece = length // (2 * ranks)
        for index in (rank, 2 * ranks - 1 - rank):
            rows += range(start + index * piece, start + (index + 1) * piece)
        start += length
    return torch.tensor(rows)


def attention_of_each(query, key, value):
    """Causal attention within each sequence, where several heads of the query share a head of the key."""
    out = []
    for q, k, v in zip(*(x.split(LENGTHS) for x in (query, key, value)), strict=True):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(len(q), len(q)).tril() == 0, -torch.inf)
        out.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1))
    return torch.cat(out)


def inputs():
    torch.manual_seed(0)
    n = sum(LENGTHS)
    return torch.randn(n, 4, 8), torch.randn(n, 2, 8), torch.randn(n, 2, 8)


def test_packed_attention_is_that_of_each_sequence():
    attention = PackedAttention()
    packed = SimpleNamespace(cu_seqlens_q=edges())
    ours = [x.requires_grad_() for x in inputs()]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    out, expected = attention(*ours, packed_seq_params=packed), attention_of_each(*theirs)
    torch.testing.assert_close(out, expected)
    weights = torch.randn_like(out)
    for x in ((out * weights).sum(), (expected * weights).sum()):
        x.backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_pieces_of_every_rank_stand_where_the_whole_has_them(ranks):
    whole = Grid.of(edges())
    grids = [Grid.of(edges(), ranks, rank) for rank in range(ranks)]
    for rank, grid in enumerate(grids):
        assert (grid.sequences, grid.longest) == (whole.sequences, whole.longest)
        assert torch.equal(grid.slots, grids[0].slots)
        assert torch.equal(grid.own, whole.slots[rows_of(rank, ranks)])
    assert torch.equal(grids[0].slots, torch.cat([grid.own for grid in grids]))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_two_attends_as_the_whole(rank, monkeypatch):
    tensors, order = inputs(), torch.cat([rows_of(r, 2) for r in (0, 1)])
    gathered = iter([x[order] for x in tensors])
    monkeypatch.setattr(
        "sat_slime.models.layers.gather_from_sequence_parallel_region", lambda own, group: next(gathered)
    )
    two_ranks = SimpleNamespace(size=lambda: 2, rank=lambda: rank)  # the group as one process sees it
    attention = PackedAttention(pg_collection=SimpleNamespace(cp=two_ranks))
    own = rows_of(rank, 2)
    out = attention(*(x[own] for x in tensors), packed_seq_params=SimpleNamespace(cu_seqlens_q=edges()))
    torch.testing.assert_close(out, attention_of_each(*tensors)[own])
