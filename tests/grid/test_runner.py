"""A grid that is asked to end while it starts a cell. Of cells that run: tests/cli/test_grid_command.py."""

import signal

from sat_slime.config import EmbeddedConfig, GridConfig
from sat_slime.grid.runner import GridRun
from sat_slime.grid.state import GridFolder


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


def test_ctrl_c_ends_a_start_that_waits(tmp_path):
    folder, cells = GridFolder(tmp_path / "grid"), Waiting()
    folder.path.mkdir()
    states = folder.begin(GridConfig(methods=["grpo", "gspo"], lags=[1], seeds=[0]), EmbeddedConfig())
    handler = signal.getsignal(signal.SIGINT)
    GridRun(folder, states, states, cells, Silence(), parallel=2).run()
    assert cells.starts == 1 and [state.state for state in states] == ["planned", "planned"]
    assert signal.getsignal(signal.SIGINT) is handler
