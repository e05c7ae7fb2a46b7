"""What a rehearsal starts from: the run's own tokenizer, and a model of the script."""

import json
import sys
from datetime import date
from pathlib import Path

import pandas
import pytest
import torch
from hf_folder import write_hf

from sat_slime.config import ConfigError, load_config
from sat_slime.rehearsal import material
from sat_slime.rehearsal.material import _follow, _short_lines, _write_lines, copy_tokenizer, script_tokens
from sat_slime.rehearsal.thin import thin_settings

PAPER = Path(__file__).parents[2] / "configs" / "paper" / "qwen3-30b-a3b.yaml"


def test_the_runs_own_tokenizer_is_taken(tmp_path, monkeypatch):
    own, out, away = tmp_path / "own", tmp_path / "out", tmp_path / ("x" * 300)  # the last may not be asked after
    out.mkdir()
    with pytest.raises(ConfigError, match=f"slime.hf-checkpoint is {away}: no tokenizer can be read .*hf download"):
        copy_tokenizer(load_config(PAPER, [f"slime.hf-checkpoint={away}"]), out)
    run = load_config(PAPER, [f"slime.hf-checkpoint={write_hf(own)}"])
    (own / "model.safetensors").write_text("weights")
    copy_tokenizer(run, out)
    names = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert {file.name for file in out.iterdir()} == names
    script = script_tokens(own, ["7", "12", "", "7"], 151645)  # a row may have an empty answer
    letters = [[number - 256 for number in step] for step in script[1:-1]]
    assert letters == [*([byte] for byte in b"\\boxed{"), [*b"71"], [*b"}"]] and script[-1] == [151645]
    monkeypatch.setitem(sys.modules, "transformers", None)  # as where it is not installed
    with pytest.raises(ConfigError, match=r"transformers.*, which a rehearsal needs: pip install '.\[lab,slime\]'"):
        copy_tokenizer(run, out)


def test_prompts_are_the_shortest_of_the_runs_own_in_either_format(tmp_path):
    pytest.importorskip("pyarrow")
    rows = [{"prompt": "x" * length, "label": str(length % 10)} for length in (9, 2, 5, 3)]
    (tmp_path / "set.jsonl").write_text("\n\n".join(map(json.dumps, rows)))  # with blank lines, as slime takes them
    pandas.DataFrame(rows).to_parquet(tmp_path / "set.parquet")
    for name in ("set.jsonl", "set.jsonl@[0:4]", "set.parquet"):
        assert [len(row["prompt"]) for row in _short_lines(str(tmp_path / name), "prompt", "label")] == [2, 3, 5, 9]
    assert _short_lines(str(tmp_path / ("x" * 300)), "prompt", "label") == []  # as one that may not be looked into
    (tmp_path / "set.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=f"{tmp_path}/set.jsonl cannot be read"):
        _short_lines(str(tmp_path / "set.jsonl"), "prompt", "label")
    odd = {"prompt": "\udc00", "at": date(2026, 11, 29)}  # as JSON and parquet may have
    _write_lines(tmp_path / "out.jsonl", [odd])
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"prompt": "\udc00", "at": "2026-11-29"}


def test_evaluations_have_keys_of_their_own_and_a_model_may_have_its_tokenizers_vocabulary(tmp_path):
    own, file, out = write_hf(tmp_path / "own"), tmp_path / "eval.jsonl", tmp_path / "out"
    file.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    flags = {"hf-checkpoint": own, "eval-prompt-data": f"[aime24, {file}]"}
    flags |= {"eval-input-key": "question", "eval-label-key": "answer", "num-layers": 1, "vocab-size": "null"}
    run = load_config(PAPER, [f"slime.{name}={value}" for name, value in flags.items()])
    material.make_material(run, thin_settings(run, out).config, out)
    assert (out / "eval-0.jsonl").read_text() == file.read_text()
    assert json.loads((out / "model" / "config.json").read_text())["vocab_size"] == 151646


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
