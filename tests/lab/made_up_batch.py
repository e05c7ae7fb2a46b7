"""A graded batch of made-up answers."""

from __future__ import annotations

import numpy as np

from sat_slime.config.schema import LabConfig
from sat_slime.lab.batch import RolloutBatch, training_requests
from sat_slime.lab.responses import Response

CONFIG = LabConfig(rollout={"prompts_per_iteration": 3, "samples_per_prompt": 4})


def make_batch(answers: list[str], version: int = 0) -> RolloutBatch:
    problems, requests = training_requests(CONFIG, 0)
    responses = []
    for request, answer in zip(requests, answers, strict=True):
        output = CONFIG.task.encode(answer)
        rows = len(request.prompt_ids) + len(output) - 1
        responses.append(
            Response(
                request_id=request.request_id,
                prompt_ids=request.prompt_ids,
                output_ids=output,
                log_probs=np.linspace(-1, 0, len(output), dtype=np.float32),
                routed_experts=np.arange(rows * 4, dtype=np.uint8).reshape(rows, 2, 2),
                finish_reason="stop" if answer.endswith("$") else "length",
                versions=np.full(len(output), version, np.int64),
            )
        )
    return RolloutBatch(CONFIG.task, 0, problems, responses, seconds=1.5).judged()
