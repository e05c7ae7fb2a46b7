"""How long a run takes is told from the speeds of its first half."""

import subprocess

import pytest
from whole_run import COMMAND, environment

from sat_slime.config import load_config
from sat_slime.launch.duration import given, measured, time_of

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]

TOLERANCE = 0.2
ITERATIONS = 24


@pytest.mark.parametrize(("method", "lag"), [("sat-gspo-r3", 8), ("sat-gspo", 0)])
def test_a_first_half_tells_how_long_the_second_takes(slime, method, lag):
    counts = {"pipeline.iterations": ITERATIONS, "slime.eval-interval": 4, "slime.save-interval": 4}
    options = [word for key, value in counts.items() for word in ("--set", f"{key}={value}")]
    run = slime.launch(f"duration-{lag}", "--method", method, "--lag", str(lag), *options)
    assert run.code == 0, run.output
    config, half = load_config(run.folder / "config.yaml"), ITERATIONS // 2
    metrics, times = run.rows(), run.rows("times.jsonl")
    took = [sum(value for key, value in row.items() if key.startswith("time/")) for row in times]
    assert len(took) == ITERATIONS
    known = measured(config, metrics[:half], times[:half])
    parts = {**given(config, known.length), **known.parts}
    assert time_of(config, parts, half, ITERATIONS) == pytest.approx(sum(took[half:]), rel=TOLERANCE)
    assert parts["start"] + time_of(config, parts, 0, ITERATIONS) == pytest.approx(sum(took), rel=TOLERANCE)
    checked = subprocess.run([*COMMAND, "check", str(run.folder)], capture_output=True, text=True, env=environment())
    assert "OK    time            measured: " in checked.stdout
