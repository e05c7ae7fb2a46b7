"""The engine against a fake server that misbehaves on demand; against the real one: test_engine_on_sglang.py."""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from engine_requests import bits, some_requests
from fake_sglang import HANGS

from sat_slime.config.schema import ModelConfig, RolloutConfig
from sat_slime.lab.engine.rollout_engine import EngineFailed, RolloutEngine
from sat_slime.lab.engine.server import ServerFailed
from sat_slime.rollout.client import ServerRefused
from sat_slime.rollout.types import TOOL, GenerationRequest

TESTS = Path(__file__).parents[2]
FAKE = [sys.executable, str(TESTS / "rollout" / "fake_sglang.py")]


@pytest.fixture
def with_fake(tmp_path):
    """Runs a coroutine function of a started engine on the fake server, and stops the engine."""
    faults = tmp_path / "faults.json"

    def run(scenario, faults_in_order=(), arguments=(), tool=None, **settings):
        faults.write_text(json.dumps(list(faults_in_order)))
        settings = {"max_running_requests": 4, "startup_timeout_s": 30, "request_timeout_s": 30} | settings

        async def whole():
            engine = RolloutEngine(
                0,
                RolloutConfig(**settings),
                ModelConfig(),
                16,
                str(tmp_path),
                str(tmp_path),
                command=[*FAKE, "--faults", str(faults), *arguments],
                tool=tool,
            )
            try:
                await engine.start()
                return await scenario(engine)
            finally:
                await engine.stop()

        return asyncio.run(whole())

    return run


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("missing_experts", "routed_experts_missing"),
        ("short_experts", "routed_experts_shape"),
        ("nan", "log_prob_not_finite"),
        ("stale", "weight_version"),
        ("abort", "finish_reason"),
    ],
)
def test_a_bad_response_is_dropped_counted_and_requested_again(with_fake, tmp_path, fault, reason):
    async def scenario(engine):
        await engine.update_weights(str(tmp_path), 8)
        return await engine.generate(some_requests(10))

    result = with_fake(scenario, [fault])
    assert [response.request_id for response in result.responses] == [f"r{i}" for i in range(10)]
    assert result.stats["rejected"] == {reason: 1}
    assert (result.stats["resent"], result.stats["lost"]) == (1, 0)
    assert {response.weight_version for response in result.responses} == {8}


def test_faults_change_nothing_of_the_result(with_fake):
    async def scenario(engine):
        return await engine.generate(some_requests(10))

    good = with_fake(scenario)
    assert good.stats["resent"] == 0 and good.stats["tokens"] == sum(len(r.output_ids) for r in good.responses)
    assert bits(with_fake(scenario, ["nan", "error", "die", "short_experts"]).responses) == bits(good.responses)


@pytest.mark.parametrize("method", ["generate", "stream"])
def test_a_tool_answers_calls_and_the_model_goes_on(with_fake, method):
    call, written = 5, (1, 2, 3)

    async def scenario(engine):
        requests = [
            GenerationRequest(f"r{i}", (1, 2), max_new_tokens=20, temperature=1.0, seed=i, stop_token_ids=(0, call))
            for i in range(24)
        ]
        return await getattr(engine, method)(requests)

    result = with_fake(scenario, tool=lambda so_far: written if so_far[-1] == call else None)
    assert [response.request_id for response in result.responses] == [f"r{i}" for i in range(24)]
    turns = []
    for response in result.responses:
        tokens, position, called = response.output_ids, 0, 0
        while position < len(tokens):  # the fake calls at random, also behind an answer of the tool
            end = position
            while end < len(tokens) and response.versions[end] != TOOL:
                end += 1
            if end < len(tokens):
                assert tokens[end - 1] == call and tokens[end : end + 3] == written
                assert (response.versions[end : end + 3] == TOOL).all() and not response.log_probs[end : end + 3].any()
                called += 1
            position = end + 3
        assert response.versions[-1] != TOOL and len(tokens) <= 20
        assert len(response.routed_experts) == 2 + len(tokens) - 1
        # without room for the tool's answer and a token behind it, the response ends with its call
        ends = tokens[-1] == 0 or len(tokens) == 20 or (tokens[-1] == call and len(tokens) + 3 >= 20)
        assert ends and response.finish_reason == ("length" if len(tokens) == 20 else "stop")
        turns.append(called)
    assert max(turns) >= 2 and min(turns) == 0


def test_a_dead_server_is_restarted_with_its_last_weights(with_fake, tmp_path):
    async def scenario(engine):
        await engine.update_weights(str(tmp_path), 5)
        result = await engine.generate(some_requests(6))
        return result, engine.status()

    result, status = with_fake(scenario, [None, "die"])
    assert {response.weight_version for response in result.responses} == {5}
    assert result.stats["lost"] > 0
    assert (status["state"], status["restarts"], status["in_flight"], status["weight_version"]) == ("ready", 1, 0, 5)


def test_an_evaluation_is_of_the_weights_that_it_names_and_those_before_may_be_gone(with_fake, tmp_path):
    async def scenario(engine):
        started, arguments = [], engine._server.arguments
        engine._server.arguments = lambda path, *others: started.append(path) or arguments(path, *others)
        first = await engine.evaluate(str(tmp_path / "old"), 3, some_requests(4))
        engine._server.stop()
        (tmp_path / "old").rmdir()
        second = await engine.evaluate(str(tmp_path / "new"), 4, some_requests(4))
        return first, second, started

    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    first, second, started = with_fake(scenario)
    versions = [{response.weight_version for response in result.responses} for result in (first, second)]
    assert versions == [{3}, {4}] and started == [str(tmp_path / "new")]


def test_a_server_whose_connections_broke_first_is_told_by_how_it_ended(with_fake):
    async def scenario(engine):
        return engine._server.pid, await engine.generate(some_requests(2)), engine.new_deaths()

    pid, result, deaths = with_fake(scenario, ["die_slowly"])
    assert result.stats["lost"] > 0
    assert deaths == [f"SGLang's HTTP server (process {pid}) of engine 0 was killed by SIGKILL"]


def test_a_request_without_an_answer_in_time_is_sent_again(with_fake):
    async def scenario(engine):
        return await engine.generate(some_requests(4)), engine.status()

    result, status = with_fake(scenario, ["hang"], request_timeout_s=0.5)
    assert len(result.responses) == 4 and result.stats["lost"] == 1 and status["restarts"] == 0


def test_too_many_attempts_end_with_the_request_and_the_reasons(with_fake):
    async def scenario(engine):
        with pytest.raises(
            EngineFailed, match=r"request r0 .*rollout.max_attempts is 2.*routed_experts_missing.*log_prob"
        ):
            await engine.generate(some_requests(1))
        return engine.status()

    assert with_fake(scenario, ["missing_experts", "nan"], max_attempts=2)["state"] == "failed"


def test_too_many_restarts_end_with_the_setting(with_fake):
    async def scenario(engine):
        with pytest.raises(EngineFailed, match=r"(?s)rollout.max_restarts is 1.*serving"):
            await engine.generate(some_requests(1))

    with_fake(scenario, ["die", "die"], max_restarts=1)


def test_an_update_waits_for_what_is_in_flight(with_fake, tmp_path):
    async def scenario(engine):
        generating = asyncio.create_task(engine.generate(some_requests(12)))
        while engine.status()["in_flight"] == 0:
            await asyncio.sleep(0.001)
        await engine.update_weights(str(tmp_path), 3)
        assert generating.done()
        return (await generating).responses, (await engine.generate(some_requests(2))).responses

    before, after = with_fake(scenario)
    assert {r.weight_version for r in before} == {0} and {r.weight_version for r in after} == {3}


async def in_flight(engine) -> None:
    while engine.status()["in_flight"] == 0:
        await asyncio.sleep(0.001)


def test_an_update_interrupts_a_stream_which_goes_on(with_fake, tmp_path):
    async def scenario(engine):
        streaming = asyncio.create_task(engine.stream(some_requests(4)))
        for version in (3, 5):
            await in_flight(engine)
            assert engine.status()["state"] == "generating"
            await engine.update_weights(str(tmp_path), version)
        return await streaming

    result = with_fake(scenario, ["part", "part"], max_running_requests=32)
    assert [r.request_id for r in result.responses] == [r.request_id for r in some_requests(4)]
    spans = [r.versions.tolist() for r in result.responses]
    assert all(span == sorted(span) for span in spans)
    assert any(set(span) == {0, 3, 5} for span in spans) and set(spans[-1]) == {5}
    assert (result.stats["resent"], result.stats["rejected"], result.stats["lost"]) == (0, {}, 0)
    for request, r in zip(some_requests(4), result.responses, strict=True):
        assert len(r.output_ids) == len(r.log_probs) == len(r.versions) <= request.max_new_tokens
        assert len(r.routed_experts) == len(r.prompt_ids) + len(r.output_ids) - 1


def test_a_stream_that_is_given_up_ends_at_once_and_one_that_is_newer_goes_on(with_fake, tmp_path):
    async def scenario(engine):
        old = asyncio.create_task(engine.stream(some_requests(3)))
        await in_flight(engine)
        await engine.update_weights(str(tmp_path), 1)
        await in_flight(engine)
        await engine.give_up(0)
        assert not old.done()
        await engine.give_up(1)
        new = await engine.stream(some_requests(2))
        return await old, new

    old, new = with_fake(scenario, ["part", "part"], max_running_requests=32)
    assert old.stats["given_up"] and not new.stats["given_up"]
    assert {int(version) for response in old.responses for version in response.versions} == {0, 1}
    assert [response.request_id for response in old.responses] == ["r0", "r1", "r2"]
    assert all(response.finish_reason != "abort" for response in new.responses)


def test_a_stream_keeps_its_parts_when_the_server_dies(with_fake, tmp_path):
    async def scenario(engine):
        streaming = asyncio.create_task(engine.stream(some_requests(3)))
        await in_flight(engine)
        await engine.update_weights(str(tmp_path), 2)
        return await streaming, engine.status()

    result, status = with_fake(scenario, ["part", "die"], max_running_requests=32)
    assert {0, 2} == set(result.responses[0].versions.tolist()) and status["restarts"] == 1
    assert result.stats["lost"] == 3


def test_one_restart_is_counted_once_however_many_streams_meet_it(with_fake):
    from sat_slime.lab.engine.engine_group import EngineGroup, faults_of

    async def scenario(engine):
        requests = some_requests(8)
        results = await asyncio.gather(*(engine.stream(requests[i : i + 2]) for i in range(0, 8, 2)))
        return results, engine.status()

    results, status = with_fake(scenario, ["die"], max_running_requests=32)
    assert sum(result.stats["lost"] > 0 for result in results) > 1, "several streams met it"
    group = object.__new__(EngineGroup)
    group._restarts_reported = 0
    group._all = [SimpleNamespace(status=lambda: status), SimpleNamespace(status=lambda: status | {"restarts": 0})]
    assert (group.new_restarts(), group.new_restarts()) == (1, 0)
    status["restarts"] = 3
    assert group.new_restarts() == 2
    assert "restarts" not in faults_of(results)


def test_streams_run_beside_a_generation(with_fake, tmp_path):
    async def scenario(engine):
        streaming = asyncio.create_task(engine.stream(some_requests(2)))
        while (tmp_path / "faults.json").read_text() != "[]":  # the server has the stream's requests, not the others
            await asyncio.sleep(0.001)
        generated = await engine.generate(some_requests(2))
        assert not streaming.done()
        await engine.update_weights(str(tmp_path), 1)
        return generated.responses, (await streaming).responses

    generated, streamed = with_fake(scenario, ["part"], max_running_requests=32)
    assert {0} == {r.weight_version for r in generated} and {1} == {r.weight_version for r in streamed}


def test_weights_that_cannot_be_loaded_leave_the_old_ones(with_fake, tmp_path):
    async def scenario(engine):
        with pytest.raises(ServerRefused, match="nowhere"):
            await engine.update_weights(str(tmp_path / "nowhere"), 3)
        return await engine.generate(some_requests(2))

    assert {r.weight_version for r in with_fake(scenario).responses} == {0}


def test_in_flight_is_bounded(with_fake):
    async def scenario(engine):
        generating = asyncio.create_task(engine.generate(some_requests(40)))
        most = 0
        while not generating.done():
            most = max(most, engine.status()["in_flight"])
            await asyncio.sleep(0)
        return most, await generating

    most, result = with_fake(scenario, max_running_requests=6)
    assert len(result.responses) == 40 and 1 <= most <= 6


def test_stop_ends_a_generation_that_hangs(with_fake):
    async def scenario(engine):
        generating = asyncio.create_task(engine.generate(some_requests(1)))
        while engine.status()["in_flight"] == 0:
            await asyncio.sleep(0.001)
        await engine.stop()
        with pytest.raises(EngineFailed, match="stopped"):
            await generating
        return engine.status()

    status = with_fake(scenario, ["hang"])
    assert (status["state"], status["pid"]) == ("stopped", None)


def test_stop_ends_an_update_that_hangs(with_fake, tmp_path):
    hangs = tmp_path / HANGS
    hangs.touch()

    async def scenario(engine):
        updating = asyncio.create_task(engine.update_weights(str(tmp_path), 3))
        while hangs.exists():
            await asyncio.sleep(0.001)
        await engine.stop()
        with pytest.raises(EngineFailed, match=r"^engine 0 was stopped$"):
            await updating
        return engine.status(), engine.new_deaths()

    status, deaths = with_fake(scenario)
    assert (status["state"], status["restarts"], deaths) == ("stopped", 0, [])


@pytest.mark.parametrize("argument", ["--unhealthy", "--exit"])
def test_a_server_that_never_gets_healthy_fails_the_start(with_fake, argument):
    async def scenario(engine):
        raise AssertionError("it started")

    with pytest.raises(ServerFailed, match=r"engine 0"):
        with_fake(scenario, arguments=[argument], startup_timeout_s=1)


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (GenerationRequest("long", (1,) * 100, 29, 1.0, 0, ()), "model.max_positions 128"),
        (GenerationRequest("empty", (), 5, 1.0, 0, ()), "at least one prompt token"),
    ],
)
def test_a_request_that_cannot_be_served_is_an_error(with_fake, request_, complaint):
    async def scenario(engine):
        with pytest.raises(ValueError, match=complaint):
            await engine.generate([request_])

    with_fake(scenario)
