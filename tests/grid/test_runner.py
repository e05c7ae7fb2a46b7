"""A grid that is asked to end while it starts a cell. Of cells that run: tests/cli/test_grid_command.py."""

import json
import signal

import pytest
from synthetic import write_run

from sat_slime.config import GridConfig, LabConfig
from sat_slime.grid.runner import GridRun, collapse_note
from sat_slime.grid.state import GridFolder
from sat_slime.runs.folder import RunFolder


class Waiting:
    """Cells whose start waits for imports while Ctrl-C is pressed."""

    starts = 0

    def arguments(self, state):
        return ["launch"]

    def start(self, arguments, output):
        self.starts += 1
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the start went on")

    def settle(self, state):
        pass


class Silence:
    """What a grid tells while it runs, unheard."""

    def event(self, state, text):
        pass

    message = refresh = lambda self, *text: None


class Broken(Waiting):
    """Cells whose start fails, and Ctrl-C while the grid then ends."""

    def start(self, arguments, output):
        raise OSError("no more processes")


def test_ctrl_c_after_a_start_that_failed_hides_nothing(tmp_path, monkeypatch):
    folder = GridFolder(tmp_path / "grid")
    folder.path.mkdir()
    states = folder.begin(GridConfig(methods=["grpo"], lags=[1], seeds=[0]), LabConfig())
    saved = []
    monkeypatch.setattr(folder, "save", lambda states: (signal.raise_signal(signal.SIGINT), saved.append(states)))
    with pytest.raises(OSError, match="no more processes"):
        GridRun(folder, states, states, Broken(), Silence()).run()
    assert saved


def test_what_is_said_of_a_collapse_is_of_the_first_data_set(tmp_path):
    """Two that stay where they are, one at 0.9 and one at 0.1, beside a mismatch that rises."""
    folder = write_run(tmp_path / "run", 40, lag=1)
    rows = [
        {"step": step, "iteration": step, "dataset": name, "accuracy": accuracy, "n_samples": 999}
        for step in range(0, 200, 8)
        for name, accuracy in (("aime", 0.9), ("math", 0.1))
    ]
    metrics = [{"step": step, "mismatch/d_pi": 0.01 if step < 80 else 0.5} for step in range(1, 200)]
    (folder / "eval.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in metrics))
    assert collapse_note(RunFolder(folder)) is None
    mixed = [{**row, "dataset": None, "accuracy": 0.9 if row["step"] < 80 else 0.1} for row in rows]
    (folder / "eval.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in mixed))
    assert "meets the collapse rule" in collapse_note(RunFolder(folder))


def test_ctrl_c_ends_a_start_that_waits(tmp_path):
    folder, cells = GridFolder(tmp_path / "grid"), Waiting()
    folder.path.mkdir()
    states = folder.begin(GridConfig(methods=["grpo", "gspo"], lags=[1], seeds=[0]), LabConfig())
    handler = signal.getsignal(signal.SIGINT)
    GridRun(folder, states, states, cells, Silence(), parallel=2).run()
    assert cells.starts == 1 and [state.state for state in states] == ["planned", "planned"]
    assert signal.getsignal(signal.SIGINT) is handler
