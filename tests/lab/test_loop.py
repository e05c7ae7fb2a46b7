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
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from waiting import assert_gone, command_line, until

from sat_slime.objective.metrics import EVALUATION, metric_named
from sat_slime.report.dumps import files_in, load_payload, read_rollout
from sat_slime.rollout.scratch import HELD

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
ITERATIONS, LAG, EVALUATED = 16, 3, 4
SETTINGS = {
    "pipeline.iterations": ITERATIONS,
    "pipeline.lag": LAG,
    "checkpoint.every_n_iterations": 2,  # not a multiple of the lag: checkpoints fall inside a broadcast cycle
    "eval.every_n_iterations": EVALUATED,
}
STREAMING = {
    "method": "sat-gspo",
    "pipeline.mode": "streaming",
    "pipeline.lag": 1,
    "pipeline.iterations": 12,
    "pipeline.max_staleness": 1,
    "pipeline.queue_prompts": 12,
    "pipeline.canary": "stop",
    "rollout.deterministic": "false",
    "diagnose.split_every_n_steps": 1,
    "train.lr": 0.005,
}


class Run:
    """One `sat-slime launch` in a process of its own."""

    def __init__(self, root: Path, name: str, *arguments: str, **more: object) -> None:
        """arguments: those of a resume, or none. more: settings over SETTINGS, with __ for each dot."""
        self.folder = root / "runs" / name
        command = [sys.executable, "-m", "sat_slime", "launch"]
        if arguments:
            command += [str(self.folder), *arguments]
        else:
            settings = SETTINGS | {key.replace("__", "."): value for key, value in more.items()}
            settings |= {"output_dir": root / "runs", "cache_dir": root / "cache"}
            command += [str(ROOT / "configs/lab/tiny.yaml"), "--name", name]
            command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        self.output = root / f"{name}-{len(list(root.glob('*.out')))}.out"
        self.process = subprocess.Popen(
            command,
            stdout=self.output.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Whoever starts a server removes what killed ones left beside it, and other tests start some meanwhile.
            env={**os.environ, "TMPDIR": str((root / "scratch").resolve())},
        )

    def wait(self) -> int:
        return self.process.wait()

    def rows(self, name: str = "metrics") -> list[dict]:
        path = self.folder / f"{name}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def comparable(self, name: str = "metrics") -> list[dict]:
        """Rows without what depends on the clock, and without counts of the faults that a test caused."""
        left_out = ("time/", "rollout/")
        return [{k: v for k, v in row.items() if not k.startswith(left_out)} for row in self.rows(name)]

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
    found = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process.pid}/fd").glob("*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found.add(descriptor.readlink())
    return {path for path in found if path.name.startswith(HELD)}


def in_shared_memory(folders: set[Path]) -> list[Path]:
    """The files that SGLang keeps in shared memory for the servers of these folders."""
    return [file for folder in folders for file in Path("/dev/shm").glob(f"*{folder.name}*")]


@pytest.fixture(scope="module")
def root(tmp_path_factory, model_cache) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("loop")
    (root / "cache").symlink_to(model_cache)
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:  # names of sockets in `root` may be too long
        (root / "scratch").symlink_to(scratch)
        yield root


@pytest.fixture(scope="module")
def undisturbed(root) -> Run:
    run = Run(root, "undisturbed")
    assert run.wait() == 0, run.output.read_text()
    return run


def assert_same_history(run: Run, undisturbed: Run) -> None:
    """What the run has so far is what the undisturbed one has: it may have measured more."""
    for name in ("metrics", "eval"):
        for ours, theirs in zip(run.comparable(name), undisturbed.comparable(name), strict=False):
            assert {key: ours.get(key) for key in theirs} == theirs, name


def test_disturbed_again_and_again_it_is_bitwise_the_same(undisturbed, root):
    """Ctrl-C, kill -9 of everything, a flipped bit, one after the other in a run that also writes dumps and is
    diagnosed."""
    more = {"dump__every_n_iterations": 2, "diagnose__every_n_steps": 5}
    run = Run(root, "disturbed", **more)
    processes = run.until(2)
    assert [one for one in listening(processes) if not is_loopback(one[0])] == []
    folders = scratch_folders(processes)
    assert len(folders) == 1, "a server's process listens on a file in a folder of this user alone"
    assert all(folder.stat().st_mode & 0o077 == 0 and (folder / "http").is_socket() for folder in folders)
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    assert run.wait() == 130, run.output.read_text()
    assert_gone(processes)
    newest = max(path.name for path in (run.folder / "checkpoints").iterdir())
    assert newest == f"iteration-{len(run.rows()):06d}" and len(run.rows()) < ITERATIONS
    assert "--resume" in run.output.read_text() and (run.folder / "report.html").exists()
    assert_same_history(run, undisturbed)

    run = Run(root, "disturbed", "--resume")
    run.until(7)
    folders = scratch_folders(run.processes())
    processes = suspended(run)  # so that none cleans up after another
    for process in processes:
        process.kill()
    assert_gone(processes)
    run.wait()
    assert all(folder.is_dir() for folder in folders) and len(in_shared_memory(folders)) == 1
    before, newest = sorted((run.folder / "checkpoints").glob("iteration-??????"))[-2:]
    flip_a_bit_of_adamw(newest)
    refused = Run(root, "disturbed", "--resume")
    assert refused.wait() == 2
    (line,) = [line for line in refused.output.read_text().splitlines() if line.startswith("error: ")]
    assert f"{newest.name} is damaged: trainer.safetensors does not match its checksum" in line
    words = shlex.split(line.split("to do so: sat-slime launch ")[1])
    assert words == [str(run.folder), "--resume-from", str(int(before.name.removeprefix("iteration-")))]

    run = Run(root, "disturbed", "--resume", *words[1:])
    done = len(run.rows())
    run.until(done + 1)
    assert not any(folder.exists() for folder in folders) and in_shared_memory(folders) == []
    assert newest.with_suffix(".aside").is_dir(), "the damaged one is kept"
    assert run.wait() == 0, run.output.read_text()
    assert_same_history(run, undisturbed)
    for name in ("metrics", "eval"):
        assert len(run.rows(name)) == len(undisturbed.rows(name))
    check_dumps(run)


def state(run: Run) -> dict:
    return json.loads((run.folder / "state.json").read_text())


def flip_a_bit_of_adamw(folder: Path) -> None:
    file = folder / "trainer.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("/exp_avg_sq"))
    tensors[name].view(np.uint32).reshape(-1)[0] ^= 1 << 22
    save_file(tensors, file)


def suspended(run: Run) -> list:
    """The run's processes, none of which goes on; some may have ended or begun since the last look."""
    found: list = []
    while new := [process for process in run.processes() if process not in found]:
        for process in new:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        found += new
    return found


def check_dumps(run: Run) -> None:
    diagnosed = [1, 6, 11, 16]
    dumps = {int(path.stem): path for path in files_in(run.folder / "dumps")}
    assert list(dumps) == [i for i in range(1, ITERATIONS + 1) if i % 2 == 0 or i in diagnosed]
    rows = {row["iteration"]: row for row in run.rows()}
    for iteration, path in dumps.items():
        row, (step,) = rows[iteration], read_rollout([path])
        d = (step.log_probs - step.rollout_log_probs).abs()
        assert float(d.mean()) == pytest.approx(row["mismatch/d_pi"], rel=1e-4, abs=1e-8)
        rewards = [sample["rewards"] for sample in load_payload(path)["samples"]]
        assert np.mean(rewards) == pytest.approx(row["reward/mean"])
        assert (step.more["lags"] == row["lag/mean"]).all()
        assert ("log_probs_replayed" in step.more) == (iteration in diagnosed)


def test_streaming_keeps_its_bound_and_books_through_kill_9_of_sglangs_scheduler(root):
    stream = Run(root, "stream", **{key.replace(".", "__"): value for key, value in STREAMING.items()})
    stream.until(1)
    server, scheduler = stream.find("sat_slime.lab.sglang_process").pid, stream.find("sglang::scheduler")
    processes = stream.until(5)
    scheduler.kill()
    assert stream.wait() == 1, stream.output.read_text()
    error = next(line for line in stream.output.read_text().splitlines() if line.startswith("error: "))
    assert re.match(rf"error: SGLang's server \(process {server}\) .*; last in its log: ", error)
    assert f"sat-slime launch {stream.folder} --resume" in stream.output.read_text() and "free space" not in error
    assert (state(stream)["status"], state(stream)["error"]) == ("failed", error.removeprefix("error: "))
    assert_gone(processes)
    before = stream.rows()
    assert saved_stream(stream)["unfinished"]

    resumed = Run(root, "stream", "--resume")
    assert resumed.wait() == 0, resumed.output.read_text()
    after, iterations = resumed.rows(), STREAMING["pipeline.iterations"]
    assert [row["step"] for row in after] == list(range(1, iterations + 1))
    for row in [*before, *after]:
        assert row["lag/max"] <= STREAMING["pipeline.max_staleness"]
        assert row["lag/mean"] == pytest.approx(row["lag/generation_mean"] + row["lag/queue_mean"])
        # fp32: under the weights that its version names each token has the log-prob that the engine reported, whatever
        # happened while its response was decoded
        assert row["mismatch/implementation"] < 1e-5, row
        assert row["queue/length"] + row["queue/in_generation"] <= 12
    assert max(row["lag/max"] for row in after) == 1 and max(row["mismatch/policy"] for row in after) > 1e-3
    # each push was taken, also by the server that a resume brought; the last push has no row after it
    scored = {row["step"]: row for row in after if "canary/d" in row}
    assert set(range(1, iterations)) <= set(scored)
    assert all(row["canary/d"] < 1e-5 and row["canary/faults"] == 0 for row in scored.values())
    # the law of rollout/stream.py, by the rows and the last checkpoint: groups that waited there count as unfinished
    saved = saved_stream(resumed)
    done = iterations * 16 + sum(row["rollout/dropped"] for row in after)
    assert saved["drawn"] * 4 == done + len(saved["unfinished"]) * 4
    assert all(row["rollout/aborted"] == 0 for row in after)


def saved_stream(run: Run) -> dict:
    newest = max((run.folder / "checkpoints").glob("iteration-??????"))
    return json.loads((newest / "state.json").read_text())["stream"]


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
    evals = [(row["step"], row["weights_step"]) for row in undisturbed.rows("eval")]
    assert evals == [(0, 0), (4, 3), (8, 6), (12, 12), (16, 16)]
    assert state(undisturbed)["status"] == "finished"
    assert (undisturbed.folder / "report.html").exists()


def test_every_column_is_in_the_table_of_metrics(undisturbed):
    names = {name for row in undisturbed.rows() for name in row}
    assert {name for name in names if (metric := metric_named(name)) is None or metric.runtime == "slime"} == set()
    of_evaluations = {name for row in undisturbed.rows("eval") for name in row}
    known = [metric for metric in EVALUATION if metric.runtime != "slime"]
    assert {name for name in of_evaluations if not any(metric.covers(name) for metric in known)} == set()
