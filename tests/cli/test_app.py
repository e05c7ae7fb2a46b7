import asyncio
import dataclasses
import inspect
import json
import os
import signal
import sys
from pathlib import Path

import pytest
import yaml
from stand_in_runtime import FakeRuntime
from typer.testing import CliRunner

from sat_slime import embedded
from sat_slime.cli import app
from sat_slime.cli.embedded_run import embedded_plan, embedded_start, engine_packages
from sat_slime.cli.embedded_run.driver_process import Outcome
from sat_slime.cli.embedded_run.engine_packages import Engine
from sat_slime.config import build_method
from sat_slime.config.method import method_switches
from sat_slime.config.schema import MethodConfig
from sat_slime.embedded.deaths import MemoryWatch
from sat_slime.objective import base_names, method_names, named_method
from sat_slime.objective.stabilizers import rows
from sat_slime.rollout.ray_start import RayNotStarted

TINY = Path(__file__).parents[2] / "configs" / "embedded" / "tiny.yaml"


@pytest.fixture
def runtime(monkeypatch, tmp_path):
    fake = FakeRuntime()
    fake.stand_in(monkeypatch)
    monkeypatch.setattr("sat_slime.report.run.page.FIGURES", ())  # drawn in their own tests
    monkeypatch.chdir(tmp_path)
    return fake


def test_the_stand_in_is_called_as_the_runtime_is():
    theirs, ours = inspect.signature(embedded.run), inspect.signature(FakeRuntime().run)
    assert list(theirs.parameters) == list(ours.parameters)


def sat_slime_command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})


def state(folder):
    return json.loads((folder / "state.json").read_text())


def test_a_run_leaves_everything_in_its_folder(runtime, tmp_path):
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 0, result.output
    run = tmp_path / "runs" / "tiny"
    assert (run / "metrics.jsonl").read_text().count("\n") == 6
    assert state(run)["status"] == "finished"
    assert "step 6/6" in result.stdout
    assert "report: runs/tiny/report.html" in result.stdout
    assert (run / "report.html").exists()


def test_the_resolved_file_runs_again(runtime, tmp_path):
    sat_slime_command("launch", TINY, "--lag", 1)
    assert sat_slime_command("launch", "runs/tiny/config.yaml", "--name", "again").exit_code == 0
    (first, _, _), (second, folder, _) = runtime.calls
    assert second == first.model_copy(update={"name": "again"})
    assert folder == tmp_path / "runs" / "again"


def test_options_change_the_file(runtime, tmp_path):
    arguments = [
        "--method",
        "gspo-tis",
        "--sat",
        "--r3",
        "--lag",
        "1",
        "--set",
        "train.lr=1e-3",
        "--name",
        "7",
    ]
    assert sat_slime_command("launch", TINY, *arguments).exit_code == 0
    ((config, folder, resume),) = runtime.calls
    assert build_method(config.method).name == "sat-gspo-tis-r3"
    assert (config.pipeline.lag, config.train.lr, folder, resume) == (1, 1e-3, tmp_path / "runs" / "7", False)


def test_sat_and_tis_compose(runtime):
    result = sat_slime_command("launch", TINY, "--base", "grpo", "--sat", "--tis")
    assert result.exit_code == 0, result.output
    ((config, _, _),) = runtime.calls
    assert (build_method(config.method).name, build_method(config.method).denominator) == (
        "sat-grpo-tis-r3",
        "checkpoint",
    )


def test_dry_run_starts_nothing(runtime, tmp_path):
    result = sat_slime_command("launch", TINY, "--dry-run")
    assert result.exit_code == 0
    assert not (tmp_path / "runs").exists() and runtime.calls == []
    assert yaml.safe_load(result.stdout)["pipeline"]["lag"] == 2
    assert "16 responses" in result.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--set", "pipline.lag=3"], "unknown key 'pipline.lag'; did you mean 'pipeline.lag'?"),
        (["--method", "sat-gsp"], "did you mean 'sat-gspo'"),
        (["--base", "gspoo"], "command line: method.base is 'gspoo'"),
        (["--method", "grpo", "--base", "gspo"], "--method grpo and --base gspo contradict each other"),
        (["--method", "sat-gspo-tis-r3", "--no-sat"], "--method sat-gspo-tis-r3 and --no-sat contradict each other"),
        (["--method", "gspo-tis", "--no-tis"], "--method gspo-tis and --no-tis contradict each other"),
        (["--method", "gspo-r3", "--no-r3"], "--method gspo-r3 and --no-r3 contradict each other"),
        (["--lag", "-1"], "pipeline.lag is -1"),
        (["--tis", "--set", "method.denominator=trainer"], "set method.denominator to checkpoint"),
        (["--set", "model.experts=0"], "model.experts is 0"),
        (["--resume"], "start it without --resume or --resume-from"),
        (["--resume", "--overwrite"], "--resume goes on with a run and --overwrite deletes it"),
        (["--set", f"output_dir={TINY}/x"], "cannot be written (Not a directory)"),
        (["--set", "logging.wandb_project=p"], "pip install wandb"),
    ],
)
def test_bad_input_is_a_line_and_exit_code_2(runtime, monkeypatch, tmp_path, arguments, message):
    monkeypatch.setattr(embedded_plan, "tracker_error", lambda project: project and "pip install wandb")
    result = sat_slime_command("launch", TINY, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert all(line.startswith("error: ") for line in result.stderr.splitlines())
    assert "Traceback" not in result.output
    assert not (tmp_path / "runs").exists()


def test_options_that_say_what_the_method_says_are_no_contradiction(runtime):
    arguments = ["--method", "sat-gspo-r3", "--base", "gspo", "--sat", "--r3", "--no-tis"]
    assert sat_slime_command("launch", TINY, *arguments, "--dry-run").exit_code == 0


@pytest.mark.parametrize("command", [["launch"], ["check"]])
def test_all_faults_are_told_at_once(runtime, monkeypatch, command):
    monkeypatch.setattr(engine_packages, "ENGINES", ())
    overrides = ["--set", "train.lr=1e400", "--set", "model.kv_heads=3", "--set", "pipline.lag=1"]
    result = sat_slime_command(*command, TINY, *overrides)
    assert result.exit_code == 2
    for fault in ("train.lr is inf", "model.kv_heads is 3", "unknown key 'pipline.lag'"):
        assert fault in result.output


def test_all_faults_of_a_slime_run_are_told_at_once(runtime):
    laptop = TINY.parents[1] / "slime" / "laptop.yaml"
    overrides = ["--set", "train.lr=1e400", "--set", "pipeline.max_staleness=0", "--set", "pipeline.mode=streaming"]
    overrides += ["--set", "extra_args.sglang-mem-fraction=0.5"]
    result = sat_slime_command("launch", laptop, *overrides, "--skip-checks")
    assert result.exit_code == 2
    for fault in ("train.lr is inf", "pipeline.max_staleness is 0", "there is no flag --sglang-mem-fraction"):
        assert fault in result.stderr


def test_a_grid_is_no_run(runtime, tmp_path):
    (tmp_path / "grid.yaml").write_text(f"name: g\nrun: {TINY}\nmethods: [gspo]\n")
    for command in ("launch", "check"):
        result = sat_slime_command(command, "grid.yaml")
        assert result.exit_code == 2
        assert "grid.yaml: this is a grid, not a run: sat-slime grid grid.yaml" in result.output
    folder = sat_slime_command("launch", ".", "--resume")
    assert folder.exit_code == 2 and "is a grid, not a run: sat-slime grid . goes on with it" in folder.stderr


def test_missing_file(runtime):
    result = sat_slime_command("launch", TINY.with_name("tini.yaml"))
    assert result.exit_code == 2
    assert "did you mean" in result.stderr and "tiny.yaml" in result.stderr


def test_missing_engines_say_what_to_install(runtime, monkeypatch, tmp_path):
    monkeypatch.setattr(engine_packages, "missing_engines", lambda: ["megatron-core", "ray"])
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 2
    assert "megatron-core, ray" in result.stderr and 'pip install "sat-slime[embedded]"' in result.stderr
    assert not (tmp_path / "runs").exists()


def test_an_earlier_run_is_kept_unless_told(runtime):
    sat_slime_command("launch", TINY)
    refused = sat_slime_command("launch", TINY)
    assert refused.exit_code == 2
    assert all(choice in refused.stderr for choice in ("--resume", "--name", "--overwrite"))
    assert sat_slime_command("launch", TINY, "--overwrite").exit_code == 0
    assert len(runtime.calls) == 2


def test_a_failure_is_one_line_kept_and_reported(runtime, tmp_path):
    runtime.end = RuntimeError("engine 0 died 4 times; see its log\nand more")
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 1
    assert result.stderr == "error: engine 0 died 4 times; see its log\nand more\n"
    assert "sat-slime launch runs/tiny --resume" in result.stdout
    run = tmp_path / "runs" / "tiny"
    assert (state(run)["status"], state(run)["error"]) == ("failed", "engine 0 died 4 times; see its log")
    assert "engine 0 died 4 times" in (run / "report.html").read_text()
    assert "Traceback" in (run / "log.txt").read_text()


@pytest.mark.parametrize("failures, code", [(1, 0), (2, 1)])
def test_a_ray_that_does_not_start_is_started_once_more(runtime, tmp_path, failures, code):
    error = RayNotStarted("Ray did not start: it timed out; the machine is busy")
    starts = []

    def at_end(log):
        starts.append(log)
        if len(starts) <= failures:
            raise error

    runtime.at_end = at_end
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == code, result.output
    assert f"{error}\nstarting once more\n" in result.stdout and len(starts) == 2
    assert result.stderr == ("" if code == 0 else f"error: {error}\n")
    assert state(tmp_path / "runs" / "tiny")["status"] == ("finished" if code == 0 else "failed")


def test_a_driver_that_cannot_speak_is_spoken_for(runtime, monkeypatch, tmp_path):
    outcome = Outcome("failed", "the run's driver (process 5) was killed by SIGKILL and could not say why", dead=True)
    monkeypatch.setattr(embedded_start, "watched", lambda work: outcome)
    monkeypatch.setattr(MemoryWatch, "remark", lambda self: "the kernel killed 1 process for want of memory")
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 1
    error = f"{outcome.error}; the kernel killed 1 process for want of memory"
    assert result.stderr == f"error: {error}\n"
    assert error not in result.stdout, "told once"
    run = tmp_path / "runs" / "tiny"
    assert (state(run)["status"], state(run)["error"]) == ("failed", error)
    assert (run / "log.txt").read_text().endswith(f" ERROR   {error}\n")
    assert "sat-slime launch runs/tiny --resume" in result.stdout


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


def test_a_failing_report_does_not_hide_the_error(runtime, monkeypatch):
    runtime.end = RuntimeError("the real error")
    monkeypatch.setattr("sat_slime.report.run.page.write_report", lambda path: 1 / 0)
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 1
    assert result.stderr == "error: the real error\n"
    assert "no report: ZeroDivisionError" in result.stdout


def test_interrupted_says_how_to_go_on(runtime, tmp_path):
    runtime.end, runtime.stop_after = KeyboardInterrupt(), 3
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 130
    assert "go on with: sat-slime launch runs/tiny --resume" in result.stdout
    assert state(tmp_path / "runs" / "tiny")["status"] == "interrupted"


def test_an_interrupt_before_the_runtime_runs(runtime, monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded_start, "make_view", interrupted)
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 130
    assert "go on with: sat-slime launch runs/tiny --resume" in result.stdout
    assert state(tmp_path / "runs" / "tiny")["status"] == "interrupted"
    monkeypatch.setattr("sat_slime.cli.run_plan.plan_run", interrupted)
    result = sat_slime_command("launch", TINY)
    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")


@pytest.mark.parametrize("error, status", [(None, "interrupted"), (RuntimeError("the real error"), "failed")])
def test_an_interrupt_while_the_report_is_written(runtime, monkeypatch, tmp_path, error, status):
    def interrupted(path):
        raise KeyboardInterrupt

    runtime.end = error
    monkeypatch.setattr("sat_slime.report.run.page.write_report", interrupted)
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 130
    assert "writing the report ..." in result.stdout
    assert result.stdout.endswith("no report: interrupted; write it with: sat-slime report runs/tiny\n")
    assert result.stderr == ("error: the real error\n" if error else "")
    assert state(tmp_path / "runs" / "tiny")["status"] == status
    assert sat_slime_command("report", "runs/tiny").exit_code == 130


def test_sigterm_is_an_interrupt(runtime, tmp_path):
    previous = signal.signal(signal.SIGTERM, lambda *_: None)  # unhandled, it would end the tests
    try:
        runtime.at_end = lambda log: signal.raise_signal(signal.SIGTERM)
        assert sat_slime_command("launch", TINY).exit_code == 130
        assert state(tmp_path / "runs" / "tiny")["status"] == "interrupted"
        assert signal.getsignal(signal.SIGTERM) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, previous)


needs_full_device = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")


def fill_disk(log):
    log._files[log._folder.metrics] = open("/dev/full", "a")  # noqa: SIM115 - closed by the log
    log._files[log._folder.log] = open("/dev/full", "a")  # noqa: SIM115 - closed by the log
    log.step({"step": 7})


@needs_full_device
def test_a_full_disk_is_a_line_and_the_run_ends_as_failed(runtime, tmp_path):
    runtime.at_end = fill_disk
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 1
    path = tmp_path / "runs" / "tiny" / "metrics.jsonl"
    assert result.stderr == (
        f"error: cannot write {path.relative_to(tmp_path)}: No space left on device: free space and go on with "
        "--resume\n"
    )
    assert state(path.parent)["status"] == "failed" and "metrics.jsonl" in state(path.parent)["error"]
    assert (path.parent / "report.html").exists()


@needs_full_device
def test_a_disk_that_stays_full_is_a_line_too(runtime, monkeypatch, tmp_path):
    def full_from_now_on(log):
        monkeypatch.setattr(os, "fsync", lambda file: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
        fill_disk(log)

    runtime.at_end = full_from_now_on
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert len(result.stderr.splitlines()) == 1 and "metrics.jsonl: No space left" in result.stderr
    state_file = Path("runs/tiny/state.json")
    assert f"no report: [Errno 28] No space left on device: '{state_file}'; when that is mended:" in result.stdout
    assert not list((tmp_path / "runs" / "tiny").glob(".*.tmp"))


def test_a_server_that_does_not_start_tells_why(runtime, tmp_path):
    pytest.importorskip("httpx")
    from sat_slime.config.schema import ModelConfig, RolloutConfig
    from sat_slime.embedded.engine.server import ServerFailed, SGLangServer

    command = [sys.executable, "-c", "print('loading'); raise SystemExit('no such checkpoint')"]
    server = SGLangServer(0, RolloutConfig(), ModelConfig(), str(tmp_path), command)
    with pytest.raises(ServerFailed) as failure:
        asyncio.run(server.start("model", 0))
    runtime.end = failure.value
    result = sat_slime_command("launch", TINY)
    first, *rest = result.stderr.splitlines()
    assert first.startswith("error: the SGLang server of engine 0 ended before it was healthy (exit code 1)")
    assert first.endswith("; last in its log: no such checkpoint")
    assert rest[0] == f"Its log {tmp_path}/sglang-0.log ends with:" and rest[-2:] == [
        "    loading",
        "    no such checkpoint",
    ]
    run = tmp_path / "runs" / "tiny"
    assert state(run)["error"] == first.removeprefix("error: ")
    assert "last in its log: no such checkpoint" in (run / "report.html").read_text()


def test_a_server_without_words_leaves_nothing_dangling(tmp_path):
    pytest.importorskip("httpx")
    from sat_slime.config.schema import ModelConfig, RolloutConfig
    from sat_slime.embedded.engine.server import SGLangServer

    server = SGLangServer(0, RolloutConfig(), ModelConfig(), str(tmp_path), ["true"])
    assert server.last_words() == ""
    server.log_path.write_text("--- true --port 1\n\n")
    assert server.last_words() == ""


def test_a_resumed_run_starts_where_its_checkpoint_is(runtime, monkeypatch, tmp_path):
    runtime.end, runtime.stop_after = KeyboardInterrupt(), 5
    sat_slime_command("launch", TINY)
    first_steps = []
    make_view = embedded_start.make_view
    monkeypatch.setattr(embedded_start, "make_view", lambda *args: first_steps.append(args[-1]) or make_view(*args))
    sat_slime_command("launch", "runs/tiny", "--resume")
    assert first_steps == [4]


@pytest.mark.parametrize("target", [TINY, "runs/tiny", "runs/tiny/", "runs/tiny/config.yaml"])
def test_resume_by_file_or_folder(runtime, tmp_path, target):
    runtime.end, runtime.stop_after = KeyboardInterrupt(), 3
    sat_slime_command("launch", TINY)
    runtime.end, runtime.stop_after = None, 10**9
    result = sat_slime_command("launch", target, "--resume")
    assert result.exit_code == 0, result.output
    (first, _, _), (second, folder, resume) = runtime.calls
    assert (second, folder, resume) == (first, tmp_path / "runs" / "tiny", True)
    steps = [json.loads(line)["step"] for line in (tmp_path / "runs/tiny/metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert state(tmp_path / "runs" / "tiny")["status"] == "finished"


def test_a_moved_run_resumes_where_it_is(runtime, tmp_path):
    runtime.end = KeyboardInterrupt()
    sat_slime_command("launch", TINY)
    (tmp_path / "runs" / "tiny").rename(tmp_path / "elsewhere")
    runtime.end = None
    assert sat_slime_command("launch", "elsewhere", "--resume").exit_code == 0
    assert runtime.calls[-1][1] == tmp_path / "elsewhere"
    assert not (tmp_path / "runs" / "tiny").exists()


def test_resume_refuses_changed_settings(runtime):
    runtime.end = KeyboardInterrupt()
    sat_slime_command("launch", TINY)
    result = sat_slime_command("launch", "runs/tiny", "--resume", "--no-sat", "--set", "train.lr=1e-3")
    assert result.exit_code == 2
    assert "method.sat.enabled (True -> False), train.lr (0.0005 -> 0.001)" in result.stderr
    assert len(runtime.calls) == 1


def test_resume_may_grow_and_change_what_does_not_matter(runtime, tmp_path):
    sat_slime_command("launch", TINY)
    finished = sat_slime_command("launch", "runs/tiny", "--resume")
    assert finished.exit_code == 2
    assert "is finished after 6 iterations" in finished.stderr
    shrunk = sat_slime_command("launch", "runs/tiny", "--resume", "--set", "pipeline.iterations=5")
    assert shrunk.exit_code == 2
    more = ["--set", "pipeline.iterations=9", "--set", "checkpoint.keep=1", "--set", "rollout.max_restarts=9"]
    assert sat_slime_command("launch", "runs/tiny", "--resume", *more).exit_code == 0
    assert yaml.safe_load((tmp_path / "runs/tiny/config.yaml").read_text())["pipeline"]["iterations"] == 9
    assert sat_slime_command("launch", "runs/tiny").exit_code == 2


def test_methods_lists_all(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = sat_slime_command("methods")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    for base in base_names():
        assert any(base in (word.rstrip(",") for word in line[:2]) for line in lines), base
    for name, row in rows().items():
        assert any(row.discriminator in line and row.direction in line for line in result.stdout.splitlines()), name
    named = result.stdout.partition("Named methods:")[2].split()
    assert named[: len(method_names())] == method_names()


@pytest.mark.parametrize("name", [*method_names(), "sat-gspo-tis-r3-topp"])
def test_a_method_in_full(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    result = sat_slime_command("methods", name)
    assert result.exit_code == 0
    method = named_method(name)
    for part in method.parts:
        row = rows()[part]
        assert row.formula in result.stdout and row.source in result.stdout and row.needs in result.stdout
    config = MethodConfig(**method_switches(name))
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("method.")]
    for settings in (method.trust_region, *method.stabilizers):
        unread = getattr(settings, "unread", ())
        for field in dataclasses.fields(settings) if settings else ():
            value = getattr(settings, field.name)
            found = [line[1] for line in lines if line[0].split(".")[-1] == field.name]
            if field.name not in unread:
                assert ("unset" if value is None else str(value)) in found, field.name
    assert build_method(config) == method
    assert ("embedded, slime" in result.stdout) == (name != "trpo")


def test_methods_of_a_switch_of_what_is_refused_and_of_what_is_unknown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert "method.top_p_replay: true, or BASE-topp" in sat_slime_command("methods", "topp").stdout
    assert "method.tis.cap" in sat_slime_command("methods", "tis").stdout
    assert "SPO replaces the clip" in sat_slime_command("methods", "sat-spo").stdout
    unknown = sat_slime_command("methods", "dpppo")
    assert unknown.exit_code == 2 and "did you mean 'dppo'" in unknown.stderr


def test_report_of_a_run_and_of_nothing(runtime, tmp_path):
    sat_slime_command("launch", TINY)
    (tmp_path / "runs/tiny/report.html").unlink()
    assert sat_slime_command("report", "runs/tiny").stdout.strip() == "runs/tiny/report.html"
    assert (tmp_path / "runs/tiny/report.html").exists()
    assert sat_slime_command("report", tmp_path).exit_code == 2


def test_report_tells_on_the_terminal_what_is_wrong_with_the_rows(runtime, tmp_path):
    sat_slime_command("launch", TINY, "--set", "eval.every_n_iterations=0")
    assert sat_slime_command("report", "runs/tiny").stderr == ""
    metrics = tmp_path / "runs/tiny/metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:2] + lines[3:]))
    told = sat_slime_command("report", "runs/tiny")
    assert told.exit_code == 0
    assert told.stderr.startswith("warning: runs/tiny: metrics.jsonl lacks 1 row, of optimizer step 3")


def test_version_and_help():
    assert "sat-slime" in sat_slime_command("version").stdout
    top = sat_slime_command("--help").stdout
    assert all(command in top for command in ("launch", "check", "methods", "report", "version"))
    assert "--resume" in sat_slime_command("launch", "--help").stdout


def test_check_tells_settings_and_machine_apart(runtime, monkeypatch):
    monkeypatch.setattr(engine_packages, "ENGINES", (Engine("json", "json"),))
    good = sat_slime_command("check", TINY)
    assert good.exit_code == 0, good.output
    assert "OK    settings" in good.stdout and "OK    memory" in good.stdout
    bad = sat_slime_command("check", TINY, "--set", "model.experts=0", "--set", "train.tensor_parallel=3")
    assert bad.exit_code == 2
    assert bad.stdout.count("FAIL  settings") >= 3
    monkeypatch.setattr(engine_packages, "ENGINES", (Engine("json", "json", "raise RuntimeError('torn')"),))
    broken = sat_slime_command("check", TINY)
    assert broken.exit_code == 1
    assert "cannot be imported (RuntimeError: torn)" in broken.stdout


@pytest.mark.parametrize("key", ["output_dir", "cache_dir"])
def test_check_finds_folders_that_cannot_be_made(runtime, monkeypatch, tmp_path, key):
    monkeypatch.setattr(engine_packages, "ENGINES", ())
    (tmp_path / "file").write_text("")
    result = sat_slime_command("check", TINY, "--set", f"{key}={tmp_path}/file/x")
    assert result.exit_code == 1
    assert f"{tmp_path}/file is not a folder: choose another {key}" in result.stdout
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "closed")
    result = sat_slime_command("check", TINY, "--set", f"{key}={tmp_path}/closed/x")
    assert f"{tmp_path}/closed is not writable: choose another {key}" in result.stdout


def test_errors_of_actors_are_told_by_their_cause():
    wrapped = RuntimeError("ray::Trainer.train() (pid=1)\nTraceback ...")
    wrapped.cause = KeyError("layer")
    assert embedded_start.one_line(wrapped) == "KeyError: 'layer'"
    assert embedded_start.one_line(OSError(28, "No space left on device")) == "[Errno 28] No space left on device"
    assert embedded_start.one_line(AssertionError()) == "AssertionError"
