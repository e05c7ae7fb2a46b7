import contextlib
import signal

from command_line import TINY, sat_slime_command

from sat_slime.cli import status_command
from sat_slime.cli.embedded_run import other_terminal


def test_status_tells_how_a_run_is(runtime, tmp_path):
    runtime.end, runtime.stop_after = RuntimeError("engine 0 died"), 3
    sat_slime_command("launch", TINY)
    shown = sat_slime_command("status", "runs/tiny").stdout
    assert "state       failed\n" in shown and "error       engine 0 died\n" in shown
    assert "progress    step 3 of 6, reward 0.3\n" in shown and "checkpoint  iteration-000002\n" in shown
    assert shown.endswith("go on with  sat-slime launch runs/tiny --resume\n")
    (tmp_path / "runs/tiny/state.json").write_text('{"status": "running", "pid": 4711}')
    shown = sat_slime_command("status", "runs/tiny").stdout
    assert "state       killed\n" in shown and "error       its process 4711 was killed, by hand or for want" in shown
    assert shown.endswith("go on with  sat-slime launch runs/tiny --resume\n")


def test_status_of_a_run_that_was_killed_before_it_started(runtime, tmp_path):
    sat_slime_command("launch", TINY)
    run = tmp_path / "runs/tiny"
    for path in run.iterdir():
        if path.is_file() and path.name not in ("config.yaml", ".lock"):
            path.unlink()
    shown = sat_slime_command("status", "runs/tiny").stdout
    assert "state       not started\nstarted     never\n" in shown and "None" not in shown
    assert shown.endswith("go on with  sat-slime launch runs/tiny --resume\n")


def test_a_view_that_is_killed_gives_the_terminal_back(runtime, tmp_path, monkeypatch):
    sat_slime_command("launch", TINY)
    shown = []

    @contextlib.contextmanager
    def unseen():
        shown.append("taken")
        yield from _until_any_end(shown)

    monkeypatch.setattr(status_command, "keys_unseen", unseen)
    monkeypatch.setattr(other_terminal, "watch", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: shown.append("would have died"))
    try:
        assert sat_slime_command("status", "runs/tiny", "--follow").exit_code == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert shown == ["taken", "given back"]


def _until_any_end(shown):
    try:
        yield
    finally:
        shown.append("given back")
