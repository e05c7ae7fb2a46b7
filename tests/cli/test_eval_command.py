"""`sat-slime eval` against a stand-in server, also on the real AIME 2024 where it is at hand."""

from __future__ import annotations

import errno
import json
import re
import sys
from pathlib import Path
from unittest import mock

import pytest
from fake_completions import serving
from typer.testing import CliRunner

from sat_slime.cli.app import app
from sat_slime.cli.evaluation_run import evaluation_plan
from sat_slime.cli.evaluation_run.evaluation_plan import read_questions
from sat_slime.prompts import PromptError
from sat_slime.runs.rows import read_rows

pytest.importorskip("math_verify", reason="needs pip install '.[reward]'")
pytest.importorskip("httpx", reason="needs pip install '.[embedded]'")

AIME = Path(__file__).parents[3] / "shared" / "data" / "aime24.jsonl"


def sat_slime_eval(*arguments: object):
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


@pytest.fixture
def data(tmp_path) -> Path:
    """Six problems whose text tells a stand-in how often it is right: problem i in i of 4 samples."""
    path = tmp_path / "six.jsonl"
    rows = [
        {"id": 10 + i, "problem": f"Problem {i}: what is {i} + {100 * i}?", "answer": str(101 * i)} for i in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Solver:
    """Right in the first `min(i, 4)` of the samples of problem i; else wrong, silent, or hostile."""

    def __init__(self):
        self.asked: dict[int, int] = {}

    def __call__(self, body) -> str:
        text = body["messages"][-1]["content"]
        i = int(text.partition("Problem ")[2].partition(":")[0])
        self.asked[i] = self.asked.get(i, 0) + 1
        if self.asked[i] <= i:
            return f"It is easy.\nAnswer: \\boxed{{{101 * i}}}"
        return {0: "I do not know", 1: "Answer: 7", 2: "__import__('os').system('touch x')"}.get(i, "Answer: $12$")


def test_an_engine_is_evaluated_and_the_numbers_are_those_of_the_function(tmp_path, data):
    out = tmp_path / "out"
    with serving(Solver()) as server:
        result = sat_slime_eval(
            *("--engine", server.url, "--data", data, "--samples", 2, "--repeats", 2, "--k", "1,4", "--out", out),
            *("--concurrency", 1, "--max-tokens", 512, "--temperature", 0.7),
        )
    assert result.exit_code == 0, result.output
    told = json.loads((out / "eval.json").read_text())
    assert told["accuracy_by_problem"] == [0, 0.25, 0.5, 0.75, 1, 1]
    assert (told["accuracy"], told["n_samples"], told["weights_step"]) == (pytest.approx(14 / 24), 24, 8)
    assert told["pass@4"] == pytest.approx(5 / 6) and told["accuracy_by_run"] == pytest.approx([9 / 12, 5 / 12])
    assert told["accuracy/low"] < told["accuracy/low_samples"] < told["accuracy"]
    settings = told["settings"]
    assert (settings["model"], settings["model_path"], settings["weight_version"]) == ("tiny", "/models/tiny", "8")
    assert (settings["temperature"], settings["max_tokens"], settings["repeats"]) == (0.7, 512, 2)
    assert told["problems"][1]["problem"] == "11" and told["problems"][1]["wrong"] == "7"
    assert {row["problem"]: row["reward"] for row in read_rows(out / "samples.jsonl") if row["sample"] == 0} == {
        "10": 0.0,
        **dict.fromkeys(("11", "12", "13", "14", "15"), 1.0),
    }
    for piece in ("accuracy 0.5833: 6 problems, 24 samples", "pass@4 0.8333", "weights of optimizer step 8", "3/4"):
        assert piece in result.output
    (first, *_) = server.seen
    assert first["messages"][0]["content"].startswith("Solve the following math problem step by step.")


def test_samples_that_are_there_are_not_asked_again(tmp_path, data, monkeypatch):
    arguments = ["--data", data, "--out", tmp_path / "out", "--concurrency", 1]
    with serving(Solver()) as server:
        server.faults = [None] * 7 + [400]
        ended = sat_slime_eval("--engine", server.url, "--samples", 2, *arguments)
        assert ended.exit_code == 1 and "problem 13: " in ended.output and "give the command again" in ended.output
        assert len(read_rows(tmp_path / "out" / "samples.jsonl")) == 7
        with (tmp_path / "out" / "samples.jsonl").open("a") as file:
            file.write('{"problem": "13", "sam')  # a kill in the middle of a line
        done = sat_slime_eval("--engine", server.url, "--samples", 2, *arguments)
        assert done.exit_code == 0 and "7 of 12 samples are there already" in done.output
        assert len(server.seen) == 8 + 5
        more = sat_slime_eval("--engine", server.url, "--samples", 3, *arguments)
        assert more.exit_code == 0 and len(server.seen) == 8 + 5 + 6, "more samples of the same"
        monkeypatch.setenv("COLUMNS", "40")
        again = sat_slime_eval("--engine", server.url, "--samples", 3, *arguments)
        assert "all 18 samples are there already: nothing is asked" in again.output
        assert "accuracy" in done.output and len(server.seen) == 19
    rows = read_rows(tmp_path / "out" / "samples.jsonl")
    assert len({(row["problem"], row["sample"]) for row in rows}) == len(rows) == 18


@pytest.mark.parametrize("change", [["--temperature", 0.5], ["--verifier", "strict_integer"], ["version"]])
def test_samples_of_another_evaluation_are_not_mixed_in(tmp_path, data, change):
    arguments = ["--data", data, "--out", tmp_path / "out"]
    with serving(Solver()) as server:
        assert sat_slime_eval("--engine", server.url, *arguments).exit_code == 0
        if change == ["version"]:
            server.version, change = "16", ["--samples", 2]
        result = sat_slime_eval("--engine", server.url, *arguments, *change)
        assert result.exit_code == 2 and "holds samples of another evaluation" in result.output
        assert "--overwrite" in result.output
        assert sat_slime_eval("--engine", server.url, *arguments, *change, "--overwrite").exit_code == 0


def test_weights_that_change_meanwhile_are_told(tmp_path, data):
    with serving(Solver()) as server:
        solve = server.respond

        def respond(body):
            server.version = str(len(server.seen) // 4)
            return solve(body)

        server.version, server.respond = "0", respond
        result = sat_slime_eval("--engine", server.url, "--data", data, "--out", tmp_path / "out", "--concurrency", 1)
    assert "the weights changed while they were evaluated" in result.output
    told = json.loads((tmp_path / "out" / "eval.json").read_text())
    assert told["weights_step"] is None and told["weight_versions"] == ["0", "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a run, a model's folder, or --engine URL"),
        (["--engine", "http://127.0.0.1:9"], "--data is not given"),
        (["--engine", "http://127.0.0.1:9", "--data", "DATA", "--k", "4"], "--k has 4, more than --samples 1 x --rep"),
        (["--engine", "http://127.0.0.1:9", "--data", "DATA", "--k", "x"], "--k x: expected numbers"),
        (["--engine", "http://127.0.0.1:9", "--data", "DATA", "--chat-args", "[1]"], "expected a JSON object"),
        (["--engine", "http://127.0.0.1:9", "--data", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--engine", "http://127.0.0.1:9", "--data", "DATA", "--verifier", "mine"], "--verifier is mine"),
        (["FOLDER", "--data", "DATA"], "is neither a run, which has a config.yaml, nor a model's folder"),
        (["FOLDER"], "is neither a run, which has a config.yaml, nor a model's folder, which has a config.json"),
        (["nowhere"], "there is no nowhere: name a run, one of its checkpoints, or a model's folder"),
    ],
)
def test_bad_input_is_a_line_before_anything_is_asked(tmp_path, data, arguments, message):
    named = {"DATA": data, "FOLDER": tmp_path}
    result = sat_slime_eval(*(named.get(argument, argument) for argument in arguments))
    assert result.exit_code == 2 and message in " ".join(result.output.split())


def test_a_server_that_is_not_there_is_a_line(tmp_path, data):
    result = sat_slime_eval("--engine", "http://127.0.0.1:9", "--data", data, "--out", tmp_path / "out")
    assert result.exit_code == 1 and "http://127.0.0.1:9/v1/models: no server answers there" in result.output
    assert not re.search(r"Traceback|Error\(|Exception", result.output)


@pytest.mark.parametrize("url", ["127.0.0.1:9", "localhost", "http//x", "http://[::1"])
def test_what_is_no_address_is_a_line(tmp_path, data, url):
    result = sat_slime_eval("--engine", url, "--data", data, "--out", tmp_path / "out")
    assert result.exit_code == 1 and "this is no address of a server, such as http://" in " ".join(
        result.output.split()
    )
    assert not re.search(r"Traceback|Error\(|Exception", result.output)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_a_line_with_its_path(tmp_path, data):
    out = tmp_path / "out"
    solve = Solver()

    def respond(body):
        if not solve.asked:
            (out / "samples.jsonl").symlink_to("/dev/full")
        return solve(body)

    with serving(respond) as server:
        result = sat_slime_eval("--engine", server.url, "--data", data, "--out", out, "--concurrency", 1)
    told = f"No space left on device: '{out}/samples.jsonl'; free space and give the command again"
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert told in " ".join(result.output.split())


@pytest.fixture
def model(tmp_path):
    """A folder that passes for a model's."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def test_the_death_of_the_commands_own_server_is_told_with_its_log(tmp_path, monkeypatch, data, model):
    from sat_slime.embedded.engine import server
    from sat_slime.evaluation import questions

    class FakeServer(server.ModelServer):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.command = [sys.executable, str(Path(__file__).parents[1] / "rollout" / "fake_sglang.py")]

    faults, out = tmp_path / "faults.json", tmp_path / "out"
    faults.write_text('["die"]')
    monkeypatch.setattr(evaluation_plan, "ModelServer", FakeServer)
    monkeypatch.setattr(server, "gpu_available", lambda: False)
    monkeypatch.setattr(questions, "ATTEMPTS", 1)
    more = [part for word in ("--faults", faults) for part in ("--server-arg", word)]
    result = sat_slime_eval(model, "--data", data, "--out", out, "--concurrency", 1, *more)
    log = out / "sglang-0.log"
    (socket,) = re.findall(r"--- at (\S+):", log.read_text())
    told = " ".join(result.output.split())
    assert result.exit_code == 1 and f"{socket}/v1/chat/completions: " in told
    assert re.search(r"; SGLang's HTTP server \(process \d+\) of engine 0 ended with exit code 1; its log is ", told)
    assert f"its log is {log}; finished samples are kept" in told


def no_room_for_a_server(stack, wish, out):
    from sat_slime.embedded.engine.server import ServerFailed

    raise ServerFailed("the SGLang server ended; last in its log: OSError: [Errno 28] No space left on device: '/x'")


def no_memory(stack, wish, out):
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.mark.parametrize("serve, told", [(no_room_for_a_server, "device: '/x'"), (no_memory, "allocate memory")])
def test_what_a_server_lacks_is_not_taken_for_room_in_the_folder(tmp_path, monkeypatch, data, model, serve, told):
    monkeypatch.setattr(evaluation_plan, "_serve", mock.create_autospec(evaluation_plan._serve, side_effect=serve))
    result = sat_slime_eval(model, "--data", data, "--out", tmp_path / "out")
    output = f"{result.output} {result.exception}"
    assert told in " ".join(output.split()) and "free space" not in output and f"'{tmp_path / 'out'}'" not in output


@pytest.mark.skipif(not AIME.is_file(), reason="the real AIME 2024 is not beside the repository")
def test_the_real_aime_is_asked_as_it_stands_and_its_answers_are_right(tmp_path):
    rows = read_rows(AIME)
    answers = {row["problem"]: str(row["answer"]) for row in rows}

    def respond(body):
        text = body["messages"][0]["content"]
        return next(f"Answer: \\boxed{{{answer}}}" for problem, answer in answers.items() if problem in text)

    with serving(respond) as server:
        result = sat_slime_eval("--engine", server.url, "--data", AIME, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "out" / "eval.json").read_text())
    assert (told["accuracy"], told["n_problems"]) == (1.0, 30)


def test_problems_of_every_wording(tmp_path):
    instructed = "Solve 1 + 1. Please reason step by step, and put your final answer within \\boxed{}."
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 2?"}]
    rows = [
        {"prompt": chat, "label": "3"},
        {"problem": instructed, "answer": 2},
        {"question": "What is 2 + 2?", "answer": "\\boxed{4}"},
    ]
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    messages, kept, filled = read_questions(path, "boxed")
    assert messages.prompt == chat and kept.prompt == [{"role": "user", "content": instructed}]
    assert filled.prompt[0]["content"].startswith("What is 2 + 2?\n\nPlease reason step by step")
    assert [question.label for question in (messages, kept, filled)] == ["3", "2", "4"]
    assert [question.id for question in (messages, kept, filled)] == ["1", "2", "3"]
    assert read_questions(path, "boxed", raw=True)[2].prompt == "What is 2 + 2?"
    path.write_text('{"problem": "x"}\n')
    with pytest.raises(PromptError, match="line 1"):
        read_questions(path, "boxed")
