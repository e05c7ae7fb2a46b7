"""slime's own train_async.py with the arguments of its fully_async example and one flag more, --custom-config-path: the
file of `sat-slime init plugin`, without the launcher and the driver."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from whole_run import COMMAND, FILE, WholeRun, environment

from sat_slime.config import load_config
from sat_slime.launch.command import PLUGIN_FLAGS, run_folder, slime_command
from sat_slime.launch.local_ray import start_ray, stop_ray
from sat_slime.launch.ray_jobs import JobServer
from sat_slime.launch.small_run import OBJECT_STORE_BYTES, RAY_ENVIRONMENT

sys.path.insert(0, str(Path(__file__).parents[1]))
from slime_scripts import EXAMPLES, arguments_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

SHORT = (
    *("--set", "pipeline.iterations=3", "--set", "slime.eval-interval=2"),
    *("--set", "slime.rollout-batch-size=8", "--set", "slime.n-samples-per-prompt=8"),
)
STREAM = ("--rollout-function-path", "slime.rollout.fully_async_rollout.generate_rollout_fully_async")
"""The one flag that its example calls the only knob."""
OURS = {*(f"--{name}" for name in PLUGIN_FLAGS), "--custom-config-path", "--use-rollout-logprobs"}
NOT_A_SCRIPTS = OURS | {"--eval-interval", "--save", "--save-interval"}
"""Left out too: evaluations, which slime's fully asynchronous rollout does not make, and checkpoints, with which one
run would go on from another's."""


@pytest.fixture(scope="module")
def script(slime):
    """slime's command in a script of one's own, without anything of ours, on a model as small as the laptop's; and its
    environment."""
    if not (slime.slime_dir / "train_async.py").exists():
        pytest.skip("this slime has no train_async.py")
    words = slime.command("own", *SHORT)
    overrides = [text for option, text in itertools.pairwise(words) if option == "--set"]
    config = load_config(FILE, overrides, {"name": "own", "method": "gspo"})
    sent = slime_command(config, run_folder(config))
    python, _, _, *words = sent.command
    starts = [i for i, word in enumerate(words) if word.startswith("--")]
    flags = [words[start:end] for start, end in zip(starts, [*starts[1:], len(words)], strict=True)]
    kept = [word for flag in flags if flag[0] not in NOT_A_SCRIPTS for word in flag]
    example = arguments_of(slime.slime_dir, EXAMPLES[0], "OPTIMIZER", "GRPO")  # of two equal flags the last counts
    return [python, str(slime.slime_dir / "train_async.py"), *kept, *example, *STREAM], sent.env


@pytest.fixture(scope="module")
def jobs():
    ray = start_ray(2, 8, OBJECT_STORE_BYTES, RAY_ENVIRONMENT)
    yield JobServer(ray.address)
    stop_ray(ray)


def run(slime, script, jobs, name, method, *more):
    """Runs the script with the file for a method; and what `check` says of the file."""
    words, env = script
    folder = slime.runs / f"plugin-{name}"
    init = [*COMMAND, "init", "plugin", "--method", method, "--out", str(folder)]
    subprocess.run(init, check=True, capture_output=True, env=environment())
    file = folder / "sat.yaml"
    file.write_text(file.read_text().replace("  # run_dir: /shared/runs/name", f"  run_dir: {folder}"))
    checked = subprocess.run([*COMMAND, "check", str(file)], capture_output=True, text=True, env=environment())
    jobs.submit([*words, *more, "--custom-config-path", str(file)], env, name)
    state = jobs.wait(name, 900)
    return WholeRun(folder, int(state is None or state.status != "SUCCEEDED"), jobs.log(name)), checked.stdout


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("sat-gspo", "SAT-GSPO is on: method sat-gspo, threshold over the step, denominator rollout"),
        ("grpo", "GRPO is on: method grpo, denominator rollout"),
    ],
)
def test_one_file_and_one_flag_are_enough(slime, script, jobs, method, says):
    done, checked = run(slime, script, jobs, method, method)
    assert done.code == 0, done.output[-5000:]
    assert done.output.count(f"sat_slime: {says}") == 1
    assert checked.startswith("OK") and says.split(": ")[1] in checked
    assert len(done.rows()) == 3 and any(norm > 0 for norm in done.column("grad_norm"))
    assert done.column("mismatch/d_pi")[0] < 1e-4, "the first batch is of the weights in training"
    if method == "sat-gspo":
        assert any(rate > 0 for rate in done.column("sat/gate_rate")[1:])


def test_what_does_not_go_with_the_script_ends_it_before_the_model_is_built(slime, script, jobs):
    done, checked = run(slime, script, jobs, "bad", "sat-gspo", "--global-batch-size", "32")
    assert done.code and "sat_slime.method.sat.scope is step with 2 optimizer steps per rollout" in done.output
    assert checked.startswith("OK"), "the file alone is sound"
    assert "number of parameters" not in done.output and "is on: method" not in done.output
