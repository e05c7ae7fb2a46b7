"""What cannot be told from what was given, and which of slime's flags would give it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sat_slime.report.checkup.checkup import Checkup
from sat_slime.runs.collapse import FLOOR_STEPS, SCORES
from sat_slime.runs.rows import has


def unknown(found: Checkup) -> Iterator[str]:
    """A sentence for each thing."""
    yield from _of_curves(found)
    yield from _of_dumps(found)
    yield (
        "Whether the mismatch is staleness or a difference of the engines: that needs the trainer's log-probs under "
        "the weights that generated the batch, which no data of slime holds (docs/diagnose.md). The first step of a "
        "run has no staleness: what is there is the engines'."
    )


def _of_curves(found: Checkup) -> Iterator[str]:
    metrics = found.data.metrics
    if not metrics:
        yield (
            "Since when, and what came first: no tracker was given. Add a TensorBoard folder (--use-tensorboard "
            "--tb-project-name NAME), a W&B export, or the log that the job printed, which has the same numbers."
        )
        return
    if len(metrics["step"]) < FLOOR_STEPS:
        yield f"Trends: only {len(metrics['step'])} steps are there, and levels are compared over {FLOOR_STEPS}."
    if not has(metrics, "mismatch/d_pi"):
        yield (
            "How far the trained policy is from the one that sampled: slime logs train/train_rollout_logprob_abs_diff "
            "by itself where samples have the engine's log-probs. It is missing here, so a custom rollout function "
            "leaves them out, or that chart was not exported."
        )
    if not has(metrics, "reward/mean"):
        yield "The training reward: rollout/raw_reward is missing; in W&B it is another chart, to be exported too."
    if not has(metrics, "loss/kl"):
        yield (
            "The distance from the reference: add --use-kl-loss; with --kl-loss-coef 0 it is measured alone, for a "
            "forward pass of the reference."
        )
    if not has(metrics, "ois") and not has(metrics, "tis"):
        yield (
            "What importance weights do: slime logs train/tis and train/tis_clipfrac with --use-tis. --get-mismatch-"
            "metrics alone does not measure: it wants a --custom-tis-function-path, whose loss is then used."
        )
    if len(found.data.evals.get("accuracy", ())) < SCORES:
        yield f"Whether held-out accuracy fell: fewer than {SCORES} evaluations are there. Add --eval-interval."
    if not any(key.startswith(("staleness/", "lag/")) for key in metrics):
        yield (
            "The lag of each batch: slime logs rollout/staleness/* only in its newest, fully asynchronous rollout. "
            "Otherwise weight_versions of --save-debug-rollout-data tell it for a batch."
        )


def _of_dumps(found: Checkup) -> Iterator[str]:
    if not found.tokens.steps:
        yield (
            "In which tokens the mismatch is, its tail and what a stabilizer would do: add --save-debug-train-data "
            "'DIR/{rollout_id}.pt' (slime 0.3.1: 'DIR/{rollout_id}_{rank}.pt'), or --dump-details DIR. It costs "
            "about 30 bytes a token on disk, more with routing replay; a few rollouts of a resumed job will do."
        )
    if not found.rollouts:
        yield (
            "Which prompts gave no signal, doubled responses, and the versions of the weights that wrote each: add "
            "--save-debug-rollout-data 'DIR/{rollout_id}.pt', or --dump-details DIR."
        )
    elif all(np.isnan(one.spread) for one in found.rollouts):
        yield "How stale samples are: their weight_versions are empty, since the engine reported none."
