"""The batch script of `sat-slime init slurm` on two raylets of this machine, with stand-ins for Slurm and for slime."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from command_line import sat_slime_command, state
from left_processes import end_what_is_left
from slurm_stand_in import slurm_environment
from waiting import until

from sat_slime.launch.local_ray import LocalRay, _processes_of
from sat_slime.runs.ray_start import PATIENCE, free_ports

pytestmark = pytest.mark.engine
EDITS = {
    "options": "--skip-checks",
    "ray_options": "--num-cpus=1 --num-gpus=4 --object-store-memory=100000000 --dashboard-agent-listen-port=0",
}
"""Settings of the script. Each node's agent listens on loopback too, which nodes of one machine share: by Ray's default
port the head's agent could find it taken, and then no job can be sent."""


class Batch:
    """The batch job, as often as Slurm starts it."""

    def __init__(self, folder, env):
        self.folder, self.env = folder, env
        self.rays = set()
        self.output = folder / "slurm.log"
        self.process = None

    def start(self):
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                ["bash", "slurm.sh"], cwd=self.folder, env=self.env, stdout=output, stderr=subprocess.STDOUT
            )

    def wait_for(self, text):
        until(lambda: text in self.output.read_text(), self.process, self.output.read_text)

    def ends(self):
        """Its exit code, with nothing of it left on this machine."""
        code = self.process.wait()
        # workers end by themselves once Ray is gone
        until(lambda: not self.processes(), otherwise=lambda: f"{self.processes()} are left: {self.output.read_text()}")
        return code

    def processes(self):
        self.rays |= set(self.folders_of_ray())
        return [pid for folder in self.rays for pid in _processes_of(LocalRay("", 0, str(folder)))]

    def folders_of_ray(self):
        return list(Path("/tmp").glob(f"sat-ray-{self.env['SLURM_JOB_ID']}-*"))

    @property
    def requeued(self):
        log = self.folder / "scontrol.log"
        return log.read_text().split() if log.exists() else []


@pytest.fixture
def batch(tmp_path, settings_of_a_run, monkeypatch):
    del settings_of_a_run["cluster"]["address"]
    settings_of_a_run["cluster"]["env"]["WAIT_BEFORE"] = "5"
    (tmp_path / "slime.yaml").write_text(yaml.safe_dump(settings_of_a_run))
    sat_slime_command("init", "slurm", "--out", str(tmp_path))
    script = tmp_path / "slurm.sh"
    text = script.read_text()
    for name, value in EDITS.items():
        text, count = re.subn(rf"^{name}=\(\)", f"{name}=({value})", text, flags=re.MULTILINE)
        assert count == 1
    script.write_text(text)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # with none visible Ray refuses those on paper
    port, dashboard = map(str, free_ports(2))
    settings = {"RAY_PORT": port, "DASHBOARD_PORT": dashboard}
    env = slurm_environment(tmp_path) | PATIENCE | settings
    made = Batch(tmp_path, env)
    yield made
    if made.process and made.process.poll() is None:
        made.process.terminate()
        made.process.wait()
    end_what_is_left("file", grace_s=0)
    for folder in made.folders_of_ray():
        shutil.rmtree(folder, ignore_errors=True)


def test_a_run_goes_on_after_a_job_that_reached_its_time_limit_and_one_that_lost_a_node(batch, tmp_path):
    run = tmp_path / "runs" / "sat"
    batch.start()
    batch.wait_for("nodes: 127.0.0.2 127.0.0.3")
    batch.wait_for("step 5/8")
    batch.process.send_signal(signal.SIGUSR1)
    assert batch.ends() == 143 and batch.requeued == ["requeue", batch.env["SLURM_JOB_ID"]]
    assert state(run)["status"] == "interrupted" and not batch.folders_of_ray()

    batch.start()
    batch.wait_for("step 5/8")
    assert f"sat-slime launch {run} --resume" in batch.output.read_text()
    (raylet,) = [pid for pid in batch.processes() if is_raylet_of("127.0.0.3", pid)]
    os.kill(raylet, signal.SIGKILL)
    assert batch.ends() == 1, "the run's job fails, or the script sees first that Ray is gone"

    (tmp_path / "go").touch()
    batch.start()
    assert batch.ends() == 0, batch.output.read_text()
    assert "step 8/8" in batch.output.read_text() and state(run)["status"] == "finished"
    assert (run / "log.txt").read_text().count("starts at rollout 4") == 2
    assert len(batch.requeued) == 2, "after the time limit alone"


def test_a_job_that_is_cancelled_is_not_queued_again(batch):
    batch.start()
    batch.wait_for("nodes: 127.0.0.2 127.0.0.3")
    batch.process.send_signal(signal.SIGTERM)
    assert batch.ends() == 143 and batch.requeued == []


def is_raylet_of(address, pid):
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:  # it has ended
        return False
    return words[0].endswith("raylet") and f"--node_ip_address={address}" in words
