import pytest
import yaml
from command_line import DENSE, PAPER, ROOT, STAND_IN

import sat_slime
from sat_slime.cli import slime_run
from sat_slime.cli.slime_run import plan_slime_run
from sat_slime.config import load_config
from sat_slime.config.section import kept_settings
from sat_slime.launch.job_files import JobRecord


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def settings_of_a_run(tmp_path):
    """Eight iterations with a checkpoint every second one."""
    return {
        "extends": str(DENSE),
        "name": "run",
        "pipeline": {"iterations": 8, "lag": 1},
        "slime": {
            "prompt-data": "data.jsonl",
            "rm-type": "math",
            "rollout-batch-size": 4,
            "n-samples-per-prompt": 4,
            "rollout-max-prompt-len": 128,
            "tensor-model-parallel-size": 4,
            "max-tokens-per-gpu": 16384,
            "eval-interval": 4,
            "eval-prompt-data": ["aime24", "aime24.jsonl"],
            "save-interval": 2,
        },
        "cluster": {
            "address": None,
            "slime_dir": str(STAND_IN),
            "megatron_dir": str(STAND_IN),
            "python_path": [str(ROOT)],
            "env": {"WAIT_FOR": str(tmp_path / "go")},
        },
    }


@pytest.fixture
def file(tmp_path, ray_server, settings_of_a_run, monkeypatch):
    monkeypatch.setattr("sat_slime.report.run.figures", lambda *_: ())  # drawn in their own tests
    path = tmp_path / "run.yaml"
    settings_of_a_run["cluster"]["address"] = ray_server.address
    path.write_text(yaml.safe_dump(settings_of_a_run))
    return path


@pytest.fixture
def begun(tmp_path):
    """A run of slime with checkpoints after two and four of eight iterations, and rows of five; its cluster is gone."""
    config = load_config(PAPER, [], {"pipeline.iterations": 8, "output_dir": str(tmp_path), "name": "run"})
    made = plan_slime_run(config, PAPER, None, resume=False)
    folder = slime_run.claim(made, overwrite=False)
    settings = kept_settings(made.config)
    JobRecord("job-1", "http://127.0.0.1:1", settings=settings, version=sat_slime.__version__).write(folder.path)
    folder.started("job-1")
    folder.ended("failed", "the node went away")
    folder.lock.release()
    folder.metrics.write_text("".join(f'{{"step": {step}}}\n' for step in range(1, 6)))
    for rollout in (1, 3):
        saved = folder.checkpoints / f"iter_{rollout:07d}"
        saved.mkdir()
        for name in ("__0_0.distcp", "metadata.json", ".metadata"):
            (saved / name).write_text("{}")
        (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text(str(rollout))
    return folder
