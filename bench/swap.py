"""Measures what new weights in the middle of a response do to the probabilities that the engine reports.

    python bench/swap.py RUN_FOLDER

RUN_FOLDER is a run in mode streaming, whose `weights/` hold several versions. A real SGLang server in float32 decodes
under the oldest version; in the middle it is given the newest, in each of the three ways that SGLang has. Every token
is scored with transformers under both. The table has |log mu - log pi| in nats, over the tokens before the change under
the old weights, and over those after it under the new ones: 0 but for rounding, if mu is of one version of the weights.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sat_slime.config.loader import load_config
from sat_slime.config.schema import LabConfig
from sat_slime.lab.engine.server import SGLangServer
from sat_slime.lab.rollout_batch import training_requests
from sat_slime.rollout.client import SGLangClient
from sat_slime.rollout.continuation import rest
from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for
from sat_slime.rollout.types import GenerationRequest, Response

WAYS = {
    "in_place": "pause in place: keys and values of the old weights stay",
    "retract": "pause with retraction: they are computed anew",
    "abort": "abort, and send again with the tokens so far: the same, and what this project does",
}
ROUNDING = 2e-5
"""Nats by which two float32 implementations of one model differ at most."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--after", type=float, default=0.5, help="seconds of decoding before the change")
    options = parser.parse_args()
    folders = sorted((options.run / "weights").iterdir())
    old, new = folders[0], folders[-1]
    config = load_config(options.run / "config.yaml", ["rollout.dtype=float32", "rollout.base_port=null"])
    torch.set_num_threads(1)
    found = asyncio.run(measure(config, old, new, options.after))
    print(f"{old.name} to {new.name}, float32")
    for way, answers in found.items():
        before, after, changed = errors(answers, old, new)
        print(f"{way:9} {len(answers)} responses, {changed} across the change   ({WAYS[way]})")
        for name, values in (("before", before), ("after", after)):
            mean, tail, most = values.mean(), *np.quantile(values, [0.99, 1.0])
            told = f"mean {mean:.1e}   99 % {tail:.1e}   max {most:.1e}"
            print(f"    {name:6} {len(values):6} tokens   {told}")


async def measure(config: LabConfig, old: Path, new: Path, after: float) -> dict[str, list[Any]]:
    """(prompt, tokens, log-probs) of every response, by the way in which the weights were changed."""
    _, requests = training_requests(config, 0)
    requests = requests[::4]
    found: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as logs:
        server = SGLangServer(0, config.rollout, config.model, logs)
        await server.start(str(old), 0)
        try:
            for way in WAYS:
                await server.client.update_weights(str(old), 0)
                await server.client.generate(requests[:8], [f"warm-{way}-{i}" for i in range(8)])
                found[way] = await swapped(server.client, way, requests, new, after)
        finally:
            server.stop()
    return found


async def swapped(
    client: SGLangClient, way: str, requests: list[GenerationRequest], new: Path, after: float
) -> list[Any]:
    """(prompt, tokens, log-probs) of all responses; the weights are changed after `after` seconds."""
    generating = asyncio.create_task(client.generate(requests, [f"{way}-{r.request_id}" for r in requests]))
    await asyncio.sleep(after)
    if way == "abort":
        await client.abort_all()
        first = await generating
        await client.update_weights(str(new), 1)
        parts = [part_of(request, answer) for request, answer in zip(requests, first, strict=True)]
        cut = [i for i, answer in enumerate(first) if answer["meta_info"]["finish_reason"]["type"] == "abort"]
        again = [rest(requests[i], [parts[i]]) for i in cut]
        second = await client.generate(again, [f"again-{r.request_id}" for r in again])
        tokens = {i: part_of(request, answer) for i, request, answer in zip(cut, again, second, strict=True)}
        return [
            (p.prompt_ids, p.output_ids + tokens[i].output_ids, np.concatenate([p.log_probs, tokens[i].log_probs]))
            if i in tokens
            else (p.prompt_ids, p.output_ids, p.log_probs)
            for i, p in enumerate(parts)
        ]
    await client._post("/pause_generation", {"mode": way}, answers=False)
    body = {"model_path": str(new), "weight_version": "1", "flush_cache": False}
    await client._post("/update_weights_from_disk", body)
    await client._post("/continue_generation", {"torch_empty_cache": False}, answers=False)
    whole = [part_of(request, answer) for request, answer in zip(requests, await generating, strict=True)]
    return [(part.prompt_ids, part.output_ids, part.log_probs) for part in whole]


def part_of(request: GenerationRequest, answer: dict[str, Any]) -> Response:
    """A response that has only the tokens and log-probs of the answer."""
    log_probs = np.array([entry[0] for entry in answer["meta_info"]["output_token_logprobs"]], np.float32)
    tokens = tuple(answer["output_ids"])
    versions = np.zeros(len(tokens), np.int64)
    return Response(request.request_id, request.prompt_ids, tokens, log_probs, None, "abort", versions)


def errors(answers: list[Any], old: Path, new: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """|log mu - log pi| of the tokens before the change under `old` and of those after it under `new`, and how many
    responses have both. The change is at the first token that the old weights did not generate."""
    before, after, both = [], [], 0
    for (_, _, log_probs), under_old, under_new in zip(
        answers, scores(answers, old), scores(answers, new), strict=True
    ):
        strange = np.flatnonzero(np.abs(log_probs - under_old) > ROUNDING)
        change = strange[0] if len(strange) else len(log_probs)
        before.append(np.abs(log_probs - under_old)[:change])
        after.append(np.abs(log_probs - under_new)[change:])
        both += 0 < change < len(log_probs)
    return np.concatenate(before), np.concatenate(after), both


@torch.no_grad()
def scores(answers: list[Any], folder: Path) -> list[np.ndarray]:
    """log pi of the tokens of each response, under the weights in a folder."""
    stand_in_for("torchvision")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt, tokens, _ in answers:
        ids = torch.tensor([[*prompt, *tokens]])
        log_probs = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1], -1)
        found.append(log_probs.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy())
    return found


if __name__ == "__main__":
    main()
