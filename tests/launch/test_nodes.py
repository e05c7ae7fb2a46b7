"""What nodes say of themselves, and what is told of it: made-up nodes of a cluster, and this machine."""

import pytest

from sat_slime.launch.nodes import address_of, node_facts, node_findings


def node(number=1, **changes):
    address = f"10.0.0.{number}"
    return {"name": address, "slime_address": address, **changes}


@pytest.mark.parametrize(
    "address, line",
    [
        ("10.0.0.2", None),
        ("127.0.0.1", "FAIL network: node 10.0.0.2: slime's servers listen on 127.0.0.1, where"),
        ("192.168.5.2", "WARN network: node 10.0.0.2: slime's servers listen on 192.168.5.2"),
    ],
)
def test_a_second_node_that_others_may_not_reach(address, line):
    found = node_findings([node(1), node(2, slime_address=address)])
    lines = [f"{one.mark} {one.what}: {one.detail}" for one in found]
    assert len(lines) == (line is not None) and all(text.startswith(line) for text in lines), lines


def test_this_node(monkeypatch):
    assert address_of("lo") == "127.0.0.1"
    monkeypatch.setenv("SLIME_HOST_IP", "10.0.0.7")
    assert address_of("") == node_facts()["slime_address"] == "10.0.0.7"
    with pytest.raises(SystemExit, match="interface ib7 has no IPv4 address on"):
        address_of("ib7")
