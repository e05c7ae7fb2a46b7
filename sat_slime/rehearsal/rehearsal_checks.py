"""Holds the rows and samples that a rehearsal left against what its settings ask for: each check with what was expected
and found."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sat_slime.config.jsonl import number, read_rows
from sat_slime.config.method_section import build_method
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.report.dumps import load_payload

OK, WARN, FAIL, NOTE = "OK", "WARN", "FAIL", "NOTE"
"""Marks: held, may be wrong, did not hold, and what is told without a right value."""
ROUNDING = 5e-4
"""Mean |log pi - log mu| below which trainer and engine agree in fp32, where a softmax over 152,000 words is 1e-4 off
its value in fp64: a wrong rotary base or one expert less changes it by 5e-2."""
LEFT = (
    "Only GPUs can show: memory of CUDA and its fragments, kernels and their rounding (a bf16 mismatch is another "
    "one), NCCL and the network, Transformer Engine and flash attention, slime's fork of the router, imbalance of "
    "trained experts, and how fast it is."
)


@dataclass(frozen=True)
class Check:
    """One thing that was held against what it should be."""

    what: str
    expected: str
    found: str
    mark: str = OK
    remark: str = ""


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Records:
    """What the checks read: rows of the run, and the samples of each rollout, as dicts of slime's."""

    metrics: Sequence[Row] = ()
    evaluations: Sequence[Row] = ()
    rollouts: Mapping[int, list[Row]] = field(default_factory=dict)


def read_records(folder: Path, run: Path) -> Records:
    """Read the samples in a rehearsal's folder and the rows of its run's folder, as far as they are there."""
    files = (file for file in folder.glob("rollouts/*.pt") if file.stem.isdigit())
    rollouts = {int(file.stem): load_payload(file)["samples"] for file in files}
    return Records(read_rows(run / "metrics.jsonl"), read_rows(run / "eval.jsonl"), rollouts)


def check(what: str, expected: object, found: object, remark: str = "", same: bool | None = None) -> Check:
    """Return a check that held if both are the same, or `same` says so."""
    held = expected == found if same is None else same
    return Check(what, str(expected), str(found), OK if held else FAIL, remark)


def all_checks(thin: SlimeConfig, records: Records, first: int) -> list[Check]:
    """Return every check that the records allow. first: iterations of the first job, after which the run is resumed."""
    parts = (_order(thin, records, first), _numbers(thin, records), _responses(thin, records))
    return [*itertools.chain(*parts), *_evaluations(thin, records, first)]


def expected_order(thin: SlimeConfig, first: int) -> tuple[list[int], list[int]]:
    """Return, in optimizer steps, the lag at which each iteration is trained in mode batch, 0, 1, ..., n, 1, ..., and
    the weights that each evaluation measures, those of the newest push. A job begins, and its first batch is generated,
    with newest weights. first: iterations of the first job."""
    lag, every, end = thin.pipeline.lag, thin.eval.every_n_iterations, thin.pipeline.iterations
    lags, measured = [], [0]
    pushed = generated = 0
    for iteration in range(end):
        if iteration in (0, first):
            pushed = generated = iteration
        lags.append(iteration - generated)
        generated = pushed  # the next batch is generated while this one is trained
        ended = iteration + 1 in (first, end)
        if ended or (iteration + 1) % max(lag, 1) == 0:
            pushed = iteration + 1
            generated = pushed if lag == 0 else generated
        if ended or (every and (iteration + 1) % every == 0):
            measured.append(pushed)
    steps = thin.pipeline.optimizer_steps_per_rollout
    return [lag * steps for lag in lags], [weights * steps for weights in measured]


def _order(thin: SlimeConfig, records: Records, first: int) -> Iterator[Check]:
    steps = [row.get("lag/max") for row in records.metrics]
    found = steps[:: thin.pipeline.optimizer_steps_per_rollout]
    yield check("iterations trained", thin.pipeline.iterations, len(found))
    if thin.pipeline.mode == "streaming":
        bound = thin.pipeline.max_staleness
        held = all(lag is not None and lag <= bound for lag in steps)
        yield check("largest lag of each step", f"at most {bound}", _listed(steps), same=held)
        return
    expected = expected_order(thin, first)[0][: len(found)]  # of those that were trained
    yield check("lag of each batch", _listed(expected), _listed(found), same=expected == found)
    several = sum(len({str(v) for v in sample.get("weight_versions") or ()}) != 1 for sample in _samples(records))
    yield check("responses of more or less than one version of the weights", 0, several)


def _listed(values: Iterable[Any], digits: str = "g") -> str:
    return ", ".join("?" if value is None else f"{value:{digits}}" for value in values)


def _samples(records: Records) -> list[Row]:
    return [*itertools.chain.from_iterable(records.rollouts.values())]


def _numbers(thin: SlimeConfig, records: Records) -> Iterator[Check]:
    known = [row for row in records.metrics if "mismatch/d_pi" in row]
    fresh = [number(row, "mismatch/d_pi") for row in known if row.get("lag/max") == 0]
    if fresh and (thin.method.r3 or not thin.model.is_moe):
        yield check(
            "|log pi - log mu| at lag 0, nats a token",
            f"below {ROUNDING:g}",
            _listed(fresh, ".2g"),
            "trainer and engines have the same weights, through slime's own conversion and push",
            all(value < ROUNDING for value in fresh),
        )
    if stale := [row["mismatch/d_pi"] for row in known if row.get("lag/max")]:
        yield Check("the same at a lag", "", _listed(stale, ".2g"), NOTE)
    norms = [number(row, "grad_norm") for row in records.metrics]
    yield check("gradient norms", "finite", _listed(norms, ".2g"), same=all(map(math.isfinite, norms)))
    method = build_method(thin.method)
    if not method.sat:
        return
    opened = any(row.get("sat/gate_rate") for row in records.metrics if row.get("lag/max"))
    yield Check(
        f"SAT's gate, share of tokens (scope {method.scope})",
        f"at most {1 - method.sat.alpha:.2g} of its units; above 0 at a lag",
        _listed((row.get("sat/gate_rate", math.nan) for row in records.metrics), ".3f"),
        OK if opened else WARN,
        "" if opened else "it never opened: weights that do not move, or too few tokens for the quantile",
    )


def _responses(thin: SlimeConfig, records: Records) -> Iterator[Check]:
    samples, batch, limit = _samples(records), thin.rollout.responses_per_iteration, thin.rollout.max_response_tokens
    if not samples:
        return
    lengths = [sample["response_length"] for sample in samples]
    found = f"{sum(lengths) / len(lengths):.0f} on average, {max(lengths)} the longest"
    yield Check("tokens of a response", "", found, NOTE)
    sizes = sorted({len(rollout) for rollout in records.rollouts.values()})
    yield check("responses of each batch", batch, _listed(sizes), same=sizes == [batch])
    reasons = Counter(str(sample["status"]) for sample in samples)
    found = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    ended, known = bool(reasons.get("completed")), set(reasons) <= {"completed", "truncated"}
    if known and not ended and thin.model.tied_embeddings:
        remark = "random words: a thin model with tied embeddings does not end a response by itself"
        yield Check("why responses ended", "", found, NOTE, remark)
    else:
        remark = "" if ended else "no response ended by a stop token"
        yield check("why responses ended", "stop tokens, some at the limit", found, remark, ended and known)
    if long := {sample["response_length"] for sample in samples if sample["status"] == "truncated"}:
        yield check("length of those at the limit", limit, _listed(sorted(long)), same=long == {limit})
    key = thin.slime.get("reward-key")
    rewards = (sample["reward"] for sample in samples)
    numbers = [reward.get(key) if isinstance(reward, dict) and key else reward for reward in rewards]
    counted = Counter(f"{reward:g}" if isinstance(reward, (int, float)) else str(reward) for reward in numbers)
    remark = "" if len(counted) > 1 else "all alike: advantages are 0, and only KL and decay move weights"
    shown = ", ".join(f"{count} x {reward}" for reward, count in counted.most_common(5))
    yield Check("rewards", "", shown, NOTE, remark)


def _evaluations(thin: SlimeConfig, records: Records, first: int) -> Iterator[Check]:
    if not thin.eval.every_n_iterations:
        return
    expected, dataset = expected_order(thin, first)[1], next(iter(thin.eval.prompts), None)
    found = [row.get("weights_step") for row in records.evaluations if row.get("dataset") == dataset]
    what = "weights of each evaluation, in optimizer steps"
    yield check(what, _listed(expected), _listed(found), same=expected == found)
