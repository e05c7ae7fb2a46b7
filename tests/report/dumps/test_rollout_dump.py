"""slime's dumps of rollouts; recorded/ was written by slime itself."""

import importlib.util
from pathlib import Path

import pytest
import torch

from sat_slime.report.dumps.rollout_dump import is_evaluation, read_samples
from sat_slime.report.dumps.step_batch import DumpFault
from sat_slime.report.dumps.train_dump import is_rollout_dump, read_rollout

RECORDED = Path(__file__).parent / "recorded"
"""Of slime 624b824a8, whole on a CPU: train_async.py, its own GRPO at lag 2 with --dump-details, 4 prompts x 4."""


def sample(**more):
    """A sample of which slime's to_dict gives the same fields, those that are read."""
    plain = {
        "group_index": 0,
        "index": 0,
        "tokens": [1, 2, 3, 4],
        "response_length": 2,
        "reward": 1.0,
        "status": "completed",
        "weight_versions": ["3", "4"],
        "rollout_log_probs": [-0.5, -0.5],
        "remove_sample": False,
    }
    return plain | more


def saved(path, *samples, **more):
    torch.save({"rollout_id": 7, "samples": list(samples)} | more, path)
    return path


def test_a_rollout_of_slime():
    path = RECORDED / "dump" / "rollout_data" / "2.pt"
    assert is_rollout_dump(path)
    assert not is_rollout_dump(RECORDED / "dump" / "train_data" / "2.pt")
    rollout, samples = read_samples(path)
    assert rollout == 2 and len(samples) == 16
    assert [one.group for one in samples] == [8] * 4 + [9] * 4 + [10] * 4 + [11] * 4
    assert sum(one.reward for one in samples) == 2
    assert {one.status for one in samples} == {"completed"} and {one.versions for one in samples} == {(1,)}
    assert all(one.log_probs and one.length > 0 and not one.removed for one in samples)


def test_training_of_the_same_rollout():
    """The responses of both dumps are the same; those of training stand in the order in which they were trained."""
    (step,) = read_rollout([RECORDED / "dump" / "train_data" / "2.pt"], token_ids=True)
    _, samples = read_samples(RECORDED / "dump" / "rollout_data" / "2.pt")
    assert [int(step.lengths[i]) for i in step.order] == [one.length for one in samples]
    assert step.token_ids is not None and len(step.token_ids) == len(step.log_probs)
    assert int(step.token_ids.max()) < 16 and step.truncated is not None and not step.truncated.any()
    assert float((step.log_probs - step.rollout_log_probs).abs().mean()) == pytest.approx(0.115, abs=0.02)


@pytest.mark.skipif(
    importlib.util.find_spec("slime") is None or importlib.util.find_spec("slime.observability") is None,
    reason="needs the real slime",
)
def test_slimes_own_function_writes_what_is_read(tmp_path):
    from slime.observability.rollout_data_utils import save_debug_rollout_data
    from slime.utils.types import Sample

    one = Sample(
        group_index=3,
        index=0,
        tokens=[1, 2, 3],
        response_length=2,
        reward={"score": 0.5, "format": 1.0},
        weight_versions=["2", "default", "5"],
        status=Sample.Status.TRUNCATED,
        rollout_routed_experts=torch.zeros(2, 1, 1),
    )
    save_debug_rollout_data(str(tmp_path / "{rollout_id}.pt"), [one], rollout_id=4, evaluation=False)
    rollout, (read,) = read_samples(tmp_path / "4.pt", "score")
    assert (rollout, read.group, read.reward, read.length, read.status) == (4, 3, 0.5, 2, "truncated")
    assert (read.versions, read.log_probs) == ((2, 5), False)
    assert read_samples(tmp_path / "4.pt")[1][0].reward is None  # two numbers, and no key
    save_debug_rollout_data(
        str(tmp_path / "{rollout_id}.pt"), {"aime": {"samples": [one]}}, rollout_id=4, evaluation=True
    )
    assert [is_evaluation(path) for path in sorted(tmp_path.iterdir())] == [False, True]


def test_equal_responses_have_equal_fingerprints(tmp_path):
    path = saved(tmp_path / "7.pt", sample(), sample(tokens=[9, 9, 3, 4]), sample(tokens=torch.tensor([1, 2, 4, 3])))
    one, equal, other = (one.fingerprint for one in read_samples(path)[1])
    assert one == equal != other


@pytest.mark.parametrize(
    ("samples", "more", "said"),
    [
        ([{"tokens": [1]}], {}, "its samples are not those of slime"),
        ([3], {}, "its samples are not those of slime"),
        ([], {"samples": 3}, "it holds no samples"),
        ([sample()], {"rollout_id": "x"}, "it holds no samples"),
        ([sample(metadata={"path": Path("x")})], {}, "it holds an object of pathlib"),
    ],
)
def test_what_is_wrong_is_said(samples, more, said, tmp_path):
    with pytest.raises(DumpFault, match=said):
        read_samples(saved(tmp_path / "7.pt", *samples, **more))
