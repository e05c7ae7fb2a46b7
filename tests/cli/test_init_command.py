"""From `sat-slime init` to a run that can be launched, and what is told on the way."""

import shlex

import pytest
from command_line import sat_slime_command

from sat_slime.config.starters import CONFIGS

RUNS = ["quickstart", "streaming", "grid", "slime", "paper"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_list_names_every_starter():
    lines = sat_slime_command("init").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [*RUNS, "slurm", "kuberay", "plugin"]


@pytest.mark.parametrize("name", [*RUNS, "plugin"])
def test_the_command_that_is_told_accepts_what_was_written(name):
    told = sat_slime_command("init", name, "--out", "my files").stdout
    (command,) = [line for line in told.splitlines() if line.startswith("check it with: sat-slime ")]
    result = sat_slime_command(*shlex.split(command)[4:])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "name, file, command",
    [("slurm", "slurm.sh", "sbatch mine/slurm.sh"), ("kuberay", "kuberay.yaml", "kubectl apply -f mine/kuberay.yaml")],
)
def test_a_job_of_a_cluster_is_written_as_it_is_kept(tmp_path, name, file, command):
    told = sat_slime_command("init", name, "--out", "mine").stdout
    assert told.splitlines()[-1] == f"edit it, then: {command}"
    assert (tmp_path / "mine" / file).read_text() == (CONFIGS / "clusters" / file).read_text()
