"""Rows that are missing, damaged or there twice are told, in the report and at a resume; nothing is told of whole ones.

The files are written by the log of a run, and then damaged."""

import pytest
from recording_view import RecordingView

from sat_slime.config import LabConfig, dump_config
from sat_slime.report.comparison import limits, summary
from sat_slime.report.frames import collect, load_compared_run
from sat_slime.report.run import findings
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.log import RunLog
from sat_slime.runs.reading import load_run, row_faults

STEPS, EVERY = 12, 4
HISTOGRAM = {"q": None, "lag": 1, "edges": [0.1, 1.0], "counts": [3, 2, 1]}


def make_run(path, status="finished", steps=STEPS, **changes):
    settings = {"pipeline": {"iterations": STEPS}, "eval": {"every_n_iterations": EVERY}} | changes
    folder = RunFolder.create(path, dump_config(LabConfig(**settings)))
    log = RunLog(folder, RecordingView())
    log.eval({"step": 0, "iteration": 0, "accuracy": 0.5, "n_samples": 8})
    for step in range(1, steps + 1):
        log.step({"step": step, "iteration": step, "reward/mean": 0.5})
        log.histogram({"step": step, **HISTOGRAM})
        if step % EVERY == 0:
            log.eval({"step": step, "iteration": step, "accuracy": 0.5, "n_samples": 8})
    log.close()
    folder.started()
    folder.ended(status)
    folder.unlock()
    return folder


def change(path, **lines):
    """Lines by their numbers from 1: another text, or None to delete it."""
    old = path.read_text().splitlines()
    new = [lines.get(f"line_{number}", line) for number, line in enumerate(old, 1)]
    path.write_text("".join(f"{line}\n" for line in new if line is not None))


def faults_of(folder):
    return list(row_faults(folder))


@pytest.mark.parametrize("status, steps", [("finished", STEPS), ("interrupted", 7), ("killed", 8), ("failed", 1)])
def test_nothing_is_told_of_whole_rows(tmp_path, status, steps):
    folder = make_run(tmp_path / "run", status, steps)
    assert faults_of(folder) == []
    if status == "killed":  # in the midst of a line
        with folder.metrics.open("a") as file:
            file.write('{"step": 9, "rew')
        assert faults_of(folder) == []


@pytest.mark.parametrize(
    "name, lines, told",
    [
        ("metrics", {"line_1": None, "line_5": None}, "metrics.jsonl lacks step 1, 5."),
        ("metrics", {"line_12": None}, "metrics.jsonl lacks step 12."),
        (
            "metrics",
            {f"line_{n}": None for n in range(2, 9)},
            "metrics.jsonl lacks step 2, 3, 4, 5, 6 and 2 more.",
        ),
        ("metrics", {"line_5": '{"step": 4}'}, "metrics.jsonl has more than one row of step 4."),
        ("metrics", {"line_5": "garbage"}, "metrics.jsonl is damaged: of line 5 nothing can be read"),
        ("metrics", {"line_5": '{"step": 6}', "line_6": '{"step": 5}'}, "metrics.jsonl is out of order."),
        ("metrics", {"line_12": '{"step": 13}'}, "metrics.jsonl goes beyond the plan of 12 steps: 13."),
        ("eval", {"line_3": '{"step": 4}'}, "eval.jsonl has more than one row of step 4."),
        ("eval", {"line_4": '{"step": 16}'}, "eval.jsonl goes beyond the plan of 12 steps: 16."),
        ("eval", {"line_2": "garbage"}, "eval.jsonl is damaged: of line 2"),
    ],
)
def test_each_damage_is_told(tmp_path, name, lines, told):
    folder = make_run(tmp_path / "run")
    change(getattr(folder, name), **lines)
    assert any(sentence.startswith(told) for sentence in faults_of(folder)), faults_of(folder)
    assert any(sentence.startswith(told) for sentence in findings(load_run(folder.path)))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("metrics", {"line_5": None}),
        ("metrics", {"line_5": '{"step": 4, "reward/mean": 0.5}'}),
        ("eval", {"line_3": '{"step": 4, "iteration": 4, "accuracy": 0.5, "n_samples": 8}'}),
    ],
)
def test_a_damaged_run_is_named_on_the_page_and_does_not_count(tmp_path, name, lines):
    whole, lacking = (make_run(tmp_path / name) for name in ("whole", "lacking"))
    change(getattr(lacking, name), **lines)
    assert load_compared_run(whole.path).counts and not load_compared_run(lacking.path).counts
    (told,) = [line for line in limits(collect([lacking.path])) if "Not counted" in line]
    assert all(fault in told for fault in faults_of(lacking)) and faults_of(lacking)
    assert any(
        "1 not whole (1 with rows missing, doubled or misplaced)" in line
        for line in summary(collect([lacking.path]), [])
    )


def test_a_resume_tells_what_it_does_not_make_again(tmp_path):
    folder = make_run(tmp_path / "run", "interrupted", 8)
    change(folder.metrics, line_3=None, line_8=None)
    view = RecordingView()
    log = RunLog(folder, view)
    log.rewind(6)
    log.close()
    told = [text for name, text, *_ in view.calls if name == "message"]
    assert len(told) == 1 and told[0] == "metrics.jsonl lacks step 3."
    assert "lacks step 3" in folder.log.read_text()
