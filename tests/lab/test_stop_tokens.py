"""What the check of stop tokens says, against where SGLang's real server stops."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest
from text_model import TEXT_END, TURN_END, save_text_model

from sat_slime.config import load_config
from sat_slime.config.schema import ModelConfig, RolloutConfig
from sat_slime.config.starters import CONFIGS
from sat_slime.lab.engine import CPU_ARGUMENTS, Server, server_environment
from sat_slime.launch.hf_checkpoint import read_tokenizer, stop_findings, stop_tokens

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("forked"), pytest.mark.timeout(900)]

ANSWER, LIMIT = "Ans: 34", 40
GENERATION = {"eos_token_id": None, "transformers_version": "5.0.0"}


@pytest.fixture(scope="module")
def base_model(tmp_path_factory):
    return save_text_model(tmp_path_factory.mktemp("base") / "model", answer=ANSWER)


def findings(folder, *settings):
    config = load_config(CONFIGS / "slime/base.yaml", [f"slime.hf-checkpoint={folder}", *settings])
    return list(stop_findings(config))


class TextServer(Server):
    """A server of a folder that has a tokenizer."""

    def arguments(self, model_path, version):
        on_cpu = [*CPU_ARGUMENTS, "--dtype", "float32", "--grammar-backend", "none", "--max-total-tokens", "65536"]
        return ["--model-path", model_path, *on_cpu]


async def answers(server, prompt_ids, stops):
    """One response for each of the lists of stop tokens, asked for as slime asks (GenerateState)."""
    payload = {
        "input_ids": [prompt_ids] * len(stops),
        "sampling_params": [
            {
                "temperature": 1.0,
                "max_new_tokens": LIMIT,
                "stop_token_ids": ids,
                "skip_special_tokens": False,
                "no_stop_trim": True,
                "spaces_between_special_tokens": False,
            }
            for ids in stops
        ],
        "return_logprob": True,
    }
    return await server.post("/generate", payload)


def test_without_the_turns_end_responses_run_to_the_limit_and_with_it_they_end(base_model, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base_model)
    end, text_end = (tokenizer.convert_tokens_to_ids(token) for token in (TURN_END, TEXT_END))
    chat = [{"role": "user", "content": "17 + 17?"}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)

    (without,), (with_it,) = findings(base_model), findings(base_model, f"slime.rollout-stop-token-ids=[{end}]")
    assert without.mark == "FAIL" and with_it.mark == "OK"
    assert without.detail == (
        f"slime.rollout-stop-token-ids is unset, and the chat template ends a turn with {TURN_END} ({end}), on which "
        f"SGLang does not stop (it stops on {text_end}): add {end}"
    )

    server = TextServer(0, RolloutConfig(startup_timeout_s=600), ModelConfig(), tmp_path)

    async def ask():
        await server.start(str(base_model), 0)
        return await answers(server, prompt_ids, [None, [end], [text_end]])

    try:
        unset, stopped, another = asyncio.run(ask())
    finally:
        server.stop()
    for endless in (unset, another):
        assert endless["meta_info"]["finish_reason"] == {"type": "length", "length": LIMIT}
        assert endless["text"].startswith(f"{ANSWER}{TURN_END}{ANSWER}{TURN_END}")
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": end}
    # The end is part of the text that slime rewards, and of the tokens that it trains.
    assert stopped["text"] == f"{ANSWER}{TURN_END}"
    tokens = [row[1] for row in stopped["meta_info"]["output_token_logprobs"]]
    assert tokens == [*tokenizer.encode(ANSWER, add_special_tokens=False), end]


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
