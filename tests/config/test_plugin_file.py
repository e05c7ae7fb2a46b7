"""The plugin's file: what `sat-slime init plugin` writes, and what `sat-slime check` says of such a file."""

from __future__ import annotations

import re

import pytest
import yaml

from sat_slime.config import ConfigError
from sat_slime.config.plugin_file import is_plugin_file, not_in_a_script, plugin_file, plugin_findings
from sat_slime.config.starters import CONFIGS
from sat_slime.launch.flags import recorded
from sat_slime.objective import method_names, named_method

IN_A_SCRIPT = [name for name in method_names() if not not_in_a_script(named_method(name))]


def findings(tmp_path, text):
    file = tmp_path / "sat.yaml"
    file.write_text(text)
    assert is_plugin_file(file)
    return list(plugin_findings(file, recorded().flags))


@pytest.mark.parametrize("name", IN_A_SCRIPT)
def test_the_file_of_every_method_is_sound_and_named(tmp_path, name):
    (good,) = findings(tmp_path, plugin_file(name))
    assert good.mark == "OK" and f"method {name}, " in good.detail


@pytest.mark.parametrize(
    ("name", "says"), [("sat-gspoo", "did you mean 'sat-gspo'"), ("sat-grpo-tis", "plugin.driver")]
)
def test_a_method_that_cannot_run_there_gets_no_file(name, says):
    with pytest.raises(ConfigError, match=f"--method {name}: .*{says}"):
        plugin_file(name)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sat_slime": {"method": "sat-gspoo"}}, "did you mean 'sat-gspo'"),
        ({"sat_slime": {"methd": {1: 2}}}, "unknown key 'methd.1'"),  # YAML's keys may be numbers, and `on` is true
        ({"sat_slime": {"method": {True: 2}}}, "method.1 is true: a key must be text; put it in quotes"),
        ({"sat_slime": None}, "no key 'sat_slime'"),
        ({"sat_slime": {"method": "sat-gspo-r3"}}, "has r3: set use_rollout_routing_replay and use"),
        ({"use_rollout_routing_replay": True, "use_routing_replay": True}, "no r3: leave out"),
        ({"sat_slime": {"method": "grpo-decoupled-a3po"}}, "the lag of every token.*plugin.driver"),
        ({"sat_slime": {"method": {"base": "gspo", "sat": True, "denominator": "trainer"}}}, "identically 1"),
        ({"loss_type": "policy_loss"}, "loss_type is policy_loss: set it to custom_loss"),
        ({"rollout_data_postprocess_path": ...}, "rollout_data_postprocess_path is not set"),
        ({"rollout_sample_hook_path": None}, r"rollout_sample_hook_path is not set: set it to \['sat_slime.*'\]"),
        ({"rollout_sample_hook_path": ["sat_slime.plugin.on"]}, r"set it to \['sat_slime.plugin.rollout_hooks.on_"),
        ({"rollout_sample_hook_path": "my.hook"}, r"rollout_sample_hook_path is my.hook: set it to \['my.hook'\]"),
        ({"eps_clip": 0.3}, "eps_clip is set and eps_clip_high is not"),
        ({"n_samples_per_prompt": 8}, "n_samples_per_prompt is set and grpo_std_normalization is not"),
        ({"use_opsm": True}, "use_opsm is set: .*`opsm: true`"),
        ({"eval_config": "sets.yaml"}, "eval_datasets is not.*: give eval_config in the script"),
        ({"use_tis": True}, "use_tis is set: slime leaves it out of a custom loss: use `tis: true` in the method"),
        ({"custom_tis_function_path": "mine.tis"}, "custom_tis_function_path is set: .*`base: icepop`"),
    ],
)
def test_faults_of_a_file_are_told_with_their_remedy(tmp_path, change, says):
    values = {k: v for k, v in (yaml.safe_load(plugin_file("sat-gspo")) | change).items() if v is not ...}
    (fault,) = findings(tmp_path, yaml.safe_dump(values))
    assert fault.mark == "FAIL" and fault.of_settings
    assert re.search(says, fault.detail), fault.detail


@pytest.mark.parametrize(
    ("method", "more", "says"),
    [
        ("sat-gspo", "eps_clp: 0.1\n", "^eps_clp is no flag of slime's.*did you mean eps_clip[?]$"),
        ("{base: gspo, sat: {scope: microbatch}, denominator: trainer}", "", "one optimizer step .* identically 1"),
        ("grpo\n  driver: {iterations: 5}", "", "^sat_slime.driver.iterations is set, .*--num-rollout: leave it out$"),
        ("grpo\n  run_dir: runs/a", "", "^sat_slime.run_dir is runs/a, .*: write it in full$"),
    ],
)
def test_a_misspelt_key_and_one_step_without_a_ratio_are_doubted_and_an_own_key_is_not(tmp_path, method, more, says):
    own = "eps_clip: 0.1\neps_clip_high: 0.1\ngradient_accumulation_fusion: false\nmy_reward_scale: 2\n"
    text = plugin_file("sat-gspo").replace(": sat-gspo ", f": {method} ")
    doubted, sound = findings(tmp_path, text + own + more)
    assert (doubted.mark, sound.mark) == ("WARN", "OK") and re.search(says, doubted.detail), doubted


def test_a_file_of_a_run_is_none_of_these(tmp_path):
    assert [path.name for path in CONFIGS.rglob("*.yaml") if is_plugin_file(path)] == ["sat.yaml"]
    (tmp_path / "odd.yaml").write_text("a: !!bool x")
    assert not is_plugin_file(CONFIGS) and not is_plugin_file(tmp_path / "odd.yaml")


def test_the_page_shows_what_init_writes():
    page = (CONFIGS.parents[1] / "docs" / "slime.md").read_text()
    (block,) = re.findall(r"^```yaml\n(sat_slime:\n.*?loss_type.*?)```", page, re.S | re.M)
    assert yaml.safe_load(block) == yaml.safe_load(plugin_file("sat-gspo"))
