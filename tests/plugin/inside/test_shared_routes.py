"""Routes are kept once on a node: what travels is a reference, and what is read is the object store's own memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hook_samples import StandIn, make_args, make_sample

from sat_slime.plugin.inside import shared_routes, versions
from sat_slime.plugin.inside.settings import DRIVEN
from sat_slime.plugin.inside.trainer_state import TrainerState
from sat_slime.plugin.rollout_hooks import log_rollout, on_sample
from sat_slime.runs.ray_start import PATIENCE


def batch(**other) -> tuple[list, object]:
    """Samples of two prompts as they were after the hooks, and their arguments."""
    args = make_args(**({DRIVEN: True} | other))
    samples = [make_sample(StandIn, index) for index in range(8)]
    for sample in samples:
        on_sample(args, sample, rollout_id=0)
    return samples, args


@pytest.mark.usefixtures("rollout_process")
def test_routes_travel_in_origins_and_the_trainer_has_them_where_slime_looks():
    samples, args = batch()
    before = [sample.rollout_routed_experts.clone() for sample in samples]
    log_rollout(0, args, samples, {}, 1.0)
    assert all(sample.rollout_routed_experts is None for sample in samples), "slime carries none"
    data = {
        "response_lengths": [sample.response_length for sample in samples],
        versions.CARRIER: [sample.metadata[versions.CARRIER] for sample in samples],
    }
    TrainerState(3).begin(data)
    assert versions.CARRIER not in data
    for routes, sent in zip(data["rollout_routed_experts"], before, strict=True):
        assert routes.dtype == torch.uint8 and torch.equal(routes, sent)


@pytest.mark.usefixtures("rollout_process")
@pytest.mark.parametrize(
    "other",
    [
        {DRIVEN: False},
        {"custom_convert_samples_to_train_data_path": "mine.convert"},
        {"rollout_data_transport": "nixl"},
        {"update_weight_transport": "disk"},
    ],
    ids=["own script", "own conversion", "nixl", "no versions"],
)
def test_where_our_trainer_may_not_take_them_routes_go_slimes_way(other):
    samples, args = batch(**other)
    log_rollout(0, args, samples, {}, 1.0)
    assert all(isinstance(sample.rollout_routed_experts, torch.Tensor) for sample in samples)


@pytest.mark.usefixtures("rollout_process")
def test_a_sample_without_routes_leaves_all_to_slime():
    samples, _ = batch()
    samples[3].rollout_routed_experts = None
    versions.send_origins(samples)
    shared_routes.send(samples)
    assert sum(sample.rollout_routed_experts is None for sample in samples) == 1


def test_runs_of_a_layout_do_not_cross_responses_or_padding():
    rows = lambda first, last: [-1 - row for row in range(first, last)]  # noqa: E731
    layout = [*rows(1, 3), 0, *rows(3, 5), *rows(5, 6), 0, 1, 2, *rows(0, 1), 0]
    runs = shared_routes._runs(np.array(layout), -1 - np.array([0, 3, 5, 6]))
    assert [run.tolist() for run in runs] == [rows(1, 3), [0], rows(3, 5), rows(5, 6), [0, 1, 2], rows(0, 1), [0]]


@pytest.mark.parametrize(("top_k", "dtype"), [(8, torch.uint8), (6, torch.uint8), (1, torch.uint8), (3, torch.int16)])
def test_a_layer_is_read_as_words_whatever_its_width(top_k, dtype):
    routes = torch.randint(0, 100, (40, 5, top_k)).to(dtype)
    layer = shared_routes.MicroBatchRoutes([routes[3:20], routes[30:31]])[:, 2]
    assert torch.equal(layer.to("cpu"), torch.cat([routes[3:20, 2], routes[30:31, 2]]).int())


IN_RAY = """
import gc, sys, tempfile
import numpy as np, ray, torch
from pathlib import Path
from sat_slime.plugin.inside import shared_routes, versions
from types import SimpleNamespace

SIZE = 64 * 2**20

def own():
    # Memory of this process alone, in bytes: what is shared does not count.
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous")) * 1024

@ray.remote
class Rank:
    def warm_up(self): return torch.zeros(8).sum().item()
    def read(self, references):
        before = own()
        batch = ray.get(references[0])
        routes = shared_routes.received(batch["round_number"])
        total = sum(int(one.sum()) for one in routes)
        return total, own() - before

with tempfile.TemporaryDirectory() as folder:
    ray.init(address="local", num_cpus=3, include_dashboard=False, object_store_memory=3 * SIZE, _temp_dir=folder)
    ranks = [Rank.remote() for _ in range(2)]
    ray.get([rank.warm_up.remote() for rank in ranks])
    routes = torch.ones((SIZE // 384, 48, 8), dtype=torch.uint8)
    before = own()
    stored = shared_routes.store(routes)
    samples = [SimpleNamespace(rollout_routed_experts=stored, metadata={versions.CARRIER: versions.Origin(3)})]
    del stored
    shared_routes.send(samples)
    reference = ray.put({"round_number": [samples[0].metadata[versions.CARRIER]]})
    assert not shared_routes._references, "what the rollout process knew is gone with its tensors"
    manager = own() - before
    del samples
    gc.collect()
    said = ray.get([rank.read.remote([reference]) for rank in ranks])
    print("ray", ray.__version__, "manager", manager, "ranks", said)
    for total, grown in said:
        assert total == routes.numel() and grown < SIZE / 4, said
    assert manager < SIZE / 4, manager
"""


@pytest.mark.needs_slime
def test_processes_of_a_node_read_the_same_memory_on_this_version_of_ray(tmp_path, monkeypatch):
    """Neither the rollout process nor a rank has a copy of its own: all read the object store's memory."""
    for name, value in PATIENCE.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "in_ray.py"
    script.write_text(IN_RAY)
    root = Path(shared_routes.__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, script], cwd=root, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]
