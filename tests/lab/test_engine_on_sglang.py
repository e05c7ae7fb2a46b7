"""The engine on SGLang's real server, against the models that it serves; its faults: test_engine.py."""

import dataclasses
from concurrent import futures
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from engine_requests import STOP, bits, some_requests

from sat_slime.config.schema import LabConfig
from sat_slime.lab.engine import Engine
from sat_slime.rollout.canary import Canary, canary_sequences, prefix_length
from sat_slime.rollout.types import GenerationRequest


@pytest.fixture(scope="module")
def real(random_models, tmp_path_factory):
    config = LabConfig(rollout={"dtype": "float32", "deterministic": True, "max_running_requests": 32})
    with closing(Engine(config, tmp_path_factory.mktemp("logs"))) as engine:
        engine.start(Path(random_models["a"]))
        yield engine


def differences(path, responses, temperature=1.0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For each response: |log-prob difference| to the Hugging Face model of each token, and its experts as sets."""
    import torch
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


def worst(path, responses) -> float:
    return max(error.max() for error in differences(path, responses)[0])


@pytest.mark.engine
@pytest.mark.parametrize("temperature", [0.7])
def test_log_probs_and_experts_are_the_models(real, random_models, temperature):
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
def test_new_weights_answer_under_their_version(real, random_models):
    requests = some_requests(8)
    before = real.generate(requests).result().responses
    real.update_weights(random_models["b"], 4)
    after = real.generate(requests).result().responses
    real.update_weights(random_models["a"], 6)
    again = real.generate(requests).result().responses
    assert {response.weight_version for response in after} == {4}
    assert worst(random_models["b"], after) < 1e-4
    assert bits(after) != bits(before) == bits(again)


@pytest.mark.engine
def test_the_canary_finds_a_push_that_was_not_taken(real, random_models):
    import torch
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


def endless(requests: list[GenerationRequest]) -> list[GenerationRequest]:
    """The same requests without stop tokens, so that every response has its longest length."""
    return [dataclasses.replace(request, stop_token_ids=()) for request in requests]


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


@pytest.mark.engine
def test_a_dense_model_is_served_without_experts(random_models, tmp_path):
    with closing(Engine(LabConfig(rollout={"dtype": "float32"}, model={"experts": 0}), tmp_path)) as engine:
        engine.start(Path(random_models["dense"]))
        responses = engine.generate(some_requests(16)).result().responses
    assert worst(random_models["dense"], responses) < 1e-4
    assert all(response.routed_experts is None for response in responses)
