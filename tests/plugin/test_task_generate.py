"""A task's tool answers between the turns that slime's own function generates."""

import asyncio
import inspect
from types import SimpleNamespace

import pytest

from sat_slime.plugin import task_generate
from sat_slime.plugin.task_reward import reward
from sat_slime.tasks.calculator import Calculator

pytestmark = pytest.mark.needs_slime
TASK = Calculator()
ARGS = SimpleNamespace(custom_generate_function_path="sat_slime.plugin.task_generate.generate")
PARAMETERS = {"max_new_tokens": 24, "stop_token_ids": None}


@pytest.fixture
def turns(monkeypatch):
    """Slime's generate function, which gives these texts and finish reasons, one a call; and what it was asked."""
    from slime.rollout import sglang_rollout

    asked = []
    signature = inspect.signature(sglang_rollout.generate)

    def answers(*given):
        left = iter(given)

        async def generate(*positional, **keywords):
            bound = signature.bind(*positional, **keywords).arguments
            args, sample, parameters = bound["args"], bound["sample"], bound["sampling_params"]
            assert sample.status in (sample.Status.PENDING, sample.Status.ABORTED)
            asked.append((TASK.decode(sample.tokens), parameters))
            text, reason, version = next(left)
            meta = {"finish_reason": {"type": reason}, "weight_version": str(version)}
            tokens = list(TASK.encode(text))
            sample.append_response_tokens(
                args, tokens=tokens, log_probs=[-0.5] * len(tokens), trainable=True, meta_info=meta, text=text
            )
            return sample

        monkeypatch.setattr(sglang_rollout, "generate", generate)

    return SimpleNamespace(answers=answers, asked=asked)


def sample(prompt="47*38+12="):
    from slime.utils.types import Sample

    return Sample(prompt=prompt, tokens=list(TASK.encode(prompt)), label="98", metadata={"task": TASK.model_dump()})


def generate(given, **parameters):
    return asyncio.run(task_generate.generate(ARGS, given, {**PARAMETERS, **parameters}))


def test_the_tool_writes_after_each_call_and_its_tokens_are_not_trained(turns):
    turns.answers(("47*38?", "stop", 8), ("86+12?", "stop", 9), ("98$", "stop", 9))
    done = generate(sample())
    assert TASK.decode(done.tokens) == "47*38+12=47*38?86;86+12?98;98$" and done.response == "47*38?86;86+12?98;98$"
    written = [0 if mark else 1 for mark in TASK.written_by_tool(done.response)]
    assert done.loss_mask == written and written.count(0) == 6
    assert done.rollout_log_probs == [-0.5 * mark for mark in written]
    assert done.weight_versions == ["8", "9", "9"] and done.status == done.Status.COMPLETED
    assert asyncio.run(reward(ARGS, done)) == 1.0
    assert [text for text, _ in turns.asked] == ["47*38+12=", "47*38+12=47*38?86;", "47*38+12=47*38?86;86+12?98;"]
    call, end = TASK.encode("?$")
    assert all(set(parameters["stop_token_ids"]) == {call, end} for _, parameters in turns.asked)


@pytest.mark.parametrize("cut", ["47*3", "47*38?"])
def test_a_sample_that_a_push_aborted_goes_on_from_what_it_has(turns, cut):
    turns.answers((cut, "abort", 8))
    aborted = generate(sample())
    assert aborted.status == aborted.Status.ABORTED and aborted.response == cut
    rest = "47*38?"[len(cut) :]
    turns.answers(*([(rest, "stop", 9)] if rest else []), ("86$", "stop", 9))
    done = generate(aborted)
    assert done.response == "47*38?86;86$"


@pytest.mark.parametrize(("room", "response"), [(9, "47*38?"), (10, "47*38?86;9")])
def test_a_response_ends_with_its_call_where_nothing_could_follow_the_answer(turns, room, response):
    turns.answers(("47*38?", "stop", 8), ("9", "length", 8))
    done = generate(sample(), max_new_tokens=room)
    assert done.response == response and asyncio.run(reward(ARGS, done)) == 0.0


def test_an_older_slime_is_one_line():
    with pytest.raises(RuntimeError, match=r"no Sample\.append_response_tokens"):
        asyncio.run(task_generate.generate(ARGS, SimpleNamespace(), PARAMETERS))
