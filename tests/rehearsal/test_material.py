"""What a rehearsal starts from."""

import json
from pathlib import Path

from sat_slime.config import load_config
from sat_slime.rehearsal.material import longest_prompt
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
