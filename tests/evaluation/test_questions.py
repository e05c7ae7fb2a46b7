"""Asking a server for samples: what is sent, how many at a time, what is asked again."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fake_completions import serving

from sat_slime.evaluation import questions
from sat_slime.evaluation.questions import ATTEMPTS, Answer, CompletionsEngine, Question, Sampling, ask, by_problem
from sat_slime.reward.verdict import verdict
from sat_slime.rollout.client import ServerLost, ServerRefused

CHAT = [Question(str(i), [{"role": "user", "content": f"What is {i}?"}], str(i)) for i in range(5)]


def echo(body):
    return body["messages"][0]["content"] if "messages" in body else body["prompt"]


def collect(server, wanted, sampling=None, concurrency=3, keep=None):
    """The answers by their place."""
    answers = {} if keep is None else keep

    async def run():
        async with CompletionsEngine(server.url, sampling or Sampling(64), concurrency) as engine:
            engine.pause_s = 0.0
            about = await engine.about()
            async for place, answer in engine.answers(wanted):
                answers[place] = answer
        return about

    return asyncio.run(run()), answers


def test_every_sample_is_answered_in_its_place_and_only_so_many_are_asked_at_a_time():
    wanted = by_problem(CHAT, 4)
    with serving(echo) as server:
        server.delay_s = 0.01
        about, answers = collect(server, wanted)
    assert [answers[place].text for place in range(20)] == [f"What is {i}?" for i in range(5) for _ in range(4)]
    assert answers[0] == Answer("What is 0?", 10, False, "8")
    assert len(server.seen) == 20 and 1 < server.most <= 3
    assert about == {"model": "tiny", "model_path": "/models/tiny", "weight_version": "8"}


def test_what_is_sent():
    sampling = Sampling(128, temperature=0.6, top_p=0.9, seed=100, chat_args={"enable_thinking": False})
    with serving(echo) as server:
        collect(server, [(CHAT[0], 0), (CHAT[0], 3)], sampling, concurrency=1)
        collect(server, [(Question("t", "2 + 3 =", "5"), 0)])
    first, second, text = server.seen
    assert first == {
        "path": "/v1/chat/completions",
        "model": "tiny",
        "messages": CHAT[0].prompt,
        "temperature": 0.6,
        "top_p": 0.9,
        "max_tokens": 128,
        "seed": 100,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert second == first | {"seed": 103}
    assert (text["path"], text["prompt"]) == ("/v1/completions", "2 + 3 =")
    assert not {"seed", "chat_template_kwargs", "messages"} & text.keys()


@pytest.mark.parametrize("fault", [500, 503, 429, {"what": "is this"}, {"choices": []}])
def test_a_server_that_stumbles_is_asked_again(fault):
    with serving(echo) as server:
        server.faults = [fault] * (ATTEMPTS - 1)
        _, answers = collect(server, [(CHAT[0], 0)])
    assert answers[0].text == "What is 0?" and len(server.seen) == ATTEMPTS


def test_one_that_stays_away_is_an_error_and_keeps_what_was_answered():
    answers = {}
    with serving(echo) as server:
        server.faults = [None, 500, *[500] * 100]
        with pytest.raises(ServerLost, match="/v1/chat/completions"):
            collect(server, by_problem(CHAT, 1), concurrency=1, keep=answers)
    assert [answer.text for answer in answers.values()] == ["What is 0?"]


def test_a_failure_does_not_cost_the_answers_that_are_under_way(monkeypatch):
    refused = threading.Event()

    class Telling(ServerRefused):
        def __init__(self, *words):
            super().__init__(*words)
            refused.set()

    def answer_after_the_refusal(body):
        assert refused.wait(timeout=60)
        return echo(body)

    monkeypatch.setattr(questions, "ServerRefused", Telling)
    answers = {}
    with serving(answer_after_the_refusal) as server:
        server.faults = [400]
        with pytest.raises(ServerRefused):
            collect(server, by_problem(CHAT, 4), keep=answers)
    assert len(answers) == 2 and len(server.seen) == 3, "no more were asked"


def test_a_refusal_names_the_problem_and_is_not_asked_again():
    with serving(echo) as server:
        server.faults = [400]
        with pytest.raises(ServerRefused, match=r"problem 3: .*answered 400"):
            collect(server, [(CHAT[3], 0)])
    assert len(server.seen) == 1


def test_a_response_that_was_aborted_is_none():
    with serving(echo) as server:
        server.finish_reason = "abort"
        with pytest.raises(ServerLost, match="ended by 'abort'"):
            collect(server, [(CHAT[0], 0)])


def test_a_cut_response_and_a_server_that_is_not_sglang():
    with serving(echo) as server:
        server.is_sglang, server.finish_reason = False, "length"
        about, answers = collect(server, [(CHAT[0], 0)])
    assert about == {"model": "tiny", "model_path": None, "weight_version": None}
    assert answers[0].truncated and answers[0].weights is None


def test_no_server_there():
    with pytest.raises(ServerLost, match="/v1/models"):
        asyncio.run(CompletionsEngine("http://127.0.0.1:9", Sampling(8)).about())


def test_no_server_at_a_socket_file(tmp_path):
    socket = tmp_path / "http"
    engine = CompletionsEngine("http://localhost", Sampling(8), socket=socket, remark=lambda: "; it was killed")
    with pytest.raises(ServerLost, match=rf"^{socket}/v1/models: no server answers there \(.*\); it was killed$"):
        asyncio.run(engine.about())


def test_samples_come_with_their_verdicts():
    async def grade(question, answer):
        return verdict(answer.text[8:-1], "number" if answer.text == f"What is {question.label}?" else "different")

    async def run(server):
        async with CompletionsEngine(server.url, Sampling(8)) as engine:
            return [sampled async for sampled in ask(engine, [(CHAT[1], 0), (CHAT[2], 5)], grade)]

    with serving(lambda body: "What is 1?") as server:
        sampled = asyncio.run(run(server))
    told = {(one.question.id, one.sample, one.verdict.reward, one.verdict.reason) for one in sampled}
    assert told == {("1", 0, 1.0, "number"), ("2", 5, 0.0, "different")}
