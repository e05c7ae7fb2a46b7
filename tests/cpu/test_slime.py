"""What is patched in slime on a CPU, on slime's functions as they are called."""

import asyncio
import gc
from types import SimpleNamespace

import pytest

from sat_slime.cpu.slime import post_together


async def echo(url, payload, **more):
    """As SGLang's /generate: a list of prompts is answered by a list."""
    posted.append((url, payload, more))
    if payload.get("input_ids") == [[13], [13]]:
        raise ConnectionError("the engine is gone")
    if isinstance(payload.get("input_ids", [0])[0], list):
        both = zip(payload["input_ids"], payload["sampling_params"], strict=True)
        return [[*prompt, params["sampling_seed"]] for prompt, params in both]
    return "alone"


posted = []


@pytest.fixture
def rollout():
    posted.clear()
    rollout = SimpleNamespace(post=echo)
    post_together(rollout)
    return rollout


def request(token, seed=0, **more):
    return {"input_ids": [token], "sampling_params": {"sampling_seed": seed}, "return_logprob": True, **more}


def test_requests_of_a_prompt_at_one_moment_are_posted_as_one(rollout):
    """Those of another prompt are another request, which a router may give to another engine."""

    async def ask():
        both = [rollout.post("/generate", request(token, seed), headers=None) for token in (1, 2) for seed in range(5)]
        return await asyncio.gather(*both), await rollout.post("/generate", request(7, 8))

    assert asyncio.run(ask()) == ([[token, seed] for token in (1, 2) for seed in range(5)], [7, 8])
    assert [len(payload["input_ids"]) for _, payload, _ in posted] == [5, 5, 1]
    assert posted[0][1]["return_logprob"] is True


def test_what_differs_is_posted_apart_and_what_is_no_prompt_as_it_is(rollout):
    async def ask():
        return await asyncio.gather(
            rollout.post("/generate", request(1)),
            rollout.post("/generate", request(2, return_routed_experts=True)),
            rollout.post("/other", request(3)),
            rollout.post("/generate", request(4, image_data=["x"])),
            rollout.post("/generate", request(5), headers={"X-SMG-Routing-Key": "a"}),
            rollout.post("/abort_request", {"abort_all": True}),
        )

    assert asyncio.run(ask()) == [[1, 0], [2, 0], [3, 0], "alone", "alone", "alone"]
    assert len(posted) == 6


def test_a_request_that_fails_fails_for_all_of_it_and_one_that_is_cancelled_for_none(rollout):
    async def ask():
        lost = await asyncio.gather(*(rollout.post("/generate", request(13)) for _ in "ab"), return_exceptions=True)
        tasks = [asyncio.ensure_future(rollout.post("/generate", request(token))) for token in (2, 2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        return lost, await asyncio.gather(*tasks, return_exceptions=True)

    lost, (cancelled, answer) = asyncio.run(ask())
    assert [type(error) for error in lost] == [ConnectionError] * 2
    assert isinstance(cancelled, asyncio.CancelledError) and answer == [2, 0]


def test_a_failure_for_which_nobody_waits_is_not_logged(rollout, caplog):
    """The group that asked was given up: the error in the job's log would look like what ended the run."""

    async def ask():
        tasks = [asyncio.ensure_future(rollout.post("/generate", request(13))) for _ in "ab"]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)
        gc.collect()

    asyncio.run(ask())
    assert len(posted) == 1 and not caplog.records
