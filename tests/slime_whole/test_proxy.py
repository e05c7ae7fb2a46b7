"""Behind an HTTP proxy that answers nobody, the real slime still finds its engines."""

import pytest
from test_faults import SETTINGS

from sat_slime.launch.local_ray import start_ray, stop_ray
from sat_slime.launch.small_run import OBJECT_STORE_BYTES, RAY_ENVIRONMENT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
DEAD = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}


def test_a_run_on_a_cluster_with_a_dead_proxy(slime, monkeypatch, tmp_path):
    """Ray is started beforehand, with the proxy and without exceptions, so that its workers inherit those."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    ray = start_ray(2, 8, OBJECT_STORE_BYTES, RAY_ENVIRONMENT | DEAD | {"no_proxy": "", "NO_PROXY": "corp.example"})
    try:
        for name, value in DEAD.items():
            monkeypatch.setenv(name, value)
        for name in ("no_proxy", "NO_PROXY"):  # set by the client that looked for Ray
            monkeypatch.delenv(name, raising=False)
        run = slime.launch("proxied", "--address", ray.address, *SETTINGS, "--set", "pipeline.iterations=2")
    finally:
        stop_ray(ray)
    assert run.code == 0, run.output
    assert len(run.rows()) == 2
