"""The paper's own file is rehearsed, with few layers: TP 4 x EP 4, two engines of two ranks, R3, a resume."""

import json
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


def rehearse(slime, out, *options):
    places = {"cluster.slime_dir": slime.slime_dir, "cluster.megatron_dir": slime.megatron_dir}
    places["slime.hf-checkpoint"] = write_hf(out.with_name("base"))
    where = [word for key, value in places.items() for word in ("--set", f"{key}={value}")]
    few = [word for flag in FEW for word in ("--set", f"slime.{flag}")]
    words = [*COMMAND, "rehearse", str(PAPER), "--method", "sat-gspo-r3", "--out", str(out), *where, *few, *options]
    return subprocess.run(words, capture_output=True, text=True, env=environment())


def scratch_folders():
    return set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


def test_every_check_holds_and_nothing_is_left(slime, tmp_path):
    before = scratch_folders()
    done = rehearse(slime, tmp_path / "out", "--lag", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "rehearsal.json").read_text())
    held = {check["what"] for check in found["checks"] if check["mark"] == "OK"}
    names = "lag of each batch", "|log pi - log mu| at lag 0, nats a token", "weights of each evaluation"
    assert all(any(check.startswith(name) for check in held) for name in names)
    assert scratch_folders() <= before


def test_a_reward_that_raises_is_what_the_rehearsal_says(slime, tmp_path):
    (tmp_path / "my_reward.py").write_text("async def reward(args, sample, **_):\n    raise KeyError('no answer')\n")
    options = ("--set", "slime.custom-rm-path=my_reward.reward", "--set", f"cluster.python_path=[{tmp_path}]")
    done = rehearse(slime, tmp_path / "out", "--lag", "1", "--set", "slime.save-interval=0", *options)
    assert done.returncode == 1
    assert "no answer" in done.stdout
