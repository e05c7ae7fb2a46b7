"""kill -9 of each kind of process in a real run: what is told, what is left, and how it goes on.

One run, killed and resumed again and again, is compared with a run in peace, bit for bit.
"""

import html
import importlib.util
import json
import re

import pytest
from test_loop import Run, assert_same_history
from waiting import assert_gone, until

psutil = pytest.importorskip("psutil", reason="the lab runtime needs the engines: scripts/setup.sh")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
    ),
]
EVALUATED = 5
"""Iterations between evaluations."""
SETTINGS = ("--set", "pipeline.iterations=40", "--set", f"eval.every_n_iterations={EVALUATED}")
FATAL = {
    "trainer.process": r"trainer \(process {pid}\) was killed by SIGKILL",
    "driver": r"the run's driver \(process {pid}\) was killed by SIGKILL and could not say why",
}
"""What is told of a process's death, by a word of its command line."""
RESTARTED = {
    "sglang::scheduler": r"SGLang's scheduler \(process {pid}\) of engine 0 was killed by SIGKILL",
    "sglang::detokenizer": r"SGLang's detokenizer \(process {pid}\) of engine 0 was killed by SIGKILL",
    "engine.sglang_process": r"SGLang's HTTP server \(process {pid}\) of engine 0 was killed by SIGKILL",
}


@pytest.fixture
def root(tmp_path, model_cache):
    (tmp_path / "cache").symlink_to(model_cache)
    return tmp_path


def find(run, word):
    return psutil.Process(run.process.pid).children()[0] if word == "driver" else run.find(word)


def state(run):
    return json.loads((run.folder / "state.json").read_text())


def test_each_death_is_told_and_the_run_goes_on_as_the_undisturbed_one(root, fork_environment):
    """SGLang's processes are started again in the run; the other deaths end it at once, and a resume goes on."""
    undisturbed = Run(root, "undisturbed", *SETTINGS, environment=fork_environment)
    assert undisturbed.wait() == 0, undisturbed.output.read_text()

    run = Run(root, "killed", *SETTINGS, "--set", "rollout.max_restarts=5")
    for word, message in RESTARTED.items():
        done = len(run.rows())
        # the HTTP server dies before an evaluation, in it or after it
        run.until(done + EVALUATED - done % EVALUATED if "sglang_process" in word else done + 2)
        victim = find(run, word)
        victim.kill()
        told = f"1 server restart: {message.format(pid=victim.pid)}"
        until(lambda run=run, told=told: re.search(told, run.output.read_text()), run.process, run.output.read_text)
    run.until(len(run.rows()) + 1)  # which counts the last restart
    assert sum(row["rollout/restarts"] for row in [*run.rows(), *run.rows("eval")]) == len(RESTARTED)
    assert (run.folder / "log.txt").read_text().count("1 server restart") == len(RESTARTED)

    for word, message in FATAL.items():
        processes = run.until(len(run.rows()) + 2)
        victim = find(run, word)
        victim.kill()
        assert run.wait() == 1, run.output.read_text()
        text = run.output.read_text()
        error = next(line for line in text.splitlines() if line.startswith("error: "))
        assert re.search(message.format(pid=victim.pid), error), text  # in the midst of it, when it was saving
        assert f"sat-slime launch {run.folder} --resume" in text and "Traceback" not in text
        assert "free space" not in text
        assert (state(run)["status"], state(run)["error"]) == ("failed", error.removeprefix("error: "))
        assert error.removeprefix("error: ") in html.unescape((run.folder / "report.html").read_text())
        assert_gone(processes)
        assert_same_history(run, undisturbed, so_far=True)
        run = Run(root, "killed", "--resume")
    assert run.wait() == 0, run.output.read_text()
    assert_same_history(run, undisturbed)
    assert state(run)["status"] == "finished"
