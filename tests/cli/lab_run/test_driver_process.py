"""The driver in a process of its own: its outcome, its death, and what it leaves."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest
from waiting import until

from sat_slime.cli.lab_run import driver_process
from sat_slime.cli.lab_run.driver_process import FORWARDED, Outcome, children, watched

WAITS = [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1); input()"]


def kill_this():
    os.kill(os.getpid(), signal.SIGKILL)


def raise_(error):
    raise error


LONG = "a reason\n" + 100_000 * "x"


@pytest.mark.parametrize("outcome", [Outcome("finished"), Outcome("failed", LONG)])
def test_the_outcome_of_the_work(outcome):
    assert watched(lambda: outcome) == outcome


def test_the_work_is_in_another_process(tmp_path):
    file = tmp_path / "pid"
    watched(lambda: file.write_text(str(os.getpid())) and Outcome("finished"))
    assert file.read_text() != str(os.getpid())


def test_a_driver_that_is_killed_is_told_of():
    outcome = watched(kill_this)
    assert (outcome.status, outcome.dead) == ("failed", True)
    assert "driver (process " in outcome.error and "was killed by SIGKILL and could not say why" in outcome.error


def test_a_driver_that_ends_from_c_is_told_of():
    assert "ended with exit code 7 and could not say why" in watched(lambda: os._exit(7)).error


def test_an_exception_that_nobody_caught(capfd):
    assert "ended with exit code 1" in watched(lambda: 1 / 0).error
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_go_on_to_the_driver(number):
    """And their handlers here are what they were."""
    previous = signal.signal(number, signal.default_int_handler)
    try:

        def work():
            os.kill(os.getppid(), number)
            while True:
                signal.pause()

        assert watched(work) == Outcome("interrupted")
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, previous)


@contextlib.contextmanager
def another_thread():
    """One to which the kernel may give a signal while the main one blocks it."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        yield thread
    finally:
        done.set()
        thread.join()


def taken_by(thread, number):
    """Returns when the thread has taken a signal, for Python to handle in the main one."""
    reading, writing = os.pipe2(os.O_NONBLOCK)
    os.set_blocking(reading, True)
    previous = signal.set_wakeup_fd(writing)
    try:
        signal.pthread_kill(thread.ident, number)
        assert os.read(reading, 1) == bytes([number])
    finally:
        signal.set_wakeup_fd(previous)
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_another_thread_takes_before_the_driver_is_known_goes_on_to_it(monkeypatch, number):
    previous, fork = signal.signal(number, signal.default_int_handler), os.fork

    def work():
        while True:
            signal.pause()

    try:
        with another_thread() as thread:

            def fork_and_signal():
                child = fork()
                if child:
                    taken_by(thread, number)
                return child

            monkeypatch.setattr(os, "fork", fork_and_signal)
            assert watched(work) == Outcome("interrupted")
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, previous)


def test_a_signal_of_a_driver_that_could_not_be_started_is_handled_as_before(monkeypatch):
    with another_thread() as thread:

        def no_fork():
            taken_by(thread, signal.SIGINT)
            raise BlockingIOError(errno.EAGAIN, "Resource unavailable")

        monkeypatch.setattr(os, "fork", no_fork)
        with pytest.raises(KeyboardInterrupt):
            watched(lambda: Outcome("finished"))
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(FORWARDED)


def test_a_driver_that_exits_in_a_handler_was_interrupted():
    def work():
        sys.exit(signal.SIGTERM)

    assert watched(work) == Outcome("interrupted")


def test_a_signal_while_the_rest_ends_changes_nothing(monkeypatch):
    left = []

    def end_what_is_left(before):
        for number in FORWARDED:
            os.kill(os.getpid(), number)
        left.append(before)

    monkeypatch.setattr(driver_process, "_end_what_is_left", end_what_is_left)
    assert watched(lambda: Outcome("finished")) == Outcome("finished")
    assert len(left) == 1


def test_no_process_for_the_driver_is_told_and_signals_are_as_before(monkeypatch):
    monkeypatch.setattr(os, "fork", mock.Mock(side_effect=BlockingIOError(errno.EAGAIN, "Resource unavailable")))
    outcome = watched(lambda: Outcome("finished"))
    assert outcome.status == "failed" and outcome.error.startswith("Resource unavailable: no process could be started")
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(FORWARDED)


def test_ctrl_z_stops_both_and_both_go_on():
    psutil = pytest.importorskip("psutil")
    program = (
        "import os, signal\nfrom sat_slime.cli.lab_run.driver_process import Outcome, watched\n"
        "def work():\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n"
        "    print(os.getpid(), flush=True)\n"
        "    signal.sigwait([signal.SIGUSR2])\n"
        "    return Outcome('finished')\n"
        "print(watched(work).status)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as launcher:
        both = [psutil.Process(launcher.pid), psutil.Process(int(launcher.stdout.readline()))]
        launcher.send_signal(signal.SIGTSTP)
        until(lambda: all(process.status() == psutil.STATUS_STOPPED for process in both))
        launcher.send_signal(signal.SIGCONT)
        until(lambda: all(process.status() == psutil.STATUS_SLEEPING for process in both))
        both[1].send_signal(signal.SIGUSR2)
        assert launcher.stdout.read() == "finished\n"


def test_nothing_is_left_of_the_driver_and_nothing_else_is_ended(tmp_path):
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ours:
        before = children()
        file = tmp_path / "pid"

        def work():
            left = subprocess.Popen(WAITS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            left.stdout.readline()
            left.stdin.detach()
            file.write_text(str(left.pid))
            os.set_inheritable(0, True)
            kill_this()

        assert watched(work).dead
        assert not Path(f"/proc/{file.read_text()}").exists()
        assert children() == before and ours.poll() is None
        ours.communicate(b"\n")


def test_the_driver_dies_with_its_launcher(tmp_path):
    program = (
        "import os, signal\nfrom sat_slime.cli.lab_run.driver_process import watched\n"
        "def work():\n"
        "    print(os.getpid(), flush=True)\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n"
        "    while True: signal.pause()\n"
        "watched(work)\n"
    )
    launcher = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert launcher.returncode == -signal.SIGKILL
    # its end of the pipe is closed, or run() would go on reading
    assert int(launcher.stdout) > 0
