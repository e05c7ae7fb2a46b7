"""The trainer's process: how its answers, its errors and its end are told, and that it does not outlive its driver."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trainer_process import make_config
from waiting import assert_gone, until

from sat_slime.lab.failures import PartFailure
from sat_slime.lab.trainer.process import TrainerProcess

pytest.importorskip("megatron.core", reason="the trainer needs megatron-core")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.engine


@pytest.fixture
def trainer(tmp_path):
    process = TrainerProcess(make_config(), tmp_path / "logs" / "trainer.log")
    yield process
    process.close()


def test_answers_come_in_order_and_an_error_ends_nothing(trainer, tmp_path):
    exports = [trainer.start("export_weights", tmp_path / name) for name in "ab"]
    missing = trainer.start("load_initial", tmp_path / "nowhere")
    with pytest.raises(PartFailure, match=r"^trainer: [A-Za-z]*Error: .*nowhere"):
        missing.result()
    assert [future.result() for future in exports] == [0, 0]
    assert (tmp_path / "b" / "model.safetensors").is_file()
    assert "Traceback" in (tmp_path / "logs" / "trainer.log").read_text()


def test_what_cannot_be_sent_or_shown_costs_no_other_call_its_answer(tmp_path):
    def cannot_be_drawn(steps):
        raise OSError("the terminal is closed")

    config = make_config(warmup={"steps": 3})
    process = TrainerProcess(config, tmp_path / "log", progress=cannot_be_drawn)
    try:
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            process.start("export_weights", lambda: None)
        process.call("warm_up", tmp_path / "model")
        assert process.call("export_weights", tmp_path / "weights") == 0
    finally:
        process.close()


def test_its_death_is_told_of_every_call_and_of_those_that_come_later(trainer):
    pid = trainer._process.pid
    waiting = [trainer.start("export_weights", Path("/nowhere/else")) for _ in range(2)]
    os.kill(pid, signal.SIGKILL)
    for future in [*waiting, trainer.start("save", Path("/nowhere"))]:
        with pytest.raises(PartFailure, match=rf"^trainer \(process {pid}\) was killed by SIGKILL$"):
            future.result()


def test_it_ends_with_its_driver_whatever_it_does(tmp_path):
    program = (
        "import pathlib, sys, time\n"
        "from sat_slime.config.schema import LabConfig\n"
        "from sat_slime.lab.trainer.process import TrainerProcess\n"
        f"trainer = TrainerProcess(LabConfig(), pathlib.Path({str(tmp_path)!r}) / 'log')\n"
        "trainer.start('warm_up', pathlib.Path('model'))\n"
        "print(trainer._process.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as driver:
        process = psutil.Process(int(driver.stdout.readline()))
        until((tmp_path / "log").exists, driver)
        driver.kill()
    assert_gone([process])
