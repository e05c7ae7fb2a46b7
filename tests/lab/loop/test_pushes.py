"""What the loop does with the canary's verdict on a push, with stand-ins for ranks and engines."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("httpx", reason="the lab runtime needs the engines: scripts/setup.sh")

from sat_slime.config.schema import LabConfig
from sat_slime.lab.failures import PartFailure
from sat_slime.lab.loop.batch_order import BatchPipeline
from sat_slime.lab.loop.pipeline import RunLog
from sat_slime.rollout.canary import EngineScores

TRAINER = np.linspace(-4, -1, 128)


def pushed(tmp_path, canary: str, version: str = "0") -> BatchPipeline:
    """A loop after the push of version 0, which its one engine took, and reports as `version`."""
    config = LabConfig.model_validate({"pipeline": {"canary": canary}})
    pipeline = BatchPipeline(config, tmp_path, mock.Mock(spec=RunLog), None)
    scores = {"rollout engine 0": EngineScores(TRAINER + 1e-4, version, 0)}
    pipeline.engines = SimpleNamespace(start_score=mock.Mock(), scores=lambda futures: scores)
    pipeline.trainer = SimpleNamespace(score=lambda responses: TRAINER)
    pipeline._check_engines(0)
    return pipeline


def test_warn_logs_the_engine_and_goes_on(tmp_path):
    pipeline = pushed(tmp_path, "warn", version="3")
    text, level = pipeline.log.message.call_args.args
    assert level == "warning" and text.startswith("canary: rollout engine 0 says that it holds version 3, not 0")
    assert pipeline.canary_metrics["canary/faults"] == 1


def test_stop_ends_the_run_and_names_the_setting(tmp_path):
    with pytest.raises(PartFailure, match=r"rollout engine 0 says .*pipeline\.canary is stop; go on with --resume"):
        pushed(tmp_path, "stop", version="3")


@pytest.mark.parametrize("canary", ["warn", "stop"])
def test_a_push_that_passes_is_only_measured(canary, tmp_path):
    pipeline = pushed(tmp_path, canary)
    pipeline.log.message.assert_not_called()
    assert pipeline.canary_metrics["canary/d"] == pytest.approx(1e-4)
    assert pipeline.canary.levels == [pytest.approx(1e-4)]


def test_none_asks_nobody(tmp_path):
    pipeline = pushed(tmp_path, "none", version="3")
    pipeline.engines.start_score.assert_not_called()
    assert not pipeline.canary_metrics


def test_weights_that_an_engine_lost_are_found_before_the_next_push(tmp_path):
    pipeline = pushed(tmp_path, "warn")
    pipeline.engines.scores = lambda futures: {"rollout engine 0": EngineScores(TRAINER - 1, "0", 0)}
    pipeline._check_engines_again()
    text, level = pipeline.log.message.call_args.args
    assert level == "warning" and "rollout engine 0 differs from the trainer by 1 nats" in text
    pipeline.engines.scores = lambda futures: {"rollout engine 0": EngineScores(TRAINER, "1", 0)}
    pipeline._check_engines(1)
    assert pipeline.canary_metrics["canary/faults"] == 1
