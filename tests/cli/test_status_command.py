from command_line import TINY, sat_slime_command


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
