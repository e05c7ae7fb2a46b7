from pathlib import Path

import pytest

from sat_slime.config import config_errors, config_warnings, load_config

CONFIGS = Path(__file__).parents[2] / "configs" / "lab"


def base(*overrides):
    return load_config(CONFIGS / "base.yaml", overrides)


ICEPOP = ("method=icepop", "method.icepop.form=weight")


@pytest.mark.parametrize("name", ["base", "quickstart", "tiny", "streaming"])
def test_shipped_files_pass(name):
    config = load_config(CONFIGS / f"{name}.yaml")
    assert config_errors(config) == []
    assert config_warnings(config) == []


@pytest.mark.parametrize(
    "overrides, named",
    [
        (["method=gspo-r3", "model.experts=0"], ["method.r3", "model.experts is 0"]),
        (["model.experts_per_token=9"], ["model.experts_per_token is 9", "model.experts 8"]),
        (["model.kv_heads=3"], ["model.kv_heads is 3", "model.attention_heads 4"]),
        (["model.head_dim=15"], ["model.head_dim is 15"]),
        (["model.max_positions=32"], ["model.max_positions is 32", "set it to 33"]),
        (["rollout.max_response_tokens=20"], ["rollout.max_response_tokens is 20", "raise it to 21"]),
        (["train.tokens_per_microbatch=32"], ["train.tokens_per_microbatch is 32", "33 or more"]),
        (
            ["task.max_digits=5", "task.max_digit=1", "eval.every_n_iterations=0"],
            ["task.min_digits 3", "task.max_digits 5", "task.max_digit 1", "56 problems", "500"],
        ),
        (["task.max_digits=4", "eval.problems=48"], ["1512 problems", "1536", "lower eval.problems"]),
        (
            ["pipeline.optimizer_steps_per_rollout=3"],
            ["256 responses", "optimizer_steps_per_rollout 3", "multiple of 3"],
        ),
        (["method=sat-gspo", "method.denominator=trainer"], ["denominator trainer", "identically 1"]),
        (
            ["method=sat-gspo", "method.tis=true", "method.denominator=trainer"],
            ["identically 1", "set method.denominator to checkpoint"],
        ),
        (
            ["method=sat-gspo", "method.denominator=checkpoint", "pipeline.lag=0"],
            ["pipeline.lag is 0", "identically 1", "SAT would do nothing", "set method.denominator to rollout"],
        ),
        (["method=sat-gspo", "method.tis=true", "pipeline.lag=0"], ["pipeline.lag is 0", "turn method.tis off"]),
        (
            ["method=spo", "method.denominator=checkpoint", "pipeline.lag=0"],
            ["pipeline.lag is 0", "SPO would do nothing"],
        ),
        (["method.base=spo", "method.sat=true"], ["turn sat off"]),
        (["method=gspo-topp"], ["method.top_p_replay is true", "no mask to replay", "set it to false"]),
        (
            [*ICEPOP, "method.tis=true"],
            ["IcePop and TIS", "leave one of them out"],
        ),
        (
            [*ICEPOP, "method.denominator=rollout"],
            ["count it twice", "denominator to trainer"],
        ),
    ],
)
def test_faults_name_key_value_and_remedy(overrides, named):
    found = config_errors(base(*overrides))
    assert any(all(part in error for part in named) for error in found), found


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=sat-gspo", "method.tis=true"],
        ["method=sat-grpo", "method.tis=true", "method.denominator=trainer", "pipeline.optimizer_steps_per_rollout=2"],
        ["method=gspo", "method.denominator=checkpoint", "pipeline.lag=0"],
        [*ICEPOP, "method.sat=true"],
        [
            "method=sat-gspo",
            "method.denominator=checkpoint",
            "pipeline.lag=0",
            "pipeline.optimizer_steps_per_rollout=2",
        ],
    ],
)
def test_methods_that_work(overrides):
    assert config_errors(base(*overrides)) == []


def test_limits_are_tight():
    fits = ["rollout.max_response_tokens=21", "model.max_positions=30", "train.tokens_per_microbatch=30"]
    assert config_errors(base(*fits)) == []
    for enough in (["eval.problems=47"], ["eval.problems=48", "eval.every_n_iterations=0"]):
        assert config_errors(base("task.max_digits=4", *enough)) == []


def test_small_quantile_scope_warns_only_for_sequence_ratios():
    small = "train.tokens_per_microbatch=128"
    of_microbatch = (small, "method.sat.scope=microbatch")
    (warning,) = config_warnings(base("method=sat-gspo", *of_microbatch))
    assert "method.sat.scope" in warning and "train.tokens_per_microbatch" in warning
    for enough in (["method=sat-gspo", small], ["method=sat-grpo", *of_microbatch], ["method=gspo", small]):
        assert config_warnings(base(*enough)) == []


def test_a_clip_that_sees_no_lag_is_told():
    trainer = ("method=grpo", "method.denominator=trainer")
    (warning,) = config_warnings(base(*trainer))
    assert "pipeline.lag is 8" in warning and "set method.denominator to rollout" in warning
    for seen in ("method=grpo-tis", "method.base=icepop", "pipeline.lag=0", "pipeline.optimizer_steps_per_rollout=2"):
        assert config_warnings(base(*trainer, seen)) == []
    (warning,) = config_warnings(base("method=sat-grpo", "pipeline.lag=0"))
    assert "pipeline.lag is 0 with method.sat" in warning


STREAM = ["pipeline.mode=streaming", "pipeline.lag=1", "pipeline.max_staleness=4"]


@pytest.mark.parametrize(
    "overrides, named",
    [
        (
            ["pipeline.lag=2", "pipeline.optimizer_steps_per_rollout=4"],
            ["pipeline.max_staleness is 4", "raise it to 7"],
        ),
        (["pipeline.queue_prompts=15"], ["pipeline.queue_prompts is 15", "rollout.prompts_per_iteration 16"]),
        (["rollout.deterministic=true"], ["rollout.deterministic is true", "the clock decides"]),
    ],
)
def test_streaming_mode_refuses_what_cannot_be(overrides, named):
    (error,) = config_errors(base(*STREAM, *overrides))
    assert all(part in error for part in named), error


def test_streaming_mode_takes_the_tightest_bound_and_a_queue_beyond_it():
    tight = [*STREAM, "pipeline.lag=4", "pipeline.max_staleness=3", "pipeline.queue_prompts=48"]
    assert config_errors(base(*tight)) == config_warnings(base(*tight)) == []


def test_weights_are_kept_as_long_as_a_token_of_theirs_can_be_trained():
    assert base().pipeline.weights_in_use == 2
    assert base(*STREAM).pipeline.weights_in_use == 6  # versions u - 4 to u, and one more
    assert base(*STREAM, "pipeline.lag=2").pipeline.weights_in_use == 4


@pytest.mark.parametrize("setting", ["method.dppo.delta=0.1", "method.ipo.eps=0.3"])
def test_settings_of_another_base_are_refused(setting):
    (fault,) = config_errors(base("method=grpo", setting))
    assert setting.partition("=")[0].rpartition(".")[0] in fault
    assert config_errors(base(setting, "method=grpo")) == [], "whoever names a method leaves the settings of others"
