"""The whole loop through the command line, on the real engines: what it records, and what it survives.

All runs share one configuration in the deterministic fp32 setting, so each run that was disturbed and resumed must
have the metrics of the undisturbed one, bit for bit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from left_processes import end_what_is_left
from safetensors.numpy import load_file, save_file
from waiting import assert_gone, command_line, until

from sat_slime.objective.metrics import EVALUATION, metric_named
from sat_slime.rollout.token_dump import dump_path, dump_paths, read_dump

psutil = pytest.importorskip("psutil", reason="the lab runtime needs the engines: scripts/setup.sh")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
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
SYNCHRONOUS = ("--set", "pipeline.lag=0", "--set", "pipeline.iterations=3", "--set", "rollout.engines=2")


class Run:
    """One `sat-slime launch` in a process of its own."""

    def __init__(self, root: Path, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """environment: more than that of this process."""
        self.folder = root / "runs" / name
        settings = [*SETTINGS, f"output_dir={root / 'runs'}", f"cache_dir={root / 'cache'}"]
        command = [str(Path(sys.executable).parent / "sat-slime"), "launch", "--no-live"]
        if "--resume" in arguments:
            command += [str(self.folder), *arguments]
        else:
            command += [str(ROOT / "configs/lab/tiny.yaml"), "--name", name]
            command += [part for setting in settings for part in ("--set", setting)] + list(arguments)
        self.output = root / f"{name}-{len(list(root.glob('*.out')))}.out"
        self.folders: set[Path] = set()
        self.process = subprocess.Popen(
            command,
            stdout=self.output.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )

    def wait(self) -> int:
        return self.process.wait()

    def rows(self, name: str = "metrics") -> list[dict]:
        path = self.folder / f"{name}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def comparable(self, name: str = "metrics") -> list[dict]:
        """Rows without what depends on the clock, and without counts of the faults that a test caused."""
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "rollout/"))} for row in self.rows(name)]

    def until(self, steps: int) -> list:
        """Waits until so many steps are recorded; returns the run's processes."""
        until(lambda: len(self.rows()) >= steps, self.process, self.output.read_text)
        return self.processes()

    def processes(self) -> list:
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]

    def find(self, fragment: str):
        """The run's process whose command line has this fragment."""
        lines = {process: command_line(process) for process in self.processes()}
        found = [process for process, line in lines.items() if fragment in line]
        assert found, [line[:90] for line in lines.values()]
        return found[0]


def listening(processes: list) -> list[tuple]:
    """(address, port, process's name) of every socket that takes what others send."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):  # one that has ended meanwhile
            open_ones = [connection for connection in process.net_connections("inet") if not connection.raddr]
            found += [(connection.laddr.ip, connection.laddr.port, process.name()) for connection in open_ones]
    return found


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback


def scratch_folders(processes: list) -> set[Path]:
    """The scratch folders that the processes hold."""
    files = []
    for process in processes:
        with contextlib.suppress(psutil.Error):  # one that has ended meanwhile
            files += process.open_files()
    return {Path(file.path).parent for file in files if file.path.endswith("/held")}


def in_shared_memory(folders: set[Path]) -> list[Path]:
    """The files that SGLang keeps in shared memory for the servers of these folders."""
    return [file for folder in folders for file in Path("/dev/shm").glob(f"*{folder.name}*")]


@pytest.fixture(scope="module")
def root(tmp_path_factory, model_cache) -> Path:
    root = tmp_path_factory.mktemp("loop")
    (root / "cache").symlink_to(model_cache)
    return root


@pytest.fixture(scope="module")
def undisturbed(root) -> Run:
    run = Run(root, "undisturbed")
    processes = run.until(1)
    run.folders = scratch_folders(processes)
    assert run.wait() == 0, run.output.read_text()
    assert_gone(processes)
    return run


def assert_same_history(run: Run, undisturbed: Run, so_far: bool = False) -> None:
    """so_far: as long as the run is."""
    for name in ("metrics", "eval", "histograms"):
        rows, expected = run.comparable(name), undisturbed.comparable(name)
        assert rows == (expected[: len(rows)] if so_far else expected), name


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


def test_every_column_is_in_the_table_of_metrics(undisturbed):
    names = {name for row in undisturbed.rows() for name in row}
    assert {name for name in names if (metric := metric_named(name)) is None or metric.runtime == "slime"} == set()
    of_evaluations = {name for row in undisturbed.rows("eval") for name in row}
    known = [metric for metric in EVALUATION if metric.runtime != "slime"]
    assert {name for name in of_evaluations if not any(metric.covers(name) for metric in known)} == set()


def test_disturbed_and_resumed_again_and_again_is_bitwise_the_same(undisturbed, root):
    """Ctrl-C, SIGTERM, SIGKILL and a flipped bit, one after the other in one run: after each it is as the undisturbed
    one is so far."""
    run = Run(root, "disturbed")
    processes = run.until(2)
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    check_interrupted(run, processes)
    assert_same_history(run, undisturbed, so_far=True)

    run = Run(root, "disturbed", "--resume")
    processes = run.until(7)
    run.process.terminate()
    check_interrupted(run, processes)
    assert_same_history(run, undisturbed, so_far=True)

    run = Run(root, "disturbed", "--resume")
    processes = run.until(len(run.rows()) + 1)
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    assert_gone(processes)
    before, newest = sorted((run.folder / "checkpoints").glob("iteration-??????"))[-2:]
    flip_a_bit_of_adamw(newest)
    refused = Run(root, "disturbed", "--resume")
    assert refused.wait() == 2
    (line,) = [line for line in refused.output.read_text().splitlines() if line.startswith("error: ")]
    assert f"{newest.name} is damaged: trainer.safetensors does not match its checksum" in line
    words = shlex.split(line.split("to do so: sat-slime launch ")[1])
    assert words == [str(run.folder), "--resume-from", str(int(before.name.removeprefix("iteration-")))]

    resumed = Run(root, "disturbed", "--resume", *words[1:])
    assert resumed.wait() == 0, resumed.output.read_text()
    assert_same_history(resumed, undisturbed)
    assert newest.with_suffix(".aside").is_dir(), "the damaged one is kept"


def check_interrupted(run: Run, processes: list) -> None:
    """It has ended after an iteration, which it has saved, and says how to go on."""
    assert run.wait() == 130, run.output.read_text()
    assert_gone(processes)
    newest = max(path.name for path in (run.folder / "checkpoints").iterdir())
    assert newest == f"iteration-{len(run.rows()):06d}" and len(run.rows()) < ITERATIONS
    assert "--resume" in run.output.read_text()
    assert (run.folder / "report.html").exists()


def flip_a_bit_of_adamw(folder: Path) -> None:
    rank = folder / "trainer.safetensors"
    tensors = load_file(rank)
    name = next(name for name in tensors if name.endswith("/exp_avg_sq"))
    tensors[name].view(np.uint32).reshape(-1)[0] ^= 1 << 22
    save_file(tensors, rank)


@pytest.mark.usefixtures("forked")
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


@pytest.mark.usefixtures("forked")
def test_a_full_disk_at_a_checkpoint_leaves_the_previous_one_whole(undisturbed, root, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no permission to mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        run = Run(root, "full")
        until((run.folder / "checkpoints").exists, run.process, run.output.read_text)
        (run.folder / "checkpoints").rmdir()
        (run.folder / "checkpoints").symlink_to(disk)
        assert run.wait() == 1, run.output.read_text()
        text = run.output.read_text()
        assert "iteration-000004 is whole: free space" in text
        assert f"No space left on device: '{run.folder / 'checkpoints'}'" in text
        assert [path.name for path in disk.iterdir()] == ["iteration-000004"]
        subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
        resumed = Run(root, "full", "--resume")
        assert resumed.wait() == 0, resumed.output.read_text()
        assert_same_history(resumed, undisturbed)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.fixture(scope="module")
def temporary() -> Iterator[Path]:
    """A temporary folder for runs that leave something: the next start of any other run would remove it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a short name: those of sockets may be too long
        yield Path(folder)


@pytest.fixture(scope="module")
def in_motion(root, temporary) -> Iterator[Run]:
    """A run of two servers that the tests below look at, and kill."""
    settings = ("pipeline.iterations=1000", "rollout.engines=2")
    run = Run(
        root,
        "in-motion",
        *(part for setting in settings for part in ("--set", setting)),
        environment={"TMPDIR": str(temporary)},
    )
    run.until(1)
    yield run
    end_what_is_left("file", grace_s=0)
    run.wait()


def test_every_socket_of_a_run_is_on_loopback(in_motion):
    found = until(lambda: listening(in_motion.processes()), in_motion.process, lambda: "SGLang's schedulers listen")
    assert [one for one in found if not is_loopback(one[0])] == []
    # A server itself has no port at all: its process listens on a file in a folder of this user alone.
    server = in_motion.find("engine.sglang_process")
    assert listening([server]) == []
    (folder,) = scratch_folders([server])
    assert folder.stat().st_mode & 0o077 == 0 and (folder / "http").is_socket()


def test_what_a_kill_of_everything_left_goes_with_the_next_start(in_motion, root, temporary):
    """It is a run in the synchronous mode, which has no lag."""
    folders = scratch_folders(in_motion.processes())
    assert len(folders) == 2 and len(in_shared_memory(folders)) == 2
    processes = suspended(in_motion)  # so that none cleans up after another
    for process in processes:
        process.kill()
    assert_gone(processes)
    assert all(folder.is_dir() for folder in folders) and len(in_shared_memory(folders)) == 2
    following = Run(root, "following", *SYNCHRONOUS, environment={"TMPDIR": str(temporary)})
    assert following.wait() == 0, following.output.read_text()
    assert not any(folder.exists() for folder in folders) and in_shared_memory(folders) == []
    assert [row["lag/max"] for row in following.rows()] == [0, 0, 0]


def suspended(run: Run) -> list:
    """The run's processes, none of which goes on; some may have ended or begun since the last look."""
    found: list = []
    while new := [process for process in run.processes() if process not in found]:
        for process in new:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        found += new
    return found


def test_a_run_that_ends_by_itself_leaves_nothing(undisturbed):
    folders = undisturbed.folders
    assert len(folders) == 1 and not any(folder.exists() for folder in folders) and in_shared_memory(folders) == []
