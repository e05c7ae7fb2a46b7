"""slime's own Dataset reads the prompts that are prepared."""

from __future__ import annotations

import pytest

pytest.importorskip("math_verify", reason="needs pip install '.[reward]'")

from fake_slime import import_slime
from prompt_sets import dapo_rows, pairs, write

from sat_slime.prompts.prepare import DAPO, choose, gather, jsonl, new_pool, prompt_row
from sat_slime.prompts.sets import fetch, find_source
from sat_slime.prompts.text import TEMPLATES

pytestmark = pytest.mark.needs_slime
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def pool():
    with new_pool() as pool:
        yield pool


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    """A tokenizer of single characters with Qwen's marks and chat template."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    model = tokenizers.models.WordLevel({"?": 0, **{chr(i): i for i in range(1, 128)}}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    folder = tmp_path_factory.mktemp("tokenizer")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="?", additional_special_tokens=["<|im_start|>", "<|im_end|>"]
    )
    fast.chat_template = CHATML
    fast.save_pretrained(folder)
    return folder


def samples(path, tokenizer_folder):
    """The samples that slime's RolloutDataSource reads from --prompt-data."""
    (module,) = import_slime("slime.utils.data")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    settings = {"prompt_key": "prompt", "label_key": "label", "apply_chat_template": True}
    return module.Dataset(str(path), tokenizer, None, None, **settings).samples, module


def test_slime_reads_the_prompts(tmp_path, tokenizer_folder, pool):
    source = write(tmp_path / "dapo.jsonl", dapo_rows(pairs(0, 20), 2))
    problems = choose([gather(DAPO, fetch(find_source(str(source))))], "drop", pool)
    rows = [prompt_row(problem, TEMPLATES["slime"]) for problem in problems]
    (tmp_path / "messages.jsonl").write_text(jsonl(rows))
    messages, slime_data = samples(tmp_path / "messages.jsonl", tokenizer_folder)
    assert messages[0].prompt.startswith("<|im_start|>user\nSolve the following") and len(messages) == 20
    assert messages[0].prompt.endswith('after "Answer:".<|im_end|>\n<|im_start|>assistant\n')
    assert [sample.label for sample in messages] == [str(i + 1) for i in range(20)]
    assert {slime_data.get_source(sample) for sample in messages} == {"dapo"}
