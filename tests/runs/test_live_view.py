import io
import math

import pytest
from rich.console import Console
from synthetic import step_metrics
from terminal_screen import screen_of

from sat_slime.runs.live_view import (
    LiveView,
    PlainView,
    Progress,
    duration,
    make_view,
    render,
    sparkline,
    step_line,
)


def progress(steps=0, total=200):
    clock = iter(range(10**6))
    made = Progress("run · SAT-GSPO w/ R3", total, clock=lambda: float(next(clock)))
    for step in range(1, steps + 1):
        made.add_step(step_metrics(step))
    return made


def shown(renderable, width=84):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def test_speed_and_time_left_come_from_the_clock():
    made = progress(10, total=200)
    assert made.seconds_per_step == 1.0
    assert made.seconds_left == 190.0
    assert made.tokens_per_second == 3300.0


def test_speed_is_unknown_at_first():
    for steps in (0, 1):
        assert math.isnan(progress(steps).seconds_per_step)
        assert math.isnan(progress(steps).tokens_per_second)


def test_speed_counts_a_batch_once_however_many_steps_are_made_of_it():
    clock = iter([10.0, 10.1, 20.0, 20.1, 30.0, 30.1])
    made = Progress("run", 100, clock=lambda: next(clock))
    for step in range(1, 7):
        made.add_step({"step": step, "iteration": (step + 1) // 2, "tokens/response_total": 400})
        if step == 2:
            assert math.isnan(made.seconds_per_step) and math.isnan(made.tokens_per_second)
    assert (made.tokens_per_second, made.seconds_per_step) == pytest.approx((40, 5))


def test_step_line():
    line = step_line(progress(10))
    for part in ("step  10/200", "reward 0.", "d_pi 0.", "lag 1", "gate ", "3300 tok/s", "left 3 min 10 s"):
        assert part in line


def test_step_line_leaves_out_what_is_missing():
    made = Progress("run", 9)
    made.add_step({"step": 3, "reward/mean": None, "sat/gate_rate": "odd"})
    assert step_line(made) == "step 3/9"


@pytest.mark.parametrize("width", [40, 84, 160])
@pytest.mark.parametrize("steps", [0, 1, 50])
def test_panel_fits_any_terminal(steps, width):
    made = progress(steps)
    made.fields.update(phase="training [/] odd [markup]", engine="ready")
    made.messages.append(("warning", "engine 0 died [exit -9]; restarting"))
    text = shown(render(made), width)
    assert f"step {steps} of 200" in text
    assert all(len(line) <= width for line in text.splitlines())


def test_panel_shows_what_it_knows():
    made = progress(50)
    made.add_eval({"accuracy": 0.25})
    made.add_eval({"accuracy": 0.75})
    made.fields.update(phase="training", engine="generating")
    made.messages.append(("warning", "engine 0 died [exit -9]"))
    text = shown(render(made))
    for part in ("0.250 → 0.750", "training", "engine generating", "warning: engine 0 died [exit -9]"):
        assert part in text


@pytest.mark.parametrize(
    "engine, warns",
    [("starting", 0), ("ready", 0), ("generating, ready", 0), ("restarting", 1), ("ready, 1 restart", 1)],
)
def test_an_engine_in_trouble_stands_out(engine, warns):
    made = progress(1)
    made.fields.update(phase="training", engine="generating")
    made.fields.update(engine=engine)
    console = Console(file=io.StringIO(), width=84, force_terminal=True, color_system="standard", _environ={})
    console.print(render(made))
    (line,) = [line for line in console.file.getvalue().splitlines() if f"engine {engine}" in line]
    assert (f"\x1b[1;33mengine {engine}" in line) == warns


def test_piped_output_tells_of_an_engine_in_trouble_once():
    console = Console(file=io.StringIO())
    view = make_view("run", 3, console)
    for engine in ("starting", "ready", "restarting", *("ready (1 restarts)", "generating (1 restarts)") * 3):
        view.status({"engine": engine})
    told = ("restarting", "ready (1 restarts)", "generating (1 restarts)")
    assert console.file.getvalue().splitlines() == [f"warning: engine {engine}" for engine in told]


def test_piped_output_is_a_line_per_step_without_control_characters():
    console = Console(file=io.StringIO())
    with make_view("run", 3, console) as view:
        assert isinstance(view, PlainView)
        view.status({"phase": "warm-up"})
        view.status({"phase": "warm-up", "step": 1})
        view.message("warming up [once]", "info")
        view.step({"step": 1, "reward/mean": 0.5})
        view.status({"phase": "training"})
        view.eval({"step": 1, "accuracy": 0.5, "n_samples": 8})
        view.eval({})
        scores = {"accuracy": 0.5, "accuracy/low_samples": 0.41, "accuracy/high_samples": 0.59, "pass@1": 0.5}
        view.eval({"step": 1, "weights_step": 0, "n_samples": 128, "pass@4": 0.75, **scores})
    assert console.file.getvalue().splitlines() == [
        "warm-up",
        "warming up [once]",
        "step 1/3  reward 0.500",
        "eval at step 1: accuracy 0.500 (8 samples)",
        "eval at step ?: accuracy nan (? samples)",
        "eval at step 1: accuracy 0.500 [0.410, 0.590] (128 samples), pass@4 0.750, of the weights of step 0",
    ]


def test_live_view_where_there_is_a_terminal(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=84, _environ={"TERM": "xterm"})
    assert isinstance(
        make_view("run", 3, Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})), PlainView
    )
    assert isinstance(make_view("run", 3, terminal, live=False), PlainView)
    with make_view("run", 3, terminal) as view:
        assert isinstance(view, LiveView)
        view.step({"step": 2, "reward/mean": 0.5})
        view.eval({"accuracy": 0.5})
        view.status({"phase": "training"})
        view.message("hello", "info")
    assert "step 2 of 3" in terminal.file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_sparkline_spans_its_own_range():
    assert sparkline([]) == ""
    assert sparkline([0.3, 0.3]) == "▄▄"
    assert sparkline([0, 1, 2]) == "▁▅█"


@pytest.mark.parametrize(
    "seconds, text", [(math.nan, "–"), (45, "45 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (59.7, "1 min 00 s")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


VIEW = """
import sys, time
from sat_slime.runs.live_view import make_view
past = [{"step": 0, "accuracy": 0.1}]
with make_view("run · SAT-GSPO · lag 8", 240, live=True, first_step=20, past=past) as view:
    for step in range(21, 61):
        view.step({"step": step, "iteration": step, "reward/mean": step / 100, "mismatch/d_pi": 0.02,
            "lag/mean": 0.725114, "lag/min": 0, "lag/max": 8, "sat/gate_rate": 0.095, "tokens/response_total": 3300})
        view.eval({"step": step, "accuracy": 0.157 + step / 1000, "accuracy/low_samples": 0.117,
            "accuracy/high_samples": 0.232})
    view.message("waiting", "info")
    try:
        while WAITS:
            time.sleep(0.05)
    except KeyboardInterrupt:
        view.message("stopping after this iteration", "info")
"""


def test_the_panel_on_eighty_columns():
    lines = screen_of(VIEW.replace("WAITS", "False"), 80, 24)
    told = "\n".join(lines)
    assert "0.100 → 0.217  0.117 to 0.232" in told and "0.725  0 to 8" in told and "…" not in told
    assert sum(line.startswith("╭") for line in lines) == sum(line.startswith("╰") for line in lines) == 1
    assert {len(line) for line in lines if line} == {78}


def test_the_frame_stays_whole_after_ctrl_c():
    """Beside a frame as wide as the terminal the `^C` that this echoes would wrap, and the frame be a line too low."""
    lines = screen_of(VIEW.replace("WAITS", "True"), 80, 24, keys={"waiting": b"\x03"})
    assert lines[0].startswith("╭") and sum(line.startswith("╭") for line in lines) == 1
    assert any("stopping after this iteration" in line for line in lines) and "^C" not in "\n".join(lines)


def test_a_start_that_fails_leaves_no_panel():
    program = """
from sat_slime.runs.live_view import make_view
for start in (1, 2):
    try:
        with make_view("run", 240, live=True) as view:
            view.message("warming up", "info")
            if start == 1:
                raise RuntimeError
            view.step({"step": 1})
    except RuntimeError:
        print("starting once more")
"""
    lines = screen_of(program, 80, 24)
    assert lines[0] == "starting once more" and sum(line.startswith("╭") for line in lines) == 1


def test_the_warm_up_has_a_bar_of_its_own():
    made = Progress("run", 240)
    made.tell({"phase": "warm-up"})
    assert "step 0 of 240" in shown(render(made))
    made.tell({"phase": "warm-up", "done": 120, "of": 700})
    text = shown(render(made))
    assert "warm-up 120 of 700" in text and "starting" not in text and "done" not in text
    made.tell({"engine": "starting"})
    assert "warm-up 120 of 700" in shown(render(made))
    made.tell({"phase": "starting"})
    assert "step 0 of 240" in shown(render(made))
