"""What nodes say of themselves, and what is told of it: made-up nodes of a cluster, and this machine."""

from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.launch.nodes import address_of, needed_paths, node_findings

CONFIGS = Path(__file__).parents[2] / "configs"
APEX = "fused_weight_gradient_mlp_cuda"
IMAGE = {"numpy": "1.26.4", "transformer_engine": "2.10.0", APEX: "", "sglang_router": "0.3.2+slime"}
"""What slime's image has."""


def config(*overrides):
    return load_config(CONFIGS / "models" / "qwen3-4b.yaml", overrides)


def node(number=1, **changes):
    address = f"10.0.0.{number}"
    sound = {"name": address, "gpus": 8.0, "slime_address": address, "missing": [], "packages": IMAGE}
    return sound | changes


def told(*nodes, of=None):
    return [f"{f.mark} {f.what}: {f.detail}" for f in node_findings(of or config(), nodes)]


def lacks(packages):
    return {"packages": IMAGE | packages}


LOCAL, UNFUSED = "slime.transformer-impl=local", "slime.no-gradient-accumulation-fusion=true"
TWO = "node 10.0.0.2"


@pytest.mark.parametrize(
    "changes, settings, line",
    [
        ({}, [], None),
        ({"slime_address": "127.0.0.1"}, [], f"FAIL network: {TWO}: slime's servers listen on 127.0.0.1, where no"),
        ({"slime_address": "192.168.5.2"}, [], f"WARN network: {TWO}: slime's servers listen on 192.168.5.2, and Ray"),
        ({"missing": ["slime.prompt-data"]}, [], "FAIL files: slime.prompt-data is /d.jsonl: node 10.0.0.2 does not"),
        (lacks({"numpy": "2.1.0"}), [], f"FAIL numpy: {TWO}: NumPy is 2.1.0, and slime ends"),
        (lacks({"transformer_engine": None}), [], f"FAIL transformer engine: {TWO}: it is not"),
        (lacks({"transformer_engine": None}), [LOCAL], None),
        (lacks({APEX: None}), [], f"FAIL apex: {TWO}: its fused_weight_gradient"),
        (lacks({APEX: None}), [UNFUSED], None),
        (lacks({"sglang_router": "0.3.2"}), [], None),  # without R3 nothing is lost
        (lacks({"sglang_router": None}), [], f"FAIL router: {TWO}: sglang-router is not installed"),
        (lacks({"sglang_router": None}), ["slime.sglang-router-ip=10.0.0.9"], None),
        (lacks({"numpy": "2.1.0", "sglang_router": None}), ["cluster.device=cpu"], None),
    ],
)
def test_what_a_second_node_lacks(changes, settings, line):
    lines = told(node(1), node(2, **changes), of=config("slime.prompt-data=/d.jsonl@[0:10]", *settings))
    assert len(lines) == (line is not None) and all(text.startswith(line) for text in lines), lines


def test_a_router_that_drops_routes_is_told_where_they_are_replayed():
    r3 = load_config(CONFIGS / "paper" / "qwen3-30b-a3b.yaml", ["method.r3=true"])
    (line,) = told(node(1, **lacks({"sglang_router": "0.3.2"})), of=r3)
    assert line.startswith("FAIL router: node 10.0.0.1: sglang-router is 0.3.2, and of its builds slime's")


def test_a_file_that_nobody_sees_is_the_head_nodes_to_tell():
    lacking = {"missing": ["slime.hf-checkpoint"]}
    assert told(node(1, **lacking), node(2, **lacking)) == []
    assert (
        needed_paths(config("slime.eval-prompt-data=[aime, /a.jsonl]"))["slime.eval-prompt-data (aime)"] == "/a.jsonl"
    )


def test_the_address_of_an_interface(monkeypatch):
    assert address_of("lo") == "127.0.0.1"
    monkeypatch.setenv("SLIME_HOST_IP", "10.0.0.7")
    assert address_of("") == "10.0.0.7"
    with pytest.raises(SystemExit, match="interface ib7 has no IPv4 address on"):
        address_of("ib7")
