"""The paper's own file is rehearsed, with few layers: TP 4 x EP 4, two engines of two ranks, R3, a resume."""

import subprocess
import tempfile
from pathlib import Path

import pytest
from hf_folder import write_hf
from whole_run import COMMAND, ROOT, environment

from sat_slime.rollout.scratch import PREFIX

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(2400)]

PAPER = ROOT / "configs" / "paper" / "qwen3-30b-a3b.yaml"
FEW = ("num-layers=2", "num-experts=16", "moe-layer-freq='[1]*2'")


def rehearse(slime, folder, *options):
    places = {"cluster.slime_dir": slime.slime_dir, "cluster.megatron_dir": slime.megatron_dir}
    places["slime.hf-checkpoint"] = write_hf(folder / "base")
    where = [word for key, value in places.items() for word in ("--set", f"{key}={value}")]
    few = [word for flag in FEW for word in ("--set", f"slime.{flag}")]
    words = [*COMMAND, "rehearse", str(PAPER), "--method", "sat-gspo-r3", *where, *few, *options]
    return subprocess.run(words, capture_output=True, text=True, env=environment(), cwd=folder)


def scratch_folders():
    return set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


def test_every_check_holds_and_nothing_is_left(slime, tmp_path):
    before = scratch_folders()
    done = rehearse(slime, tmp_path, "--lag", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    held = [line.removeprefix("OK    ") for line in done.stdout.splitlines() if line.startswith("OK ")]
    names = "lag of each batch", "|log pi - log mu| at lag 0, nats a token", "weights of each evaluation"
    assert all(any(check.startswith(name) for check in held) for name in names)
    assert scratch_folders() <= before
    kept = tmp_path / "rehearsals" / "paper"
    assert (kept / "metrics.jsonl").is_file() and not (kept / "checkpoints").exists()


def test_a_reward_that_raises_is_what_the_rehearsal_says(slime, tmp_path):
    (tmp_path / "my_reward.py").write_text("async def reward(args, sample, **_):\n    raise KeyError('no answer')\n")
    options = ("--set", "slime.custom-rm-path=my_reward.reward", "--set", f"cluster.python_path=[{tmp_path}]")
    done = rehearse(slime, tmp_path, "--lag", "1", "--set", "slime.save-interval=0", *options)
    assert done.returncode == 1
    assert "no answer" in done.stdout
