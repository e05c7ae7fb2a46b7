"""The table of slime's names fits slime and our own code; the probe says what differs in a slime that is not known."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

import sat_slime.plugin
from sat_slime.plugin.compat import NEEDED, OPTIONAL, probe_slime

PLUGIN = Path(sat_slime.plugin.__file__).parent
FORMS = [form for forms in (*NEEDED, *OPTIONAL) for form in forms]


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
    assert probe_slime(own_script=True) == []


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
    ],
)
def test_a_difference_is_a_line_that_names_it(slime, file, old, new, words):
    change(slime, file, old, new)
    (problem,) = probe_slime(slime, own_script=True)
    assert problem.startswith(f"slime at {slime} is not one that this plugin knows (v0.3.1, main at 624b824a8, and ")
    assert words in problem and "\n" not in problem


def test_what_is_not_slime_or_too_old_is_named(tmp_path):
    (problem,) = probe_slime(tmp_path)
    assert "is not THUDM's" in problem
    trainer = tmp_path / "backends" / "megatron_utils" / "actor.py"
    trainer.parent.mkdir(parents=True)
    trainer.touch()
    (problem,) = probe_slime(tmp_path)
    assert "too old, from before v0.3.1" in problem
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout" / "sample_hooks.py").touch()
    (problem,) = probe_slime(tmp_path, own_script=True)
    assert problem.endswith("start `python3 -m sat_slime.plugin.driver` in its place, with the same flags")


def test_the_plugin_touches_no_other_name_of_slime():
    """It may touch one by an import, by a dotted path in a string, or by an attribute of an imported module."""
    modules = {form.module for form in FORMS} | {form.looked_up_in for form in FORMS}
    places = {f"{form.module}.{form.name.partition('.')[0]}" for form in FORMS}
    known = {
        "utils.routing_replay.ROUTING_REPLAY",
        "",
        "backends",
        *modules,
        *places,
        *(f"{module.rpartition('.')[0]}" for module in modules),
    }
    for file in PLUGIN.rglob("*.py"):
        text = file.read_text()
        imports = re.findall(r"from slime\.?([\w.]*) import ([^(\n]+)", text)
        found = {f"{module}.{name.split()[0]}" for module, names in imports for name in names.split(",")}
        found |= set(re.findall(r'"slime\.([\w.]+)"', text))
        for module, names in imports:
            place, *renamed = names.split(" as ")
            if f"{module}.{place.strip()}" in modules:
                alias = (renamed or [place])[0].strip()
                found |= {f"{module}.{place.strip()}.{name}" for name in re.findall(rf"\b{alias}\.(\w+)", text)}
        for place in found:
            assert place in known, f"{file.relative_to(PLUGIN)} touches slime.{place}: add a line to plugin/compat.py"
