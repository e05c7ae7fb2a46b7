"""What no_proxy becomes, held against `requests` itself, by which slime and Ray's client ask."""

import os
import socket

import pytest

from sat_slime.runs.proxies import own_address, without_proxy

requests_utils = pytest.importorskip("requests.utils")
PROXY = {"http_proxy": "http://user:secret@proxy.example:3128/", "HTTPS_PROXY": "proxy.example:3129"}
NODES = ["10.1.2.3", "172.20.0.4", "192.168.7.1", "100.72.1.1", "127.0.0.1", "129.132.1.5", "fd00::7", "gpu-node-7"]


@pytest.mark.parametrize("theirs", [{}, {"no_proxy": ".corp.example"}, {"NO_PROXY": "a.example"}])
@pytest.mark.parametrize("host", NODES)
def test_requests_goes_around_the_proxy_to_every_node_and_through_it_to_others(monkeypatch, theirs, host):
    for name in (*PROXY, "https_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (PROXY | theirs).items():
        monkeypatch.setenv(name, value)
    for name, value in without_proxy(os.environ, NODES).items():
        monkeypatch.setenv(name, value)
    address = f"[{host}]" if ":" in host else host
    assert not requests_utils.get_environ_proxies(f"http://{address}:30000/health")
    for other in ("http://huggingface.co", "http://8.8.8.8", "http://11.0.0.1"):
        assert requests_utils.get_environ_proxies(other)


def test_what_the_user_excepts_stays_first():
    made = without_proxy({"no_proxy": "b.example, localhost", "NO_PROXY": "a.example"}, ["10.1.1.1", "5.6.7.8"])
    assert made["no_proxy"] == made["NO_PROXY"]
    entries = made["no_proxy"].split(",")
    assert entries[:3] == ["b.example", "localhost", "a.example"] and entries[-1] == "5.6.7.8"
    assert len(entries) == len(set(entries))
    assert without_proxy(made, ["5.6.7.8"]) == made, "a second time changes nothing"


@pytest.mark.needs_slime
@pytest.mark.parametrize("given", [None, "10.9.8.7"])
@pytest.mark.parametrize("route", [True, False])
@pytest.mark.parametrize("names", [["127.0.1.1", "10.0.0.3"], ["127.0.1.1"], []])
def test_an_own_address_is_the_one_that_slime_takes(monkeypatch, given, route, names):
    from slime.utils.http_utils import get_host_info

    if given:
        monkeypatch.setenv("SLIME_HOST_IP", given)
    if not route:
        monkeypatch.setattr("socket.socket.connect", lambda *_: (_ for _ in ()).throw(OSError("no route")))
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, 0)) for name in names]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: infos)
    assert own_address() == get_host_info()[1]
