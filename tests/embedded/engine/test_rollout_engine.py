"""The engine against a fake server that misbehaves on demand, and against the real one."""

import asyncio
import dataclasses
import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_sglang import HANGS

from sat_slime.config.schema import ModelConfig, RolloutConfig
from sat_slime.embedded.engine.rollout_engine import EngineFailed, RolloutEngine
from sat_slime.embedded.engine.server import ServerFailed
from sat_slime.rollout.client import ServerRefused
from sat_slime.rollout.types import GenerationRequest

TESTS = Path(__file__).parents[2]
FAKE = [sys.executable, str(TESTS / "rollout" / "fake_sglang.py")]
STOP = 15


def some_requests(count: int, max_new_tokens: int = 12, temperature: float = 1.0) -> list[GenerationRequest]:
    rng = random.Random(count)
    prompts = [tuple(rng.randrange(15) for _ in range(rng.randrange(1, 12))) for _ in range(count)]
    return [
        GenerationRequest(f"r{i}", prompt, max_new_tokens, temperature, 1000 + i, (STOP,))
        for i, prompt in enumerate(prompts)
    ]


def bits(responses):
    return [(r.request_id, r.output_ids, r.log_probs.tobytes(), r.finish_reason) for r in responses]


# ------------------------------------------------------------------------------------------- against the fake server


@pytest.fixture
def with_fake(tmp_path):
    """Runs a coroutine function of a started engine on the fake server, and stops the engine."""
    faults = tmp_path / "faults.json"

    def run(scenario, faults_in_order=(), arguments=(), **settings):
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


def test_a_dead_server_is_restarted_with_its_last_weights(with_fake, tmp_path):
    async def scenario(engine):
        await engine.update_weights(str(tmp_path), 5)
        result = await engine.generate(some_requests(6))
        return result, await engine.status()

    result, status = with_fake(scenario, [None, "die"])
    assert {response.weight_version for response in result.responses} == {5}
    assert result.stats["lost"] > 0
    assert (status["state"], status["restarts"], status["in_flight"], status["weight_version"]) == ("ready", 1, 0, 5)


def test_a_server_whose_connections_broke_first_is_told_by_how_it_ended(with_fake):
    async def scenario(engine):
        return engine._server.pid, await engine.generate(some_requests(2)), await engine.new_deaths()

    pid, result, deaths = with_fake(scenario, ["die_slowly"])
    assert result.stats["lost"] > 0
    assert deaths == [f"SGLang's HTTP server (process {pid}) of engine 0 was killed by SIGKILL"]


def test_a_request_without_an_answer_in_time_is_sent_again(with_fake):
    async def scenario(engine):
        return await engine.generate(some_requests(4)), await engine.status()

    result, status = with_fake(scenario, ["hang"], request_timeout_s=0.5)
    assert len(result.responses) == 4 and result.stats["lost"] == 1 and status["restarts"] == 0


def test_too_many_attempts_end_with_the_request_and_the_reasons(with_fake):
    async def scenario(engine):
        with pytest.raises(
            EngineFailed, match=r"request r0 .*rollout.max_attempts is 2.*routed_experts_missing.*log_prob"
        ):
            await engine.generate(some_requests(1))
        return await engine.status()

    assert with_fake(scenario, ["missing_experts", "nan"], max_attempts=2)["state"] == "failed"


def test_too_many_restarts_end_with_the_setting(with_fake):
    async def scenario(engine):
        with pytest.raises(EngineFailed, match=r"(?s)rollout.max_restarts is 1.*serving"):
            await engine.generate(some_requests(1))

    with_fake(scenario, ["die", "die"], max_restarts=1)


def test_an_update_waits_for_what_is_in_flight(with_fake, tmp_path):
    async def scenario(engine):
        generating = asyncio.create_task(engine.generate(some_requests(12)))
        while (await engine.status())["in_flight"] == 0:
            await asyncio.sleep(0.001)
        await engine.update_weights(str(tmp_path), 3)
        assert generating.done()
        return (await generating).responses, (await engine.generate(some_requests(2))).responses

    before, after = with_fake(scenario)
    assert {r.weight_version for r in before} == {0} and {r.weight_version for r in after} == {3}


async def in_flight(engine) -> None:
    while (await engine.status())["in_flight"] == 0:
        await asyncio.sleep(0.001)


def test_an_update_interrupts_a_stream_which_goes_on(with_fake, tmp_path):
    async def scenario(engine):
        streaming = asyncio.create_task(engine.stream(some_requests(4)))
        for version in (3, 5):
            await in_flight(engine)
            assert (await engine.status())["state"] == "generating"
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


def test_a_stream_keeps_its_parts_when_the_server_dies(with_fake, tmp_path):
    async def scenario(engine):
        streaming = asyncio.create_task(engine.stream(some_requests(3)))
        await in_flight(engine)
        await engine.update_weights(str(tmp_path), 2)
        return await streaming, await engine.status()

    result, status = with_fake(scenario, ["part", "die"], max_running_requests=32)
    assert {0, 2} == set(result.responses[0].versions.tolist()) and status["restarts"] == 1
    assert result.stats["lost"] == 3


def test_one_restart_is_counted_once_however_many_streams_meet_it(with_fake, monkeypatch):
    pytest.importorskip("ray")
    from sat_slime.embedded.cluster.engine_group import EngineGroup, faults_of

    async def scenario(engine):
        requests = some_requests(8)
        results = await asyncio.gather(*(engine.stream(requests[i : i + 2]) for i in range(0, 8, 2)))
        return results, await engine.status()

    results, status = with_fake(scenario, ["die"], max_running_requests=32)
    assert sum(result.stats["lost"] > 0 for result in results) > 1, "several streams met it"
    group = object.__new__(EngineGroup)
    group._restarts_told = 0
    monkeypatch.setattr(EngineGroup, "_call", lambda self, method: [status, status | {"restarts": 0}])
    assert (group.new_restarts(), group.new_restarts()) == (1, 0)
    status["restarts"] = 3
    assert group.new_restarts() == 2
    assert "restarts" not in faults_of(results)


def test_streams_run_beside_a_generation(with_fake, tmp_path):
    async def scenario(engine):
        streaming = asyncio.create_task(engine.stream(some_requests(2)))
        await in_flight(engine)
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
            most = max(most, (await engine.status())["in_flight"])
            await asyncio.sleep(0)
        return most, await generating

    most, result = with_fake(scenario, max_running_requests=6)
    assert len(result.responses) == 40 and 1 <= most <= 6


def test_stop_ends_a_generation_that_hangs(with_fake):
    async def scenario(engine):
        generating = asyncio.create_task(engine.generate(some_requests(1)))
        while (await engine.status())["in_flight"] == 0:
            await asyncio.sleep(0.001)
        await engine.stop()
        with pytest.raises(EngineFailed, match="stopped"):
            await generating
        return await engine.status()

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
        return await engine.status(), await engine.new_deaths()

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


# ------------------------------------------------------------------------------------------------- against the real one


class Running:
    """A started engine and the event loop that it lives in."""

    def __init__(self, rollout: RolloutConfig, model: ModelConfig, path: str, log_dir: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = RolloutEngine(0, rollout, model, 16, path, str(log_dir))
        self(self.engine.start())

    def __call__(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def generate(self, requests):
        return self(self.engine.generate(requests))

    def stop(self):
        self(self.engine.stop())
        self.loop.close()


@pytest.fixture(scope="module")
def real(random_models, tmp_path_factory):
    rollout = RolloutConfig(dtype="float32", deterministic=True, max_running_requests=32)
    running = Running(rollout, ModelConfig(), random_models["a"], tmp_path_factory.mktemp("logs"))
    yield running
    running.stop()


def differences(path, responses, temperature=1.0):
    """For each response: the largest |log-prob difference| to the Hugging Face model, and its experts as sets."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    worst, experts = 0.0, []
    for response in responses:
        prompt = len(response.prompt_ids)
        with torch.no_grad():
            tokens = torch.tensor([response.prompt_ids + response.output_ids])
            routing = {"output_router_logits": True} if response.routed_experts is not None else {}
            output = model(tokens, **routing)
        log_probs = torch.log_softmax(output.logits[0, prompt - 1 : -1] / temperature, -1)
        chosen = log_probs.gather(1, tokens[0, prompt:, None])[:, 0].numpy()
        worst = max(worst, float(np.abs(chosen - response.log_probs).max()))
        if routing:
            top = torch.stack([logits.topk(2, -1).indices for logits in output.router_logits], 1)[:-1]
            experts.append(np.sort(top.numpy(), -1))
    return worst, experts


@pytest.mark.engine
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_experts_are_the_models(real, random_models, temperature):
    requests = some_requests(48, 20, temperature)
    # One token and a full context are the extremes.
    requests.append(GenerationRequest("short", (3,), 1, temperature, 0, (STOP,)))
    requests.append(GenerationRequest("long", (2,) * 100, 28, temperature, 0, ()))
    result = real.generate(requests)
    worst, experts = differences(random_models["a"], result.responses, temperature)
    assert worst < 1e-4
    for response, expected in zip(result.responses, experts, strict=True):
        assert np.array_equal(np.sort(response.routed_experts, -1), expected), response.request_id
    assert {response.finish_reason for response in result.responses} == {"stop", "length"}
    assert len(result.responses[-1].output_ids) == 28 and result.stats["resent"] == 0


@pytest.mark.engine
def test_the_real_response_has_the_recorded_shape(real):
    recorded = json.loads((TESTS / "rollout" / "recorded_response.json").read_text())["response"]
    (raw,) = real(real.engine._server.client.generate(some_requests(1), ["r0#0"]))
    assert raw.keys() == recorded.keys() and raw["meta_info"].keys() == recorded["meta_info"].keys()


@pytest.mark.engine
def test_new_weights_answer_under_their_version(real, random_models):
    requests = some_requests(8)
    before = real.generate(requests).responses
    real(real.engine.update_weights(random_models["b"], 4))
    after = real.generate(requests).responses
    real(real.engine.update_weights(random_models["a"], 6))
    again = real.generate(requests).responses
    assert {response.weight_version for response in after} == {4}
    assert differences(random_models["b"], after)[0] < 1e-4
    assert bits(after) != bits(before) == bits(again)


@pytest.mark.engine
def test_tokens_depend_on_the_seed_and_not_on_the_neighbours(real):
    requests = some_requests(40)
    together = real.generate(requests).responses
    apart = real.generate(requests[5:9]).responses
    assert [r.output_ids for r in apart] == [r.output_ids for r in together[5:9]]
    np.testing.assert_allclose(
        np.concatenate([r.log_probs for r in apart]),
        np.concatenate([r.log_probs for r in together[5:9]]),
        atol=1e-5,
    )
    other = GenerationRequest("other", requests[5].prompt_ids, 12, 1.0, 77, (STOP,))
    assert real.generate([other]).responses[0].output_ids != together[5].output_ids


async def interrupted(engine, requests, paths: list[tuple[str, int]]):
    """Streams responses while the weights change, from one of `paths` to the next for as long as the stream lasts."""
    streaming = asyncio.create_task(engine.stream(requests))
    for path, version in paths:
        # However fast the machine, some tokens come between two changes, and the next change before the end.
        await asyncio.wait([streaming], timeout=0.05)
        if streaming.done():
            break
        await engine.update_weights(path, version)
    return (await streaming).responses


def endless(requests: list[GenerationRequest]) -> list[GenerationRequest]:
    """The same requests without stop tokens, so that every response has its longest length."""
    return [dataclasses.replace(request, stop_token_ids=()) for request in requests]


@pytest.mark.engine
def test_each_token_of_an_interrupted_response_is_of_the_version_that_it_names(real, random_models):
    requests = endless(some_requests(32, 100))
    right = {version: "ab"[version % 2] for version in range(10, 22)}
    real(real.engine.update_weights(random_models[right[10]], 10))
    responses = real(interrupted(real.engine, requests, [(random_models[right[v]], v) for v in list(right)[1:]]))
    spanning = [r for r in responses if len(set(r.versions.tolist())) >= 3]
    assert len(spanning) >= 8, [sorted(set(r.versions.tolist())) for r in responses]
    boundaries = []
    for model in ("a", "b"):
        off = errors(random_models[model], responses)
        for response, error in zip(responses, off, strict=True):
            of_this = np.isin(response.versions, [v for v, name in right.items() if name == model])
            # To rounding the log-probs are the named model's given all tokens before, also right after a change: what
            # older weights had cached is computed anew.
            assert error[of_this].max(initial=0) < 1e-4, response.request_id
            changes = np.flatnonzero(of_this[1:] != of_this[:-1])
            boundaries += [error[at if of_this[at + 1] else at + 1] for at in changes]
    # The other model's are far off, so that a boundary misplaced by one token would show.
    assert np.median(boundaries) > 0.1 and np.mean(np.array(boundaries) > 1e-3) > 0.95
    for response in responses:
        assert len(response.routed_experts) == len(response.prompt_ids) + len(response.output_ids) - 1


@pytest.mark.engine
def test_an_interruption_by_the_same_weights_changes_no_token(real, random_models):
    requests = endless(some_requests(24, 100))
    real(real.engine.update_weights(random_models["a"], 20))
    undisturbed = real.generate(requests).responses
    disturbed = real(interrupted(real.engine, requests, [(random_models["a"], version) for version in range(21, 26)]))
    assert len({v for r in disturbed for v in r.versions.tolist()}) > 1
    assert [r.output_ids for r in disturbed] == [r.output_ids for r in undisturbed]
    for a, b in zip(disturbed, undisturbed, strict=True):
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)
        np.testing.assert_array_equal(np.sort(a.routed_experts, -1), np.sort(b.routed_experts, -1))


def errors(path, responses) -> list[np.ndarray]:
    """|log-prob difference| to the Hugging Face model, per response and token."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    found = []
    for response in responses:
        prompt = len(response.prompt_ids)
        tokens = torch.tensor([response.prompt_ids + response.output_ids])
        with torch.no_grad():
            log_probs = torch.log_softmax(model(tokens).logits[0, prompt - 1 : -1], -1)
        chosen = log_probs.gather(1, tokens[0, prompt:, None])[:, 0].numpy()
        found.append(np.abs(chosen - response.log_probs))
    return found


@pytest.mark.engine
def test_a_killed_server_loses_nothing_and_changes_nothing(real, random_models):
    real(real.engine.update_weights(random_models["b"], 9))
    requests = some_requests(128, 100)
    undisturbed = real.generate(requests)

    async def disturbed():
        generating = asyncio.create_task(real.engine.generate(requests))
        while (await real.engine.status())["in_flight"] == 0:
            await asyncio.sleep(0.01)
        status = await real.engine.status()
        os.kill(status["pid"], signal.SIGKILL)
        return await generating, status

    result, killed = real(disturbed())
    status = real(real.engine.status())
    assert bits(result.responses) == bits(undisturbed.responses)
    assert {response.weight_version for response in result.responses} == {9}
    assert result.stats["lost"] > 0 and status["restarts"] == 1
    assert status["pid"] != killed["pid"] and status["state"] == "ready"


@pytest.mark.engine
def test_a_dense_model_is_served_without_experts(random_models, tmp_path):
    running = Running(RolloutConfig(dtype="float32"), ModelConfig(experts=0), random_models["dense"], tmp_path)
    try:
        responses = running.generate(some_requests(16)).responses
        assert differences(random_models["dense"], responses)[0] < 1e-4
        assert all(response.routed_experts is None for response in responses)
    finally:
        running.stop()
