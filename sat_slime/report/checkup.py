"""The check-up of a run of slime that knows nothing of us: what there is of its trackers and dumps is read, summed up
and judged, and a page says what is seen, since when, what to try and what cannot be told."""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sat_slime.report.averages import finite_mean
from sat_slime.report.dumps import Skipped, StepBatch, by_number, find_dumps, steps
from sat_slime.report.number_text import percent
from sat_slime.report.page import Heading, Page, Sheet, check_out, listed, warning_box
from sat_slime.report.run import figures
from sat_slime.runs.collapse import FLOOR_STEPS, MISMATCH_RISE, SCORES, judge
from sat_slime.runs.folder import RunFolderError, writable
from sat_slime.runs.health import Symptom, order, symptoms, verdict
from sat_slime.runs.reading import RunData
from sat_slime.runs.rows import has
from sat_slime.runs.rules import LEAST_ESS, MOST_TRUNCATED
from sat_slime.runs.trackers import READABLE, is_tracker, read_tracked, what_it_is

# ---------------------------------------------------------------------- sums over the tokens of dumps, a step at a time


TAIL = 0.99
"""Quantile of a step's |d| beyond which its tail begins."""
POSITION_EDGES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Limits of the groups by place in the response, as a share of its length."""
PROBABILITY_EDGES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
"""Limits of the groups by μ."""
SIGNS = ("A > 0", "A < 0", "A = 0")


@dataclass(frozen=True)
class StepMismatch:
    """The mismatch of one dumped optimizer step."""

    name: str
    responses: int
    tokens: int
    """Active tokens."""
    mean: float
    """Mean |d|, nats."""
    quantiles: tuple[float, float, float]
    """90 %, 99 % and 99.9 % quantiles of |d|."""
    largest: float
    ess: float
    """(Σ r)² / (n Σ r²), r = π / μ: the share of the tokens that the raw importance weights leave."""
    no_signal: float
    """Share of the responses whose advantages are all 0."""
    truncated: float
    """Share of the responses that were cut; NaN where the dump does not tell."""


@dataclass
class Group:
    """Sums over the tokens of a group."""

    tokens: int = 0
    size: float = 0.0
    """Σ |d|."""
    drift: float = 0.0
    """Σ d."""
    tail: int = 0
    """Tokens in the tails of their steps."""

    def add(self, d: np.ndarray, in_tail: np.ndarray, inside: np.ndarray) -> None:
        """Add the tokens that are `inside`. d: (n,) nats; in_tail, inside: (n,) bool."""
        self.tokens += int(inside.sum())
        self.size += float(np.abs(d[inside]).sum())
        self.drift += float(d[inside].sum())
        self.tail += int(in_tail[inside].sum())


def _groups(edges: Sequence[float]) -> list[Group]:
    return [Group() for _ in edges[1:]]


@dataclass
class TokenSums:
    """Sums over optimizer steps, which are added one by one; each can be freed after that."""

    steps: list[StepMismatch] = field(default_factory=list)
    by_position: list[Group] = field(default_factory=lambda: _groups(POSITION_EDGES))
    by_probability: list[Group] = field(default_factory=lambda: _groups(PROBABILITY_EDGES))
    by_sign: list[Group] = field(default_factory=lambda: [Group() for _ in SIGNS])
    whole: Group = field(default_factory=Group)
    tail_ids: dict[int, int] = field(default_factory=dict)
    """{token id: times in a tail}."""
    ids: dict[int, int] = field(default_factory=dict)
    """{token id: times seen}."""
    concentrations: list[float] = field(default_factory=list)
    """Of each step that has a tail, the smallest share of the responses that holds half of it."""

    def add(self, step: StepBatch) -> None:
        """Add an optimizer step. One without an active token is passed over."""
        active = step.mask.numpy()
        if not active.any():
            return
        d = step.log_probs.double().numpy()[active] - step.rollout_log_probs.double().numpy()[active]
        size = np.abs(d)
        quantiles = np.quantile(size, (0.9, TAIL, 0.999))
        in_tail = size > quantiles[1]
        lengths = step.lengths.numpy()
        response = np.repeat(np.arange(len(lengths)), lengths)[active]
        advantages = step.advantages.numpy()[active]
        self.steps.append(_row(step, d, quantiles, response, advantages))
        everywhere = np.ones(len(d), bool)
        self.whole.add(d, in_tail, everywhere)
        _add_binned(self.by_position, POSITION_EDGES, _places(lengths)[active], d, in_tail)
        _add_binned(self.by_probability, PROBABILITY_EDGES, np.exp(step.rollout_log_probs.numpy()[active]), d, in_tail)
        for group, inside in zip(self.by_sign, (advantages > 0, advantages < 0, advantages == 0), strict=True):
            group.add(d, in_tail, inside)
        if in_tail.any():
            self.concentrations.append(_concentration(response[in_tail], len(lengths)))
        if step.token_ids is not None:
            self._count_ids(step.token_ids.numpy()[active], in_tail)

    def _count_ids(self, ids: np.ndarray, in_tail: np.ndarray) -> None:
        for counts, seen in ((self.tail_ids, ids[in_tail]), (self.ids, ids)):
            for token, times in zip(*np.unique(seen, return_counts=True), strict=True):
                counts[int(token)] = counts.get(int(token), 0) + int(times)


def _row(
    step: StepBatch, d: np.ndarray, quantiles: np.ndarray, response: np.ndarray, advantages: np.ndarray
) -> StepMismatch:
    # the ESS is free of the scale of r, so that its largest can be 1 and nothing overflows
    r = np.exp(d - d.max())
    signal = np.zeros(len(step.lengths), bool)
    signal[response[advantages != 0]] = True
    return StepMismatch(
        name=step.name,
        responses=len(step.lengths),
        tokens=len(d),
        mean=float(np.abs(d).mean()),
        quantiles=(float(quantiles[0]), float(quantiles[1]), float(quantiles[2])),
        largest=float(np.abs(d).max()),
        ess=float(r.sum() ** 2 / (len(r) * (r * r).sum())),
        no_signal=float(1 - signal.mean()),
        truncated=np.nan if step.truncated is None else float(step.truncated.double().mean()),
    )


def _places(lengths: np.ndarray) -> np.ndarray:
    """Return (N,) the place of each token in its response, from 0 to below 1."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return (np.arange(int(lengths.sum())) - starts) / np.repeat(np.maximum(lengths, 1), lengths)


def _add_binned(
    groups: list[Group], edges: Sequence[float], values: np.ndarray, d: np.ndarray, in_tail: np.ndarray
) -> None:
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(groups) - 1)
    for i, group in enumerate(groups):
        group.add(d, in_tail, bins == i)


def _concentration(response: np.ndarray, responses: int) -> float:
    """Return the smallest share of all responses that holds half of these tokens."""
    counts = np.sort(np.bincount(response, minlength=responses))[::-1]
    return float((np.searchsorted(np.cumsum(counts), len(response) / 2) + 1) / responses)


# ------------------------------------------------------------------------------------------------------- what was given


DUMPS = "slime's dumps of training (.pt), or the folder of --dump-details"


@dataclass
class Checkup:
    """The parts of a run that a checkup reads."""

    trackers: list[Path]
    training: list[Path]
    """Files of --save-debug-train-data."""
    data: RunData = field(default_factory=RunData)
    """Empty without a tracker."""
    tokens: TokenSums = field(default_factory=TokenSums)
    skipped: list[Skipped] = field(default_factory=list)
    """Dumps that could not be read, and why."""


def check(paths: Sequence[Path], on_file: Callable[[str], object] = lambda name: None) -> Checkup:
    """Read all that was given of one run.

    Args:
        on_file: is called with the name of each file or step before it is read.

    Raises:
        RunFolderError: a path is of no known kind, or nothing could be read.
    """
    checkup = sort_out(paths)
    if checkup.trackers:
        on_file("trackers")
        checkup.data = read_tracked(checkup.trackers).data()
    dumps, checkup.skipped = find_dumps(checkup.training)
    for step in steps(dumps, token_ids=True):
        if isinstance(step, Skipped):
            checkup.skipped.append(step)
            continue
        on_file(step.name)
        checkup.tokens.add(step)
        del step  # it must not be in memory together with the next one
    if not checkup.data.metrics and not checkup.data.evals and not checkup.tokens.steps:
        reasons = "; ".join(map(str, checkup.skipped[:3]))
        raise RunFolderError(f"nothing could be read: {reasons or 'no dump of training was given'}")
    return checkup


def sort_out(paths: Sequence[Path]) -> Checkup:
    """Tell trackers from dumps. Raises RunFolderError for a path that is neither, with what was seen and what can be
    read."""
    checkup = Checkup([], [])
    for path in paths:
        files = _dump_files(path)
        checkup.training += files
        if path not in files and is_tracker(path):
            checkup.trackers.append(path)
        elif not files:
            raise RunFolderError(f"{path}: {what_it_is(path)}. What can be read is {READABLE}; and {DUMPS}")
    return checkup


def _dump_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".pt" else []
    folder = path / "train_data" if (path / "train_data").is_dir() else path  # of --dump-details
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted((file for file in files if file.suffix == ".pt"), key=by_number)


# ---------------------------------------------------------------------------------------- what looks unhealthy in dumps


BROKEN = 8.0
"""Nats: a token that one side finds 3,000 times likelier than the other is broken, not stale."""
USUAL = 1.0
"""Nats: where the 99 % quantile is above, it is not single tokens that are far."""
CROWDED = 4.0
"""So many times its share of the tokens a group has of the tail."""
MOST_EQUAL = 0.5
"""Share of the responses without a signal."""
LEAST_DUMPS = 4
"""Dumps in a third of all, since mean |d| goes up and down with the lag from one to the next."""
LEAST_TAIL = 200
"""Tail tokens below which it is not said where they are."""


def dump_symptoms(sums: TokenSums) -> Iterator[Symptom]:
    """Find what looks unhealthy in dumps of training."""
    if not sums.steps:
        return
    sizes = np.array([step.mean for step in sums.steps])
    third = len(sizes) // 3
    if third >= LEAST_DUMPS and sizes[-third:].mean() >= MISMATCH_RISE * sizes[:third].mean():
        yield Symptom(
            "drift",
            f"mean |d| grew from {sizes[:third].mean():.3g} nats (the first {third} dumps, from {sums.steps[0].name}) "
            f"to {sizes[-third:].mean():.3g} (the last {third}, to {sums.steps[-1].name})",
            "Ask what each stabilizer would do to these very tokens: sat-slime replay",
        )
    largest = max(sums.steps, key=lambda step: step.largest)
    if largest.largest > BROKEN and largest.quantiles[1] < USUAL:
        yield Symptom(
            "broken tokens",
            f"the largest |d| is {largest.largest:.1f} nats ({largest.name}), above {BROKEN:g}, where 99 % of the "
            f"tokens are below {largest.quantiles[1]:.2f}",
            "Single tokens that one side finds impossible: faults of the engine, top-p or top-k sampling that the "
            "trainer does not know, tokens made anew from text. veto and trm-max drop their responses",
        )
    if (ess := finite_mean([step.ess for step in sums.steps])) < LEAST_ESS:
        yield Symptom(
            "ess",
            f"raw importance weights would leave {ess:.0%} of the tokens as effective sample, below {LEAST_ESS:.0%}",
            "Weights alone (--use-tis) let a few tokens carry the gradient here: lower --tis-clip, or a gate (icepop, "
            "mis-geo)",
        )
    if sums.whole.tail >= LEAST_TAIL:
        yield from _where(sums)
    if (silent := finite_mean([step.no_signal for step in sums.steps])) > MOST_EQUAL:
        yield Symptom(
            "no signal",
            f"{silent:.0%} of the responses in the dumps have no advantage other than 0, above {MOST_EQUAL:.0%}",
            "The batch is smaller than it seems, and the step noisier: easier or harder prompts, or --dynamic-sampling-"
            "filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
        )
    if (cut := finite_mean([step.truncated for step in sums.steps])) > MOST_TRUNCATED:
        yield Symptom(
            "truncated",
            f"{cut:.0%} of the responses in the dumps were cut at the length limit, above {MOST_TRUNCATED:.0%}",
            "It is graded as wrong. Look whether --rollout-stop-token-ids lacks the end of a turn; else raise "
            "--rollout-max-response-len, or mask what was cut",
        )


def _where(sums: TokenSums) -> Iterator[Symptom]:
    for (low, high), group in zip(pairwise(POSITION_EDGES), sums.by_position, strict=True):
        if crowding(group, sums.whole) > CROWDED:
            yield Symptom(
                "position",
                f"{group.tail / sums.whole.tail:.0%} of the tail lie between {low:.0%} and {high:.0%} of the response, "
                f"where {group.tokens / sums.whole.tokens:.0%} of the tokens are",
                "At the end: stop tokens, and responses that were cut or went on after new weights came. At the "
                "start: the chat template, or a first token that is sampled by other rules",
            )
    if not sums.tail_ids:
        return
    token, times = max(sums.tail_ids.items(), key=lambda item: item[1])
    share, usual = times / sums.whole.tail, sums.ids.get(token, 0) / sums.whole.tokens
    if share > 0.1 and share > CROWDED * usual:
        yield Symptom(
            "one token",
            f"{share:.0%} of the tail are the token {token}, which is {usual:.1%} of all tokens",
            f"Look what it is: tokenizer.decode([{token}]). A stop or template token points to a difference in "
            "templates or stop rules between engine and trainer, not to staleness",
        )


def crowding(group: Group, whole: Group) -> float:
    """Return how many times its share of the tokens a group has of the tail."""
    return (group.tail / whole.tail) / (group.tokens / whole.tokens) if group.tokens and whole.tail else 0.0


# --------------------------------------------------------------------------------------------------------------- tables


MOST_IDS = 8
"""Token ids that are listed."""
MOST_ROWS = 24
"""Dumps that a table shows; of more it shows as many, evenly chosen, and its CSV has all."""


def tables(sums: TokenSums) -> list[Sheet]:
    """Make all tables that there are numbers for."""
    sheets = [steps_table(sums), places_table(sums)] if sums.steps else []
    return [*sheets, ids_table(sums)] if sums.tail_ids else sheets


def steps_table(sums: TokenSums) -> Sheet:
    """Tell the mismatch of each dumped optimizer step."""
    numbers = [
        [
            *(step.name, step.responses, step.tokens, step.mean, *step.quantiles, step.largest),
            *(step.ess, step.no_signal, step.truncated),
        ]
        for step in sums.steps
    ]
    many = len(numbers) > MOST_ROWS
    sheet = Sheet.of(
        "dumped_steps",
        "The mismatch of each dumped step",
        "d = log π − log μ of the active tokens, in nats: mean and quantiles of |d|. ESS: the share of the tokens that "
        "raw importance weights leave. No signal: responses whose advantages are all 0. Cut: at the length limit."
        + (f" Of {len(numbers)} dumps {MOST_ROWS} are shown; the CSV has all." if many else ""),
        ["dump", "responses", "tokens", "mean |d|", "90 %", "99 %", "99.9 %", "largest", "ESS", "no signal", "cut"],
        numbers,
        ", , .4f .4f .4f .4f .4f % % %",
    )
    if many:
        sheet.rows = [sheet.rows[i] for i in np.linspace(0, len(numbers) - 1, MOST_ROWS).round().astype(int)]
    return sheet


def places_table(sums: TokenSums) -> Sheet:
    """Tell where the mismatch is: by place, by probability, by the sign of the advantage."""
    head = ["tokens", "share", "mean |d|", "mean d", "of the tail", "times their share"]
    kinds: list[tuple[str, Sequence[str], Sequence[Group]]] = [
        ("by place in the response", _ranges(POSITION_EDGES, percent), sums.by_position),
        ("by the engine's probability μ", _ranges(PROBABILITY_EDGES, lambda edge: f"{edge:g}"), sums.by_probability),
        ("by the sign of the advantage", SIGNS, sums.by_sign),
    ]
    shown: list[list[Any]] = []
    numbers: list[list[Any]] = [head]
    for heading, labels, groups in kinds:
        shown.append([Heading(heading)])
        for label, group in zip(labels, groups, strict=True):
            if not group.tokens:
                continue
            values = [group.tokens / sums.whole.tokens, group.size / group.tokens, group.drift / group.tokens]
            values += [group.tail / max(1, sums.whole.tail), crowding(group, sums.whole)]
            shown.append([label, *values])
            numbers.append([f"{heading}: {label}", *values])
    sheet = Sheet.of(
        "places",
        "Where the mismatch is",
        "All dumps together. The tail of a step is what lies beyond the 99 % quantile of its |d|; the last column says "
        "how many times as often a token of this kind is in it as any token.",
        head,
        shown,
        "% .4f +.4f % .1f",
    )
    sheet.numbers = numbers
    return sheet


def ids_table(sums: TokenSums) -> Sheet:
    """Tell which token ids are most often in a tail."""
    most = sorted(sums.tail_ids.items(), key=lambda item: -item[1])[:MOST_IDS]
    return Sheet.of(
        "tail_tokens",
        "Which tokens are in the tail",
        "The ids that are there most often; tokenizer.decode([ID]) says what they are. A few ids with most of the tail "
        "point to templates, stop tokens or sampling rules; many ids with a little each, to staleness.",
        ["token id", "of the tail", "of all tokens"],
        [[str(i), times / sums.whole.tail, sums.ids.get(i, 0) / sums.whole.tokens] for i, times in most],
        "% %",
    )


def _ranges(edges: Sequence[float], text: Callable[[float], str]) -> list[str]:
    return [f"{text(low)} to {text(high)}" for low, high in pairwise(edges)]


# ----------------------------------------------------------------------------------------------------------------- page

METHODS = "docs/choosing.md says what each stabilizer bounds, needs and costs."


@dataclass
class Findings:
    """The findings, for a page or a terminal."""

    page: Path
    summary: list[str]
    symptoms: list[Symptom]
    verdict: str
    """What it is worth that nothing else was found; empty where nothing is to be said of it."""
    unknown: list[str]
    next: list[str]
    """Commands, each with what it is for behind a #."""
    sheets: list[Sheet]
    skipped: list[str]


def write_checkup(
    paths: Sequence[Path], folder: Path, on_file: Callable[[str], object] = lambda name: None
) -> Findings:
    """Write the check-up of a run of slime, from what there is of its trackers and dumps: a page, tables and figures.

    Args:
        on_file: as of `check`.

    Raises:
        RunFolderError: nothing could be read, or the folder holds something else or cannot be written.
    """
    check_out(folder)  # before the dumps are read, which may take minutes
    checkup = check(paths, on_file)
    of_curves = symptoms(checkup.data)
    names = {symptom.name for symptom in of_curves}
    seen = [*of_curves, *(symptom for symptom in dump_symptoms(checkup.tokens) if symptom.name not in names)]
    findings = Findings(
        folder / "report.html",
        [*_what_was_read(checkup), *_story(checkup, seen)],
        seen,
        verdict(checkup.data, seen),
        list(unknown(checkup)),
        list(_next(checkup, seen)),
        tables(checkup.tokens),
        list(map(str, checkup.skipped)),
    )
    with writable(folder):
        page = Page(folder)
        page.section("seen", "What we see, and what to try", _as_html(findings.symptoms, findings.verdict))
        commands = "".join(f"<p><code>{html.escape(line)}</code></p>" for line in findings.next)
        page.section("next", "Next", f"{commands}<p>{html.escape(METHODS)}</p>")
        page.section("unknown", "Not visible here, and what would show it", f"<ul>{listed(findings.unknown)}</ul>")
        for sheet in findings.sheets:
            page.sheet(sheet)
        for figure in figures(checkup.data):
            page.figure(figure)
        page.again(f"sat-slime diagnose {shlex.join(map(str, paths))}")
        findings.page = page.write(
            "report.html",
            title=f"{Path(paths[0]).resolve().name}: a check-up",
            subtitle="a run of slime, from its own trackers and dumps",
            summary=findings.summary,
            warnings=warning_box(findings.skipped),
        )
    return findings


def _as_html(seen: Sequence[Symptom], verdict: str) -> str:
    paragraphs = "".join(
        f"<p><strong>{html.escape(symptom.heading)}</strong>: {html.escape(symptom.seen)}."
        f"{f'<br>{html.escape(symptom.advice)}.' if symptom.advice else ''}</p>"
        for symptom in seen
    )
    return f"{paragraphs}<p>{html.escape(verdict)}</p>" if verdict else paragraphs


def _what_was_read(checkup: Checkup) -> Iterator[str]:
    parts = []
    if checkup.data.metrics:
        steps = checkup.data.metrics["step"]
        parts.append(f"{len(steps):,} optimizer steps of a tracker ({steps[0]:.0f} to {steps[-1]:.0f})")
    if evals := len(checkup.data.evals.get("accuracy", ())):
        parts.append(f"{evals} evaluations")
    if checkup.tokens.steps:
        parts.append(f"{len(checkup.tokens.steps)} optimizer steps in dumps, {checkup.tokens.whole.tokens:,} tokens")
    yield f"Read: {'; '.join(parts)}."


def _story(checkup: Checkup, seen: Sequence[Symptom]) -> Iterator[str]:
    """Tell what happened, a sentence each."""
    reward = checkup.data.metrics.get("reward/mean", np.zeros(0))
    reward = reward[np.isfinite(reward)]
    if len(reward) > 1:
        window = max(1, min(16, len(reward) // 2))
        yield (
            f"The training reward went from {reward[:window].mean():.3f} to {reward[-window:].mean():.3f} (means of "
            f"the first and last {window} steps)."
        )
    if checkup.data.metrics and (sentence := judge(checkup.data.metrics, checkup.data.evals, 1).sentence()):
        yield f"{sentence[0].upper()}{sentence[1:]}."
    if text := order(seen):
        yield text
    sums = checkup.tokens
    if sums.steps and sums.whole.tail >= LEAST_TAIL:
        rare = sum(group.tail for group in sums.by_probability[:2]) / sums.whole.tail
        held = float(np.mean(sums.concentrations))
        fits = "a gate of whole responses" if held < 0.1 else "a rule for single tokens"
        yield (
            f"In the dumps mean |d| is {sums.whole.size / sums.whole.tokens:.4f} nats; {percent(rare)} of its tail are "
            f"tokens that the engine gave less than 10 %; half of the tail is in {percent(held)} of the responses, "
            f"which {fits} fits."
        )


def _next(checkup: Checkup, seen: Sequence[Symptom]) -> Iterator[str]:
    if checkup.tokens.steps:
        folders = sorted({str(path.parent) for path in checkup.training})
        yield f"sat-slime replay {shlex.join(folders)}   # what every stabilizer would have done to these tokens"
    elif checkup.data.metrics:
        yield (
            "--save-debug-train-data 'dump/{rollout_id}.pt'   # in slime's command, from a checkpoint before the first "
            "symptom; then: sat-slime diagnose dump"
        )
    if any(symptom.since is not None for symptom in seen):
        yield "sat-slime methods sat-gspo   # a stabilizer's formula; the plugin: docs/slime.md"


def unknown(checkup: Checkup) -> Iterator[str]:
    """Tell what was given does not show, a sentence each, with the flag of slime that would show it."""
    yield from _unknown_of_curves(checkup)
    if not checkup.tokens.steps:
        yield (
            "In which tokens the mismatch is, its tail, prompts without a signal and what a stabilizer would do: add "
            "--save-debug-train-data 'DIR/{rollout_id}.pt' (slime 0.3.1: 'DIR/{rollout_id}_{rank}.pt'), or "
            "--dump-details DIR. It costs about 30 bytes a token on disk, more with routing replay; a few rollouts of "
            "a resumed job will do."
        )
    yield (
        "Whether the mismatch is staleness or a difference of the engines: that needs the trainer's log-probs under "
        "the weights that generated the batch, which no data of slime holds (docs/diagnose.md). The first step of a "
        "run has no staleness: what is there is the engines'."
    )


def _unknown_of_curves(checkup: Checkup) -> Iterator[str]:
    metrics = checkup.data.metrics
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
    if len(checkup.data.evals.get("accuracy", ())) < SCORES:
        yield f"Whether held-out accuracy fell: fewer than {SCORES} evaluations are there. Add --eval-interval."
    if not any(key.startswith(("staleness/", "lag/")) for key in metrics):
        yield (
            "The lag of each batch: slime logs rollout/staleness/* only in its newest, fully asynchronous rollout. "
            "Otherwise weight_versions of --save-debug-rollout-data have it, sample by sample."
        )
