"""The checks of a checkpoint's template, model and stop tokens, on checkpoints of several shapes; stop tokens on SGLang
itself: tests/lab/engine."""

import json

import pytest

from sat_slime.config import load_config
from sat_slime.config.starters import CONFIGS
from sat_slime.launch import hf_checkpoint
from sat_slime.launch.hf_checkpoint import (
    model_mismatches,
    read_checkpoint,
    stop_findings,
    turn_end,
)

PAPER = CONFIGS / "paper" / "qwen3-30b-a3b.yaml"

CHATML = (
    "{%- for message in messages %}\n    {%- if message.role == 'user' %}\n"
    "        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}\n    {%- else %}\n"
    "        {{- '<|im_start|>assistant\\n' }}{% generation %}{{- message.content.lstrip('\\n') + '<|im_end|>' }}"
    "{%- endgeneration %}{{ '\\n' }}\n    {%- endif %}\n{%- endfor %}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>' }}{%- endif %}"
)
LLAMA = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' }}{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
)
GLM = (
    "[gMASK]{% for message in messages %}{{ '<|user|>' if message.role == 'user' else '<|assistant|>' }}\n"
    "{{ message.content }}{% endfor %}"
)
QWEN = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
LLAMA_TOKENS = {
    "<|end_of_text|>": 128001,
    "<|start_header_id|>": 128006,
    "<|end_header_id|>": 128007,
    "<|eom_id|>": 128008,
    "<|eot_id|>": 128009,
}


@pytest.fixture
def checkpoint(tmp_path):
    def write(template=CHATML, tokens=QWEN, eos=151643, generation=None, end="<|endoftext|>", size=151936, **settings):
        """A Hugging Face folder without weights, and the paths of its files."""
        files = {
            "config.json": {"eos_token_id": eos, "vocab_size": size},
            "generation_config.json": {"eos_token_id": generation},
            "tokenizer.json": {"added_tokens": [{"id": i, "content": c, "special": True} for c, i in tokens.items()]},
            "tokenizer_config.json": {"eos_token": end, "chat_template": template, **settings},
        }
        for name, values in files.items():
            (tmp_path / name).write_text(json.dumps(values))
        return tmp_path

    return write


def findings(folder, *settings, file="slime/base.yaml"):
    return list(stop_findings(load_config(CONFIGS / file, [f"model.hf_checkpoint={folder}", *settings])))


def only(folder, *settings):
    (finding,) = findings(folder, *settings)
    return finding.mark, finding.detail


def test_a_base_model_under_a_chat_template(checkpoint):
    """A base model of Qwen, all of whose files name <|endoftext|>."""
    folder = checkpoint(generation=151643)
    assert only(folder) == (
        "FAIL",
        "rollout.stop_token_ids is unset, and the chat template ends a turn with <|im_end|> (151645), on which SGLang "
        "does not stop (it stops on 151643): add 151645",
    )
    assert only(folder, "rollout.stop_token_ids=[151643]")[1].startswith("rollout.stop_token_ids is [151643], and")
    assert only(folder, "rollout.stop_token_ids=[151645]") == ("OK", "SGLang stops on 151643, 151645")
    assert only(folder, "data.chat_template=false") == ("OK", "SGLang stops on 151643")
    assert only(folder, "slime.rollout-stop=<|im_end|>")[0] == "OK"
    assert only(folder, "slime.rollout-stop=[im_end, x]")[0] == "OK"
    assert only(folder, "slime.rollout-stop=[stop]")[0] == "FAIL"


@pytest.mark.parametrize(
    "where",
    [{"eos": 151645}, {"eos": [151643, 151645]}, {"generation": [151645, 151643]}, {"end": "<|im_end|>"}],
    ids=["config", "list", "generation", "tokenizer"],
)
def test_a_model_one_of_whose_files_names_the_turns_end(checkpoint, where):
    assert only(checkpoint(**where)) == ("OK", "SGLang stops on 151643, 151645")


def test_the_models_of_qwen_stop_at_a_turns_end_and_so_do_the_recipes_and_the_papers_file(checkpoint):
    folder, files = checkpoint(), sorted(CONFIGS.glob("models/qwen*.yaml"))
    files += [*CONFIGS.glob("recipes/*.yaml"), *CONFIGS.glob("paper/*.yaml")]
    assert len(files) >= 10
    for file in files:
        (finding,) = findings(folder, file=file)
        assert (finding.mark, finding.detail) == ("OK", "SGLang stops on 151643, 151645"), file


def test_llamas_turns_end(checkpoint):
    """Its base models name <|end_of_text|>; SGLang also stops on <|eom_id|> wherever there is one."""
    shape = {"template": LLAMA, "tokens": LLAMA_TOKENS, "end": "<|end_of_text|>", "size": 128256}
    mark, detail = only(checkpoint(**shape, eos=128001))
    assert mark == "FAIL" and detail.endswith("does not stop (it stops on 128001, 128008): add 128009")
    assert only(checkpoint(**shape, eos=[128001, 128008, 128009]))[0] == "OK"


def test_a_template_that_ends_no_turn_but_begins_the_next(checkpoint):
    shape = {"template": GLM, "tokens": {"<|endoftext|>": 9, "<|user|>": 10, "<|assistant|>": 11}, "size": 12}
    mark, detail = only(checkpoint(**shape, eos=9))
    assert mark == "WARN" and "ends no turn by itself and starts the next with <|user|> (10)" in detail
    assert only(checkpoint(**shape, eos=[9, 10]))[0] == "OK"


@pytest.mark.parametrize(
    "template, told",
    [
        (
            "{% for m in messages %}{{ m.content }}\n\n### {% endfor %}",
            r"with '\n\n### ', which is no token",
        ),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "ends a turn with nothing"),
        ("{% for m in messages %}", "is not known (TemplateSyntaxError: "),
        ("{{ raise_exception('only tools') }}", "is not known (TemplateError: only tools)"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "it leaves the answer out"),
        ("{{ messages.__class__.__mro__ }}", "is not known (SecurityError: "),
        ("{% for m in messages %}{{ m.content[0].text + '<|im_end|>' }}{% endfor %}", "is not known (UndefinedError: "),
    ],
)
def test_a_template_whose_end_is_not_known_is_a_warning(checkpoint, template, told):
    mark, detail = only(checkpoint(template))
    assert mark == "WARN" and told in detail and detail.endswith("look whether responses end; it stops on 151643")
    assert "\n" not in detail


def test_a_token_after_other_text_or_one_that_is_not_special_is_a_warning(checkpoint):
    late = CHATML.replace("+ '<|im_end|>' }}", "+ ' [end]<|im_end|>' }}")
    assert only(checkpoint(late))[0] == "WARN"
    folder = checkpoint()
    tokens = [{"id": number, "content": content, "special": False} for content, number in QWEN.items()]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    assert only(folder)[0] == "WARN"


def test_no_template(checkpoint):
    mark, detail = only(checkpoint(None))
    assert mark == "FAIL" and detail.endswith("or set data.chat_template to false")
    assert only(checkpoint(None), "data.chat_template=false")[0] == "OK"
    assert only(checkpoint(None, auto_map={"AutoTokenizer": ["code.Tokenizer", None]}))[0] == "WARN"


def test_a_template_of_its_own_file_and_one_of_several(checkpoint):
    both = [{"name": "tool_use", "template": LLAMA}, {"name": "default", "template": CHATML}]
    folder = checkpoint(both)
    assert "<|im_end|> (151645)" in only(folder)[1]
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}")
    assert only(folder) == ("OK", "SGLang stops on 151643")


ODD = (
    "{# of transformers' own #}{% set day = strftime_now('%Y') %}\n  {% for m in messages %}\n"
    "    {%- generation -%}  {{ m | tojson }}{{ eos_token }}{{ tools is none }}{% endgeneration %}\n"
    "    {% if loop.last %}{% break %}{% endif %}\n{% endfor %}{{ {'a': 'ü<'} | tojson(indent=1) }}{{ day }}\n"
)


@pytest.mark.parametrize("template", [CHATML, LLAMA, GLM, ODD])
def test_a_template_is_rendered_as_by_transformers(checkpoint, template):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    if not hasattr(utils, "render_jinja_template"):
        pytest.skip("needs a transformers with render_jinja_template")
    read = read_checkpoint(checkpoint(template))
    turns = [{"role": "user", "content": "17 + 17?"}, {"role": "assistant", "content": "34"}]
    given = {"tools": None, "documents": None, "add_generation_prompt": False, **read.names}
    (theirs,), _ = utils.render_jinja_template([turns], chat_template=template, **given)
    assert hf_checkpoint._render(read, turns, {}) == theirs
    assert "34" in theirs


def test_arguments_of_the_template_reach_it(checkpoint):
    end = turn_end(read_checkpoint(checkpoint()), {"enable_thinking": False})
    assert end.text == "<|im_end|>\n<think>\n\n</think>"
    argument, _ = findings(checkpoint(), "data.chat_template_args={no_thoughts: true}")
    assert argument.mark == "WARN" and "data.chat_template_args.no_thoughts is no variable" in argument.detail


def test_tokens_of_tokenizer_config_and_an_end_that_is_a_word_of_the_vocabulary(checkpoint):
    rows = {str(number): {"content": content, "special": True} for content, number in QWEN.items()}
    assert only(checkpoint(tokens={}, added_tokens_decoder=rows))[0] == "FAIL"
    folder = checkpoint(tokens={}, end={"content": "</s>"}, eos=None, template=None)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"<unk>": 0, "</s>": 1}}}))
    assert only(folder, "data.chat_template=false") == ("OK", "SGLang stops on 1")


@pytest.mark.parametrize(
    "ids, mark, told",
    [
        (
            [151645, 151936],
            "FAIL",
            "stop_token_ids has 151936, but the model has 151936 tokens: take the ids of",
        ),
        ([151645, -1], "FAIL", "rollout.stop_token_ids has -1, but token numbers start at 0"),
        (
            [151645, 13],
            "WARN",
            "stop_token_ids has 13, which is no special token: responses end at the first 13",
        ),
    ],
)
def test_stop_tokens_that_cannot_be_meant(checkpoint, ids, mark, told):
    found, detail = only(checkpoint(), f"rollout.stop_token_ids={ids}")
    assert found == mark and told in detail


def test_a_model_that_stops_on_nothing(checkpoint):
    folder = checkpoint(eos=None, end=None)
    told = "SGLang stops on no token, and responses run to the limit: set rollout.stop_token_ids"
    assert only(folder, "data.chat_template=false") == ("WARN", told)
    assert only(folder)[1].endswith("does not stop (it stops on no token): add 151645")
    folder.joinpath("config.json").write_text("{")
    assert findings(folder) == []


@pytest.mark.parametrize("broken", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"added_tokens": 1, "added_tokens_decoder": [1], "eos_token": [1]}', "\xff"]
)
def test_broken_files_say_nothing_and_raise_nothing(checkpoint, broken, text):
    folder = checkpoint()
    (folder / broken).write_text(text, encoding="latin-1")
    assert all("\n" not in finding.detail for finding in findings(folder))


def test_the_advice_works(checkpoint):
    folder = checkpoint()
    advice = int(only(folder)[1].rpartition("add ")[2])
    assert only(folder, f"rollout.stop_token_ids=[{advice}]")[0] == "OK"


def test_without_a_checkpoint_another_check_tells_it(tmp_path):
    assert findings(tmp_path / "missing") == [] and findings(tmp_path) == []


@pytest.mark.parametrize("flag, kind", [("qk-layernorm", "qwen3_moe"), ("add-qkv-bias", "qwen2")])
def test_weights_that_megatron_would_leave_in_the_checkpoint(flag, kind):
    model = load_config(PAPER, [f"model.architecture.{flag}=false"]).model
    values = {"model_type": kind, "num_experts": 128}
    (line,) = [line for line in model_mismatches(model, values) if flag in line]
    assert f"model.architecture.{flag} is not set" in line and "set it to true" in line
    model = load_config(PAPER, [f"model.architecture.{flag}=true"]).model
    assert not [line for line in model_mismatches(model, values) if flag in line]
