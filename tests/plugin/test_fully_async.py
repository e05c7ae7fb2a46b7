"""Full asynchrony on slime: slime's real worker, `generate` and sample, with the hooks, on made-up answers of SGLang.

A push of slime aborts what the engines decode (its pause is SGLang's `abort`). Here the first answers to some samples
come back aborted, and the rest of each is generated under later weights.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import pickle
import sys
import types
from argparse import Namespace
from collections import deque

import pytest
import torch
from hook_samples import make_routes

from sat_slime.plugin import rollout_hooks, versions

pytestmark = pytest.mark.needs_slime

PROMPT, RESPONSE, SAMPLES = [7, 8, 9], 6, 2
CUTS = {0: [(2, "1"), (1, "3")], 3: [(0, "1")], 4: [(5, "2"), (0, "3")]}
"""Number of tokens and version of each answer that was cut off, by the sample's index; the last answer of each sample
is of version 4."""


class Server:
    """Stands for SGLang behind slime's `post`."""

    def __init__(self) -> None:
        self.answers = {index: deque(cuts) for index, cuts in CUTS.items()}
        self.seen: list[dict] = []

    async def post(self, url, payload, headers=None, **_):
        self.seen.append(payload)
        index = payload["input_ids"][0]
        so_far = len(payload["input_ids"]) - len(PROMPT) - 1
        cut, version = (self.answers.get(index) and self.answers[index].popleft()) or (None, "4")
        tokens = RESPONSE - so_far if cut is None else cut
        reason = {"type": "stop"} if cut is None else {"type": "abort", "message": "Aborted"}
        meta = {"weight_version": version, "finish_reason": reason, "completion_tokens": tokens}
        meta["output_token_logprobs"] = [[-0.5, 50, None]] * tokens
        if tokens:
            routes = make_routes(40, seed=int(version))[: len(payload["input_ids"]) + tokens - 1].contiguous()
            meta["routed_experts"] = base64.b64encode(routes.numpy().tobytes()).decode()
        return {"text": "x" * tokens, "meta_info": meta}


class Prompts:
    """Stands for slime's data source with a buffer."""

    def __init__(self, groups) -> None:
        self.groups = deque(groups)

    def get_samples(self, n):
        return [self.groups.popleft()] if self.groups else []

    def add_samples(self, groups):
        self.groups.extendleft(groups)


def test_interrupted_samples_carry_versions_and_routes_of_their_tokens(monkeypatch):
    # The test gives the rewards itself, since slime's rules want further packages.
    rules = types.ModuleType("slime.rollout.rm_hub")
    rules.async_rm = rules.batched_async_rm = None
    monkeypatch.setitem(sys.modules, rules.__name__, rules)
    rollout = importlib.import_module("slime.rollout.sglang_rollout")
    worker_module = importlib.import_module("slime.rollout.fully_async_rollout")
    Sample = importlib.import_module("slime.utils.types").Sample
    server, state = Server(), Namespace(aborted=False, tokenizer=None, processor=None, sampling_params={})
    state.sampling_params = {"max_new_tokens": RESPONSE}
    monkeypatch.setattr(rollout, "post", server.post)
    for module in (rollout, worker_module):
        monkeypatch.setattr(module, "GenerateState", lambda args: state)

    class Here:
        def __enter__(self):
            return 0

        def __exit__(self, *_):
            pass

    state.dp_rank_context = Here
    args = Namespace(
        sat_slime_driven=True,
        sat_slime={"method": {"r3": True}},
        rollout_sample_hook_path=["sat_slime.plugin.rollout_hooks.on_sample"],
        use_rollout_routing_replay=True,
        use_rollout_logprobs=True,
        update_weight_transport="nccl",
        num_layers=3,
        moe_router_topk=4,
        num_experts=32,
        moe_layer_freq=1,
        eps_clip=0.2,
        eps_clip_high=0.2,
        eps_clip_c=None,
        keep_old_actor=False,
        rollout_batch_size=4,
        n_samples_per_prompt=SAMPLES,
        global_batch_size=4 * SAMPLES,
        rollout_global_dataset=True,
        ci_test=False,
        partial_rollout=False,
        group_rm=False,
        custom_generate_function_path=None,
        sglang_router_ip="127.0.0.1",
        sglang_router_port=1,
        sglang_speculative_algorithm=None,
        rollout_top_p=1.0,
    )
    # The prompt begins with the sample's index, by which the server knows it.
    groups = [
        [
            Sample(index=i, group_index=g, prompt="p", tokens=[i, *PROMPT], reward=1.0)
            for i in range(g * SAMPLES, (g + 1) * SAMPLES)
        ]
        for g in range(4)
    ]

    async def whole():
        state.semaphore = asyncio.Semaphore(8)
        worker = worker_module.AsyncRolloutWorker(args, Prompts(groups), concurrency=3)
        worker.poll_interval = 0.01
        monkeypatch.setattr(worker_module, "_get_global_worker", lambda args, source: worker)
        running = asyncio.create_task(worker._loop())
        batch = await worker_module._generate_rollout_async(args, 0, worker.data_buffer)
        worker.running = False
        await running
        return batch

    samples = [sample for group in asyncio.run(whole()) for sample in group]
    assert [sample.index for sample in samples] == list(range(8))
    assert len(server.seen) == 8 + sum(len(cuts) for cuts in CUTS.values())
    rollout_hooks.log_rollout(0, args, samples, {}, 1.0)
    origins = [pickle.loads(pickle.dumps(sample.metadata[versions.CARRIER])) for sample in samples]
    expected = {0: ((2, 1), (1, 3), (3, 4)), 3: ((6, 4),), 4: ((5, 2), (1, 4))}
    assert [origin.parts for origin in origins] == [expected.get(i, ((6, 4),)) for i in range(8)]
    for sample, origin in zip(samples, origins, strict=True):
        assert sample.response_length == len(sample.rollout_log_probs) == RESPONSE and not sample.remove_sample
        # A row has the version under which the next token was drawn; the prompt's rows have that of the first token.
        rows = [(len(PROMPT), origin.parts[0][1]), *origin.parts]
        by_row = [version for count, version in rows for _ in range(count)]
        routes = torch.stack([make_routes(40, seed=version)[row] for row, version in enumerate(by_row)])
        assert torch.equal(sample.rollout_routed_experts.int(), routes), sample.index
