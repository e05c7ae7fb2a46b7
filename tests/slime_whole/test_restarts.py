"""A run of the real slime that is killed twice comes through by itself: a short campaign of chaos_on_slime.py."""

from __future__ import annotations

import pytest

pytest.importorskip("psutil")
import chaos_on_slime

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("kind", chaos_on_slime.KINDS)
def test_a_run_that_is_disturbed_comes_through_by_itself(slime, tmp_path, kind):
    done, faults = chaos_on_slime.campaign(tmp_path, 2, seed=0, places=slime.settings, kinds=[kind])
    assert not faults
    assert chaos_on_slime.counted(done) == 2 and not any(one.faults for one in done)
