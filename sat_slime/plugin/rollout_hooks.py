"""Hooks in slime's rollout process: they see each sample as it arrives, each batch and evaluation when it is logged.

slime takes them by --rollout-sample-hook-path (on_sample), --custom-rollout-log-function-path (log_rollout) and
--custom-eval-rollout-log-function-path (log_eval). docs/internals/architecture.md says what each is for.
"""

from __future__ import annotations

import functools
import json
import logging
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sat_slime.config.rules import reads_engine
from sat_slime.evaluation.scores import summary
from sat_slime.plugin import r3, versions
from sat_slime.plugin.compat import slime_function
from sat_slime.plugin.settings import plugin_config, plugin_method, steps_per_rollout, takes_engines
from sat_slime.plugin.step import StepFile
from sat_slime.reward import shared_pool
from sat_slime.rollout.stream import STREAM_METRICS
from sat_slime.rollout.validation import Expectations, RejectedResponse, check_numbers

logger = logging.getLogger(__name__)

FAULT = "sat_slime_fault"
"""Key of a sample's metadata: the reason why it is not trained on."""
VERDICT = "sat_slime_verdict"
"""Key of a sample's metadata: the reason of its verdict. It is here, since reward.py asks for math-verify."""
KEPT_ROUTES = "sat_slime_routes"
"""Key of an interrupted sample's metadata: the tokens and the routes that it has so far."""
MAX_REJECTED = 0.01
"""Share of a batch's samples that may be left out. If more are, and more than one, it is no accident."""
TRACKED = ("accuracy/", "reasons/")
"""Beginnings of the scores that go to slime's trackers: slime logs the mean, lengths and truncation itself."""

_generated = -1
"""The newest rollout that was generated in this process."""
_told: set[str] = set()
"""The reasons for which a sample was left out in this process."""


def on_sample(args: Namespace, sample: Any, *, rollout_id: int | None = None, evaluation: bool = False) -> None:
    """Checks the numbers of one of slime's samples as the lab runtime does (rollout/validation.py), and narrows its
    routed experts, in place. A sample of an evaluation loses its routes, which slime asks for and nothing reads.

    A sample with a fault stays in its batch, since slime counts on its size, but trains nothing: slime masks the loss
    of a `remove_sample`. Its reward still counts in its prompt's baseline. A sample that a push cut off is judged when
    it ends. Its tokens keep the routes that they have so far, though the engine forwards them anew, under other
    weights, when it goes on with the sample.
    """
    replays = r3.replays(args)
    if evaluation:
        if replays:
            sample.rollout_routed_experts = None
        return
    aborted = sample.status == type(sample).Status.ABORTED
    if aborted and versions.are_steps(args):
        versions.note_interruption(sample)
    try:
        if replays and sample.rollout_routed_experts is not None:
            sample.rollout_routed_experts = r3.narrow(sample.rollout_routed_experts, args)
            _keep_first_routes(sample, aborted)
        if not aborted:
            _check(args, sample)
    except RejectedResponse as error:
        if not aborted:
            _leave_out(args, sample, rollout_id, error)


def _check(args: Namespace, sample: Any) -> None:
    """Checks the numbers of a sample that ended. Raises RejectedResponse."""
    replays, read = r3.replays(args), _reads_log_probs(args)
    tokens, mask = _listed(sample.tokens) or [], _listed(sample.loss_mask)
    count, log_probs = sample.response_length, _listed(sample.rollout_log_probs)
    longest = max(len(tokens) - 1, 0)  # nothing predicts the first
    if not 0 <= count <= longest or (mask is not None and len(mask) != count):
        raise RejectedResponse("token_count", f"{len(tokens)} tokens, {count} of them response, loss mask {mask!r:.80}")
    if log_probs is None and read and not count:
        sample.rollout_log_probs = []  # slime makes a tensor of it
    if log_probs is None and not (read and count):
        log_probs = [0.0] * count
    routes = sample.rollout_routed_experts if replays else None
    expected = Expectations(
        vocab_size=getattr(args, "vocab_size", None) or _vocab_size(getattr(args, "hf_checkpoint", None)),
        layers=args.num_layers if replays else 0,
        experts=args.num_experts if replays else 0,
        top_k=args.moe_router_topk if replays else 0,
        routed=r3.routed_layers(args) if replays else None,
    )
    response = tokens[len(tokens) - count :]
    check_numbers(response, log_probs, None if routes is None else routes.numpy(), len(tokens) - 1, expected, mask)


def _reads_log_probs(args: Namespace) -> bool:
    method = plugin_method(args)
    return reads_engine(method) or takes_engines(args, method) or bool(getattr(args, "use_rollout_logprobs", False))


def _listed(values: Any) -> list[Any] | None:
    """Return a list, an array or a tensor as a list; None for what is none of them."""
    values = values.tolist() if hasattr(values, "tolist") else values
    return list(values) if isinstance(values, (list, tuple)) else None


@functools.cache
def _vocab_size(folder: str | None) -> int | None:
    """Return the size of the vocabulary of a Hugging Face folder, which slime reads in its trainers alone; None where
    it is not told."""
    try:
        config = json.loads((Path(folder or "") / "config.json").read_text(encoding="utf-8"))
        return int(config.get("vocab_size") or config["text_config"]["vocab_size"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _keep_first_routes(sample: Any, aborted: bool) -> None:
    """Keeps in each row the experts under which the next token was drawn (R3), however often it was forwarded since.
    An agent may begin a response anew after an interruption, which then has new routes alone."""
    metadata = dict(sample.metadata or {})
    before, kept = metadata.pop(KEPT_ROUTES, ([], None))
    routes, tokens = sample.rollout_routed_experts, _listed(sample.tokens) or []
    if kept is not None and len(kept) <= len(routes) and before == tokens[: len(before)]:
        sample.rollout_routed_experts = routes = torch.cat([kept, routes[len(kept) :]])
    if aborted:
        sample.metadata = {**metadata, KEPT_ROUTES: (tokens, routes)}
    elif kept is not None:
        sample.metadata = metadata


def _leave_out(args: Namespace, sample: Any, rollout_id: int | None, fault: RejectedResponse) -> None:
    """Has a sample train nothing. The first of each reason is logged. Numbers that would harm under a mask too are
    replaced, behind the first fault too: slime multiplies by it, embeds tokens and replays routes."""
    if fault.reason not in _told:
        _told.add(fault.reason)
        logger.warning("sample %s is left out of training: %s", _name(sample, rollout_id), fault)
    sample.remove_sample = True
    sample.metadata = {**(sample.metadata or {}), FAULT: str(fault)}
    if r3.replays(args):
        sample.rollout_routed_experts = r3.stand_in(len(sample.tokens), args)
    if fault.reason == "vocab_range":
        sample.tokens = [0] * len(sample.tokens)
    sample.response_length = count = max(0, min(sample.response_length, len(sample.tokens) - 1))
    sample.loss_mask = [0] * count
    if sample.rollout_log_probs is not None or _reads_log_probs(args):  # slime takes those of all samples or of none
        sample.rollout_log_probs = [0.0] * count


def _name(sample: Any, rollout_id: int | None) -> str:
    source = getattr(sample, "source", None) or (sample.metadata or {}).get("source_name")
    return f"{sample.index} of rollout {rollout_id}" + (f" ({source})" if source else "")


def log_rollout(
    rollout_id: int,
    args: Namespace,
    samples: Sequence[Any],
    rollout_extra_metrics: dict[str, Any] | None,
    rollout_time: float,
) -> bool:
    """Does what takes the whole batch: it counts by reason what is left out, sends versions to the trainer, and reports
    the verifier's counts. It returns False, so that slime's own logging goes on. Raises RuntimeError where too many
    samples are left out for an accident, or some are of weights that our driver never sent."""
    global _generated
    _generated = rollout_id
    left_out = _count_left_out(samples, rollout_id)
    if rollout_extra_metrics is not None:
        rollout_extra_metrics.update(left_out)
    if versions.are_steps(args):
        strange = sum(versions.NEVER_PUSHED in sample.weight_versions for sample in samples)
        if strange and not (args.debug_rollout_only or args.debug_train_only):  # with these nothing is pushed
            raise RuntimeError(
                f"rollout {rollout_id}: {strange} of {len(samples)} responses are of weights that this run never sent "
                "(version default): an engine started again by itself, or another run's took its address. They are not "
                "trained: go on from the checkpoint (--resume, or cluster.restarts)"
            )
        metrics = left_out | {k: v for k, v in (rollout_extra_metrics or {}).items() if k.startswith(STREAM_METRICS)}
        if plugin_config(args).driver.mode == "batch":  # in mode streaming it is the wait for a batch
            metrics["time/rollout"] = rollout_time
        if reason := versions.send_origins(samples, metrics):
            logger.warning("rollout %d: lag is unknown: %s", rollout_id, reason)
    if verified := drain_metrics():
        _track(args, {**verified, "rollout/step": slime_function("compute_rollout_step")(args, rollout_id)})
    return False


def _count_left_out(samples: Sequence[Any], rollout_id: int) -> dict[str, float]:
    """Return the counts of samples that are left out, rollout/rejected and one for each reason. Raises RuntimeError
    where they are too many."""
    faults = [sample for sample in samples if FAULT in (sample.metadata or {})]
    reasons = Counter(sample.metadata[FAULT].partition(":")[0] for sample in faults)
    if len(faults) > max(1, MAX_REJECTED * len(samples)):
        (reason, _), *_ = reasons.most_common(1)
        first = next(sample for sample in faults if sample.metadata[FAULT].startswith(reason))
        missing = "the generate function has to give rollout_log_probs" if reason == "log_probs_missing" else ""
        if reason in ("token_count", "routed_experts_missing", "routed_experts_shape"):
            missing = (
                "a generate function of your own gives columns of another length, or with R3 no answer at the end; "
                "else an engine is damaged, see its log"
            )
        raise RuntimeError(
            f"rollout {rollout_id}: {len(faults)} of {len(samples)} samples cannot be trained on "
            f"({', '.join(f'{name} {count}' for name, count in reasons.most_common())}), first sample "
            f"{_name(first, rollout_id)}: {first.metadata[FAULT]}: "
            + (missing or "an engine or its weights are damaged, see its log")
        )
    by_reason = {f"rollout/rejected/{name}": float(count) for name, count in reasons.items()}
    return {"rollout/rejected": float(len(faults)), **by_reason}


def log_eval(
    rollout_id: int, args: Namespace, data: dict[str, dict[str, Any]], extra_metrics: dict[str, Any] | None
) -> bool:
    """Records for each evaluated data set its scores and the weights that they are of: a line of eval.jsonl, and in
    slime's trackers `eval/DATASET/...`, `eval/DATASET-weights_step`, and `eval_at_weights/DATASET` over the weights'
    step. It returns False, so that slime's own logging goes on."""
    slime_step = {"eval/step": slime_function("compute_rollout_step")(args, rollout_id)}
    known, rows = versions.are_steps(args), []
    for dataset, result in data.items():
        samples = result.get("samples") or []
        weights = _weights_step(samples, dataset) if known else None
        try:
            scores = _scores(args, dataset, result)
        except (TypeError, ValueError) as error:  # rewards of several parts, which only the user's own logger reads
            logger.warning("evaluation of %s is not recorded: %s", dataset, error)
            continue
        # slime evaluates after the training of a rollout, which may have been another job's; and before the first.
        trained = 0 if rollout_id == 0 and _generated < 0 and not weights else rollout_id + 1
        step = trained * steps_per_rollout(args)
        rows.append({"step": step, "weights_step": weights, "dataset": dataset, **scores, "rollout_id": rollout_id})
        tracked = {f"eval/{dataset}/{key}": value for key, value in scores.items() if key.startswith(TRACKED)}
        if weights is not None:
            tracked |= {f"eval/{dataset}-weights_step": weights}
            _track(args, {f"eval_at_weights/{dataset}": scores["accuracy"], "eval_at_weights/step": weights})
        if tracked:
            _track(args, tracked | slime_step)
    if verified := drain_metrics("eval/verifier/"):  # `eval/NAME` would be a data set's score
        _track(args, verified | slime_step)
    alone = getattr(args, "num_rollout", None) == 0 and not known  # of whatever checkpoint, which slime calls rollout 0
    if (run_dir := plugin_config(args).run_dir) is not None and not alone:
        _eval_file(Path(run_dir) / "eval.jsonl").append(rows)
    return False


def _scores(args: Namespace, dataset: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of one data set's responses. slime has the samples of a problem one after another."""
    rewards = result["rewards"]
    named = {one.name: one.n_samples_per_eval_prompt for one in getattr(args, "eval_datasets", None) or []}
    samples = named.get(dataset) or getattr(args, "n_samples_per_eval_prompt", None) or 1
    answers = result.get("samples") or []
    told = [sample.index for sample in answers if sample.index is not None]
    if len(rewards) % samples or len(set(told)) < len(told):  # an agent made several samples of one
        logger.warning(
            "evaluation of %s: %d rewards are not %d samples a problem, or share an index: only their mean is known",
            *(dataset, len(rewards), samples),
        )
        return {"accuracy": sum(rewards) / len(rewards), "n_samples": len(rewards)}
    reasons = [verdict for one in answers if (verdict := (one.metadata or {}).get(VERDICT)) is not None]

    def by_problem(values: Sequence[Any]) -> np.ndarray | None:
        return np.array(values).reshape(-1, samples) if len(values) == len(rewards) else None

    return summary(
        np.array(rewards, np.float64).reshape(-1, samples),
        by_problem([sample.response_length for sample in answers]),
        by_problem([] if (truncated := result.get("truncated")) is None else truncated),
        reasons if len(reasons) == len(rewards) else None,
    )


_eval_file = functools.cache(StepFile)


def _weights_step(samples: Sequence[Any], dataset: str) -> int | None:
    """Return the optimizer step of the weights that generated all samples; None where they are of several, or
    unknown."""
    try:
        steps = {int(version) for sample in samples for version in sample.weight_versions}
    except ValueError:
        steps = set()
    if len(steps) == 1:
        return steps.pop()
    description = f"of steps {sorted(steps)}" if steps else "unknown"
    logger.warning("evaluation of %s: the measured weights are %s", dataset, description)
    return None


def drain_metrics(prefix: str = "rollout/verifier_") -> dict[str, float]:
    """Return the verifier's counts since the last call, by names that begin with `prefix`; empty where nothing was
    verified."""
    if not shared_pool.cache_info().currsize:  # another reward may have no math-verify to make a pool of
        return {}
    counts = shared_pool().drain_metrics()
    return {f"{prefix}{name}": value for name, value in counts.items()} if counts["verdicts"] else {}


def _track(args: Namespace, metrics: dict[str, Any]) -> None:
    """Sends metrics to slime's TensorBoard and Weights & Biases; the one key that ends in /step is their x axis."""
    slime_function("log")(args, metrics, step_key=next(key for key in metrics if key.endswith("/step")))
