"""A run of the real slime that is disturbed twice comes through by itself: a short campaign of chaos_on_slime.py."""

from __future__ import annotations

import pytest

pytest.importorskip("psutil")
import chaos_on_slime

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("kind", chaos_on_slime.KINDS)
def test_a_run_that_is_disturbed_comes_through_by_itself(slime, tmp_path, kind):
    assert chaos_on_slime.campaign(tmp_path, kind, 2, seed=0, places=slime.settings) == []
