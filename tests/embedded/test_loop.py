"""The whole loop through the command line, on the real engines: what it records, and what it survives.

All runs share one configuration in the deterministic fp32 setting, so each run that was disturbed and resumed must
have the metrics of the undisturbed one, bit for bit.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sat_slime.rollout.token_dump import dump_path, dump_paths, read_dump

psutil = pytest.importorskip("psutil", reason="the embedded runtime needs the engines: scripts/setup.sh")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("ray", "sglang", "megatron")),
        reason="the embedded runtime needs the engines: scripts/setup.sh",
    ),
]

ROOT = Path(__file__).parents[2]
ITERATIONS, LAG = 12, 3
SETTINGS = [
    f"pipeline.iterations={ITERATIONS}",
    f"pipeline.lag={LAG}",
    "checkpoint.every_n_iterations=4",  # not a multiple of the lag: checkpoints fall inside a broadcast cycle
    "eval.every_n_iterations=6",
]


class Run:
    """One `sat-slime launch` in a process of its own."""

    def __init__(self, root: Path, name: str, *arguments: str) -> None:
        self.folder = root / "runs" / name
        settings = [*SETTINGS, f"output_dir={root / 'runs'}", f"cache_dir={root / 'cache'}"]
        command = [str(Path(sys.executable).parent / "sat-slime"), "launch", "--no-live"]
        if "--resume" in arguments:
            command += [str(self.folder), *arguments]
        else:
            command += [str(ROOT / "configs/embedded/tiny.yaml"), "--name", name]
            command += [part for setting in settings for part in ("--set", setting)] + list(arguments)
        self.output = root / f"{name}-{len(list(root.glob('*.out')))}.out"
        self.process = subprocess.Popen(
            command, stdout=self.output.open("w"), stderr=subprocess.STDOUT, start_new_session=True
        )

    def wait(self, timeout_s: float = 240) -> int:
        return self.process.wait(timeout_s)

    def rows(self, name: str = "metrics") -> list[dict]:
        path = self.folder / f"{name}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def comparable(self, name: str = "metrics") -> list[dict]:
        """Rows without what depends on the clock, or counts the faults that a test caused."""
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "rollout/"))} for row in self.rows(name)]

    def until(self, steps: int, timeout_s: float = 240) -> list:
        """Waits until so many steps are recorded; returns the run's processes."""
        deadline = time.monotonic() + timeout_s
        while len(self.rows()) < steps:
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)
        return self.processes()

    def processes(self) -> list:
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]

    def find(self, fragment: str):
        """The run's process whose command line has this fragment."""
        found = [p for p in self.processes() if fragment in " ".join(_command_line(p))]
        assert found, [" ".join(_command_line(p))[:90] for p in self.processes()]
        return found[0]


def _command_line(process) -> list[str]:
    try:
        return process.cmdline() or [process.name()]
    except psutil.NoSuchProcess:
        return []


def _is_ray_agent(process) -> bool:
    """Ray's own two agents take a minute to give up on a head that was killed; they hold nothing of the run."""
    return any(name in " ".join(_command_line(process)) for name in ("DashboardAgent", "RuntimeEnvAgent"))


def assert_gone(processes: list) -> None:
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive, [" ".join(_command_line(p)) for p in alive]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("loop")


@pytest.fixture(scope="module")
def undisturbed(root) -> Run:
    run = Run(root, "undisturbed")
    processes = run.until(1)
    assert run.wait() == 0, run.output.read_text()
    assert_gone(processes)
    return run


def assert_same_history(run: Run, undisturbed: Run) -> None:
    assert run.comparable() == undisturbed.comparable()
    assert run.comparable("eval") == undisturbed.comparable("eval")
    assert run.comparable("histograms") == undisturbed.comparable("histograms")


def test_a_run_records_what_it_promises(undisturbed):
    rows = undisturbed.rows()
    assert [row["step"] for row in rows] == list(range(1, ITERATIONS + 1))
    assert [row["rollout_id"] for row in rows] == list(range(ITERATIONS))
    # slime's order: the first batch is on-policy, then the lag cycles 1 .. n.
    assert [row["lag/mean"] for row in rows] == [0, *[1 + i % LAG for i in range(ITERATIONS - 1)]]
    assert all(row["lag/min"] == row["lag/max"] for row in rows)
    for name in ("reward/mean", "mismatch/d_pi", "sat/q", "sat/newly_clipped", "clip/fraction", "loss/kl", "grad_norm"):
        assert all(name in row for row in rows), name
    # fp32 engines at equal weights, routes replayed
    assert rows[0]["mismatch/d_pi"] < 1e-5
    assert max(row["mismatch/implementation"] for row in rows if "mismatch/implementation" in row) < 1e-4
    evals = undisturbed.rows("eval")
    assert [(e["step"], e["weights_step"]) for e in evals] == [(0, 0), (6, 6), (12, 12)]
    assert json.loads((undisturbed.folder / "state.json").read_text())["status"] == "finished"
    assert (
        "<svg" in (undisturbed.folder / "report.html").read_text()
        or "<img" in (undisturbed.folder / "report.html").read_text()
    )


def test_killed_and_resumed_is_bitwise_the_same(undisturbed, root):
    run = Run(root, "killed")
    processes = [p for p in run.until(6) if not _is_ray_agent(p)]
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    assert_gone(processes)
    resumed = Run(root, "killed", "--resume")
    assert resumed.wait() == 0, resumed.output.read_text()
    assert_same_history(resumed, undisturbed)


def test_dumps_and_diagnoses_change_nothing_and_are_repeated_by_a_resume(undisturbed, root):
    settings = ("dump.every_n_iterations=2", "diagnose.every_n_steps=5", "diagnose.split_every_n_steps=2")
    run = Run(root, "dumped", *(part for setting in settings for part in ("--set", setting)))
    run.until(7)
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    stray = dump_path(run.folder, ITERATIONS + 5)  # of iterations that the resumed run does not reach
    stray.write_bytes(b"")
    resumed = Run(root, "dumped", "--resume")
    assert resumed.wait() == 0, resumed.output.read_text()
    for ours, theirs in zip(resumed.comparable(), undisturbed.comparable(), strict=True):
        assert {name: ours.get(name) for name in theirs} == theirs
    assert resumed.comparable("histograms") == undisturbed.comparable("histograms")

    diagnosed = [1, 6, 11]
    dumps = {path.name: read_dump(path) for path in dump_paths(run.folder)}
    assert list(dumps) == [f"{i:06d}.safetensors" for i in range(1, ITERATIONS + 1) if i % 2 == 0 or i in diagnosed]
    rows = {row["step"]: row for row in resumed.rows()}
    for dump in dumps.values():
        row = rows[dump.step]
        d = np.abs(dump.log_probs - dump.rollout_log_probs)
        assert d.mean() == pytest.approx(row["mismatch/d_pi"], rel=1e-4, abs=1e-8)
        assert dump.rewards.mean() == pytest.approx(row["reward/mean"])
        assert (dump.updates - dump.versions == row["lag/mean"]).all()
        assert ("tv" in dump.more) == (dump.iteration in diagnosed)
        if "tv" in dump.more:
            # the engines agree in fp32 at equal weights, over the whole vocabulary
            assert dump.more["tv_implementation"].max() < 1e-5
            assert dump.more["tv"].mean() > 1e-3 or dump.iteration == 1
            assert not dump.more["checkpoint_expert_flips"].any()


def test_ctrl_c_saves_and_says_how_to_go_on(undisturbed, root):
    run = Run(root, "interrupted")
    processes = run.until(2)
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    check_interrupted(run, processes, undisturbed, root)


def test_sigterm_is_ctrl_c(undisturbed, root):
    run = Run(root, "terminated")
    processes = run.until(7)
    run.process.terminate()
    check_interrupted(run, processes, undisturbed, root)


def check_interrupted(run: Run, processes: list, undisturbed: Run, root: Path) -> None:
    assert run.wait() == 130, run.output.read_text()
    assert_gone(processes)
    newest = max(path.name for path in (run.folder / "checkpoints").iterdir())
    assert newest == f"iteration-{len(run.rows()):06d}" and len(run.rows()) < ITERATIONS
    assert "--resume" in run.output.read_text()
    assert (run.folder / "report.html").exists()
    resumed = Run(root, run.folder.name, "--resume")
    assert resumed.wait() == 0, resumed.output.read_text()
    assert_same_history(resumed, undisturbed)


def test_a_killed_trainer_rank_ends_the_run_and_a_resume_goes_on(undisturbed, root):
    run = Run(root, "rank")
    processes = run.until(5)
    run.find("ray::_Rank").kill()
    assert run.wait() == 1
    assert_gone(processes)
    text = run.output.read_text()
    assert "trainer rank 0 died: its process" in text and "--resume" in text and "Traceback" not in text
    resumed = Run(root, "rank", "--resume")
    assert resumed.wait() == 0, resumed.output.read_text()
    assert_same_history(resumed, undisturbed)


def test_a_killed_server_is_restarted_and_nothing_is_lost_or_counted_twice(undisturbed, root):
    run = Run(root, "server")
    run.until(2)  # well before the evaluation after iteration 6: a restart in its midst is in no row
    run.find("sglang_server.launch").kill()
    assert run.wait() == 0, run.output.read_text()
    assert sum(row["rollout/restarts"] for row in run.rows()) >= 1
    assert_same_history(run, undisturbed)


def test_a_full_disk_at_a_checkpoint_leaves_the_previous_one_whole(undisturbed, root, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no permission to mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        run = Run(root, "full")
        while not (run.folder / "checkpoints").exists():
            assert run.process.poll() is None, run.output.read_text()
            time.sleep(0.01)
        (run.folder / "checkpoints").rmdir()
        (run.folder / "checkpoints").symlink_to(disk)
        assert run.wait() == 1, run.output.read_text()
        text = run.output.read_text()
        assert "iteration-000004 is whole" in text and "No space left" in text
        assert [path.name for path in disk.iterdir()] == ["iteration-000004"]
        subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
        resumed = Run(root, "full", "--resume")
        assert resumed.wait() == 0, resumed.output.read_text()
        assert_same_history(resumed, undisturbed)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_the_synchronous_mode_has_no_lag(undisturbed, root):
    run = Run(
        root, "synchronous", "--set", "pipeline.lag=0", "--set", "pipeline.iterations=3", "--set", "rollout.engines=2"
    )
    assert run.wait() == 0, run.output.read_text()
    assert [row["lag/max"] for row in run.rows()] == [0, 0, 0]
