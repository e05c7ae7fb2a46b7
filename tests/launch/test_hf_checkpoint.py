"""Whether responses end, by the checkpoint's own tokenizer and template."""

import json
from pathlib import Path

import pytest
from hf_folder import CHATML, QWEN, write_hf

from sat_slime.config import load_config
from sat_slime.launch.hf_checkpoint import model_mismatches, read_tokenizer, stop_findings, turn_end

pytest.importorskip("transformers")

CONFIGS = Path(__file__).parents[2] / "configs"
LLAMA = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
)
LLAMA_TOKENS = {"<|end_of_text|>": 128001, "<|start_header_id|>": 128006, "<|eom_id|>": 128008, "<|eot_id|>": 128009}
GLM = "{% for message in messages %}{{ '<|user|>' if message.role == 'user' else '<|assistant|>' }}{{ message.content }}{% endfor %}"  # fmt: skip  # noqa: E501


def findings(folder, *settings, file="slime/base.yaml"):
    return list(stop_findings(load_config(CONFIGS / file, [f"slime.hf-checkpoint={folder}", *settings])))


def only(folder, *settings):
    (finding,) = findings(folder, *settings)
    return finding.mark, finding.detail


def test_a_base_model_under_a_chat_template(tmp_path):
    """A base model of Qwen, all of whose files name <|endoftext|>."""
    folder = write_hf(tmp_path, generation={"eos_token_id": 151643})
    assert only(folder) == (
        "FAIL",
        "slime.rollout-stop-token-ids is unset, and the chat template ends a turn with <|im_end|> (151645), on which "
        "SGLang does not stop (it stops on 151643): add 151645",
    )
    assert only(folder, "slime.rollout-stop-token-ids=[151645]") == ("OK", "SGLang stops on 151643, 151645")
    assert only(folder, "slime.apply-chat-template=false") == ("OK", "SGLang stops on 151643")
    assert only(folder, "slime.rollout-stop=[im_end, x]")[0] == "OK"
    assert only(folder, "slime.rollout-stop=[stop]")[0] == "FAIL"
    nothing = write_hf(tmp_path, config={"eos_token_id": None}, eos_token=None)
    told = "SGLang stops on no token, and responses run to the limit: set slime.rollout-stop-token-ids"
    assert only(nothing, "slime.apply-chat-template=false") == ("WARN", told)


@pytest.mark.parametrize(
    "where",
    [
        {"config": {"eos_token_id": 151645}},
        {"config": {"text_config": {"eos_token_id": [151643, 151645]}, "eos_token_id": [151645]}},
        {"generation": {"eos_token_id": [151645, 151643]}},
        {"eos_token": "<|im_end|>"},
    ],
    ids=["config", "list", "generation", "tokenizer"],
)
def test_a_model_one_of_whose_files_names_the_turns_end(tmp_path, where):
    assert only(write_hf(tmp_path, **where))[0] == "OK"


def test_the_paper_file_the_recipes_and_the_models_stop_at_a_turns_end(tmp_path):
    folder = write_hf(tmp_path)
    files = [*CONFIGS.glob("models/qwen*.yaml"), *CONFIGS.glob("recipes/*.yaml"), *CONFIGS.glob("paper/*.yaml")]
    assert len(files) >= 10
    for file in files:
        assert [one.mark for one in findings(folder, file=file)] == ["OK"], file


@pytest.mark.parametrize(
    "template, tokens, config, mark, said",
    [
        # SGLang also stops on <|eom_id|> wherever there is one
        (LLAMA, LLAMA_TOKENS, {"eos_token_id": 128001}, "FAIL", "(it stops on 128001, 128008): add 128009"),
        (LLAMA, LLAMA_TOKENS, {"eos_token_id": [128001, 128009]}, "OK", ""),
        (GLM, {"<|endoftext|>": 9, "<|user|>": 10}, {"eos_token_id": 9}, "WARN", "starts the next with <|user|> (10)"),
        (GLM, {"<|endoftext|>": 9, "<|user|>": 10}, {"eos_token_id": [9, 10]}, "OK", ""),
        ("{% for m in messages %}{{ m.content }}\n### {% endfor %}", QWEN, {}, "WARN", "which is no token"),
        ("{% for m in messages %}", QWEN, {}, "WARN", "is not known (TemplateSyntaxError: "),
        ("{{ raise_exception('only tools') }}", QWEN, {}, "WARN", "is not known (TemplateError: only tools)"),
        ("{{ messages.__class__.__mro__ }}", QWEN, {}, "WARN", "is not known (SecurityError: "),
        (CHATML.replace("'<|im_end|>", "' [end]<|im_end|>"), QWEN, {}, "WARN", "add 151645"),
        (None, QWEN, {}, "FAIL", "or set slime.apply-chat-template to false"),
    ],
)
def test_templates(tmp_path, template, tokens, config, mark, said):
    found, detail = only(write_hf(tmp_path, template, tokens, config))
    assert found == mark and said in detail and "\n" not in detail


def test_arguments_of_the_template_reach_it(tmp_path):
    folder = write_hf(tmp_path)
    assert turn_end(read_tokenizer(folder), {"enable_thinking": False}).text == "<|im_end|>\n<think></think>"
    argument, _ = findings(folder, 'slime.apply-chat-template-kwargs="{\\"no_thoughts\\": true}"')
    assert argument.mark == "WARN" and "slime.apply-chat-template-kwargs.no_thoughts is no variable" in argument.detail


@pytest.mark.parametrize("broken", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_broken_files_are_a_line(tmp_path, broken, text):
    folder = write_hf(tmp_path)
    (folder / broken).write_text(text, encoding="latin-1")
    (finding,) = findings(folder)
    assert finding.mark in ("WARN", "FAIL") and "\n" not in finding.detail
    (folder / "config.json").write_text("{")
    assert findings(folder) == [], "the check of the checkpoint says so"


QWEN3_30B = {
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "rope_theta": 1000000,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}


def mismatches(values, *overrides):
    model = load_config(CONFIGS / "paper" / "qwen3-30b-a3b.yaml", overrides).model
    return list(model_mismatches(model, values))


def test_the_models_file_describes_the_checkpoint():
    assert mismatches(QWEN3_30B) == []
    newer = {key: value for key, value in QWEN3_30B.items() if key != "rope_theta"}
    assert mismatches({**newer, "rope_parameters": {"rope_theta": 1e6}}) == []
    assert mismatches({"text_config": QWEN3_30B, "hidden_size": 1}) == []


@pytest.mark.parametrize(
    "key, value, told",
    [
        ("num_hidden_layers", 36, "slime.num-layers is 48, but the checkpoint's config.json has"),
        ("num_key_value_heads", 8, "slime.num-query-groups is 4"),
        ("rope_theta", 10000, "slime.rotary-base is 1000000"),
        ("intermediate_size", [6144, 768], "slime.ffn-hidden-size is 6144"),
        ("max_position_embeddings", 40960, "max_positions is 32768"),
        ("tie_word_embeddings", True, "tie_word_embeddings true: leave it out"),
        ("num_experts", None, "is an MoE model, but the checkpoint's config.json is a dense one"),
    ],
)
def test_another_checkpoint_than_described(key, value, told):
    (problem,) = mismatches({**QWEN3_30B, key: value})
    assert told in problem


@pytest.mark.parametrize("flag, kind", [("qk-layernorm", "qwen3_moe"), ("add-qkv-bias", "qwen2")])
def test_weights_that_megatron_would_leave_in_the_checkpoint(flag, kind):
    values = json.loads('{"num_experts": 128}') | {"model_type": kind}
    (line,) = [line for line in mismatches(values, f"slime.{flag}=false") if flag in line]
    assert f"slime.{flag} is not set" in line and "set it to true" in line
