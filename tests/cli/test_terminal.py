"""What commands do with signals."""

import os
import signal

import pytest

from sat_slime.cli.terminal import sigterm_as_ctrl_c, undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_interrupt_what_ends_processes(number):
    done = []
    with sigterm_as_ctrl_c():
        with undisturbed():
            os.kill(os.getpid(), number)
            done.append("ended")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert done == ["ended"]
