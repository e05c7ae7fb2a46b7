"""What a rehearsal starts from: the run's own tokenizer, and a model of the script."""

import json
from datetime import date
from pathlib import Path

import pandas
import pytest
import torch
from hf_folder import write_hf

from sat_slime.config import ConfigError, load_config
from sat_slime.rehearsal.material import _follow, _short_lines, _write_lines, copy_tokenizer, script_tokens

PAPER = Path(__file__).parents[2] / "configs" / "paper" / "qwen3-30b-a3b.yaml"


def test_the_runs_own_tokenizer_is_taken(tmp_path):
    own, out = tmp_path / "own", tmp_path / "out"
    run = load_config(PAPER, [f"slime.hf-checkpoint={own}"])
    out.mkdir()
    with pytest.raises(ConfigError, match=f"slime.hf-checkpoint is {own}: no tokenizer can be read .*hf download"):
        copy_tokenizer(run, out)
    write_hf(own)
    (own / "model.safetensors").write_text("weights")
    copy_tokenizer(run, out)
    names = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert {file.name for file in out.iterdir()} == names
    script = script_tokens(own, ["7", "12", "7"], 151645)
    letters = [[number - 256 for number in step] for step in script[1:-1]]
    assert letters == [*([byte] for byte in b"\\boxed{"), [*b"71"], [*b"}"]] and script[-1] == [151645]


def test_prompts_are_the_shortest_of_the_runs_own_in_either_format(tmp_path):
    pytest.importorskip("pyarrow")
    rows = [{"prompt": "x" * length, "label": str(length % 10)} for length in (9, 2, 5, 3)]
    (tmp_path / "set.jsonl").write_text("\n\n".join(map(json.dumps, rows)))  # with blank lines, as slime takes them
    pandas.DataFrame(rows).to_parquet(tmp_path / "set.parquet")
    run = load_config(PAPER, ["slime.input-key=prompt"])
    for name in ("set.jsonl", "set.jsonl@[0:4]", "set.parquet"):
        assert [len(row["prompt"]) for row in _short_lines(run, str(tmp_path / name))] == [2, 3, 5, 9]
    (tmp_path / "set.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=f"{tmp_path}/set.jsonl cannot be read"):
        _short_lines(run, str(tmp_path / "set.jsonl"))
    _write_lines(
        tmp_path / "out.jsonl", [{"prompt": "\udc00", "at": date(2026, 11, 29)}]
    )  # as JSON and parquet may have
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"prompt": "\udc00", "at": "2026-11-29"}


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
