"""Requests to an engine of any kind, and what of its responses must repeat."""

import random

from sat_slime.lab.responses import GenerationRequest

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
