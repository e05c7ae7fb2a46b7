"""The verifier as slime's reward: --custom-rm-path sat_slime.plugin.reward.default, or another mode's name. slime calls
it in a background thread's event loop, where no signal handler can be set; the worker processes need none."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from argparse import Namespace
from typing import Any

from sat_slime.plugin.rollout_hooks import VERDICT
from sat_slime.reward import Mode, shared_pool

# Only the workers import these. The launcher imports this module on every node, and so learns where they are missing.
for _name in ("math_verify", "latex2sympy2_extended"):
    if importlib.util.find_spec(_name) is None:
        raise ModuleNotFoundError(f"No module named '{_name}': pip install '.[reward]' in a checkout", name=_name)

_END_TOKEN = re.compile(r"(?:<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|</s>|<eos>|<end_of_turn>)\Z")
"""The token on which an engine stopped, such as `<|im_end|>`."""


async def default(args: Namespace, sample: Any, **kwargs: Any) -> Any:
    """Return 1.0 for a right response, else 0.0; a list of them for a list of samples, which slime sends with
    --group-rm."""
    return await _rewarded(sample, "default")


async def prime_math(args: Namespace, sample: Any, **kwargs: Any) -> Any:
    """Return the same as `default`, with PRIME's verdicts."""
    return await _rewarded(sample, "prime_math")


def without_end_token(response: str) -> str:
    """Return the response as a reader sees it. slime's text ends with the token on which the engine stopped
    (no_stop_trim), so that `Answer: 34` is `Answer: 34<|im_end|>`; verl, whose verdicts prime_math has, decodes without
    special tokens."""
    end = _END_TOKEN.search(response, max(0, len(response) - 64))
    return response[: end.start()] if end else response


async def _rewarded(sample: Any, mode: Mode) -> Any:
    if isinstance(sample, list):
        return list(await asyncio.gather(*(_rewarded(one, mode) for one in sample)))
    if isinstance(sample.label, (type(None), list, dict)):
        raise ValueError(
            f"the label of sample {sample.index} is {sample.label!r}, which is no text and no number to compare with: "
            "name the column that has one with slime's --label-key"
        )
    response = without_end_token(sample.response)
    if mode == "default" and str(getattr(sample, "prompt", "")).rstrip().endswith("<think>"):
        response = f"<think>{response}"  # the chat template has opened it
    verdict = await shared_pool().verify_async(response, str(sample.label), mode)
    sample.metadata = {**(sample.metadata or {}), VERDICT: verdict.reason}
    return verdict.reward
