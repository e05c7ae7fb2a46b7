from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from dump_files import format_2, rank_file, rollout

from sat_slime.report.dumps import DumpFault, find_dumps, known_dump, read_rollout
from sat_slime.runs.folder import RunFolderError

LENGTHS = [4, 9, 2, 7, 5, 11]
RANKS = [([4, 0, 3], [[2], [1]]), ([1, 5, 2], [[1, 1], [1]])]
"""Two data-parallel ranks, two optimizer steps; of their micro-batches one has two responses."""


def saved(path: Path, payload):
    torch.save(payload, path)
    return path


def flat(columns, order, key):
    return torch.cat([columns[key][i] for i in order])


def test_a_dump_of_slime():
    """Of 16 responses, as slime 624b824a8 wrote it."""
    (step,) = read_rollout([Path(__file__).parent / "recorded" / "dump" / "train_data" / "2.pt"])
    assert len(step.lengths) == 16 and step.truncated is not None and not step.truncated.any()
    assert float((step.log_probs - step.rollout_log_probs).abs().mean()) == pytest.approx(0.115, abs=0.02)


def test_format_2_in_its_micro_batches(tmp_path):
    columns = rollout(LENGTHS)
    path = saved(tmp_path / "7.pt", format_2(columns, RANKS, rollout_id=7))
    assert known_dump(path).rollout is None
    first, second = read_rollout([path])
    for step, order, microbatches in ((first, [4, 0, 1, 5], [2, 1, 1]), (second, [3, 2], [1, 1])):
        for key, mine in (("log_probs", step.log_probs), ("rollout_log_probs", step.rollout_log_probs),
                          ("advantages", step.advantages), ("loss_masks", step.mask)):  # fmt: skip
            assert torch.equal(mine, flat(columns, order, key).to(mine.dtype)), key
        assert step.lengths.tolist() == [LENGTHS[i] for i in order] and step.microbatches == microbatches
    assert (first.name, second.name) == ("rollout 7, step 1", "rollout 7, step 2")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("format_version", torch.zeros(2)),
        ("response_lengths", float("inf")),
        ("micro_batch_indices", [[torch.zeros(2)], [0]]),
        ("log_probs", torch.zeros(4, device="meta")),
    ],
)
def test_what_no_slime_writes_is_told(tmp_path, place, value):
    payload = format_2(rollout(LENGTHS), RANKS)
    holder = {"response_lengths": payload["samples"][0], "log_probs": payload["samples"][0]}
    holder.get(place, payload["dp_shards"][0] if place == "micro_batch_indices" else payload)[place] = value
    path = saved(tmp_path / "0.pt", payload)
    with pytest.raises(DumpFault):
        known_dump(path)
        read_rollout([path])


@pytest.mark.parametrize("numbers", [range(6), [0, 1, 2, 1, 0, 2], [0, 0, 0, 1, 1, 1], [None] * 6])
def test_files_of_ranks_are_one_rollout(tmp_path, numbers):
    """Also where samples that a generate function returned for one prompt share its number."""
    columns = rollout(LENGTHS) | {"sample_indices": list(numbers)}
    files = [saved(tmp_path / f"3_{rank}.pt", rank_file(columns, which, per_step, rank, 3))
             for rank, (which, per_step) in enumerate([RANKS[0], RANKS[0], RANKS[1], RANKS[1]])]  # fmt: skip
    known = [known_dump(file) for file in files]
    assert [(one.rollout, one.rank) for one in known] == [((tmp_path, 3), rank) for rank in range(4)]
    early = rank_file(columns, *RANKS[0], 4, 3)
    del early["rollout_data"]["log_probs"], early["rollout_data"]["advantages"]
    # tensor-parallel pairs, which hold the same, count once, and a rank of an earlier pipeline stage not at all
    first, second = read_rollout([saved(tmp_path / "3_4.pt", early), *files])
    assert torch.equal(first.log_probs, flat(columns, [4, 0, 1, 5], "log_probs"))
    assert torch.equal(second.log_probs, flat(columns, [3, 2], "log_probs"))


def test_half_precision_inactive_nonsense_and_numpy_scalars_are_read(tmp_path):
    columns = rollout(LENGTHS)
    columns["log_probs"] = [values.bfloat16() for values in columns["log_probs"]]
    columns["log_probs"][0][columns["loss_masks"][0] == 0] = float("nan")
    payload = format_2(columns, [(list(range(6)), [[6]])])
    payload["raw_reward"] = [np.float64(0.5), np.float32(1.5), np.int64(2), np.bool_(True), np.float16(0.25), 3.0]
    (step,) = read_rollout([saved(tmp_path / "0.pt", payload)])
    assert step.log_probs.dtype == torch.float32 and len(step.lengths) == 6
    payload["raw_reward"][0] = np.datetime64("2026-01-01")
    with pytest.raises(DumpFault, match="NumPy scalar of type M8"):
        read_rollout([saved(tmp_path / "0.pt", payload)])


def without(key):
    def change(payload):
        for sample in payload["samples"]:
            del sample[key]

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without("log_probs"), "no log_probs of the trainer, .* dump a run without that flag"),
        (without("rollout_log_probs"), "the rollout function has to return"),
        (without("response_lengths"), "its entries are not those of slime"),
        (
            lambda payload: payload["dp_shards"][0].pop("micro_batch_indices"),
            "not those of slime .*micro_batch_indices",
        ),
        (lambda payload: payload["samples"][2].update(advantages=torch.zeros(1)), "advantages has 1 values .* of 2"),
        (lambda payload: payload["dp_shards"][0].update(micro_batch_indices=[[0, 0], [2]]), "every response once"),
        (lambda payload: payload.update(samples=[]), "its entries are not those of slime"),
        (lambda payload: payload.update(samples=3), "its entries are not those of slime"),
        (lambda payload: payload["samples"][0].update(log_probs="text"), "no row of numbers"),
        (lambda payload: payload["samples"][0].update(lags=torch.zeros(1)), "lags has 1 values for a response of 4"),
        (lambda payload: payload["dp_shards"][0].update(num_microbatches=[9, 9]), "has 2 micro-batches where"),
        (lambda payload: payload["dp_shards"][0].update(num_microbatches=[-1, 3]), "are not those of slime"),
        (lambda payload: payload.update(dp_shards=[]), "holds no response that was trained"),
        (lambda payload: payload.update(extra=Namespace()), "holds an object of argparse.Namespace"),
    ],
)
def test_what_is_wrong_is_said(damage, said, tmp_path):
    payload = format_2(rollout(LENGTHS), RANKS)
    damage(payload)
    with pytest.raises(DumpFault, match=said):
        read_rollout([saved(tmp_path / "0.pt", payload)])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout_log_probs", float("-inf")),
        ("rollout_log_probs", 0.5),
        ("rollout_log_probs", -9999.0),
        ("log_probs", float("nan")),
        ("log_probs", -7e34),
        ("advantages", float("inf")),
        ("loss_masks", 0.5),
        ("loss_masks", -1.0),
        ("lags", -99.0),
        ("checkpoint_log_probs", float("nan")),
        ("checkpoint_log_probs", 5.0),
    ],
)
def test_a_token_that_cannot_be_is_named_and_left_out(key, value, tmp_path):
    """By the number of its response in the rollout, in whatever micro-batch it was."""
    columns = rollout(LENGTHS, inactive=0)
    columns["loss_masks"] = [mask.float() for mask in columns["loss_masks"]]
    columns |= {"lags": [torch.full((n,), 3.0) for n in LENGTHS], "checkpoint_log_probs": columns["log_probs"]}
    columns["checkpoint_log_probs"] = [values.clone() for values in columns["checkpoint_log_probs"]]
    whole = read_rollout([saved(tmp_path / "0.pt", format_2(columns, RANKS))])
    columns[key][3][2] = value
    damaged = read_rollout([saved(tmp_path / "0.pt", format_2(columns, RANKS))])
    assert sum(int(step.mask.sum()) for step in whole) - sum(int(step.mask.sum()) for step in damaged) == 1
    assert [step.left_out for step in whole] == [(), ()]
    first, second = (step.left_out for step in damaged)
    assert first == () and second == (
        f"{key.replace('loss_masks', 'mask')} is {value:g} at response 3, position 2: left out (from 0)",
    )


def test_a_missing_ranks_file_is_told_and_a_response_twice_is_refused(tmp_path):
    columns = rollout(LENGTHS)
    parts = [rank_file(columns, which, per_step, rank) for rank, (which, per_step) in enumerate(RANKS)]
    for part_of in parts:
        part_of["rollout_data"] |= {"global_batch_sizes": [4, 2], "raw_reward": [1.0] * 6}
    files = [saved(tmp_path / f"0_{rank}.pt", payload) for rank, payload in enumerate(parts)]
    assert [step.left_out for step in read_rollout(files)] == [(), ()]
    for step in read_rollout(files[:1]):
        (told,) = step.left_out
        assert told.startswith("it holds 3 of the 6 rollouts that were trained")
    torch.save(rank_file(rollout(LENGTHS, seed=1), RANKS[1][0], RANKS[1][1], 2), tmp_path / "0_2.pt")
    with pytest.raises(DumpFault, match="it holds 9 responses of 6: leave out the files of another run's ranks"):
        read_rollout([*files, tmp_path / "0_2.pt"])
    payload = format_2(columns, RANKS)
    payload["dp_shards"].append(payload["dp_shards"][0])
    with pytest.raises(DumpFault, match="3 of its responses, the first 0, are in more than one of its shards"):
        read_rollout([saved(tmp_path / "0.pt", payload)])


@pytest.mark.parametrize(
    ("runtime", "key"), [("lab", "dump.every_n_iterations=N"), ("slime", "slime.save-debug-train-data=DIR")]
)
def test_a_run_without_dumps_is_told_the_key_of_its_runtime(runtime, key, tmp_path):
    (tmp_path / "config.yaml").write_text(f"runtime: {runtime}\n")
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(RunFolderError, match=key):
        find_dumps([tmp_path])


def test_context_parallel_parts_are_refused(tmp_path):
    payload = rank_file(rollout(LENGTHS), range(6), [[6]], 0)
    payload["rollout_data"]["log_probs"] = [v[: len(v) // 2] for v in payload["rollout_data"]["log_probs"]]
    with pytest.raises(DumpFault, match="context-parallel ranks apart"):
        read_rollout([saved(tmp_path / "0_0.pt", payload)])


@pytest.mark.parametrize(
    ("payload", "said", "keep"),
    [
        ({"rollout_id": 1, "samples": [{"tokens": [1]}]}, "a dump of --save-debug-rollout-data", None),
        ({"format_version": 3, "rollout_id": 1, "samples": []}, "its format_version is 3", None),
        ({"weights": torch.zeros(3)}, "no dump of --save-debug-train-data", None),
        ([1, 2], "no dump of --save-debug-train-data", None),
        *((format_2(rollout(LENGTHS), RANKS), "not a complete torch file", keep) for keep in (0, 10, 3000, -1)),
    ],
)
def test_other_torch_files_and_torn_ones_are_known(payload, said, keep, tmp_path):
    path = saved(tmp_path / "0.pt", payload)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DumpFault, match=said):
        known_dump(path)


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("ran"),)


def test_nothing_of_a_file_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    payload = format_2(rollout(LENGTHS), RANKS) | {"z": Bomb()}
    path = saved(tmp_path / "0.pt", payload)
    known_dump(path)
    with pytest.raises(DumpFault, match="holds an object of"):
        read_rollout([path])
    assert not Path("ran").exists()
