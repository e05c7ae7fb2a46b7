import sys

import pytest
from stand_in_runtime import FakeRuntime


@pytest.fixture
def runtime(monkeypatch, tmp_path):
    """A stand-in for the lab runtime, in a working directory of its own."""
    fake = FakeRuntime()
    fake.stand_in(monkeypatch)
    monkeypatch.setattr("sat_slime.report.run.figures", lambda *_: ())  # drawn in their own tests
    monkeypatch.chdir(tmp_path)
    return fake


@pytest.fixture
def without_vl_convert(monkeypatch):
    """A Python that cannot import what turns figures into pictures, nor has done so before."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    for module in ("run", "page", "charts"):  # all that cannot be imported then
        monkeypatch.delitem(sys.modules, f"sat_slime.report.{module}", raising=False)
