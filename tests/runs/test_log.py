import io
import json
import math
import os
import threading

import pytest
from rich.console import Console

from sat_slime.config.jsonl import read_rows
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.log import RunLog


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", "name: run\n")


@pytest.fixture
def log(folder):
    return RunLog(folder, "run", 200, Console(file=io.StringIO()))


def test_every_line_is_on_disk_at_once(folder, log):
    log.step({"step": 1, "reward/mean": math.nan})
    log.eval({"step": 0, "accuracy": 0.5, "n_samples": 8})
    log.samples(1, [{"response": "01$"}, {"response": "02$"}])
    assert json.loads(folder.metrics.read_text()) == {"step": 1, "reward/mean": None}
    assert read_rows(folder.eval)[0]["accuracy"] == 0.5 and len(read_rows(folder.samples / "1.jsonl")) == 2
    log.message("engine died", "warning")
    log.message("a traceback", "debug")
    *_, warning, debug = folder.log.read_text().splitlines()
    assert warning.endswith("WARNING engine died") and debug.endswith("DEBUG   a traceback")


def test_rewind_forgets_what_came_after(folder, log):
    for step in range(1, 7):
        log.step({"step": step, "iteration": step})
        log.samples(step, [{"step": step}])
    for step in range(0, 7, 2):
        log.eval({"step": step, "accuracy": 0.5})
    log.rewind(4)
    log.step({"step": 5, "iteration": 5, "again": True})
    assert [row["step"] for row in read_rows(folder.metrics)] == [1, 2, 3, 4, 5]
    assert read_rows(folder.metrics)[-1]["again"]
    assert [row["step"] for row in read_rows(folder.eval)] == [0, 2, 4]
    assert sorted(path.stem for path in folder.samples.iterdir()) == ["1", "2", "3", "4"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_names_the_file_and_the_remedy_and_the_rest_is_kept(folder, log):
    log.eval({"step": 0, "accuracy": 0.5})
    folder.metrics.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"cannot write .*metrics\.jsonl: No space left.*free space.*--resume"):
        log.step({"step": 1})
    assert read_rows(folder.eval)[0]["accuracy"] == 0.5


def test_threads_do_not_tear_lines(folder, log):
    def write(thread):
        for i in range(50):
            log.step({"step": i, "thread": thread, "filler": "x" * 500})

    threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_rows(folder.metrics)) == len(folder.metrics.read_text().splitlines()) == 200
