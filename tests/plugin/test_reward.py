"""The verifier as slime calls it: by slime's dispatch where that is installed, elsewhere with the same arguments."""

from __future__ import annotations

import asyncio
import functools
from argparse import Namespace
from types import SimpleNamespace

import pytest

pytest.importorskip("math_verify", reason="needs pip install '.[reward]'")

from sat_slime.plugin import reward, rollout_hooks
from sat_slime.reward import VerifierPool


@pytest.fixture(autouse=True, scope="module")
def pool():
    """A pool of one worker with little time stands for the one that all calls share."""
    with VerifierPool(workers=1, cpu_s=0.3) as pool, pytest.MonkeyPatch.context() as patched:
        shared = functools.cache(lambda: pool)
        for module in (reward, rollout_hooks):
            patched.setattr(module, "shared_pool", shared)
        yield shared()


def sample(response: str, label, index: int = 0) -> SimpleNamespace:
    return SimpleNamespace(response=response, label=label, index=index, metadata={}, custom_rm_path=None)


@pytest.mark.parametrize(
    ("mode", "answer", "label", "wanted"),
    [("default", "200", "2", 0.0), ("default", "34", 34, 1.0), ("prime_math", "200", "2", 1.0)],
)
def test_a_reward_by_each_mode(mode, answer, label, wanted):
    assert asyncio.run(getattr(reward, mode)(Namespace(), sample(f"\\boxed{{{answer}}}", label))) == wanted


@pytest.mark.parametrize(("mode", "unfinished"), [("default", 0.0), ("prime_math", 1.0)])
def test_a_thought_that_the_chat_template_opened_has_to_end(mode, unfinished):
    rewards = []
    for response in ("So \\boxed{34}", "So</think>\\boxed{34}"):
        thought = sample(response, "34")
        thought.prompt = "<|im_start|>assistant\n<think>\n"
        rewards.append(asyncio.run(getattr(reward, mode)(Namespace(), thought)))
    assert rewards == [unfinished, 1.0]


@pytest.mark.parametrize("mode", ["default", "prime_math"])
@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<｜end▁of▁sentence｜>", "</s>"])
def test_the_token_on_which_the_engine_stopped_changes_no_reward(mode, end):
    """slime's text ends with it. Without `without_end_token` prime_math gives all of these 0."""
    for answer in ("34", "\\boxed{34}"):
        right, wrong = (sample(f"So it is.\n\nAnswer: {answer}{end}", label) for label in ("34", "35"))
        as_read = asyncio.run(getattr(reward, mode)(Namespace(), sample(f"So it is.\n\nAnswer: {answer}", "34")))
        assert asyncio.run(getattr(reward, mode)(Namespace(), right)) == as_read == 1.0
        assert asyncio.run(getattr(reward, mode)(Namespace(), wrong)) == 0.0


def test_only_a_token_at_the_end_is_left_out():
    assert reward.without_end_token("x < 2 |\n|> y<|im_end|>") == "x < 2 |\n|> y"
    for text in ("", "34", "<|im_end|> 34", "1 <| 2 |> 3", "|x|>", "a < b|>", "34<|im_end|>\n", "<|" + "x" * 60 + "|>"):
        assert reward.without_end_token(text) == text


def test_a_sample_remembers_why():
    one = sample("so it is 5", "6")
    one.metadata = {"rm_type": "math"}
    asyncio.run(reward.default(Namespace(), one))
    assert one.metadata == {"rm_type": "math", rollout_hooks.VERDICT: "different"}


def test_a_list_of_samples_gives_a_list_of_rewards():
    samples = [sample(f"Answer: {i}", "3", i) for i in range(5)]
    assert asyncio.run(reward.default(Namespace(), samples, evaluation=False)) == [0.0, 0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("label", [None, ["5"], {"answer": "5"}])
def test_a_label_that_is_no_text_is_an_error_with_its_remedy(label):
    with pytest.raises(ValueError, match=r"label of sample 7 is .*: name the column .* with slime's --label-key"):
        asyncio.run(reward.default(Namespace(), sample("5", label, 7)))


def test_counts_reach_the_metrics():
    rollout_hooks.drain_metrics()
    costly = "|" + "+".join(f"|x-{k}|" for k in range(12)) + "|<9"  # it takes seconds only to parse
    assert asyncio.run(reward.default(Namespace(), sample(f"\\boxed{{{costly}}}", "x^2<5"))) == 0.0
    assert asyncio.run(reward.default(Namespace(), sample("Answer: 5", "5"))) == 1.0
    metrics = rollout_hooks.drain_metrics()
    assert (metrics["rollout/verifier_verdicts"], metrics["rollout/verifier_timeouts"]) == (2.0, 1.0)
    assert rollout_hooks.drain_metrics() == {}


@pytest.mark.needs_slime
def test_slime_finds_and_calls_it():
    pytest.importorskip("pylatexenc", reason="slime's rules import it")
    from slime.rollout.rm_hub import async_rm, batched_async_rm
    from slime.utils.types import Sample

    args = Namespace(custom_rm_path="sat_slime.plugin.reward.default", rm_type=None)
    samples = [Sample(index=i, response=f"so \\boxed{{{i}}}", label="1") for i in range(3)]
    assert asyncio.run(async_rm(args, samples[1])) == 1.0
    assert asyncio.run(batched_async_rm(args, samples)) == [0.0, 1.0, 0.0]
