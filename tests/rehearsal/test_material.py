"""What a rehearsal starts from."""

import json
from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.rehearsal.material import _follow, longest_prompt
from sat_slime.rehearsal.thin import Sizes, thin_settings
from sat_slime.rehearsal.vocabulary import write_tokenizer

PAPER = Path(__file__).parents[2] / "configs" / "paper" / "qwen3-30b-a3b.yaml"


def test_the_longest_prompt_is_counted_in_tokens(tmp_path):
    """A byte is a token of this vocabulary; a turn takes eight more."""
    thin = thin_settings(load_config(PAPER), tmp_path, Sizes()).config
    (tmp_path / "model").mkdir()
    write_tokenizer(None, 300, tmp_path / "model", ranks=tmp_path / "none")

    def longest(*prompts):
        lines = (json.dumps({thin.data.input_key: prompt}) + "\n" for prompt in prompts)
        Path(thin.data.prompts).write_text("".join(lines), encoding="utf-8")
        return longest_prompt(thin, tmp_path / "model")

    assert longest("1 + 1", "100 + 100") == 9 + 8
    turns = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1"}]
    assert longest(turns, "1 + 1") == 4 + 5 + 2 * 8


@pytest.mark.parametrize("words", [4, 1000])
def test_a_response_has_as_many_words_as_it_is_to_have(words):
    torch = pytest.importorskip("torch")
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
