"""The probe knows slime where it is installed, and says what differs in a slime that is not known."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from newest_slime import write_newest_slime

from sat_slime.plugin import probe
from sat_slime.plugin.probe import probe_slime
from sat_slime.plugin.slime_names import NAMES


@pytest.fixture
def slime(tmp_path) -> Path:
    """A copy of the files that the probe reads."""
    spec = importlib.util.find_spec("slime")
    assert spec is not None and spec.submodule_search_locations
    source, copy = Path(spec.submodule_search_locations[0]), tmp_path / "slime"
    for file in {form.file for name in NAMES for form in name.forms}:
        if (source / file).exists():
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / file, copy / file)
    return copy


def change(root: Path, file: str, old: str, new: str) -> None:
    text = (root / file).read_text()
    assert old in text, f"{file} has no {old!r}"
    (root / file).write_text(text.replace(old, new))


@pytest.mark.needs_slime
@pytest.mark.parametrize("own_script", [False, True])
def test_this_slime_is_known(own_script):
    assert probe_slime(own_script=own_script) == []


@pytest.mark.needs_slime
def test_the_files_that_are_read_suffice(slime):
    assert probe_slime(slime, own_script=True) == []


@pytest.mark.needs_slime
@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (
            "backends/megatron_utils/loss.py",
            "    step_global_batch_size: int,\n    logits",
            "    logits",
            "loss_function takes (args: Namespace, batch: RolloutBatch, num_microbatches: int, logits: torch.Tensor)",
        ),
        (
            "backends/megatron_utils/loss.py",
            "    *,\n    args: Namespace,\n    unconcat_tokens",
            "    *,\n    mandatory: int,\n    args: Namespace,\n    unconcat_tokens",
            "get_log_probs_and_entropy takes",
        ),
        ("utils/ppo_utils.py", "def compute_gspo_kl", "def compute_gspo", "utils/ppo_utils.py has no compute_gspo_kl"),
        (
            "backends/megatron_utils/actor.py",
            "def load_other_checkpoint",
            "def load_side_checkpoint",
            "has no MegatronTrainRayActor.load_other_checkpoint",
        ),
        (
            "backends/megatron_utils/actor.py",
            'self.weights_backuper.backup("old_actor")',
            "pass",
            "MegatronTrainRayActor.update_weights has no `self.weights_backuper.backup('old_actor')`",
        ),
        (
            "backends/megatron_utils/update_weight/update_weight_from_distributed.py",
            "self.weight_version += 1",
            "self.weight_version += 2",
            "UpdateWeightFromDistributed.update_weights has no `self.weight_version += 1`",
        ),
        (
            "ray/rollout.py",
            "def eval(self, rollout_id)",
            "def eval(self, rollout_id, datasets)",
            "RolloutManager.eval takes (self, rollout_id, datasets), not (self, rollout_id)",
        ),
        (
            "utils/routing_replay.py",
            "def get_routing_replay_compute_topk(old_compute_topk)",
            "def get_routing_replay_compute_topk(old_compute_topk, router)",
            "get_routing_replay_compute_topk takes (old_compute_topk, router), not (old_compute_topk)",
        ),
    ],
)
def test_a_difference_is_a_line_that_names_it(slime, file, old, new, words):
    change(slime, file, old, new)
    (problem,) = probe_slime(slime, own_script=True)
    assert problem.startswith(f"slime at {slime} is not one that this plugin knows (v0.3.1, main at 624b824a8, and ")
    assert words in problem and "\n" not in problem


@pytest.mark.needs_slime
def test_a_name_that_moved_is_told_with_every_place_where_it_is_known(slime):
    for file in ("observability/train_metric_utils.py", "backends/megatron_utils/cp_utils.py"):
        if (slime / file).exists() and "def reduce_train_step_metrics" in (slime / file).read_text():
            change(slime, file, "reduce_train_step_metrics", "reduce_step")
    (problem,) = probe_slime(slime)
    assert problem.endswith(
        "observability/train_metric_utils.py has no reduce_train_step_metrics and "
        "backends/megatron_utils/cp_utils.py has no reduce_train_step_metrics"
    )


@pytest.mark.needs_slime
def test_what_only_hooks_in_scripts_of_ones_own_need_may_be_missing_under_the_driver(slime):
    change(slime, "backends/megatron_utils/initialize.py", "custom_init(args)", "custom_init()")
    assert probe_slime(slime) == []


def test_the_newest_slime_is_known_as_far_as_it_was_read(tmp_path):
    assert probe_slime(write_newest_slime(tmp_path / "slime")) == []


def test_on_the_newest_slime_a_script_of_ones_own_is_sent_to_the_driver(tmp_path):
    root = write_newest_slime(tmp_path / "slime")
    (problem,) = probe_slime(root, own_script=True)
    assert problem.startswith(f"slime at {root} has no asynchronous training script")
    assert problem.endswith("start `python3 -m sat_slime.plugin.driver` in its place, with the same flags")


def test_the_newest_slime_with_a_signature_changed_is_refused(tmp_path):
    root = write_newest_slime(tmp_path / "slime")
    change(root, "ray/placement_group.py", "rollout_manager, actor_cls=None", "rollout_manager")
    (problem,) = probe_slime(root)
    assert (
        "create_training_models takes (args, pgs, rollout_manager), not (args, pgs, rollout_manager, actor" in problem
    )


def old_slime(root: Path) -> Path:
    """Changes the files to what v0.3.0 has: another batch key, and no sample hooks."""
    for file, text in {
        "backends/megatron_utils/actor.py": "class MegatronTrainRayActor: ...\n",
        "ray/rollout.py": 'train_data["group_mask_sums"] = []\n',
    }.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    return root


def test_an_old_slime_is_refused_in_one_line(tmp_path):
    root = old_slime(tmp_path / "slime")
    assert probe_slime(root) == [f"slime at {root} is too old, from before v0.3.1: check out v0.3.1 or newer"]


def test_another_package_of_the_name_is_told(tmp_path):
    (tmp_path / "slime").mkdir()
    (problem,) = probe_slime(tmp_path / "slime")
    assert "is not THUDM's" in problem and "PyPI" in problem


def test_no_slime_is_told(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (problem,) = probe_slime()
    assert problem.startswith("slime is not importable here: ")


def test_the_probe_imports_nothing_of_slime(tmp_path, monkeypatch):
    root = old_slime(tmp_path / "slime")
    (root / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.delitem(__import__("sys").modules, "slime", raising=False)
    (problem,) = probe_slime()
    assert "too old" in problem


@pytest.mark.parametrize(
    ("signature", "accepted"),
    [
        ("a, b", True),
        ("a, b, c=1", True),
        ("a, *, b", True),
        ("a, *, b, c=1, **rest", True),
        ("a, b, c", False),
        ("a, *, b, c", False),
        ("b, a", False),
        ("a", False),
        ("a, *rest", False),
    ],
)
def test_what_accepts_a_call_with_a_and_b(signature, accepted):
    import ast

    (function,) = ast.parse(f"def f({signature}): ...").body
    assert isinstance(function, ast.FunctionDef)
    assert probe._accepts(function.args, ["a", "b"]) is accepted
