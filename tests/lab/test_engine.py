"""The engine on SGLang's real server: against the models that it serves, and how its faults are told."""

import dataclasses
import random
import re
import sys
import time
from concurrent import futures
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from trainer_process import in_trainer
from trainer_process import scored as log_pi
from waiting import assert_gone

from sat_slime.config.schema import LabConfig, ModelConfig
from sat_slime.lab.engine import Engine
from sat_slime.lab.process import PartFailure
from sat_slime.lab.responses import GenerationRequest
from sat_slime.rollout.canary import Canary, canary_sequences, prefix_length

STOP = 15


def some_requests(count: int, max_new_tokens: int = 12, temperature: float = 1.0) -> list[GenerationRequest]:
    rng = random.Random(count)
    prompts = [tuple(rng.randrange(15) for _ in range(rng.randrange(1, 12))) for _ in range(count)]
    return [
        GenerationRequest(f"r{i}", prompt, max_new_tokens, temperature, 1000 + i, (STOP,))
        for i, prompt in enumerate(prompts)
    ]


def endless(requests: list[GenerationRequest]) -> list[GenerationRequest]:
    """The same requests without stop tokens, so that every response has its longest length."""
    return [dataclasses.replace(request, stop_token_ids=()) for request in requests]


@pytest.fixture(scope="module")
def random_models(tmp_path_factory) -> dict[str, str]:
    """Hugging Face folders of two models in the default sizes, with random weights so large that answers depend on the
    input."""
    from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for

    stand_in_for("torchvision")  # transformers imports it where it is installed, and PyPI's needs CUDA
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.set_num_threads(1)
    sizes, root = ModelConfig(), tmp_path_factory.mktemp("models")
    values = sizes.resolved_family.hf_config(sizes, 16, STOP, "float32") | {"eos_token_id": None}
    config = Qwen3MoeConfig(**values, initializer_range=0.2)
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        Qwen3MoeForCausalLM(config).save_pretrained(root / name)
    return {name: str(root / name) for name in "ab"}


@pytest.fixture(scope="module")
def real(random_models, tmp_path_factory):
    config = LabConfig(rollout={"dtype": "float32", "deterministic": True, "max_running_requests": 32})
    with closing(Engine(config, tmp_path_factory.mktemp("logs"))) as engine:
        engine.start(Path(random_models["a"]))
        yield engine


def differences(path, responses, temperature=1.0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For each response: |log-prob difference| to the Hugging Face model of each token, and its experts as sets."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    errors, experts = [], []
    for response in responses:
        prompt = len(response.prompt_ids)
        with torch.no_grad():
            tokens = torch.tensor([response.prompt_ids + response.output_ids])
            routing = {"output_router_logits": True} if response.routed_experts is not None else {}
            output = model(tokens, **routing)
        log_probs = torch.log_softmax(output.logits[0, prompt - 1 : -1] / temperature, -1)
        chosen = log_probs.gather(1, tokens[0, prompt:, None])[:, 0].numpy()
        errors.append(np.abs(chosen - response.log_probs))
        if routing:
            top = torch.stack([logits.topk(2, -1).indices for logits in output.router_logits], 1)[:-1]
            experts.append(np.sort(top.numpy(), -1))
    return errors, experts


@pytest.mark.engine
def test_log_probs_and_experts_are_the_models(real, random_models):
    temperature = 0.7
    requests = some_requests(48, 20, temperature)
    # One token and a full context are the extremes.
    requests.append(GenerationRequest("short", (3,), 1, temperature, 0, (STOP,)))
    requests.append(GenerationRequest("long", (2,) * 100, 28, temperature, 0, ()))
    responses = real.generate(requests).result().responses
    errors, experts = differences(random_models["a"], responses, temperature)
    assert max(error.max() for error in errors) < 1e-4
    for response, expected in zip(responses, experts, strict=True):
        assert np.array_equal(np.sort(response.routed_experts, -1), expected), response.request_id
    assert {response.finish_reason for response in responses} == {"stop", "length"}
    assert len(responses[-1].output_ids) == 28


@pytest.mark.engine
def test_the_canary_finds_a_push_that_was_not_taken(real, random_models):
    from transformers import AutoModelForCausalLM

    sequences = canary_sequences(16, 32)
    start = prefix_length(sequences)
    expected, tokens = {}, torch.tensor(sequences)
    for name in ("a", "b"):
        model = AutoModelForCausalLM.from_pretrained(random_models[name], dtype=torch.float32).eval()
        with torch.no_grad():
            log_probs = model(tokens).logits.log_softmax(-1)[:, start - 1 : -1]
        expected[name] = log_probs.gather(2, tokens[:, start:, None]).flatten().numpy()
    canary = Canary("float32")
    for version, name in ((7, "a"), (8, "b")):
        real.update_weights(random_models[name], version)
        verdict = canary.check(version, expected[name], {"engine": real.score(sequences)})
        assert not verdict.faults and verdict.metrics["canary/d"] < 1e-5
    # it says that it took the next push, and has the weights of the last
    real.post("/update_weight_version", {"new_version": "9"})
    verdict = canary.check(9, expected["a"], {"engine": real.score(sequences)})
    assert "still holds the weights of version 8, and says 9" in verdict.faults["engine"]


def interrupted(engine, requests, paths: list[tuple[str, int]]):
    """Streams responses while the weights change, from one of `paths` to the next for as long as the stream lasts."""
    streaming = engine.generate(requests)
    for path, version in paths:
        # However fast the machine, some tokens come between two changes, and the next change before the end.
        futures.wait([streaming], timeout=0.05)
        if streaming.done():
            break
        engine.update_weights(path, version)
    return streaming.result().responses


@pytest.mark.engine
def test_each_token_of_an_interrupted_response_is_of_the_version_that_it_names(real, random_models):
    requests = endless(some_requests(32, 100))
    right = {version: "ab"[version % 2] for version in range(10, 22)}
    real.update_weights(random_models[right[10]], 10)
    responses = interrupted(real, requests, [(random_models[right[v]], v) for v in list(right)[1:]])
    spanning = [r for r in responses if len(set(r.versions.tolist())) >= 3]
    assert len(spanning) >= 8, [sorted(set(r.versions.tolist())) for r in responses]
    boundaries = []
    for model in ("a", "b"):
        off, _ = differences(random_models[model], responses)
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
    real.update_weights(random_models["a"], 20)
    undisturbed = real.generate(requests).result().responses
    disturbed = interrupted(real, requests, [(random_models["a"], version) for version in range(21, 26)])
    assert len({v for r in disturbed for v in r.versions.tolist()}) > 1
    assert [r.output_ids for r in disturbed] == [r.output_ids for r in undisturbed]
    for a, b in zip(disturbed, undisturbed, strict=True):
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)
        np.testing.assert_array_equal(np.sort(a.routed_experts, -1), np.sort(b.routed_experts, -1))


def scores(trainer, folder: str, responses) -> dict[str, float]:
    """Mean |log pi - log mu| with the trainer's own routes, the engine's, and those of the token before."""
    trainer.load_initial(Path(folder))
    mu = np.concatenate([response.log_probs for response in responses])
    ways = {"free": (responses, False)}
    if trainer.config.model.is_moe:
        shifted = [dataclasses.replace(r, routed_experts=np.roll(r.routed_experts, 1, axis=0)) for r in responses]
        ways |= {"replayed": (responses, True), "shifted": (shifted, True)}
    return {name: float(np.abs(log_pi(trainer, *way) - mu).mean()) for name, way in ways.items()}


@pytest.mark.engine
def test_megatron_agrees_at_equal_weights_and_tells_experts_shifted_by_one_token(real, random_models):
    real.update_weights(random_models["a"], 30)
    responses = real.generate(some_requests(64, 20)).result().responses
    found = in_trainer(scores, real.config, random_models["a"], responses)
    assert found["free"] < 1e-5 and found["replayed"] < 1e-5 and found["shifted"] > 1e-3


def draw(trainer, folder: str) -> dict:
    """Export weights of which no bias is 0 and no norm 1."""
    with torch.no_grad():
        for _, parameter in trainer.parameters:
            parameter += 0.2 * torch.randn_like(parameter)
    trainer.export_weights(Path(folder))
    return {}


def scored(engine: Engine, model: str, stops: tuple[int, ...] = ()) -> dict[str, float]:
    """The `scores` of responses of an engine of this model."""
    requests = [dataclasses.replace(each, stop_token_ids=stops) for each in some_requests(400)]
    return in_trainer(scores, engine.config, model, engine.generate(requests).result().responses)


@pytest.mark.engine
def test_a_dense_family_with_tied_embeddings_agrees(tmp_path):
    model = {"family": "qwen2", "experts": 0, "tied_embeddings": True}
    config = LabConfig(model=model, method={"base": "grpo"}, rollout={"dtype": "float32"})
    in_trainer(draw, config, str(tmp_path / "model"))
    with closing(Engine(config, tmp_path)) as engine:
        engine.start(tmp_path / "model")
        assert scored(engine, str(tmp_path / "model"), stops=(config.task.eos_id,))["free"] < 1e-5


def said(action) -> str:
    with pytest.raises(PartFailure) as failure:
        action()
    return str(failure.value)


@pytest.mark.engine
def test_replay_lowers_the_mismatch_of_a_bf16_engine_and_what_befalls_it_is_told(random_models, tmp_path):
    rollout = {"dtype": "bfloat16", "max_running_requests": 32, "request_timeout_s": 100}
    with closing(Engine(LabConfig(rollout=rollout), tmp_path)) as engine:
        engine.start(Path(random_models["a"]))
        server = psutil.Process(engine.process.pid)
        processes = [server, *server.children(recursive=True)]

        found = scored(engine, random_models["a"])
        assert 1e-4 < found["replayed"] < found["free"] and found["shifted"] > 5 * found["replayed"]

        generating, most = engine.generate(some_requests(200)), 0
        while not generating.done():
            most = max(most, engine.in_flight)
        assert [response.request_id for response in generating.result().responses] == [f"r{i}" for i in range(200)]
        assert 1 <= most <= 32

        nowhere = said(lambda: engine.update_weights(tmp_path / "nowhere", 3))
        assert re.search(r"did not do /update_weights_from_disk: answered 400: .*nowhere", nowhere)

        engine.post("/update_weight_version", {"new_version": "77"})
        stale = said(engine.generate(some_requests(1)).result)
        assert (
            "response to request r0 is not valid" in stale and "weight_version: got '77', the engine holds 0" in stale
        )
        engine.post("/update_weight_version", {"new_version": "0"})

        aborted = engine.generate(endless(some_requests(6, 100)))
        while not aborted.done():
            engine.post("/abort_request", {"abort_all": True}, answers=False)
        assert "aborted by the server itself" in said(aborted.result)

        long = GenerationRequest("long", (1,) * 1000, 1, 1.0, 0, ())
        assert re.search("did not do /generate: answered 400: .*1000", said(engine.generate([long]).result))

        scheduler = next(process for process in processes if "scheduler" in process.name())
        scheduler.suspend()
        engine._http.timeout = 1
        late = said(engine.generate(some_requests(1)).result)
        assert "no answer in time (100 s: raise rollout.request_timeout_s" in late
        assert engine.in_flight == 0

        engine._http.timeout = 100
        hanging = engine.generate(some_requests(1))
        while not engine.in_flight:
            time.sleep(0.001)
        engine.close()
        assert "was killed by SIGKILL" in said(hanging.result)
        assert_gone(processes)
        assert not engine.socket.parent.exists()
    killed = rf"SGLang's server \(process {server.pid}\) was killed by SIGKILL; last in its log: .+; log: .+"
    for call in (lambda: engine.update_weights(tmp_path, 1), lambda: engine.score([(1, 2)])):
        assert re.fullmatch(killed, said(call))


@pytest.mark.parametrize(
    ("program", "timeout", "message"),
    [
        ("time.sleep(1000)", 0.5, r"not healthy after 0.5 s \(rollout.startup_timeout_s\)"),
        (
            "sys.exit('ValueError: no model' + chr(10) + 'the end')",
            60.0,
            r"exit code 1\).*log: ValueError: no model; log: ",
        ),
    ],
)
def test_a_server_that_does_not_come_up_is_an_error_with_its_log(tmp_path, program, timeout, message):
    command = [sys.executable, "-c", f"import sys, time; {program}"]
    with closing(Engine(LabConfig(rollout={"startup_timeout_s": timeout}), tmp_path, command)) as engine:
        told = said(lambda: engine.start(tmp_path))
        assert re.search(message, told) and str(engine.log_path) in told


def test_an_answer_of_another_kind_is_an_error(tmp_path, monkeypatch):
    engine = Engine(LabConfig(), tmp_path)
    monkeypatch.setattr(engine, "post", lambda *_: {"what": "is this"})
    assert re.search("answered .*what.*, not 4 responses", said(engine.generate(some_requests(4)).result))
