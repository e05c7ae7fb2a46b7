import io
import math

import pytest
from rich.console import Console

from sat_slime.runs.live_view import RunView, duration


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
