"""The engine against a fake server that misbehaves on demand; against the real one: test_engine_on_sglang.py."""

import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from engine_requests import some_requests
from fake_sglang import HANGS

from sat_slime.config.schema import LabConfig
from sat_slime.lab.engine import Engine, EngineFailed

FAKE = [sys.executable, str(Path(__file__).parent / "fake_sglang.py")]


@pytest.fixture
def fake(tmp_path):
    """Makes a started engine on the fake server."""
    engines = []

    def start(faults=(), **settings) -> Engine:
        settings = {"max_running_requests": 4, "startup_timeout_s": 30, "request_timeout_s": 30} | settings
        engines.append(Engine(LabConfig(rollout=settings), tmp_path, [*FAKE, "--faults", json.dumps(faults)]))
        engines[-1].start(tmp_path)
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def until(what) -> None:
    while not what():
        time.sleep(0.001)


# ---------------------------------------------------------------------------------------------------------- the server


@pytest.mark.parametrize(
    ("argument", "timeout", "message"),
    [
        ("--unhealthy", 1.0, r"not healthy after 1 s \(rollout.startup_timeout_s\)"),
        ("--exit", 60.0, r"exit code 3(?s:.)*cannot load the model"),
    ],
)
def test_a_server_that_does_not_come_up_is_an_error_with_its_log(tmp_path, argument, timeout, message):
    engine = Engine(LabConfig(rollout={"startup_timeout_s": timeout}), tmp_path, [*FAKE, argument])
    with closing(engine), pytest.raises(EngineFailed, match=message) as failure:
        engine.start(tmp_path)
    assert str(engine.log_path) in str(failure.value) and engine.process.returncode is not None


def test_a_server_listens_where_only_this_user_comes_and_ends_with_its_engine(fake):
    engine = fake()
    assert engine.socket.is_socket() and engine.socket.parent.stat().st_mode & 0o077 == 0
    assert str(engine.socket) in engine.log_path.read_text()
    process = psutil.Process(engine.process.pid)
    engine.close()
    assert not process.is_running() and not engine.socket.parent.exists()


def test_arguments_follow_the_configuration(tmp_path):
    rollout = {"dtype": "float32", "max_running_requests": 10}
    words = Engine(LabConfig(rollout=rollout, model={"max_positions": 120}), tmp_path).arguments(tmp_path)
    pairs = dict(itertools.pairwise(words))
    assert pairs["--weight-version"] == "0" and pairs["--dtype"] == "float32" and pairs["--context-length"] == "128"
    assert int(pairs["--max-total-tokens"]) >= 10 * 120 and "--enable-return-routed-experts" in words
    dense = Engine(LabConfig(model={"experts": 0}), tmp_path)
    assert "--enable-return-routed-experts" not in dense.arguments(tmp_path)


# ---------------------------------------------------------------------------------------------------- faults and ends


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("short_experts", "response to request r0 is not valid.*routed_experts_shape"),
        ("stale", "response to request r0 is not valid.*weight_version: got '0', the engine holds 8"),
        ("abort", "response to request r0 is not valid.*aborted by the server itself"),
        ("garbage", "answered .*what.*, not 4 responses"),
        ("error", r"did not do /generate: answered 500: .*internal"),
        ("refuse", r"did not do /generate: answered 400: .*too long"),
        ("hang", r"no answer in time \(1 s: raise rollout.request_timeout_s"),
        ("die", r"\(process \d+\) ended with exit code 1; last in its log: serving"),
        ("die_slowly", r"\(process \d+\) was killed by SIGKILL; last in its log: serving"),
    ],
)
def test_what_nothing_may_be_trained_on_ends_with_its_reason(fake, tmp_path, fault, message):
    engine = fake([None, fault], deterministic=True, request_timeout_s=1 if fault == "hang" else 30)
    engine.update_weights(tmp_path, 8)
    assert {response.weight_version for response in engine.generate(some_requests(4)).result().responses} == {8}
    with pytest.raises(EngineFailed, match=message):
        engine.generate(some_requests(10)).result()
    assert engine.in_flight == 0


def test_a_server_that_died_between_two_requests_says_how(fake, tmp_path):
    engine = fake()
    os.kill(engine.process.pid, signal.SIGKILL)
    told = rf"SGLang's server \(process {engine.process.pid}\) was killed by SIGKILL; last in its log: serving; log: .+"
    for call in (lambda: engine.update_weights(tmp_path, 1), lambda: engine.score([(1, 2)])):
        with pytest.raises(EngineFailed) as failure:
            call()
        assert re.fullmatch(told, str(failure.value))


def test_weights_that_cannot_be_loaded_are_an_error(fake, tmp_path):
    with pytest.raises(EngineFailed, match=r"/update_weights_from_disk: answered 400: .*no such folder"):
        fake().update_weights(tmp_path / "nowhere", 3)


def test_in_flight_is_bounded(fake):
    engine = fake(max_running_requests=6)
    generating, most = engine.generate(some_requests(40)), 0
    while not generating.done():
        most = max(most, engine.in_flight)
    assert [response.request_id for response in generating.result().responses] == [f"r{i}" for i in range(40)]
    assert 1 <= most <= 6


@pytest.mark.parametrize("what", ["generation", "update"])
def test_close_ends_what_hangs(fake, tmp_path, what):
    engine, failed = fake(["hang"]), Future()
    if what == "generation":
        failed = engine.generate(some_requests(1))
        until(lambda: engine.in_flight)
    else:
        (tmp_path / HANGS).touch()

        def update():
            try:
                engine.update_weights(tmp_path, 3)
            except EngineFailed as error:
                failed.set_exception(error)

        threading.Thread(target=update).start()
        until(lambda: not (tmp_path / HANGS).exists())
    engine.close()
    with pytest.raises(EngineFailed, match="was killed by SIGKILL"):
        failed.result()


# ------------------------------------------------------------------------------------------------------- interruptions


def test_an_update_interrupts_responses_which_go_on(fake, tmp_path):
    engine = fake(["part", "part"], max_running_requests=32, deterministic=True)
    generating = engine.generate(some_requests(4))
    for version in (3, 5):
        until(lambda: engine.in_flight)
        engine.update_weights(tmp_path, version)
    responses = generating.result().responses
    spans = [r.versions.tolist() for r in responses]
    assert all(span == sorted(span) for span in spans)
    assert any(set(span) == {0, 3, 5} for span in spans) and set(spans[-1]) == {5}
    for request, r in zip(some_requests(4), responses, strict=True):
        assert r.request_id == request.request_id
        assert len(r.output_ids) == len(r.log_probs) == len(r.versions) <= request.max_new_tokens
        assert len(r.routed_experts) == len(r.prompt_ids) + len(r.output_ids) - 1
