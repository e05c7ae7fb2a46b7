from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest
import torch

from sat_slime.config.schema import LabConfig
from sat_slime.lab.engine import Server, server_environment
from sat_slime.rollout import sglang_on_gpu


@pytest.fixture
def gpu(monkeypatch):
    """A driver's file, and a torch that sees its GPU."""
    monkeypatch.setattr(sglang_on_gpu, "DEVICES", [__file__])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def test_a_server_on_a_gpu_is_left_to_it(gpu, tmp_path):
    server = Server(LabConfig(), tmp_path)
    words, environment = server.arguments("/m", 7), server_environment()
    assert "--device" not in words and words[words.index("--attention-backend") + 1] == "triton"
    assert environment.items() >= sglang_on_gpu.ENVIRONMENT.items()
    assert not {"SGLANG_USE_CPU_ENGINE", "CUDA_VISIBLE_DEVICES", "TORCHDYNAMO_DISABLE"} & environment.keys()


def test_sglang_finds_it():
    project = (Path(sglang_on_gpu.__file__).parents[2] / "pyproject.toml").read_text()
    named = re.search(r'\[project.entry-points."sglang.srt.plugins"\]\n(?:.+\n)*sat_slime_gpu = "(.+):(.+)"', project)
    assert named and getattr(importlib.import_module(named[1]), named[2]) is sglang_on_gpu.install


def test_the_real_sglang_has_what_is_replaced():
    root = importlib.util.find_spec("sglang")
    if root is None:
        pytest.skip("the lab runtime needs the engines: scripts/setup.sh")
    srt = Path(root.submodule_search_locations[0]) / "srt"
    experts = (srt / "layers/moe/moe_runner/triton_utils/fused_moe.py").read_text()
    assert experts.count("compute_type=compute_type,") == experts.count("    invoke_fused_moe_kernel(\n") == 2
    assert "\ndef enable_fused_set_kv_buffer(forward_batch" in (srt / "models/utils.py").read_text()
