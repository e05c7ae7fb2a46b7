"""Mode streaming on slime's own functions: its sample, its generation of a group, its data source, its event loop.

This module answers for SGLang and its router. A push aborts what is decoded, as slime's does, and requests that come
meanwhile wait.
"""

from __future__ import annotations

import asyncio
import importlib
from argparse import Namespace

import fake_slime
import pytest
from fake_slime import import_slime

from sat_slime.config.source import ConfigError
from sat_slime.plugin import generation as generation_module
from sat_slime.plugin import versions

pytestmark = pytest.mark.needs_slime

PROMPTS, SAMPLES, RESPONSE, ROLLOUTS = 4, 2, 20, 8
LONG = 3
"""One in this many prompts has answers that take two seconds, or until a push cuts them off."""


class Sglang:
    """Stands for an engine behind a router, as slime's `post` sees it."""

    def __init__(self, held: int = 0) -> None:
        self.held = held
        self.interrupt, self.open = asyncio.Event(), asyncio.Event()
        self.open.set()
        self.asked: list[list[int]] = []

    async def post(self, url, payload, headers=None, **_):
        prompt, *rest = payload["input_ids"]
        self.asked.append(payload["input_ids"])
        await self.open.wait()
        version, tokens, reason = self.held, payload["sampling_params"]["max_new_tokens"], "length"
        if prompt % LONG == 0 and len(rest) == 1:
            try:
                await asyncio.wait_for(self.interrupt.wait(), 2.0)
                tokens, reason = 5, "abort"
            except asyncio.TimeoutError:  # there may be no further push
                pass
        meta = {"weight_version": str(version), "finish_reason": {"type": reason}, "completion_tokens": tokens}
        meta["output_token_logprobs"] = [[-0.25 - version, 50 + i, None] for i in range(tokens)]
        return {"text": "x" * tokens, "meta_info": meta}

    async def push(self, version):
        self.open.clear()
        self.interrupt.set()
        self.interrupt = asyncio.Event()
        await asyncio.sleep(0)
        self.held = version
        self.open.set()


class Tokenizer:
    def encode(self, prompt, **_):
        return [int(prompt), 7]


class Problems:
    """Stands for slime's data set; its samples are rewarded beforehand."""

    def __init__(self, sample_class) -> None:
        self.samples = [sample_class(prompt=str(i), label=f"label {i}", reward=1.0) for i in range(500)]

    def __len__(self):
        return len(self.samples)


@pytest.fixture
def slime(monkeypatch):
    """slime's modules, with ours for mode streaming, without servers behind them."""
    (rollout,) = import_slime("slime.rollout.sglang_rollout")
    streaming = importlib.import_module("sat_slime.plugin.streaming")
    misc = importlib.import_module("slime.utils.misc")
    types = importlib.import_module("slime.utils.types")
    monkeypatch.setattr(rollout, "load_tokenizer", lambda *_, **__: Tokenizer())
    monkeypatch.setattr(rollout, "load_processor", lambda *_, **__: None)
    monkeypatch.setattr(misc.SingletonMeta, "_instances", {})
    monkeypatch.setattr(generation_module, "POLL_S", 0.02)
    sources = []

    def start(server, args):
        misc.SingletonMeta._instances.clear()
        monkeypatch.setattr(rollout, "post", server.post)
        source = streaming.StreamingDataSource(args)
        source.dataset = Problems(types.Sample)
        sources.append(source)
        return source

    base = importlib.import_module("slime.rollout.base_types")
    run = importlib.import_module("slime.utils.async_utils").run
    yield Namespace(streaming=streaming, start=start, call=base.call_rollout_fn, run=run, base=base)

    async def end(generation):
        for task in [generation._tending, *generation.tasks.values()]:
            if task is not None:
                task.cancel()

    for source in sources:
        run(end(source.generation))


def make_args(tmp_path, **changes):
    driver = {"mode": "streaming", "lag": 1, "max_staleness": 2}
    unset = ("prompt_data", "buffer_filter_path", "custom_generate_function_path", "custom_rm_path", "router_policy")
    unset += ("sglang_speculative_algorithm", "rollout_stop", "rollout_stop_token_ids", "load")
    off = ("use_rollout_routing_replay", "rollout_shuffle", "ci_test", "partial_rollout", "group_rm")
    settings = dict.fromkeys(unset) | dict.fromkeys(off, False)
    settings |= {
        "sat_slime": {"method": "grpo", "driver": driver},
        "data_source_path": "sat_slime.plugin.streaming.StreamingDataSource",
        "rollout_sample_hook_path": ["sat_slime.plugin.rollout_hooks.on_sample"],
        "rollout_batch_size": PROMPTS,
        "n_samples_per_prompt": SAMPLES,
        "global_batch_size": PROMPTS * SAMPLES,
        "num_rollout": ROLLOUTS,
        "rollout_global_dataset": True,
        "hf_checkpoint": "",
        "sglang_router_ip": "127.0.0.1",
        "sglang_router_port": 1,
        "sglang_server_concurrency": 16,
        "sglang_dp_size": 1,
        "rollout_num_gpus": 1,
        "rollout_num_gpus_per_engine": 1,
        "rollout_temperature": 1.0,
        "rollout_top_k": -1,
        "rollout_max_response_len": RESPONSE,
        "rollout_skip_special_tokens": True,
        "save": str(tmp_path),
    }
    return fake_slime.make_args(**{**settings, **changes})


def go(slime, source, server, first, last):
    """Drives a run: asks for rollouts, trains, pushes. Returns each rollout's samples and metrics."""
    rollouts = []
    for rollout in range(first, last):
        output = slime.call(slime.streaming.generate_rollout, source.args, rollout, source, evaluation=False)
        assert isinstance(output, slime.base.RolloutFnTrainOutput)
        samples = [sample for group in output.samples for sample in group]
        for sample in samples:
            check(sample, source.args, rollout)
        rollouts.append((samples, output.metrics))
        slime.run(server.push(rollout + 1))
    return rollouts


def check(sample, args, rollout):
    """Checks that a sample is whole, of the versions that it says, and within the bound."""
    parts = versions.parts_of(sample)
    assert sum(tokens for tokens, _ in parts) == len(sample.rollout_log_probs) == sample.response_length <= RESPONSE
    assert sample.rollout_log_probs == [-0.25 - version for tokens, version in parts for _ in range(tokens)]
    assert rollout - min(version for _, version in parts) <= args.sat_slime["driver"]["max_staleness"]
    assert sample.label == f"label {sample.prompt}" and sample.tokens[0] == int(sample.prompt)


async def some_wait_and_some_run(generation):
    while not (generation.stream.waiting and generation.stream.running):
        await asyncio.sleep(0.02)


def test_rollouts_within_the_bound_through_pushes_and_a_resume(slime, tmp_path):
    server, args = Sglang(), make_args(tmp_path)
    source = slime.start(server, args)
    first = go(slime, source, server, 0, 3)
    output = slime.call(slime.streaming.generate_rollout, args, 3, source, evaluation=False)
    fourth = [sample for group in output.samples for sample in group]
    frozen, freeze = [], source.generation.freeze

    async def noted(rollout):
        await some_wait_and_some_run(source.generation)  # in the task that freezes: else they may end before
        frozen.append(await freeze(rollout))
        return frozen[0]

    source.generation.freeze = noted
    source.save(3)  # the driver does so, too, before rollout 3 is trained
    (state,) = frozen
    waiting, unfinished = [group.result for group in state.waiting], state.unfinished
    assert waiting and unfinished

    server, args = Sglang(held=4), make_args(tmp_path, load=str(tmp_path))
    resumed = slime.start(server, args)
    resumed.load(3)
    assert [group.result for group in resumed.stream.waiting] == waiting
    assert [*resumed.stream.again] == unfinished
    second = go(slime, resumed, server, 4, ROLLOUTS)

    samples = [sample for part in (first, [(fourth, {})], second) for some, _ in part for sample in some]
    indices = {sample.index for sample in samples}
    assert len(indices) == len(samples) == ROLLOUTS * PROMPTS * SAMPLES
    metrics = [*(metrics for _, metrics in first), output.metrics, *(metrics for _, metrics in second)]
    assert max(indices) + 1 - len(indices) <= sum(one["rollout/dropped"] for one in metrics)  # no prompt is skipped
    assert any(len(versions.parts_of(sample)) == 2 for sample in samples)


def test_another_data_source_is_refused(slime, tmp_path):
    args = make_args(tmp_path, data_source_path="slime.rollout.data_source.RolloutDataSourceWithBuffer")
    with pytest.raises(ConfigError, match=r"--data-source-path is slime\.rollout.*StreamingDataSource"):
        slime.streaming.generate_rollout(args, 0, object())


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"sat_slime": {"method": "grpo"}}, "driver.mode is batch"),
        ({"sat_slime": {"driver": {"mode": "streaming", "lag": 4, "max_staleness": 2}}}, "are up to 3 steps old"),
        ({"global_batch_size": 2, "num_rollout": 4}, "with lag 1 and 4 optimizer steps per rollout"),
        ({"sat_slime_driven": False}, "our order of a run"),
        ({"num_rollout": None}, "--num-rollout is not set"),
        ({"dynamic_sampling_filter_path": "a.b"}, "--dynamic-sampling-filter-path cannot be in mode streaming"),
        ({"partial_rollout": True, "debug_rollout_only": True}, "(?s)--partial-rollout cannot.*--debug-rollout-only"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(slime, tmp_path, changes, named):
    with pytest.raises(ConfigError, match=named):
        slime.start(Sglang(), make_args(tmp_path, **changes))


def test_a_resume_without_a_queue_goes_on_and_says_what_is_skipped(slime, tmp_path, caplog):
    server, args = Sglang(held=3), make_args(tmp_path, load=str(tmp_path))
    source = slime.start(server, args)
    source.load(2)
    assert "prompts that waited or were in generation then are skipped" in caplog.text
    go(slime, source, server, 3, 5)
