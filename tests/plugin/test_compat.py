"""The table of slime's names fits slime and our own code; the probe says what differs in a slime that is not known."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import sat_slime.plugin
from sat_slime.plugin import compat
from sat_slime.plugin.compat import ALL, FOR_CANARY, NEEDED, Form, accepts, probe_slime

PLUGIN = Path(sat_slime.plugin.__file__).parent
FORMS = [form for forms in ALL for form in forms]


def write_slime(root: Path, without: list[tuple[Form, ...]] = FOR_CANARY) -> Path:
    """Writes a package that has the newest form of every name that a run needs, and nothing else."""
    files: dict[str, str] = {"rollout/sample_hooks.py": ""}
    for form in (forms[0] for forms in NEEDED if forms not in without):
        owner, _, method = form.name.rpartition(".")
        indent = " " * 4 * (1 + bool(owner))
        head = f"class {owner}:\n    " if owner else ""
        does = "".join(f"{indent}{json.dumps(part)}\n" for part in form.calls)
        text = f"{head}def {method}({', '.join(form.parameters or [])}):\n{does}{indent}pass\n"
        if not owner and form.name[0].isupper():
            text = f"class {form.name}:\n    pass\n"
        files[form.file] = files.get(form.file, "") + text
    for file, text in files.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    return root


@pytest.fixture
def slime(tmp_path) -> Path:
    """A copy of the files that the probe reads."""
    spec = importlib.util.find_spec("slime")
    assert spec is not None and spec.submodule_search_locations
    source, copy = Path(spec.submodule_search_locations[0]), tmp_path / "slime"
    for file in {form.file for form in FORMS}:
        if (source / file).exists():
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / file, copy / file)
    return copy


def change(root: Path, file: str, old: str, new: str) -> None:
    text = (root / file).read_text()
    assert old in text, f"{file} has no {old!r}"
    (root / file).write_text(text.replace(old, new))


@pytest.mark.needs_slime
def test_this_slime_is_known():
    assert probe_slime(own_script=True, canary=True) == []


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


def test_a_slime_is_known_by_the_newest_forms_of_its_names(tmp_path):
    assert probe_slime(write_slime(tmp_path / "slime")) == []


def test_what_a_body_must_have_is_asked_of_a_name_of_the_table():
    asked = {text for form in FORMS for text in form.calls}
    assert asked >= {text for texts in compat._CALLS.values() for text in texts}


def test_where_slime_has_no_asynchronous_script_the_driver_is_named(tmp_path):
    root = write_slime(tmp_path / "slime")
    (problem,) = probe_slime(root, own_script=True)
    assert problem.startswith(f"slime at {root} has no asynchronous training script")
    assert problem.endswith("start `python3 -m sat_slime.plugin.driver` in its place, with the same flags")


def test_a_slime_whose_engines_are_reached_otherwise_is_refused_for_the_canary(tmp_path):
    problems = probe_slime(write_slime(tmp_path / "slime"), canary=True)
    assert any("RolloutManager.get_updatable_engines_and_lock" in problem for problem in problems)
    assert all("which pipeline.canary needs: set that to none" in problem for problem in problems)


def test_a_changed_signature_is_told(tmp_path):
    root = write_slime(tmp_path / "slime")
    change(root, "ray/placement_group.py", "rollout_manager, actor_cls", "rollout_manager")
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
    (function,) = ast.parse(f"def f({signature}): ...").body
    assert isinstance(function, ast.FunctionDef)
    assert accepts(function.args, ("a", "b")) is accepted


def test_the_plugin_touches_no_other_name_of_slime():
    """It may touch one by an import, by a dotted path in a string, or by an attribute of an imported module. plugin/cpu
    stands in for a GPU and names what it patches itself."""
    modules = {form.module for form in FORMS}
    places = {f"{form.module}.{form.name.partition('.')[0]}" for form in FORMS}
    known = {"", *modules, *places, *(f"{module.rpartition('.')[0]}" for module in modules), "backends"}
    for file in PLUGIN.rglob("*.py"):
        if file.parent.name == "cpu":
            continue
        for place in touched(ast.parse(file.read_text())):
            assert place in known, f"{file.relative_to(PLUGIN)} touches slime.{place}: add a line to plugin/compat.py"


def touched(tree: ast.Module) -> Iterator[str]:
    """Dotted paths within the package `slime` that the code of a module names."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "slime":
            for one in node.names:
                place = f"{node.module}.{one.name}".removeprefix("slime.")
                yield place
                aliases[one.asname or one.name] = place
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_path(node.value):
            yield node.value.removeprefix("slime.")
    modules = {form.module for form in FORMS}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and aliases.get(node.value.id) in modules
        ):
            yield f"{aliases[node.value.id]}.{node.attr}"


def is_path(text: str) -> bool:
    return text.startswith("slime.") and all(part.isidentifier() for part in text.split("."))
