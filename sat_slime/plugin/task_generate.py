"""The generate function of a task with a tool, of ours or of your own, in slime:
--custom-generate-function-path sat_slime.plugin.task_generate.generate."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from sat_slime.plugin.task_reward import task_of
from sat_slime.tasks import Task


async def generate(args: Namespace, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """Return a slime sample whose turns slime's own function generates; after each that ends with a call come the
    tokens of the tool, which are not trained. A sample that a push has aborted goes on from what it has.

    The task is the sample's (`sat_slime.plugin.task_reward`). A response ends with its call where nothing could follow
    the tool's answer within max_new_tokens. Raises RuntimeError in slime v0.3.1 and earlier, which cannot append a
    tool's tokens; ValueError as the task's `called_tool`.
    """
    from slime.rollout import sglang_rollout

    if not hasattr(sample, "append_response_tokens"):
        raise RuntimeError(
            "this slime has no Sample.append_response_tokens, which a tool's answer needs: take a newer one"
        )
    task, status = task_of(sample), type(sample).Status
    stops = [*(sampling_params.get("stop_token_ids") or []), *task.stop_ids]
    while True:
        if written := _answer_of_tool(task, sample, sampling_params["max_new_tokens"]):
            text = task.decode(written)
            sample.append_response_tokens(args, tokens=list(written), trainable=False, text=text)
            sample.status = status.PENDING  # slime goes on with no other
        sample = await sglang_rollout.generate(args, sample, {**sampling_params, "stop_token_ids": stops})
        if sample.status != status.COMPLETED or not _answer_of_tool(task, sample, sampling_params["max_new_tokens"]):
            return sample


def _answer_of_tool(task: Task, sample: Any, max_new_tokens: int) -> tuple[int, ...]:
    """Return the tokens that the tool writes now; none where the response does not end with a call of the model's, or
    where no token could follow."""
    written = task.called_tool(sample.tokens[len(sample.tokens) - sample.response_length :]) or ()
    return written if sample.response_length + len(written) < max_new_tokens else ()
