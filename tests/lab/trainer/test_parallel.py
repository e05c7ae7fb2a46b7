"""What joining the process groups leaves in a process on a CPU, in a process of its own."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("megatron.core", reason="the lab runtime needs the engines: scripts/setup.sh")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts threads and page faults as Linux tells them")

PROGRAM = """
import json, os, resource, statistics, sys
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from sat_slime.lab.trainer import parallel

def faults():
    rounds = []
    for _ in range(51):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2**20)  # 4 MiB, a thousand pages
        rounds.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return statistics.median(rounds)  # the kernel may take pages back now and then, and the heap grows at first

def threads():
    names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
    return names.count("gloo_tcp_loop")

original = distributed_c10d.ProcessGroupGloo
parallel.initialize()
total = torch.ones(3)
dist.all_reduce(total)
print(json.dumps({
    "groups": len(distributed_c10d._world.pg_map),
    "threads": threads(),
    "restored": distributed_c10d.ProcessGroupGloo is original,
    "total": total.tolist(),
    "faults": faults(),
}))
parallel.shutdown()
"""


@pytest.fixture(scope="module")
def told():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_all_groups_share_one_device(told):
    assert told["groups"] > 10 and told["threads"] == 1 and told["restored"]
    assert told["total"] == [1.0, 1.0, 1.0]


def test_freed_memory_is_used_again_without_page_faults(told):
    assert told["faults"] < 100
