"""The tokens on which the check of stop tokens says that SGLang stops are those on which it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sat_slime.lab.engine import server_environment
from sat_slime.launch.hf_checkpoint import read_tokenizer, stop_tokens

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

GENERATION = {"eos_token_id": None, "transformers_version": "5.0.0"}
TEXT_END, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


@pytest.fixture(scope="module")
def base_model(tmp_path_factory) -> Path:
    """The files of a base model, all of which name <|endoftext|>, with a byte-level tokenizer; without weights."""
    from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for

    stand_in_for("torchvision")  # transformers imports it where it is installed, and PyPI's needs CUDA
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config

    folder = tmp_path_factory.mktemp("base") / "model"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=TEXT_END)
    wrapped.add_special_tokens({"additional_special_tokens": [TURN_START, TURN_END]})
    wrapped.save_pretrained(folder)
    end = wrapped.convert_tokens_to_ids(TEXT_END)
    Qwen3Config(vocab_size=272, architectures=["Qwen3ForCausalLM"], eos_token_id=end).save_pretrained(folder)
    GenerationConfig(eos_token_id=end).save_pretrained(folder)
    return folder


def shapes(base_model, root):
    """Copies of the model whose files say otherwise where a text ends. <|endoftext|> is 256, <|im_end|> is 258."""
    tokenizer = json.loads((base_model / "tokenizer_config.json").read_text())
    renamed = {
        name: (base_model / name).read_text().replace("<|im_start|>", "<|eom_id|>")
        for name in ("tokenizer.json", "tokenizer_config.json")
    }
    changes = {
        "a base model": {},
        "an instruct model": {
            "config.json": {"eos_token_id": 258},
            "generation_config.json": {**GENERATION, "eos_token_id": [258, 256]},
            "tokenizer_config.json": {**tokenizer, "eos_token": "<|im_end|>"},
        },
        "a base model whose tokenizer ends a turn": {"tokenizer_config.json": {**tokenizer, "eos_token": "<|im_end|>"}},
        "a list in the config": {"config.json": {"eos_token_id": [256, 7]}},
        "nothing in the config": {"config.json": {"eos_token_id": None}},
        "zero in the generation config": {"generation_config.json": {**GENERATION, "eos_token_id": 0}},
        "a number in the generation config": {"generation_config.json": {**GENERATION, "eos_token_id": 9}},
        "no generation config": {"generation_config.json": None},
        "a broken generation config": {"generation_config.json": "{"},
        "an end that is a word": {"tokenizer_config.json": {**tokenizer, "eos_token": "A"}},
        "no end in the tokenizer": {"tokenizer_config.json": {**tokenizer, "eos_token": None}},
        "no end anywhere": {
            "config.json": {"eos_token_id": None},
            "generation_config.json": None,
            "tokenizer_config.json": {**tokenizer, "eos_token": None},
        },
        "Llama's end of a message": renamed,
    }
    folders = {}
    for number, (name, files) in enumerate(changes.items()):
        folder = folders[name] = root / str(number)
        folder.mkdir()
        for file in base_model.iterdir():
            (folder / file.name).symlink_to(file)
        for file, values in files.items():
            old = json.loads((base_model / file).read_text()) if file == "config.json" else {}
            (folder / file).unlink(missing_ok=True)
            if values is not None:
                (folder / file).write_text(values if isinstance(values, str) else json.dumps({**old, **values}))
    return folders


SGLANGS_OWN = """
import json, sys
from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for
stand_in_for("torchvision")
from sat_slime.lab.sglang_process import import_sglang
import_sglang()
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.utils.hf_transformers_utils import get_tokenizer
stops = {}
for folder in sys.argv[1:]:
    tokenizer = get_tokenizer(folder)
    ends = {tokenizer.eos_token_id, *(tokenizer.additional_stop_token_ids or ())} - {None}
    stops[folder] = sorted(ends | ModelConfig(folder).hf_eos_token_id)
print(json.dumps(stops))
"""


def test_the_check_knows_on_which_tokens_sglang_stops(base_model, tmp_path):
    folders = shapes(base_model, tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", SGLANGS_OWN, *map(str, folders.values())],
        capture_output=True,
        text=True,
        env=os.environ | server_environment(),
    )
    assert result.returncode == 0, result.stderr[-3000:]
    theirs = json.loads(result.stdout.splitlines()[-1])
    ours = {name: sorted(stop_tokens(folder, read_tokenizer(folder))) for name, folder in folders.items()}
    assert ours == {name: theirs[str(folder)] for name, folder in folders.items()}
    assert len({tuple(stops) for stops in ours.values()}) >= 7
