"""Whatever slime's trackers left is one run, by the same names and steps; the files are slime's own."""

import json
import math
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.trackers import is_tracker, log_rows, phase_and_trouble, read_tracked, split_log

RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize("path", [RECORDED / "events", RECORDED / "job.log"], ids=lambda path: path.name)
def test_recorded_trackers_of_slime(path):
    """recorded/ is of slime 624b824a8, whole on a CPU: train_async.py, its own GRPO, 3 rollouts, TensorBoard. Of the
    log the lines of metrics and some others were kept; the event files were renamed."""
    assert is_tracker(path)
    run = read_tracked([path])
    expected = {
        "step": [1, 2, 3],
        "reward/mean": [0.25, 0.25, 0.125],
        "mismatch/d_pi": [3.3159e-7, 0.056297, 0.136218],
        "response/length_mean": [10.0, 8.8125, 13.8125],
        "loss/kl": [0, 0.004671, 0.092434],
    } | {key: [0, 0, 0] for key in ("ppo_kl", "clip/fraction", "truncated_ratio")}
    for name, values in expected.items():
        assert run.metrics[name] == pytest.approx(values, rel=1e-3), name
    assert (run.evals["step"], run.evals["accuracy"], run.datasets) == ([2], [0.2578125], ("held_out",))


def test_several_files_of_one_run_are_put_together(tmp_path):
    train, rollout = tmp_path / "train.jsonl", tmp_path / "rollout.jsonl"
    train.write_text('{"train/step": 0, "train/loss": 0.5, "train/clip/fraction": 0.2, "train/pg_clipfrac": 0.3}')
    told = {"rollout/step": 0, "rollout/raw_reward": 1.0, "rollout/rewards": 1e-9}  # the latter normalized
    rollout.write_text(json.dumps(told) + '\n{"eval/step": 0, "eval/m": 0.1, "_step": 7}\n')
    for run in (read_tracked([train, rollout]), read_tracked([rollout, train])):
        assert [run.metrics[name] for name in ("loss/total", "reward/mean", "clip/fraction")] == [[0.5], [1.0], [0.2]]
        assert run.evals["step"] == [0], "an evaluation before training, whichever file is the first"


def test_rows_by_our_names_are_taken_as_they_are(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "mismatch/d_pi": 0.5}\n')
    (tmp_path / "eval.jsonl").write_text('{"step": 1, "accuracy": 0.5}\n')
    run = read_tracked([path])
    assert (run.metrics, run.evals) == ({"step": [1], "mismatch/d_pi": [0.5]}, {"step": [1], "accuracy": [0.5]})
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl holds a run's rows by our names: give it alone"):
        read_tracked([RECORDED / "events", path])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("run-x.wandb", b":W&B\x00", "run folder of W&B, .* The log that the job printed has the same numbers"),
        ("notes.txt", b"nothing here\n", "unknown kind, which starts with 'nothing here"),
        ("empty.log", b"", "an empty file"),
        ("model.bin", b"\x80\x00\xff", "unknown kind"),
        ("gone.log", None, "it is not there"),
    ],
)
def test_a_file_of_an_unknown_kind_is_named_with_what_can_be_read(name, content, said, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunFolderError, match=said) as error:
        read_tracked([path])
    assert "TensorBoard events" in str(error.value) and str(path) in str(error.value)


def test_without_tensorboard_the_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.backend.event_processing.event_file_loader", None)
    with pytest.raises(RunFolderError, match="pip install tensorboard"):
        read_tracked([RECORDED / "events"])


ACTOR = "\x1b[36m(MegatronTrainRayActor pid=1, ip=10.0.0.1)\x1b[0m [2026-08-21 12:00:05] model.py:918 - "


@pytest.mark.parametrize(
    ("text", "row"),
    [
        (f"{ACTOR}step 3: {{'train/loss': -1.5e-07, 'x': 3}}\n", {"train/step": 3, "train/loss": -1.5e-07, "x": 3}),
        (f"{ACTOR}step 3: {{'a': -inf, 'b': np.float64(0.5)}}", {"train/step": 3, "a": -math.inf, "b": 0.5}),
        (f"{ACTOR}step 3: {{'a': __import__('os').getcwd(), 'b': 'text', 'c': 1.0}}", {"train/step": 3, "c": 1.0}),
        *((f"[2026-08-21 12:00:05] f.py:1 - {k} 7: {{'x': 1}}", {f"{k}/step": 7, "x": 1}) for k in ("rollout", "eval")),
        ("[2026-08-21 12:00:05] f.py:1 - perf 7: {'x': 1}", {"rollout/step": 7, "x": 1}),
        ("critic-step 3: {'train/critic-loss': 1.0}", None),
        *((text, None) for text in ("step 3: done", "this step 3 is: {}", "", "footstep 1: {'a': 1}")),
    ],
)
def test_what_a_line_tells_behind_rays_prefix_and_nothing_is_evaluated(tmp_path, text, row):
    (log := tmp_path / "job.log").write_text(text)
    assert [*log_rows(log)] == [row] * (row is not None)


def test_phases_and_trouble():
    assert phase_and_trouble(ACTOR + "Timer update_weights start") == ("update weights", "")
    assert phase_and_trouble("torch.OutOfMemoryError: CUDA out of memory.")[1].startswith("torch.OutOf")
    assert phase_and_trouble("no errors so far") == phase_and_trouble("x - step 0: {'ValueError': 1}") == ("", "")


def test_several_optimizer_steps_per_rollout():
    rows = [{"rollout/step": r, "rollout/raw_reward": 0.1 * r} for r in range(3)]
    rows += [{"train/step": s, "train/grad_norm": float(s)} for s in range(6)] + [{"eval/step": 1, "eval/m": 0.5}]
    metrics, evals = split_log(rows)
    assert [(row["step"], row["reward/mean"], row["grad_norm"]) for row in metrics] == [
        (s + 1, pytest.approx(0.1 * (s // 2)), s) for s in range(6)
    ]
    assert evals[0]["step"] == 4
    assert split_log(row for row in rows if row.get("train/step", 0) < 4)[1][0]["step"] == 4, "a rollout ahead"
    rows = [{f"{of}/step": step} for of, count in (("train", 40), ("rollout", 39)) for step in range(count)]
    assert len(split_log(rows)[0]) == 40, "a trainer ahead"


def test_an_evaluation_over_the_step_of_its_weights_is_of_no_rollout(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        for step in range(4):
            writer.add_scalar("train/loss", 1.0, step)
            writer.add_scalar("rollout/raw_reward", step // 2, step // 2)
        writer.add_scalar("eval_at_weights/m", 0.5, 4)
    assert read_tracked([tmp_path]).metrics["reward/mean"].tolist() == [0, 0, 1, 1]


def test_an_evaluation_before_training_is_of_step_0_and_those_told_before_it_from_another_file_have_their_steps():
    rows = [{"eval/step": 0, "eval/m": 0.1}, {"train/step": 0, "train/loss": 1.0}, {"eval/step": 0, "eval/m": 0.2}]
    assert [row["step"] for row in split_log(rows)[1]] == [0, 1]
    assert [row["step"] for row in split_log(rows[:2], rows[:2])[1]] == [0], "a run told twice"
    rows = [{"eval/step": step, "eval/m": 0.1} for step in (0, 2, 4)]
    rows += [{"train/step": step, "train/loss": 1.0} for step in range(5)]
    assert [row["step"] for row in split_log(rows)[1]] == [0, 3, 5]
    rows = [{"eval/step": step, "eval/m": told / 10} for told, step in enumerate((0, 0, 1, 2))]  # after each rollout
    rows += [{"train/step": step, "train/loss": 1.0} for step in range(3)]
    assert [(row["step"], row["accuracy"]) for row in split_log(rows)[1]] == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3)]
    assert [row["step"] for row in split_log(rows[1:])[1]] == [1, 2, 3], "none before training"


def test_what_a_resumed_job_tells_again_counts_once_and_as_it_was_told_last():
    def told(first, last, score):
        for step in range(first, last):
            yield {"train/step": step, "train/loss": score}
            if step % 2:  # in TensorBoard an event each
                yield {"eval/step": step, "eval/m-weights_step": step - 1}
                yield {"eval/step": step, "eval/m": round(score + step / 100, 2)}

    metrics, evals = split_log([*told(0, 6, 0.1), *told(2, 8, 0.5)])  # a job that died, and from its checkpoint on
    assert [row["loss/total"] for row in metrics] == [0.1] * 2 + [0.5] * 6
    assert [(row["step"], row["accuracy"]) for row in evals] == [(2, 0.11), (4, 0.53), (6, 0.55), (8, 0.57)]
    assert [row["weights_step"] for row in evals] == [0, 2, 4, 6]
