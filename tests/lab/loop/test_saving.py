"""What is said when a checkpoint cannot be written, with stand-ins for the trainer: what happened, and what is left."""

from __future__ import annotations

import shutil
import signal
from types import SimpleNamespace
from unittest import mock

import pytest

pytest.importorskip("httpx", reason="the lab runtime needs the engines: scripts/setup.sh")

from sat_slime.config.schema import LabConfig
from sat_slime.lab import checkpoint
from sat_slime.lab.engine.engine_group import EngineGroup
from sat_slime.lab.failures import PartFailure
from sat_slime.lab.loop import pipeline as shared
from sat_slime.lab.loop.batch_order import BatchPipeline
from sat_slime.lab.loop.interruption import Interruption
from sat_slime.lab.loop.pipeline import RunLog
from sat_slime.lab.trainer.process import TrainerProcess

FULL = "SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)"


@pytest.fixture
def pipeline(tmp_path):
    log = mock.Mock(spec=RunLog)
    pipeline = BatchPipeline(LabConfig(), tmp_path, log, None)
    pipeline.versions = [0]
    (tmp_path / "weights" / "v000000").mkdir(parents=True)
    (tmp_path / "weights" / "v000000" / "model.safetensors").write_bytes(b"x" * 10_000)
    return pipeline


def save(pipeline, iteration, error=None) -> str:
    def call(method, *arguments):
        if error:
            raise error

    pipeline.iteration, pipeline.trainer = iteration, SimpleNamespace(call=call)
    if error is None:
        pipeline._save()
        return ""
    with pytest.raises(PartFailure if "killed" in str(error) else OSError) as caught:
        pipeline._save()
    assert [path.name for path in pipeline.checkpoints.iterdir()] == (["iteration-000004"] if iteration > 4 else [])
    return str(caught.value)


def test_a_trainer_that_died_is_not_a_full_disk(pipeline):
    died = PartFailure("trainer (process 7) was killed by SIGKILL")
    told = save(pipeline, 4, died)
    assert (
        told == f"{died}; so the checkpoint of iteration 4 is not saved, there is no earlier one: go on with --resume"
    )
    save(pipeline, 4)
    told = save(pipeline, 8, died)
    assert told.endswith(
        "; so the checkpoint of iteration 8 is not saved, iteration-000004 is whole: go on with --resume"
    )
    assert "space" not in told


@pytest.mark.parametrize("error", [PartFailure(f"trainer: {FULL}"), OSError(28, "No space left on device")])
def test_a_full_disk_is_said_with_its_path_and_remedy(pipeline, error):
    save(pipeline, 4)
    assert save(pipeline, 8, error) == (
        f"checkpoint of iteration 8 not saved: [Errno 28] No space left on device: '{pipeline.checkpoints}'; "
        "iteration-000004 is whole: free space and go on with --resume"
    )


def test_a_signal_in_the_last_checkpoint_does_not_cost_it(pipeline):
    interruption = pipeline.interruption = Interruption()
    pipeline.iteration = pipeline.config.pipeline.iterations - 1
    pipeline.log.stop_reason.return_value = "the score fell"
    saved = []

    def save():
        interruption.handle(signal.SIGINT, None)
        saved.append(pipeline.iteration)

    pipeline._save = save
    began = pipeline.iteration
    pipeline._finish_evaluation = lambda: setattr(pipeline, "iteration", began + 1)  # so that a checkpoint is due
    pipeline._loop()
    interruption.handle(signal.SIGINT, None)
    assert saved == [began + 1]


def no_room_for_copies(monkeypatch):
    def copytree(source, target):
        raise shutil.Error(
            [(str(source), str(target), f"[Errno 28] No space left on device: '{source}' -> '{target}'")]
        )

    monkeypatch.setattr(shutil, "copytree", mock.create_autospec(shutil.copytree, side_effect=copytree))


def test_a_copy_that_finds_the_disk_full_too(pipeline, monkeypatch):
    save(pipeline, 4)
    no_room_for_copies(monkeypatch)
    told = save(pipeline, 8, OSError("never asked"))
    assert f"No space left on device: '{pipeline.checkpoints}'" in told and "free space" in told and "(" not in told


def test_another_fault_of_the_disk_does_not_advise_to_free_space(pipeline):
    save(pipeline, 4)
    told = save(pipeline, 8, OSError(5, "Input/output error"))
    assert told == (
        f"checkpoint of iteration 8 not saved: [Errno 5] Input/output error: '{pipeline.checkpoints}'; "
        "iteration-000004 is whole: go on with --resume"
    )


def test_weights_that_do_not_fit_name_their_folder(pipeline):
    def call(method, *arguments):
        raise PartFailure(f"trainer: {FULL}")

    pipeline.trainer, pipeline.updates = SimpleNamespace(call=call), 3
    with pytest.raises(OSError, match=r"No space left on device: '.*/weights/v000003'$"):
        pipeline._broadcast()


def test_a_resume_whose_weights_do_not_fit_names_their_folder(pipeline, monkeypatch):
    save(pipeline, 4)
    pipeline.trainer = mock.create_autospec(TrainerProcess, instance=True)
    pipeline.engines = mock.create_autospec(EngineGroup, instance=True)
    no_room_for_copies(monkeypatch)
    with pytest.raises(OSError, match=rf"^\[Errno 28\] No space left on device: '{pipeline.weights}'$"):
        pipeline._restore(checkpoint.newest_whole(pipeline.checkpoints))


def test_an_initial_model_that_does_not_fit_names_its_folder(pipeline, monkeypatch):
    monkeypatch.setattr(shared, "is_model", lambda folder: True)
    no_room_for_copies(monkeypatch)
    with pytest.raises(OSError, match=rf"\[Errno 28\] No space left on device: '{pipeline.initial}'$"):
        pipeline._provide_initial_model(None)


def test_what_else_fails_before_a_warm_up_is_not_taken_for_the_cache(pipeline, monkeypatch):
    monkeypatch.setattr(shared, "is_model", lambda folder: False)
    pipeline.log.message.side_effect = OSError(12, "Cannot allocate memory")
    with pytest.raises(OSError, match=r"Cannot allocate memory$"):
        pipeline._provide_initial_model(None)
