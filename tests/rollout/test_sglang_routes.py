from __future__ import annotations

import importlib
import re
import sys
import types
from pathlib import Path

import torch

from sat_slime.rollout import sglang_routes
from sat_slime.rollout.sglang_routes import NarrowBuffer


def test_a_buffer_keeps_experts_in_bytes_and_marks_what_is_none():
    buffer = NarrowBuffer((6, 2, 3), pin_memory=False)
    experts = torch.tensor([[[0, 127, 254], [1, 2, 3]], [[-1, 255, 300], [4, 5, 2**31 - 1]]], dtype=torch.int32)
    buffer[torch.tensor([4, 1])] = experts
    assert buffer.element_size() == 1 and buffer.numel() == 36
    assert buffer[torch.tensor([4])].tolist() == [[[0, 127, 254], [1, 2, 3]]]
    assert buffer[torch.tensor([1])].tolist() == [[[255, 255, 255], [4, 5, 255]]]


def test_it_does_something_only_where_the_environment_asks(monkeypatch):
    class BaseHostCache:
        def __init__(self, num_tokens, num_layers, topk_size, name):
            self.buffer = torch.zeros(num_tokens, num_layers, topk_size, dtype=torch.int32)

    base = types.SimpleNamespace(BaseHostCache=BaseHostCache)
    monkeypatch.setitem(sys.modules, "sglang", types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "sglang.srt", types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "sglang.srt.state_capturer", types.SimpleNamespace(base=base))
    monkeypatch.delenv(sglang_routes.VARIABLE, raising=False)
    sglang_routes.install()
    assert BaseHostCache(4, 2, 3, "routed_experts").buffer.dtype == torch.int32
    monkeypatch.setenv(sglang_routes.VARIABLE, "1")
    sglang_routes.install()
    sglang_routes.install()
    assert BaseHostCache(4, 2, 3, "routed_experts").buffer.dtype == torch.uint8
    assert BaseHostCache(4, 2, 3, "indexer_topk").buffer.dtype == torch.int32


def test_sglang_finds_the_plugin_by_this_packages_entry_point():
    root = Path(sglang_routes.__file__).parents[2]
    named = re.search(
        r'\[project.entry-points."sglang.srt.plugins"\]\n\w+ = "(.+):(.+)"', (root / "pyproject.toml").read_text()
    )
    assert named and getattr(importlib.import_module(named[1]), named[2]) is sglang_routes.install
