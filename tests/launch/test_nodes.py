"""What nodes say of themselves, and what is told of it: made-up nodes of a cluster, and this machine."""

from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.launch.nodes import address_of, node_facts, node_findings

PAPER = Path(__file__).parents[2] / "configs" / "paper" / "qwen3-30b-a3b.yaml"
R3 = "method.r3=true"


def node(number=1, **changes):
    address = f"10.0.0.{number}"
    sound = {"name": address, "gpus": 8.0, "slime_address": address, "apex": True, "router": "0.3.2+slime"}
    return sound | changes


@pytest.mark.parametrize(
    "changes, settings, line",
    [
        ({}, [R3], None),
        ({"slime_address": "127.0.0.1"}, [], "FAIL network: node 10.0.0.2: slime's servers listen on 127.0.0.1, where"),
        (
            {"slime_address": "192.168.5.2"},
            [],
            "WARN network: node 10.0.0.2: slime's servers listen on 192.168.5.2",
        ),
        ({"apex": False}, [], "FAIL apex: node 10.0.0.2: Apex's fused_weight_gradient"),
        ({"apex": False}, ["slime.no-gradient-accumulation-fusion=true"], None),
        ({"router": "0.3.2"}, [], None),  # without R3 nothing is lost
        ({"router": "0.3.2"}, [R3], "FAIL router: node 10.0.0.2: sglang-router is 0.3.2, and of its builds slime's"),
        ({"router": "0.3.2"}, [R3, "slime.sglang-router-ip=10.0.0.9"], None),
        ({"apex": False, "router": "0.3.2"}, ["cluster.device=cpu"], None),
    ],
)
def test_what_a_second_node_lacks(changes, settings, line):
    found = node_findings(load_config(PAPER, settings), [node(1), node(2, **changes)])
    lines = [f"{one.mark} {one.what}: {one.detail}" for one in found]
    assert len(lines) == (line is not None) and all(text.startswith(line) for text in lines), lines


def test_this_node(monkeypatch):
    assert address_of("lo") == "127.0.0.1"
    monkeypatch.setenv("SLIME_HOST_IP", "10.0.0.7")
    assert address_of("") == node_facts()["slime_address"] == "10.0.0.7"
    with pytest.raises(SystemExit, match="interface ib7 has no IPv4 address on"):
        address_of("ib7")
