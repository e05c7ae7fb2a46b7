"""The initial model of a run, which is its reference: copied from the cache, and never another one in its place."""

from __future__ import annotations

import pytest

pytest.importorskip("httpx", reason="the lab runtime needs the engines: scripts/setup.sh")

from sat_slime.config.schema import LabConfig
from sat_slime.lab import checkpoint
from sat_slime.lab.initial_model import cached_model, initial_faults, is_model, model_checksums
from sat_slime.lab.loop.batch_order import BatchPipeline


def write(folder, weights):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(weights)


@pytest.fixture
def pipeline(tmp_path):
    return BatchPipeline(LabConfig(cache_dir=str(tmp_path / "cache")), tmp_path / "run", None, None)


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a run that began with the weights `first`."""
    write(tmp_path / "first", "first")
    initial = model_checksums(tmp_path / "first")
    state = checkpoint.LoopState(2, 2, weight_versions=[2], initial=initial)
    return checkpoint.Checkpoint(tmp_path, state)


def test_a_resumed_run_that_lost_its_model_takes_the_same_one_out_of_the_cache(pipeline, saved):
    write(cached_model(pipeline.config), "first")
    pipeline._provide_initial_model(saved)
    assert initial_faults(saved, pipeline.initial) == {}


@pytest.mark.parametrize("is_there", [True, False])
def test_another_one_is_not_taken(pipeline, saved, is_there):
    """The other model is what another version of torch makes, now or when the cache was warmed up again."""
    cached = cached_model(pipeline.config)
    if is_there:
        write(cached, "other")
    pipeline._warm_up = lambda folder: write(folder, "other")
    told = f"the reference model that this run started with is lost: {cached} holds another one"
    with pytest.raises(ValueError) as error:
        pipeline._provide_initial_model(saved)
    assert str(error.value) == f"{told}; put the old one back into {pipeline.initial}, or start another run (--name X)"
    assert not pipeline.initial.exists(), "so that a resume is told the same"


def test_a_new_run_takes_what_the_cache_has(pipeline):
    write(cached_model(pipeline.config), "other")
    write(pipeline.initial, "of a run that was killed as it began")
    pipeline._provide_initial_model(None)
    assert (pipeline.initial / "model.safetensors").read_text() == "other" and is_model(pipeline.initial)


def test_a_resumed_run_keeps_its_own_whatever_the_cache_has(pipeline, saved):
    write(cached_model(pipeline.config), "other")
    write(pipeline.initial, "first")
    pipeline._provide_initial_model(saved)
    assert initial_faults(saved, pipeline.initial) == {}
