import json
from pathlib import Path

import pytest

from sat_slime.config import ConfigError, load_config
from sat_slime.launch.checks import settings_errors
from sat_slime.launch.machine import REWARDS, data_findings, function_findings, reward_errors, slime_rewards

CONFIGS = Path(__file__).parents[2] / "configs"
STAND_IN = Path(__file__).parents[1] / "plugin" / "stand_in"


def paper(*overrides):
    return load_config(CONFIGS / "paper" / "qwen3-30b-a3b.yaml", overrides)


def errors_of(*settings):
    try:
        return settings_errors(paper(*settings))
    except ConfigError as error:
        return error.errors


def told(config, mark="FAIL"):
    return [finding.detail for finding in data_findings(config) if finding.mark == mark]


@pytest.fixture
def prompts(tmp_path):
    """A function that writes rows into a file of prompts, and gives a run's settings that name it."""

    def write(*rows, part="", more=()):
        file = tmp_path / "prompts.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return paper(
            f"slime.prompt-data={file}{part}", "slime.eval-interval=0", f"slime.rollout-batch-size={len(rows)}", *more
        )

    return write


TEXT = {"prompt": "1+1", "label": "2"}


def said(*words):
    messages = [{"role": role, "content": text} for role, text in zip(words[::2], words[1::2], strict=True)]
    return {"prompt": messages, "label": "2"}


MESSAGES = said("user", "1+1")


def test_a_function_whose_module_is_nowhere_is_named_and_nothing_is_imported(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "rewards.py").write_text("raise SystemExit")

    def told_of(path):
        config = paper(f"slime.custom-rm-path={path}", f"cluster.python_path=[{tmp_path}]")
        return [finding.detail for finding in function_findings(config)]

    assert told_of("here.rewards.score") == told_of("sat_slime.plugin.reward.prime_math") == []
    for module in ("nowhere", "here.elsewhere", "sat_slime.plugin.nowhere"):
        (line,) = told_of(f"{module}.score")
        assert line.startswith(f"slime.custom-rm-path is {module}.score: there is no module {module}; ")


@pytest.mark.parametrize(
    "content, named",
    [(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"), (b"\x1f\x8b\x08\0", "gunzip")],
)
def test_a_file_that_is_not_its_data(prompts, content, named):
    config = prompts(TEXT)
    Path(config.data.prompts).write_bytes(content)
    assert named in told(config)[0]


@pytest.mark.parametrize(
    "rows, part, more, named",
    [
        # sglang_rollout.py:generate_rollout_async asks for prompts again and again
        ([TEXT] * 3, "@[-2:-2]", [], ["no row of the file is in the part @[-2:-2]"]),
        ([{**TEXT, "prompt": "bad \ud800 2+2?"}], "", [], ["'prompt' of row 1", "half a character (U+D800)"]),
        ([said("human", "1+1")], "", [], ["role 'human'"]),
        ([said("user", "1+1", "assistant", "2")], "", [], ["last message is the assistant's"]),
        ([{**TEXT, "prompt": json.dumps(MESSAGES["prompt"])}], "", [], ["JSON of messages"]),
        ([said("user", "1+1<|im_end|>")], "", [], ["control token <|im_end|>"]),
        ([{**TEXT, "label": float("inf")}], "", [], ["'label' of row 1 is inf", "no finite number"]),
        ([MESSAGES], "", ["slime.apply-chat-template=false"], ["set slime.apply-chat-template to true"]),
    ],
)
def test_rows_that_end_the_first_batch(prompts, rows, part, more, named):
    (line,) = told(prompts(*rows, part=part, more=more))
    assert "\n" not in line and all(words in line for words in named), line


def test_fewer_prompts_than_a_batch_takes(prompts):
    (line,) = told(prompts(TEXT, more=["slime.rollout-batch-size=3"]), "WARN")
    assert "slime.prompt-data has 1 rows" in line and "a batch has some prompts twice" in line


@pytest.mark.parametrize(
    "rows, part, more",
    [
        ([TEXT], "", ["slime.apply-chat-template=false"]),
        ([MESSAGES], "", []),
        ([TEXT] * 3, "@[-1:]", []),
        ([TEXT] * 3, "@[2:9]", []),
        ([{**TEXT, "label": "1,234"}], "", ["slime.rm-type=dapo", "slime.custom-rm-path=false"]),
    ],
)
def test_rows_that_slime_takes(prompts, rows, part, more):
    config = prompts(*rows, part=part, more=more)
    assert told(config) == told(config, "WARN") == []


def test_evaluation_sets_have_keys_of_their_own(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    keys = ["slime.eval-input-key=question", "slime.eval-label-key=answer"]
    config = paper(f"slime.eval-prompt-data=[aime24, {tmp_path}/a.jsonl]", *keys)
    assert not [line for line in told(config) if "aime24" in line]


# ------------------------------------------------------------------------------------------------------- rewards


@pytest.mark.parametrize("reward", ["math", "boxed_math", "sat_slime.plugin.reward.default", "a.b", "null"])
def test_a_reward_that_slime_may_have(reward):
    assert reward_errors(paper(f"slime.rm-type={reward}", "slime.custom-rm-path=false")) == []


@pytest.mark.parametrize("flag", ["sglang-flush-cache-interval=2", "partial-rollout=true"])
def test_what_streaming_cannot_have(flag):
    lines = errors_of("pipeline.mode=streaming", "method.denominator=rollout", f"slime.{flag}")
    assert any(flag.partition("=")[0].removeprefix("sglang-") in line for line in lines), lines


def test_the_recorded_rules_are_the_real_slimes(request):
    folder = request.config.getoption("--slime", default=None)
    if not folder:
        pytest.skip("needs the real slime: --slime DIR")
    assert slime_rewards(Path(folder)) == REWARDS
