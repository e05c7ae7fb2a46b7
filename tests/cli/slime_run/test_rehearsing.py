"""What a rehearsal says of memory before it starts, and that its advice works."""

from pathlib import Path

import pytest
from rich.console import Console

from sat_slime.cli.slime_run import rehearsing
from sat_slime.cli.slime_run.rehearsing import Rehearsal
from sat_slime.config import load_config
from sat_slime.launch.memory import GIB, Size
from sat_slime.launch.memory import Sizes as There
from sat_slime.rehearsal.thin import Sizes, thin_settings

RECIPES = Path(__file__).parents[3] / "configs" / "recipes"


@pytest.fixture
def judged(monkeypatch):
    def judge(left, sizes=Sizes(), recipe="qwen3-30b-a3b-8gpus"):  # noqa: B008
        """The check on memory, on a machine of 64 GiB of which other programs leave so many to Ray."""
        there = There(Size(0, "none"), Size(64 * GIB, "here", taken=(0.95 * 64 - left) * GIB))
        monkeypatch.setattr(rehearsing, "left_here", lambda: there)
        file = RECIPES / f"{recipe}.yaml"
        rehearsal = Rehearsal(file, load_config(file), sizes, True, Console(quiet=True))
        rehearsal.folder = Path("/nowhere")
        rehearsal.thin = thin_settings(rehearsal.config, rehearsal.folder, sizes).config
        rehearsal._judge_memory(24)
        return rehearsal, rehearsal.checks[-1]

    return judge


def test_a_rehearsal_that_ray_would_kill_fails_at_once(judged):
    rehearsal, check = judged(64)
    assert check.mark == "OK"
    needs = rehearsal.estimate / GIB
    assert [judged(left * needs)[1].mark for left in (0.99, 1.05, 1.2)] == ["FAIL", "WARN", "OK"]
    assert judged(needs / 2)[0].failed
