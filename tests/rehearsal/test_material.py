"""What a rehearsal starts from: the run's own words, or as many with Qwen's special ones; and a model of the script."""

import json
from pathlib import Path

import pytest
import torch

from sat_slime.config import load_config
from sat_slime.launch.hf_checkpoint import stop_findings
from sat_slime.rehearsal.material import SPECIAL, WORDS, _follow, write_tokenizer

tokenizers = pytest.importorskip("tokenizers")


def read(folder):
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_the_runs_own_is_taken(tmp_path):
    own, out = tmp_path / "own", tmp_path / "out"
    own.mkdir(), out.mkdir()
    (own / "tokenizer.json").write_text("{}")
    (own / "chat_template.jinja").write_text("{{ messages }}")
    (own / "model.safetensors").write_text("weights")
    assert write_tokenizer(own, 151_936, out)[0]
    assert {file.name for file in out.iterdir()} == {"tokenizer.json", "chat_template.jinja"}


@pytest.mark.parametrize(("template", "mark"), [("", "OK"), ("{{ messages[-1]['content'] }} user: ", "WARN")])
def test_a_template_without_an_end_comes_with_the_runs_own(template, mark, tmp_path):
    """A template of the run's own comes into the rehearsal's model, where it is judged as the run's would be."""
    own, out = tmp_path / "own", tmp_path / "out"
    own.mkdir(), out.mkdir()
    write_tokenizer(None, 151_936, own)
    if template:
        settings = json.loads((own / "tokenizer_config.json").read_text())
        (own / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    write_tokenizer(own, 151_936, out)
    (out / "config.json").write_text(json.dumps({"vocab_size": 151_936, "eos_token_id": WORDS}))
    paper = Path(__file__).parents[2] / "configs" / "paper" / "qwen3-30b-a3b.yaml"
    (finding,) = stop_findings(load_config(paper, [f"slime.hf-checkpoint={out}"]))
    assert finding.mark == mark, finding.detail


def test_the_stand_in_has_the_special_tokens_where_qwen_has_them(tmp_path):
    assert not write_tokenizer(None, 151_936, tmp_path)[0]
    tokenizer = read(tmp_path)
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == list(range(WORDS, WORDS + len(SPECIAL)))
    text = "Tür \\boxed{7}<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"


def test_a_vocabulary_without_room_for_the_bytes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no room"):
        write_tokenizer(None, 200, tmp_path)


@pytest.mark.parametrize("words", [4, 1000])
def test_a_response_has_as_many_words_as_it_is_to_have(words):
    torch.manual_seed(0)
    script = [[1, 2, 3, 4], [5], [6, 7], [8]]
    embedding, output = torch.randn(300, 64) * 0.1, torch.randn(300, 64) * 0.1
    _follow(embedding, output, script, words)

    def likely_after(token):
        return (output @ torch.nn.functional.rms_norm(embedding[token], (64,))).softmax(-1)

    for word in script[0]:
        following = likely_after(word)
        assert following[script[0]].sum() / following[script[1]].sum() == pytest.approx(words - 1, rel=0.2)
    for step in (1, 2):
        assert likely_after(script[step][0])[script[step + 1]].sum() > 0.99
