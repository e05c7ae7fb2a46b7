"""The engine against a fake server that misbehaves on demand; against the real one: test_engine_on_sglang.py."""

import asyncio
import itertools
import json
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest
from engine_requests import bits, some_requests
from fake_sglang import HANGS

from sat_slime.config.schema import LabConfig
from sat_slime.lab import engine as engine_module
from sat_slime.lab.engine import Engine, EngineFailed, RunningEngine, Server, ServerLost

FAKE = [sys.executable, str(Path(__file__).parent / "fake_sglang.py")]


@pytest.fixture
def with_fake(tmp_path):
    """Runs a coroutine function of a started engine on the fake server, and stops the engine."""
    faults = tmp_path / "faults.json"

    def run(scenario, faults_in_order=(), **settings):
        faults.write_text(json.dumps(list(faults_in_order)))
        settings = {"max_running_requests": 4, "startup_timeout_s": 30, "request_timeout_s": 30} | settings

        async def whole():
            command, config = [*FAKE, "--faults", str(faults)], LabConfig(rollout=settings)
            engine = Engine(config, tmp_path, tmp_path, command)
            try:
                await engine.start_server()
                return await scenario(engine)
            finally:
                await engine.stop()

        return asyncio.run(whole())

    return run


async def in_flight(engine) -> None:
    while engine.in_flight == 0:
        await asyncio.sleep(0.001)


# ---------------------------------------------------------------------------------------------------------- the server


@pytest.mark.parametrize(
    ("argument", "timeout", "message"),
    [
        ("--unhealthy", 1.0, r"not healthy after 1 s \(rollout.startup_timeout_s\)"),
        ("--exit", 60.0, r"exit code 3(?s:.)*cannot load the model"),
    ],
)
def test_a_server_that_does_not_come_up_is_an_error_with_its_log(tmp_path, argument, timeout, message):
    server = Server(LabConfig(rollout={"startup_timeout_s": timeout}), tmp_path, [*FAKE, argument])
    with pytest.raises(EngineFailed, match=message) as failure:
        asyncio.run(server.start(str(tmp_path), 0))
    assert str(server.log_path) in str(failure.value) and not server.alive


def test_a_server_listens_where_only_this_user_comes_and_nobody_answers_in_its_place(tmp_path):
    server = Server(LabConfig(), tmp_path, FAKE)

    async def scenario():
        await server.start(str(tmp_path), 3)
        first = server.socket
        assert first.is_socket() and first.parent.stat().st_mode & 0o077 == 0
        assert str(first) in server.log_path.read_text()
        await server.start(str(tmp_path), 0)
        assert server.socket != first and not first.exists(), "nobody can wait where the next one will be"
        os.kill(server.pid, signal.SIGKILL)
        while server.alive:
            await asyncio.sleep(0.01)
        told = rf"SGLang's server \(process {server.pid}\) was killed by SIGKILL; last in its log: serving"
        assert re.fullmatch(told, server.how_it_ended())
        with pytest.raises(ServerLost, match="http/update_weights_from_disk"):
            await server.post("/update_weights_from_disk", {})
        await server.start(str(tmp_path), 0)
        process = psutil.Process(server.pid)
        server.stop()
        assert not server.alive and not process.is_running() and not server.socket.parent.exists()

    asyncio.run(scenario())


def test_arguments_follow_the_configuration(tmp_path):
    rollout = {"dtype": "float32", "max_running_requests": 10}
    words = Server(LabConfig(rollout=rollout, model={"max_positions": 120}), tmp_path).arguments("/m", 7)
    pairs = dict(itertools.pairwise(words))
    assert pairs["--weight-version"] == "7" and pairs["--dtype"] == "float32" and pairs["--context-length"] == "128"
    assert int(pairs["--max-total-tokens"]) >= 10 * 120 and "--enable-return-routed-experts" in words
    dense = Server(LabConfig(model={"experts": 0}), tmp_path)
    assert "--enable-return-routed-experts" not in dense.arguments("", 0)


# --------------------------------------------------------------------------------------------------- one answer for one


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("short_experts", "routed_experts_shape"), ("stale", "weight_version"), ("abort", "finish_reason")],
)
def test_a_bad_response_is_dropped_counted_and_requested_again(with_fake, tmp_path, fault, reason):
    async def scenario(engine):
        await engine.update_weights(str(tmp_path), 8)
        return await engine.generate(some_requests(10))

    result = with_fake(scenario, [fault])
    assert [response.request_id for response in result.responses] == [f"r{i}" for i in range(10)]
    assert result.faults == {"rejected": 1, "lost": 0, "resent": 1, f"rejected/{reason}": 1}
    assert {response.weight_version for response in result.responses} == {8}


def test_faults_change_nothing_of_the_result(with_fake):
    async def scenario(engine):
        return await engine.generate(some_requests(10)), engine.deaths

    good, _ = with_fake(scenario)
    bad, deaths = with_fake(scenario, ["nan", "error", "die_slowly", "garbage", "short_experts"])
    assert good.faults["resent"] == 0 < bad.lost and bits(bad.responses) == bits(good.responses)
    (death,) = deaths
    assert "was killed by SIGKILL; last in its log: serving" in death, "its connections broke before it died"


def test_a_dead_server_is_restarted_with_its_last_weights(with_fake, tmp_path):
    async def scenario(engine):
        await engine.update_weights(str(tmp_path), 5)
        return await engine.generate(some_requests(6)), (engine.restarts, engine.in_flight)

    result, status = with_fake(scenario, [None, "die"])
    assert {response.weight_version for response in result.responses} == {5}
    assert result.lost > 0 and status == (1, 0)


def test_a_request_without_an_answer_in_time_is_sent_again(with_fake):
    async def scenario(engine):
        return await engine.generate(some_requests(4)), engine.restarts

    result, restarts = with_fake(scenario, ["hang"], request_timeout_s=0.5)
    assert len(result.responses) == 4 and (result.lost, restarts) == (1, 0)


@pytest.mark.parametrize(
    ("faults", "most", "message"),
    [
        (["missing_experts", "nan"], {"MAX_ATTEMPTS": 2}, r"request r0 in 2 attempts.*experts_missing.*log_prob"),
        (["die", "die"], {"MAX_RESTARTS": 1}, r"(?s)after 1 restarts of the server.*serving"),
    ],
)
def test_too_many_attempts_or_restarts_end_with_the_reasons(with_fake, monkeypatch, faults, most, message):
    async def scenario(engine):
        with pytest.raises(EngineFailed, match=message):
            await engine.generate(some_requests(1))

    for name, value in most.items():
        monkeypatch.setattr(engine_module, name, value)
    with_fake(scenario, faults)


# ------------------------------------------------------------------------------------------------------- interruptions


def test_an_update_interrupts_responses_which_go_on(with_fake, tmp_path):
    async def scenario(engine):
        generating = asyncio.create_task(engine.generate(some_requests(4)))
        for version in (3, 5):
            await in_flight(engine)
            await engine.update_weights(str(tmp_path), version)
        return await generating

    result = with_fake(scenario, ["part", "part"], max_running_requests=32)
    spans = [r.versions.tolist() for r in result.responses]
    assert all(span == sorted(span) for span in spans)
    assert any(set(span) == {0, 3, 5} for span in spans) and set(spans[-1]) == {5}
    assert result.faults == {"rejected": 0, "lost": 0, "resent": 0}
    for request, r in zip(some_requests(4), result.responses, strict=True):
        assert r.request_id == request.request_id
        assert len(r.output_ids) == len(r.log_probs) == len(r.versions) <= request.max_new_tokens
        assert len(r.routed_experts) == len(r.prompt_ids) + len(r.output_ids) - 1


def test_what_is_given_up_ends_at_once_and_what_is_newer_goes_on(with_fake, tmp_path):
    async def scenario(engine):
        old = asyncio.create_task(engine.generate(some_requests(3)))
        await in_flight(engine)
        await engine.update_weights(str(tmp_path), 1)
        await in_flight(engine)
        await engine.give_up(0)
        assert not old.done()
        await engine.give_up(1)
        return await old, await engine.generate(some_requests(2))

    old, new = with_fake(scenario, ["part", "part"], max_running_requests=32)
    assert old.pending and not new.pending
    assert {int(version) for response in old.responses for version in response.versions} == {0, 1}
    assert all(response.finish_reason != "abort" for response in new.responses)


def test_parts_are_kept_when_the_server_dies(with_fake, tmp_path):
    async def scenario(engine):
        generating = asyncio.create_task(engine.generate(some_requests(3)))
        await in_flight(engine)
        await engine.update_weights(str(tmp_path), 2)
        return await generating, engine.restarts

    result, restarts = with_fake(scenario, ["part", "die"], max_running_requests=32)
    assert {0, 2} == set(result.responses[0].versions.tolist()) and (restarts, result.lost) == (1, 3)


def test_one_restart_is_counted_once_however_many_calls_meet_it(with_fake):
    async def scenario(engine):
        requests = some_requests(8)
        results = await asyncio.gather(*(engine.generate(requests[i : i + 2]) for i in range(0, 8, 2)))
        running = object.__new__(RunningEngine)
        running.engine = engine
        return results, [len(running.new_deaths()), running.new_deaths()]

    results, deaths = with_fake(scenario, ["die"], max_running_requests=32)
    assert sum(result.lost > 0 for result in results) > 1, "several calls met it"
    assert deaths == [1, []]


# ----------------------------------------------------------------------------------------------------- limits and ends


def test_weights_that_cannot_be_loaded_leave_the_old_ones(with_fake, tmp_path):
    async def scenario(engine):
        with pytest.raises(EngineFailed, match="nowhere"):
            await engine.update_weights(str(tmp_path / "nowhere"), 3)
        return await engine.generate(some_requests(2))

    assert {r.weight_version for r in with_fake(scenario).responses} == {0}


def test_in_flight_is_bounded(with_fake):
    async def scenario(engine):
        generating = asyncio.create_task(engine.generate(some_requests(40)))
        most = 0
        while not generating.done():
            most = max(most, engine.in_flight)
            await asyncio.sleep(0)
        return most, await generating

    most, result = with_fake(scenario, max_running_requests=6)
    assert len(result.responses) == 40 and 1 <= most <= 6


def test_stop_ends_a_generation_and_an_update_that_hang(with_fake, tmp_path):
    async def generation(engine):
        generating = asyncio.create_task(engine.generate(some_requests(1)))
        await in_flight(engine)
        await engine.stop()
        with pytest.raises(EngineFailed, match="stopped"):
            await generating
        return engine.server.pid

    assert with_fake(generation, ["hang"]) is None
    hangs = tmp_path / HANGS
    hangs.touch()

    async def update(engine):
        updating = asyncio.create_task(engine.update_weights(str(tmp_path), 3))
        while hangs.exists():
            await asyncio.sleep(0.001)
        await engine.stop()
        with pytest.raises(EngineFailed, match=r"^the engine was stopped$"):
            await updating
        return engine.restarts, engine.deaths

    assert with_fake(update) == (0, [])


def test_what_nobody_foresaw_is_told_as_the_engines(tmp_path):
    running = RunningEngine(LabConfig(), tmp_path, tmp_path)
    try:
        with pytest.raises(EngineFailed, match=r"^rollout engine: TypeError: .*give_up"):
            running.call("give_up")
    finally:
        running.close()
