"""What nodes say of themselves, and what is told of it: made-up nodes of a cluster, and this machine."""

from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.launch.nodes import address_of, needed_paths, node_findings

CONFIGS = Path(__file__).parents[2] / "configs"


IMAGE = {
    "numpy": "1.26.4",
    "transformer_engine": "2.10.0",
    "fused_weight_gradient_mlp_cuda": "",
    "sglang_router": "0.3.2+slime",
}
"""What slime's image has."""


def config(*overrides):
    return load_config(CONFIGS / "models" / "qwen3-4b.yaml", overrides)


def node(number=1, **changes):
    address = f"10.0.0.{number}"
    return {
        "name": address,
        "gpus": 8.0,
        "interfaces": {"lo": "127.0.0.1", "eth0": address, "ib0": f"192.168.5.{number}", "ib1": None},
        "slime_address": address,
        "missing": [],
        "packages": IMAGE,
        **changes,
    }


def told(*nodes, of=None):
    return [f"{f.mark} {f.what}: {f.detail}" for f in node_findings(of or config(), nodes)]


def test_two_sound_nodes():
    assert told(node(1), node(2)) == ["OK network: 10.0.0.1 on eth0, 10.0.0.2 on eth0"]
    assert told(node()) == [], "one node needs no network"


NETWORK = [
    (
        {"slime_address": "127.0.0.1"},
        "FAIL network: node 10.0.0.2: slime's servers listen on 127.0.0.1, where no",
    ),
    ({"slime_address": "192.168.5.2"}, "WARN network: node 10.0.0.2: slime's servers listen on 192.168.5.2 (ib0), Ray"),
    ({"slime_address": "10.0.0.1"}, "FAIL network: node 10.0.0.2: SLIME_HOST_IP is 10.0.0.1, which is not an address"),
    (
        {"missing": ["slime.prompt-data"]},
        "FAIL files: slime.prompt-data is /d.jsonl: node 10.0.0.2 does not see it, others do: put it on a disk",
    ),
]


@pytest.mark.parametrize("changes, line", NETWORK, ids=[line[:50] for _, line in NETWORK])
def test_what_a_second_node_lacks(changes, line):
    lines = [
        each for each in told(node(1), node(2, **changes), of=config("slime.prompt-data=/d.jsonl")) if each[:2] != "OK"
    ]
    assert lines and lines[0].startswith(line)


def test_a_file_that_nobody_sees_is_the_head_nodes_to_tell():
    lacks = {"missing": ["slime.hf-checkpoint"]}
    assert not [line for line in told(node(1, **lacks), node(2, **lacks)) if "model" in line]


def test_paths_that_nodes_open():
    paths = needed_paths(
        config("slime.prompt-data=/d.jsonl@[0:10]", "slime.eval-prompt-data=[aime, /a.jsonl]", "slime.hf-checkpoint=/m")
    )
    assert paths["slime.prompt-data"] == "/d.jsonl" and paths["slime.eval-prompt-data (aime)"] == "/a.jsonl"
    assert paths["slime.hf-checkpoint"] == "/m"


def test_the_address_of_an_interface(monkeypatch):
    assert address_of("lo") == "127.0.0.1"
    monkeypatch.setenv("SLIME_HOST_IP", "10.0.0.7")
    assert address_of("") == "10.0.0.7"
    with pytest.raises(SystemExit, match="interface ib7 has no IPv4 address on"):
        address_of("ib7")


@pytest.mark.parametrize(
    "packages, settings, line",
    [
        ({"numpy": "2.1.0"}, [], "FAIL numpy: node 10.0.0.2: NumPy is 2.1.0, and slime ends"),
        ({"transformer_engine": None}, [], "FAIL transformer engine: node 10.0.0.2: Transformer Engine is not"),
        ({"transformer_engine": None}, ["slime.transformer-impl=local"], None),
        ({"fused_weight_gradient_mlp_cuda": None}, [], "FAIL apex: node 10.0.0.2: Apex's fused_weight_gradient"),
        ({"fused_weight_gradient_mlp_cuda": None}, ["slime.no-gradient-accumulation-fusion=true"], None),
        ({"sglang_router": "0.3.2"}, [], None),  # without R3 nothing is lost
        ({"sglang_router": None}, [], "FAIL router: node 10.0.0.2: sglang-router is not installed"),
        ({"sglang_router": None}, ["slime.sglang-router-ip=10.0.0.9"], None),
        ({"numpy": "2.1.0", "transformer_engine": None, "sglang_router": None}, ["cluster.device=cpu"], None),
    ],
)
def test_packages_that_fail_minutes_later(packages, settings, line):
    lines = told(node(1), node(2, packages={**IMAGE, **packages}), of=config(*settings))
    found = [text for text in lines if not text.startswith("OK network")]
    assert len(found) == (line is not None) and all(text.startswith(line) for text in found), found


def test_a_router_that_drops_routes_is_told_where_they_are_replayed_and_nodes_share_a_line():
    r3 = load_config(CONFIGS / "paper" / "qwen3-30b-a3b.yaml", ["method.r3=true"])
    lines = told(*(node(number, packages={**IMAGE, "sglang_router": "0.3.2"}) for number in (1, 2, 3)), of=r3)
    (line,) = [line for line in lines if "router" in line]
    assert line.startswith("FAIL router: node 10.0.0.1 (and 2 more): sglang-router is 0.3.2, and of its builds slime's")
