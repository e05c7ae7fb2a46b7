"""The check-up of a run of slime that knows nothing of us: what there is of its trackers and dumps is read, summed up
and judged, and a page says what is seen, since when, what to try and what cannot be told."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sat_slime.report.dumps import Skipped, StepBatch, by_number, files_in, find_dumps, steps
from sat_slime.report.page import Page, Section, Table, check_out, count_of, write_page
from sat_slime.report.run import figures as run_figures
from sat_slime.runs import health
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.health import FLOOR_STEPS, LEAST_ESS, MISMATCH_RISE, MOST_TRUNCATED, SCORES, Symptom
from sat_slime.runs.reading import RunData, has, known
from sat_slime.runs.trackers import READABLE, is_tracker, read_tracked, what_it_is


def step_numbers(step: StepBatch) -> dict[str, Any]:
    """Return the numbers of a dumped optimizer step, which has an active token, by the columns of `steps_table`: |d| in
    nats, ESS as (Σ r)² / (n Σ r²) with r = π / μ, shares of the trained responses, of all; cut is NaN if unknown."""
    active, lengths = step.mask.numpy(), step.lengths.numpy()
    d = step.log_probs.double().numpy()[active] - step.rollout_log_probs.double().numpy()[active]
    # the ESS is free of the scale of r, so that its largest can be 1 and nothing overflows
    r = np.exp(d - d.max())
    _, trained = np.unique(np.repeat(np.arange(len(lengths)), lengths)[active], return_inverse=True)
    signal = np.bincount(trained, step.advantages.numpy()[active] != 0) > 0
    quantiles = np.quantile(np.abs(d), (0.9, 0.99, 0.999), method="inverted_cdf")
    return {
        **{"dump": step.name, "responses": len(lengths), "tokens": len(d), "mean |d|": np.abs(d).mean()},
        **dict(zip(("90 %", "99 %", "99.9 %"), quantiles, strict=True)),
        "largest": np.abs(d).max(),
        "ESS": r.sum() ** 2 / (len(r) * (r * r).sum()),
        "no signal": 1 - signal.mean(),
        "cut": np.nan if step.truncated is None else step.truncated.double().mean().item(),
    }


DUMPS = "slime's dumps of training (.pt), or the folder of --dump-details"


@dataclass
class Checkup:
    """What was read of a run."""

    training: list[Path] = field(default_factory=list)
    """Files of --save-debug-train-data."""
    data: RunData = field(default_factory=RunData)
    """Empty without a tracker."""
    steps: pd.DataFrame = field(default_factory=pd.DataFrame)
    """A row for each dumped optimizer step, as `step_numbers` has it."""
    skipped: list[Skipped] = field(default_factory=list)
    """Dumps that could not be read, and why."""


def read(paths: Sequence[Path], on_file: Callable[[str], object] = lambda name: None) -> Checkup:
    """Read all that was given of one run. on_file: is called with the name of what is read next. Raises
    RunFolderError where a path is neither a tracker nor a dump, or nothing could be read."""
    found, trackers = Checkup(), list[Path]()
    for path in paths:
        files = [path] if path.suffix == ".pt" else files_in(path)
        found.training += files
        if path not in files and is_tracker(path):
            trackers.append(path)
        elif not files:
            raise RunFolderError(f"{path}: {what_it_is(path)}. What can be read is {READABLE}; and {DUMPS}")
    if trackers:
        on_file("trackers")
        found.data = read_tracked(trackers)
    dumps, found.skipped = find_dumps(sorted(found.training, key=by_number))
    rows = []
    for step in steps(dumps, found.skipped):
        on_file(step.name)
        rows.append(step_numbers(step))
        del step  # it must not be in memory together with the next one
    found.steps = pd.DataFrame(rows)
    if not found.data.metrics and not found.data.evals and not rows:
        reasons = "; ".join(map(str, found.skipped[:3]))
        raise RunFolderError(f"nothing could be read: {reasons or 'no dump of training was given'}")
    return found


BROKEN = 8.0
"""Nats: a token that one side finds 3,000 times likelier than the other is broken, not stale."""
USUAL = 1.0
"""Nats: where the 99 % quantile is above, it is not single tokens that are far."""
MOST_EQUAL = 0.5
"""Share of the responses without a signal."""
LEAST_DUMPS = 4
"""Dumps in a third of all, since mean |d| goes up and down with the lag from one to the next."""


def dump_symptoms(steps: pd.DataFrame) -> Iterator[Symptom]:
    """Yield what looks unhealthy in dumped steps, what it can mean, and what to try."""
    if not len(steps):
        return
    third = len(steps) // 3
    first, last = steps["mean |d|"].head(third).mean(), steps["mean |d|"].tail(third).mean()
    if third >= LEAST_DUMPS and last >= MISMATCH_RISE * first:
        yield Symptom(
            "drift",
            f"mean |d| grew from {first:.3g} nats (the first {third} dumps, from {steps['dump'].iloc[0]}) to "
            f"{last:.3g} (the last {third}, to {steps['dump'].iloc[-1]})",
            "Ask what each stabilizer would do to these very tokens: sat-slime replay",
        )
    largest = steps.loc[steps["largest"].idxmax()]
    if largest["largest"] > BROKEN and largest["99 %"] < USUAL:
        yield Symptom(
            "broken tokens",
            f"the largest |d| is {largest['largest']:.1f} nats ({largest['dump']}), above {BROKEN:g}, where 99 % of "
            f"the tokens are below {largest['99 %']:.2f}",
            "Single tokens that one side finds impossible: faults of the engine, top-p or top-k sampling that the "
            "trainer does not know, tokens made anew from text. veto and trm-max drop their responses",
        )
    ess, silent, cut = steps[["ESS", "no signal", "cut"]].mean()
    if ess < LEAST_ESS:
        yield Symptom(
            "ess",
            f"raw importance weights would leave {ess:.1%} of the tokens as effective sample, below {LEAST_ESS:.0%}",
            "Weights alone (--use-tis) let a few tokens carry the gradient here: lower --tis-clip, or a gate (icepop, "
            "mis-geo)",
        )
    if silent > MOST_EQUAL:
        yield Symptom(
            "no signal",
            f"{silent:.1%} of the trained responses in the dumps have no advantage but 0, above {MOST_EQUAL:.0%}",
            "The batch is smaller than it seems, and the step noisier: easier or harder prompts, or "
            "--dynamic-sampling-filter-path "
            "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
        )
    if cut > MOST_TRUNCATED:
        yield Symptom(
            "truncated",
            f"{cut:.1%} of the responses in the dumps were cut at the length limit, above {MOST_TRUNCATED:.0%}",
            "It is graded as wrong. Look whether --rollout-stop-token-ids lacks the end of a turn; else raise "
            "--rollout-max-response-len, or mask what was cut",
        )


MOST_ROWS = 24
"""Dumps that a table shows; of more it shows as many, evenly chosen, and its CSV has all."""


def steps_table(frame: pd.DataFrame) -> Table:
    """Tell the mismatch of each dumped optimizer step."""
    many = f" Of {len(frame)} dumps {MOST_ROWS} are shown; the CSV has all." if len(frame) > MOST_ROWS else ""
    nats = dict.fromkeys(("mean |d|", "90 %", "99 %", "99.9 %", "largest"), ".4f")
    return Table(
        "dumped_steps",
        "The mismatch of each dumped step",
        "d = log π − log μ of the active tokens, in nats: mean and quantiles of |d|. ESS: the share of the tokens that "
        "raw importance weights leave. No signal: trained responses without an advantage. Cut: at the length limit."
        f"{many}",
        frame=frame,
        forms={"dump": "", "responses": ",", "tokens": ",", **nats, **dict.fromkeys(("ESS", "no signal", "cut"), "%")},
        most=MOST_ROWS,
    )


def write_checkup(paths: Sequence[Path], folder: Path, on_file: Callable[[str], object] = lambda name: None) -> Page:
    """Write the check-up of a run of slime, from what there is of its trackers and dumps: a page, tables and figures.
    on_file: as of `read`. Raises RunFolderError where nothing could be read, or the folder holds something else."""
    check_out(folder)  # before the dumps are read, which may take minutes
    found = read(paths, on_file)
    of_curves = health.symptoms(found.data)
    names = {symptom.name for symptom in of_curves}
    seen = [*of_curves, *(symptom for symptom in dump_symptoms(found.steps) if symptom.name not in names)]
    worth = health.verdict(found.data, seen)
    what = [f"{one.heading}: {one.text}." for one in seen]
    last = "What a stabilizer bounds and needs: sat-slime methods NAME. The plugin: docs/slime.md"
    what += filter(None, [worth, last]) if seen else []
    unhealthy = f"Unhealthy: {'; '.join(symptom.heading for symptom in seen)}." if seen else worth
    charts = run_figures(found.data)
    return write_page(
        folder / "report.html",
        [
            *charts[:1],
            Section("seen", "What we see, and what to try", sentences=what),
            Section("unknown", "Not visible here, and what would show it", sentences=list(unknown(found))),
            *([steps_table(found.steps)] if len(found.steps) else []),
            *charts[1:],
        ],
        title=f"{Path(paths[0]).resolve().name}: a check-up",
        subtitle="from its trackers and dumps",
        answer=[unhealthy, *_summary(found)],
        warnings=map(str, found.skipped),
        command=f"sat-slime diagnose {shlex.join(map(str, paths))} --out {shlex.quote(str(folder))}",
    )


def _summary(found: Checkup) -> Iterator[str]:
    """Tell what was read and what happened, a sentence each."""
    parts, metrics, dumped = [], found.data.metrics, found.steps
    if metrics:
        at = metrics["step"]
        parts.append(f"{count_of(len(at), 'optimizer step')} of a tracker ({at[0]:.0f} to {at[-1]:.0f})")
    if evals := len(found.data.evals.get("accuracy", ())):
        parts.append(count_of(evals, "evaluation"))
    if len(dumped):
        parts.append(f"{count_of(len(dumped), 'optimizer step')} in dumps, {dumped['tokens'].sum():,} tokens")
    yield f"Read: {'; '.join(parts)}."
    reward = known(metrics, "reward/mean")[1]
    if len(reward) > 1:
        window = max(1, min(16, len(reward) // 2))
        yield (
            f"The training reward went from {reward[:window].mean():.3f} to {reward[-window:].mean():.3f} (means over "
            f"{count_of(window, 'step')})."
        )
    if metrics and (sentence := health.judge(metrics, found.data.evals, found.data.period).sentence):
        yield f"{sentence[0].upper()}{sentence[1:]}."
    if len(dumped):
        folders = shlex.join(sorted({str(path.parent) for path in found.training}))
        yield (
            f"In the dumps mean |d| is {np.average(dumped['mean |d|'], weights=dumped['tokens']):.4f} nats. What every "
            f"stabilizer would have done to these tokens: sat-slime replay {folders}"
        )


UNLOGGED = {
    ("mismatch/d_pi",): (
        "How far the trained policy is from the one that sampled: slime logs train/train_rollout_logprob_abs_diff by "
        "itself where samples have the engine's log-probs. It is missing here, so a custom rollout function leaves "
        "them out, or that chart was not exported."
    ),
    ("reward/mean",): ("The training reward: rollout/raw_reward is missing."),
    ("loss/kl",): (
        "The distance from the reference: add --use-kl-loss; with --kl-loss-coef 0 it is measured alone, for a "
        "forward pass of the reference."
    ),
    ("ois", "tis", "mismatch/ess"): (
        "What importance weights do: slime logs train/tis and train/tis_clipfrac with --use-tis. --get-mismatch-"
        "metrics alone does not measure: it wants a --custom-tis-function-path, whose loss is then used."
    ),
}
"""By metrics, one of which would show it: what is not visible without them, and the flag of slime that logs them."""


def unknown(found: Checkup) -> Iterator[str]:
    """Tell what was given does not show, a sentence each, with the flag of slime that would show it."""
    metrics = found.data.metrics
    if not metrics:
        yield (
            "Since when, and what came first: no tracker was given. Add a TensorBoard folder (--use-tensorboard "
            "--tb-project-name NAME), W&B's history, or the log that the job printed, which has the same numbers."
        )
    else:
        if len(metrics["step"]) < FLOOR_STEPS:
            yield f"Trends: only {len(metrics['step'])} steps are there, and levels are compared over {FLOOR_STEPS}."
        yield from (text for names, text in UNLOGGED.items() if not any(has(metrics, name) for name in names))
        if len(found.data.evals.get("accuracy", ())) < SCORES:
            yield f"Whether held-out accuracy fell: fewer than {SCORES} evaluations are there. Add --eval-interval."
        if not any(key.startswith(("staleness/", "lag/")) for key in metrics):
            yield (
                "The lag of each batch: slime logs rollout/staleness/* only in its newest, fully asynchronous rollout. "
                "Otherwise weight_versions of --save-debug-rollout-data have it, sample by sample."
            )
    if not len(found.steps):
        yield (
            "The tail of the mismatch, prompts without a signal and what a stabilizer would do: add "
            "--save-debug-train-data 'DIR/{rollout_id}.pt' (slime 0.3.1: 'DIR/{rollout_id}_{rank}.pt'), or "
            "--dump-details DIR. It costs about 30 bytes a token on disk, more with routing replay; a few rollouts of "
            "a resumed job will do."
        )
    if not has(metrics, "mismatch/policy"):
        yield (
            "Whether the mismatch is staleness or a difference of the engines: that needs the trainer's log-probs "
            "under the weights that generated the batch, which no data of slime holds (docs/diagnose.md). The first "
            "step of a run has no staleness: what is there is the engines'."
        )
