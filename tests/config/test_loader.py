import re
from pathlib import Path

import pytest

from sat_slime.config import ConfigError, LabConfig, dump_config, load_config, load_grid
from sat_slime.config.loader import RUNTIMES, SYNONYMS, key_paths
from sat_slime.config.source import read_layers

CONFIGS = Path(__file__).parents[2] / "configs" / "lab"


def errors(tmp_path, text, *overrides):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return [error.removeprefix(f"{tmp_path}/") for error in caught.value.errors]


def load(tmp_path, text, *overrides, **settings):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return load_config(path, overrides, settings)


def test_base_documents_every_setting_with_its_default():
    assert load_config(CONFIGS / "base.yaml") == LabConfig()
    (layer,) = read_layers(CONFIGS / "base.yaml")
    assert [path for path in key_paths(LabConfig) if path not in layer.origins and path[0] != "method"] == []


@pytest.mark.parametrize("name", ["base", "quickstart", "tiny"])
def test_resolved_file_loads_back_equal(tmp_path, name):
    config = load_config(CONFIGS / f"{name}.yaml")
    resolved = dump_config(config)
    assert load(tmp_path, resolved) == config
    assert dump_config(load(tmp_path, resolved)) == resolved


@pytest.mark.parametrize(
    "word, meant",
    [
        ("method.clip.eps", ["method.clip.eps_low", "method.clip.eps_high"]),
        ("method.eps_clip", ["method.clip.eps_low", "method.clip.eps_high"]),
        ("eps-clip", ["method.clip.eps_low", "method.clip.eps_high"]),
        ("eps_clip_high", ["method.clip.eps_high"]),
        ("train.learning_rate", ["train.lr"]),
        ("update_weights_interval", ["pipeline.lag"]),
        ("rollout.n_samples_per_prompt", ["rollout.samples_per_prompt"]),
    ],
)
def test_what_other_projects_call_a_setting_is_known(tmp_path, word, meant):
    for setting in meant:
        assert f"'{setting}'" in errors(tmp_path, "seed: 1", f"{word}=1")[0].partition("did you mean")[2]


@pytest.mark.parametrize(
    ("key", "flag"),
    [
        ("train.lr", "lr"),
        ("train.max_tokens_per_gpu", "max-tokens-per-gpu"),
        ("eval.temperature", "eval-temperature"),
        ("train.tensor_parallel", "tensor-model-parallel-size"),
        ("model.hf_checkpoint", "hf-checkpoint"),
    ],
)
def test_what_is_a_flag_of_slime_is_told_with_its_name(tmp_path, key, flag):
    (told,) = errors(tmp_path, "runtime: slime", f"{key}=1")
    assert told.endswith(f"did you mean 'slime.{flag}'?")


def test_every_synonym_means_settings_that_are_there():
    known = {".".join(path) for model in RUNTIMES.values() for path in key_paths(model)}
    assert {key for keys in SYNONYMS.values() for key in keys} <= known


@pytest.mark.parametrize(
    "text, unknown, nearest",
    [
        ("lag: 1", "lag", "pipeline.lag"),
        ("train: {lag: 1}", "train.lag", "pipeline.lag"),
        ("train: {learning_rat: 1, weight_decy: 0}", "train.weight_decy", "train.weight_decay"),
        ("method: {sat: {alfa: 1}}", "method.sat.alfa", "method.sat.alpha"),
        ("method: {sta: true}", "method.sta", "method.sat"),
        ("rollouts: {dtype: float32}", "rollouts.dtype", "rollout.dtype"),
    ],
)
def test_nearest_key_is_sought_everywhere(tmp_path, text, unknown, nearest):
    assert f"x.yaml:1: unknown key '{unknown}'; did you mean '{nearest}'?" in errors(tmp_path, text)


@pytest.mark.parametrize(
    "text, unknown, owner",
    [
        ("runtime: slime\neval: {problems: 8}", "eval.problems", "lab"),
        ("eval: {prompts: {aime: x.jsonl}}", "eval.prompts.aime", None),
        ("slime: {lr: 1}", "slime.lr", None),
        ("task: {name: running_sums, hops: 4}", "task.hops", None),
    ],
)
def test_a_setting_of_the_other_runtime_is_named_as_such(tmp_path, text, unknown, owner):
    (line,) = [line for line in errors(tmp_path, text) if "unknown key" in line]
    assert f"unknown key '{unknown}'" in line
    assert line.endswith(f"; it is a setting of {owner} runs alone") == (owner is not None)


def test_where_nothing_is_near_the_section_tells_what_it_has(tmp_path):
    (whole,) = errors(tmp_path, "zzyzx: 1")
    assert whole.startswith("x.yaml:1: unknown key 'zzyzx'; a file has runtime, name, ") and ", pipeline, " in whole
    (section,) = errors(tmp_path, "pipeline: {foo: 1}")
    assert section.startswith("x.yaml:1: unknown key 'pipeline.foo'; pipeline has mode, lag, ")
    assert errors(tmp_path, "zzyzx: {a: 1}") == ["x.yaml:1: unknown key 'zzyzx.a'"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("rollout: {dtype: fp32}", "rollout.dtype is 'fp32': it must be one of float32, bfloat16"),
        ("method: {denominator: rolout}", "method.denominator is 'rolout': .*did you mean 'rollout'"),
        ("pipeline: 8", "pipeline is 8: it is a section with the keys mode, lag, iterations"),
        ("train: {lr: .nan}", "train.lr is nan"),
        ("train: {lr: .inf}", "train.lr is inf"),
        ("name: ../up", "name is '../up': it takes letters"),
        ("task: {min_digits: 9}", "task: min_digits is 9, above max_digits 8"),
        ("task: {max_digits: yes}", "task.max_digits is true: it must be a valid integer"),
    ],
)
def test_bad_value_is_one_line(tmp_path, text, message):
    (error,) = errors(tmp_path, "seed: 0\n" + text)
    assert error.startswith("x.yaml:2: ")
    assert re.search(message, error), error


def test_overrides_win_over_settings_over_the_file(tmp_path):
    config = load(tmp_path, "pipeline: {lag: 1}\nseed: 1", "pipeline.lag=3", **{"pipeline.lag": 2, "seed": 2})
    assert (config.pipeline.lag, config.seed) == (3, 2)


def test_override_values_are_yaml(tmp_path):
    config = load(
        tmp_path, "seed: 0", "train.lr=1e-4", "rollout.dtype=float32", "method.sat=true", "eval={problems: 8}"
    )
    assert config.train.lr == 1e-4
    assert config.method.sat
    assert config.eval.problems == 8


@pytest.mark.parametrize("text, key", [("train:\n  # lr: 1\n", "train"), ("pipeline: null", "pipeline")])
def test_an_empty_section_does_not_undo_what_it_extends(tmp_path, text, key):
    (tmp_path / "base.yaml").write_text("train: {lr: 1.0}\npipeline: {lag: 3}\nmethod: {sat: {alpha: 0.8}}\n")
    told = f"x.yaml:2: {key} is empty: write settings below it, or leave it out"
    assert errors(tmp_path, f"extends: base.yaml\n{text}") == [told]
    assert errors(tmp_path, "extends: base.yaml", f"{key}=null") == [told.replace("x.yaml:2", f"--set {key}=null")]


@pytest.mark.parametrize(
    "text, overrides, told",
    [
        ("train: {lr: 1.0e+400}\npipeline:", [], ["train.lr is inf", "pipeline is empty"]),
        ("model: {kv_heads: x}", ["train.lr=1" + "0" * 400], ["train.lr is 1000", "model.kv_heads is 'x'"]),
        ("model: {kv_heads: x}", ["train.lr", "=1"], ["--set train.lr:", "--set =1:", "model.kv_heads is 'x'"]),
        ("model: {kv_head: 3}", ["method=gspoo"], ["unknown method 'gspoo'", "unknown key 'model.kv_head'"]),
        ("eval: {k: [a]}\ntask: {max_digits: x}", [], ["eval.k.0 is 'a'", "task.max_digits is 'x'"]),
    ],
)
def test_a_fault_hides_no_other(tmp_path, text, overrides, told):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    found = caught.value.errors
    assert len(found) == len(told), found
    for part in told:
        assert any(part in line for line in found), (part, found)
    assert all(len(line) < 600 for line in found)


def test_a_run_and_a_grid_are_told_apart(tmp_path):
    grid, run = tmp_path / "grid.yaml", tmp_path / "run.yaml"
    grid.write_text("name: g\nmethods: [gspo]\nlags: [1]\n")
    run.write_text(f"extends: {CONFIGS / 'base.yaml'}\nname: r\n")
    with pytest.raises(
        ConfigError, match=rf"^{grid}: this is a grid, not a run: sat-slime grid {grid}, with --dry-run"
    ):
        load_config(grid)
    with pytest.raises(ConfigError, match=rf"^{run}: this is a run, not a grid: sat-slime launch {run}$"):
        load_grid(run)
    grid.write_text("lag: [1]\nmethods: [gspo]")  # a grid with a typing error
    with pytest.raises(ConfigError, match="unknown key 'lag'; did you mean 'lags'"):
        load_grid(grid)
