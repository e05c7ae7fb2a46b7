"""A node of the run that dies ends its job, on a real Ray of three nodes; another node's death does not."""

import subprocess
import sys

import pytest

from sat_slime.config.exits import NODE_DIED

PROGRAM = """
import sys, threading
import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group
from sat_slime.plugin import driver
from sat_slime.plugin.inside.slime_processes import Host, nodes_of

small = {"object_store_memory": 100 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
nodes = {node.node_id: node for node in (cluster.add_node(num_cpus=1, wait=True, **small) for _ in range(2))}
ray.init(cluster.address, log_to_driver=False)
group = placement_group([{"CPU": 1}])
ray.get(group.ready())
host = Host(None, None, None, None, nodes=nodes_of({"actor": (group, [0], [0]), "critic": None}))
(of_run,) = host.nodes
(other,) = set(nodes) - {of_run}
driver.NODES_SEEN_EVERY_S = 0.1
driver.end_with_its_nodes(host)

cluster.remove_node(nodes[other])
while [node["Alive"] for node in ray.nodes() if node["NodeID"] == other] != [False]:
    pass
print("without the other node:", host.dead_nodes(), flush=True)
cluster.remove_node(nodes[of_run])
threading.Event().wait()
"""


@pytest.mark.engine
def test_a_job_ends_with_a_node_of_its_own():
    pytest.importorskip("ray.cluster_utils", reason="the embedded runtime needs the engines: scripts/setup.sh")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert "without the other node: []" in done.stdout, done.stderr
    assert done.returncode == NODE_DIED
    assert "sat_slime: node 1" in done.stderr and "on which this run was, has died" in done.stderr
