"""The verifier as slime's reward: --custom-rm-path sat_slime.plugin.reward.default, or another mode's name.

A key `sat_slime_verifier` of slime's --custom-config-path file sets the number of worker processes and the limits:

    sat_slime_verifier: {workers: 8, cpu_s: 3.0, memory_mb: 1024}

slime calls these functions in the event loop of a background thread, where no signal handler can be set; the worker
processes need none.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import os
import re
import threading
from argparse import Namespace
from typing import Any

from sat_slime.config.loader import read_section
from sat_slime.config.schema import VerifierLimits
from sat_slime.reward import Limits, Mode, VerifierPool

# Only the workers import these. The launcher imports this module on every node, and so learns where they are missing.
for _name in ("math_verify", "latex2sympy2_extended"):
    if importlib.util.find_spec(_name) is None:
        raise ModuleNotFoundError(f"No module named '{_name}': pip install '.[reward]' in a checkout", name=_name)

KEY = "sat_slime_verifier"
VERDICT = "sat_slime_verdict"
"""Key of a sample's metadata: the reason of its verdict."""
_MAX_WORKERS = 8
_END_TOKEN = re.compile(r"(?:<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|</s>|<eos>|<end_of_turn>)\Z")
"""The token on which an engine stopped, such as `<|im_end|>`."""

_lock = threading.Lock()
_pool: VerifierPool | None = None


async def default(args: Namespace, sample: Any, **kwargs: Any) -> Any:
    """Return 1.0 for a right response, else 0.0; a list of them for a list of samples, which slime sends with
    --group-rm."""
    return await _rewards(args, sample, "default")


async def prime_math(args: Namespace, sample: Any, **kwargs: Any) -> Any:
    """Return the same as `default`, with PRIME's verdicts."""
    return await _rewards(args, sample, "prime_math")


def drain_metrics(prefix: str = "rollout/verifier_") -> dict[str, float]:
    """Return the pool's counts since the last call, by names that begin with `prefix`; empty where nothing was
    verified."""
    counts = {} if _pool is None else _pool.drain_metrics()
    if not counts.get("verdicts"):
        return {}
    return {f"{prefix}{name}": value for name, value in counts.items()}


def without_end_token(response: str) -> str:
    """Return the response as a reader sees it. slime's text ends with the token on which the engine stopped
    (no_stop_trim), so that `Answer: 34` is `Answer: 34<|im_end|>`; verl, whose verdicts prime_math has, decodes without
    special tokens."""
    end = _END_TOKEN.search(response, max(0, len(response) - 64))
    return response[: end.start()] if end else response


async def _rewards(args: Namespace, sample: Any, mode: Mode) -> Any:
    pool = _the_pool(args)
    if isinstance(sample, list):
        return list(await asyncio.gather(*(_reward(pool, response, mode) for response in sample)))
    return await _reward(pool, sample, mode)


async def _reward(pool: VerifierPool, sample: Any, mode: Mode) -> float:
    if sample.label is None:
        raise ValueError(f"sample {sample.index} has no label: name its column with slime's --label-key")
    response = without_end_token(sample.response)
    if mode == "default" and str(getattr(sample, "prompt", "")).rstrip().endswith("<think>"):
        response = f"<think>{response}"  # the chat template has opened it
    verdict = await pool.verify_async(response, str(sample.label), mode)
    sample.metadata = {**(sample.metadata or {}), VERDICT: verdict.reason}
    return verdict.reward


def _the_pool(args: Namespace) -> VerifierPool:
    """Return the verifier pool of this process; the first call makes it. Raises ConfigError, a ValueError, with a line
    for every fault of its settings."""
    global _pool
    with _lock:
        if _pool is None:
            asked = read_section(VerifierLimits, getattr(args, KEY, None) or {}, f"{KEY} in --custom-config-path")
            workers = asked.workers or max(1, min(_MAX_WORKERS, (os.cpu_count() or 2) // 2))
            _pool = VerifierPool(workers, Limits(asked.cpu_s, asked.memory_mb))
            atexit.register(_pool.close)
        return _pool
