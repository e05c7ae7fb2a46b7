"""A node of the run that dies ends its job, on a real Ray of three nodes; another node's death does not."""

import subprocess
import sys

import pytest

from sat_slime.config.exits import NODE_DIED

CLUSTER = """
import threading
import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group
from sat_slime.plugin import driver
from sat_slime.plugin.driver import Host, nodes_of

small = {"object_store_memory": 100 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
nodes = {node.node_id: node for node in (cluster.add_node(num_cpus=1, wait=True, **small) for _ in range(2))}
ray.init(cluster.address, log_to_driver=False)
"""
WATCHED = """
group = placement_group([{"CPU": 1}])
ray.get(group.ready())
host = Host(None, None, None, None, nodes=nodes_of({"actor": (group, [0], [0]), "critic": None}))
(of_run,) = host.nodes
(other,) = set(nodes) - {of_run}
driver.NODES_SEEN_EVERY_S = 0.1
driver.end_with_its_nodes(host)
driver.wait_for_deaths(host)  # not with one node

cluster.remove_node(nodes[other])
while [node["Alive"] for node in ray.nodes() if node["NodeID"] == other] != [False]:
    pass
print("without the other node:", host.dead_nodes(), flush=True)
cluster.remove_node(nodes[of_run])
threading.Event().wait()
"""


def run(program):
    pytest.importorskip("ray.cluster_utils", reason="the lab runtime needs the engines: scripts/setup.sh")
    done = subprocess.run([sys.executable, "-c", CLUSTER + program], capture_output=True, text=True)
    assert done.returncode == NODE_DIED, done.stderr
    assert "sat_slime: node 1" in done.stderr and "on which this run was, has died" in done.stderr
    return done.stdout


@pytest.mark.engine
def test_a_job_ends_with_a_node_of_its_own():
    assert "without the other node: []" in run(WATCHED)
