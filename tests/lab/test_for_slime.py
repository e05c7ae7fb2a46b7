"""The quick start's model and problems as slime reads them."""

import json

import pytest

pytest.importorskip("transformers")
from safetensors.numpy import save_file

from sat_slime.config import config_errors, load_config
from sat_slime.lab import for_slime
from sat_slime.lab.batch import evaluation_requests, training_requests
from sat_slime.lab.initial_model import cached_model


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A run whose initial model is in the cache: one of two files, without weights."""
    file = tmp_path_factory.mktemp("config") / "run.yaml"
    file.write_text(f"runtime: lab\ncache_dir: {tmp_path_factory.mktemp('cache')}\n")
    config = load_config(file)
    model = cached_model(config)
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "vocab_size": config.task.vocab_size}))
    save_file({}, model / "model.safetensors")
    return config


@pytest.fixture(scope="module")
def folder(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "laptop"
    for_slime.write_folder(config, folder)
    return folder


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_tokenizer_is_the_tasks_alphabet(folder, config):
    from transformers import AutoTokenizer

    task = config.task
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    for text in ("3524    =", "08,10,14$", "0=  ,$"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tuple(ids) == task.encode(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id == task.eos_id and len(tokenizer) == task.vocab_size


def test_problems_are_those_of_a_lab_run_in_their_order(folder, config):
    prompts, held_out = (rows(folder / f"{name}.jsonl") for name in ("prompts", "held_out"))
    drawn = [problem for iteration in range(3) for problem in training_requests(config, iteration)[0]]
    metadata = {"task": config.task.model_dump()}
    expected = [{"prompt": problem.prompt, "label": problem.label, "metadata": metadata} for problem in drawn]
    assert prompts[: len(drawn)] == expected
    assert len(prompts) == for_slime.ITERATIONS * config.rollout.prompts_per_iteration
    assert [row["prompt"] for row in held_out] == [problem.prompt for problem in evaluation_requests(config, 0)[0]]
    assert not {row["prompt"] for row in held_out} & {row["prompt"] for row in prompts}


def test_a_task_with_too_few_held_out_problems_is_refused_also_of_a_run_that_does_not_evaluate():
    settings = ["task.max_digits=3", "task.max_digit=7", "eval.every_n_iterations=0"]
    assert "lower eval.problems" in "".join(config_errors(for_slime.lab_settings(None, settings)))


def test_a_folder_that_is_there_is_replaced_as_a_whole(config, tmp_path):
    folder = tmp_path / "laptop"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "old.safetensors").write_bytes(b"")
    for name in ("prompts.jsonl", "held_out.jsonl"):
        (folder / name).touch()
    for_slime.write_folder(config, folder)
    assert not (folder / "model" / "old.safetensors").exists()
    assert not list(tmp_path.glob("*.part"))
