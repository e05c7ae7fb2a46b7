import io
import json
import math
import os
import threading

import pytest
from rich.console import Console

from sat_slime.config.jsonl import read_rows
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.log import RunLog, RunView, duration


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", "name: run\n")


@pytest.fixture
def log(folder):
    return RunLog(folder, "run", 200, Console(file=io.StringIO()))


def test_every_line_is_on_disk_at_once(folder, log):
    log.step({"step": 1, "reward/mean": math.nan})
    log.eval({"step": 0, "accuracy": 0.5, "n_samples": 8})
    log.samples(1, [{"response": "01$"}, {"response": "02$"}])
    assert json.loads(folder.metrics.read_text()) == {"step": 1, "reward/mean": None}
    assert read_rows(folder.eval)[0]["accuracy"] == 0.5 and len(read_rows(folder.samples / "1.jsonl")) == 2
    log.message("engine died", "warning")
    log.message("a traceback", "debug")
    *_, warning, debug = folder.log.read_text().splitlines()
    assert warning.endswith("WARNING engine died") and debug.endswith("DEBUG   a traceback")


def test_rewind_forgets_what_came_after(folder, log):
    for step in range(1, 7):
        log.step({"step": step, "iteration": step})
        log.samples(step, [{"step": step}])
    for step in range(0, 7, 2):
        log.eval({"step": step, "accuracy": 0.5})
    log.rewind(4)
    log.step({"step": 5, "iteration": 5, "again": True})
    assert [row["step"] for row in read_rows(folder.metrics)] == [1, 2, 3, 4, 5]
    assert read_rows(folder.metrics)[-1]["again"]
    assert [row["step"] for row in read_rows(folder.eval)] == [0, 2, 4]
    assert sorted(path.stem for path in folder.samples.iterdir()) == ["1", "2", "3", "4"]
    folder.metrics.unlink()
    log.rewind(3, 3)
    assert sorted(path.stem for path in folder.samples.iterdir()) == ["1", "2", "3"], "of the checkpoint's own past"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_names_the_file_and_the_remedy_and_the_rest_is_kept(folder, log):
    log.eval({"step": 0, "accuracy": 0.5})
    folder.metrics.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"cannot write .*metrics\.jsonl: No space left.*free space.*--resume"):
        log.step({"step": 1})
    assert read_rows(folder.eval)[0]["accuracy"] == 0.5


def test_threads_do_not_tear_lines(folder, log):
    def write(thread):
        for i in range(50):
            log.step({"step": i, "thread": thread, "filler": "x" * 500})

    threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_rows(folder.metrics)) == len(folder.metrics.read_text().splitlines()) == 200


def view_of(total=200, clock=None, **options):
    console = Console(file=io.StringIO(), width=84, **options)
    seconds = iter(range(10**6) if clock is None else clock)
    view = RunView("run", total, console)
    view._clock = lambda: float(next(seconds))
    return view, console.file


def test_a_line_per_step_with_the_speed_by_the_clock():
    view, shown = view_of()
    for step in range(1, 11):
        row = {"reward/mean": 0.5, "mismatch/d_pi": 0.01, "lag/mean": 1.32554, "sat/gate_rate": 0.1}
        view.step({"step": step, "iteration": step, "tokens/response_total": 3300, **row})
    first, *_, last = shown.getvalue().splitlines()
    assert first == "step   1/200  reward 0.500  d_pi 0.0100  lag 1.33  gate 10.0%"
    assert last == first.replace("  1/", " 10/") + "  3300 tok/s  1.00 s/step  left 3 min 10 s"


def test_speed_counts_a_batch_once_however_many_steps_are_made_of_it():
    view, shown = view_of(100, clock=[10.0, 10.1, 20.0, 20.1, 30.0, 30.1])
    for step in range(1, 7):
        view.step({"step": step, "iteration": (step + 1) // 2, "tokens/response_total": 400})
    lines = shown.getvalue().splitlines()
    assert "s/step" not in lines[1] and lines[-1].startswith("step   6/100  40 tok/s  5.00 s/step")


def test_what_a_step_lacks_is_left_out():
    view, shown = view_of(9)
    view.step({"step": 3, "reward/mean": None, "sat/gate_rate": "odd"})
    assert shown.getvalue() == "step 3/9\n"


def test_piped_output_has_phases_before_the_first_step_messages_and_evaluations():
    view, shown = view_of(3)
    with view:
        view.status(phase="warm-up")
        view.status(phase="warm-up", done=1, of=2)
        view.message("warming up [once]", "info")
        view.step({"step": 1, "reward/mean": 0.5})
        view.status(phase="training")
        view.eval({"step": 1, "accuracy": 0.5, "n_samples": 8})
        view.eval({})
        scores = {"accuracy": 0.5, "accuracy/low_samples": 0.41, "accuracy/high_samples": 0.59}
        view.eval({"step": 1, "weights_step": 0, "n_samples": 128, **scores})
    assert shown.getvalue().splitlines() == [
        "warm-up",
        "warming up [once]",
        "step 1/3  reward 0.500",
        "eval at step 1: accuracy 0.500 (8 samples)",
        "eval at step ?: accuracy nan (? samples)",
        "eval at step 1: accuracy 0.500 [0.410, 0.590] (128 samples), of the weights of step 0",
    ]


@pytest.mark.parametrize(("terminal", "moves"), [("xterm", True), ("dumb", False)])
def test_the_bottom_of_a_terminal_says_how_far_it_is(terminal, moves):
    console = Console(file=io.StringIO(), width=84, force_terminal=True, _environ={"TERM": terminal})
    with RunView("run [/]", 240, console) as view:
        far = {"run [/]  warm-up [/] 120/700  0/240": {"done": 120, "of": 700}, "warm-up [/]  0/240": {}}
        for words, fields in far.items():
            view.status(phase="warm-up [/]", **fields)
            view._bottom._live.refresh()
            assert (words in console.file.getvalue()) == moves
        view.step({"step": 20})
    assert "step  20/240" in console.file.getvalue()


@pytest.mark.parametrize(
    "seconds, text", [(math.nan, "–"), (45, "45 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (59.7, "1 min 00 s")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text
