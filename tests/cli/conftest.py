import pytest
from stand_in_runtime import FakeRuntime


@pytest.fixture
def runtime(monkeypatch, tmp_path):
    """A stand-in for the embedded runtime, in a working directory of its own."""
    fake = FakeRuntime()
    fake.stand_in(monkeypatch)
    monkeypatch.setattr("sat_slime.report.run.run_report.figures", lambda *_: ())  # drawn in their own tests
    monkeypatch.chdir(tmp_path)
    return fake
