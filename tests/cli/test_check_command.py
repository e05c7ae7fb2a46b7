from command_line import TINY, sat_slime_command

from sat_slime.cli import lab_run


def test_check_tells_settings_and_machine_apart(runtime, monkeypatch):
    monkeypatch.setattr(lab_run, "ENGINES", {"json": "json"})
    good = sat_slime_command("check", TINY)
    assert good.exit_code == 0, good.output
    assert "OK    settings" in good.stdout and "OK json version unknown" in " ".join(good.stdout.split())
    bad = sat_slime_command("check", TINY, "--set", "model.experts=0", "--set", "model.max_positions=9")
    assert bad.exit_code == 2 and bad.stdout.count("FAIL  settings") >= 2
    nothing_clips = sat_slime_command("check", TINY, "--set", "method.denominator=trainer", "--set", "pipeline.lag=8")
    assert "WARN  settings        method.denominator is trainer" in nothing_clips.stdout
    monkeypatch.setattr(lab_run, "ENGINES", {"gone": "no_such_module"})
    monkeypatch.setattr(lab_run, "missing_engines", lambda: ["gone"])
    lacking = sat_slime_command("check", TINY)
    assert lacking.exit_code == 1 and "FAIL gone not installed: run" in " ".join(lacking.stdout.split())
