"""`sat-slime replay`: what every method would have done to dumped batches. Methods are chosen, each optimizer step is
read and summed up, and a page tells of it."""

from __future__ import annotations

import itertools
import math
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import torch
import yaml

from sat_slime.config import ConfigError
from sat_slime.config.loader import read_section
from sat_slime.config.method_section import MethodConfig, build_method, method_switches
from sat_slime.config.source import parse_value
from sat_slime.objective import (
    PAPER_METHODS,
    Method,
    check_method,
    method_names,
    mismatch_metrics,
    named_method,
)
from sat_slime.report.drawing import (
    Drawing,
    Plot,
    Table,
    chosen,
    column_of,
    facets,
    grid_of,
    in_colour,
    joined,
    layered,
    lines,
    rows,
    rule,
    tip,
)
from sat_slime.report.dumps import Column, Dump, Skipped, StepBatch, find_dumps, steps
from sat_slime.report.gradient import (
    CLIPPED,
    EDGES,
    FATES,
    GROUPS,
    KEPT,
    MASKED,
    ORDERS,
    REWEIGHTED,
    SCOPES,
    SIZES,
    UNCLIPPED,
    Cosines,
    Metrics,
    StepView,
    Sums,
    Sweep,
    reduced,
    span_result,
    spans,
    sweep_step,
)
from sat_slime.report.looks import BLACK, BLUE, GREY, ORANGE, SKY, VERMILION, Look, apart
from sat_slime.report.number_text import DASH, count_of, decimals, minus, percent_number
from sat_slime.report.page import Figure, Heading, Page, Sheet, check_out, warning_box
from sat_slime.runs.folder import RunFolderError, writable

# -------------------------------------------------------------------------------------------------------------- methods

ALL, USUAL = "all", "usual"
ASYNCHRONOUS = (
    "decoupled",
    "mis-geo",
    "cispo",
    "m2po",
    "opsm",
    "seq-tis",
    "flash",
)
"""Methods that the public trainers ship for asynchronous training besides the paper's."""


@dataclass(frozen=True)
class Candidate:
    """A method to be replayed."""

    label: str
    method: Method
    same: tuple[str, ...] = ()
    """Labels of further methods with the same formula, which give the same result on any dump."""
    refused: str = ""
    """Why it means nothing with the settings that were laid over it; empty where it means something."""


@dataclass(frozen=True)
class LeftOut:
    """Methods that cannot be replayed on the dump, for one reason."""

    label: str
    reason: str


TOKEN_RATIO, TOKEN_PROBABILITY = "token ratio", "token probability"
RESPONSE, STATE, BATCH = "response", "state", "batch"
JUDGED_BY = (TOKEN_RATIO, TOKEN_PROBABILITY, RESPONSE, STATE, BATCH)
"""The groups. Token ratio: each token by its ratio alone. Token probability: each token by its two probabilities, as
their difference or a divergence. Response: all tokens of a response at once. State: by both distributions. Batch: by a
threshold over all tokens of a micro-batch or step."""

_BY_PROBABILITY = {"dppo", "drpo", "kpop", "ipo"}
_BY_RESPONSE = {
    *("gmpo", "flash", "vespo", "seq-tis", "seq-mask-tis", "mis-geo", "opsm", "trm-max", "trm-mean", "veto"),
}


def judged_by(method: Method) -> str:
    """Return the group of a method: of all that it judges by, the one that takes most together."""
    names = {stabilizer.name for stabilizer in method.stabilizers}
    if method.judge is not None:
        return BATCH
    if method.step_constraint is not None:
        return STATE
    if method.ratio == "sequence" or names & _BY_RESPONSE:
        return RESPONSE
    return TOKEN_PROBABILITY if names & _BY_PROBABILITY else TOKEN_RATIO


def choose(names: str = USUAL, settings: Sequence[str] = ()) -> list[Candidate]:
    """Choose the methods of a comma-separated list, all of them, or the usual ones; each formula once, by what they
    judge by. Of all and of the usual ones those are kept, as refused, that mean nothing with the settings.

    settings: `sat.alpha=0.95` texts in the keys of a run's `method` section, for the methods that read that key; a
    list of values makes a candidate of each.

    Raises:
        ConfigError: an unknown name, key or value, a combination without meaning, or a setting that no method reads.
    """
    wanted = _wanted(names)
    sweeps = [_sweep(text) for text in settings]
    chosen: list[tuple[str, Method]] = []
    refused: list[Candidate] = []
    read: set[str] = set()
    for name in dict.fromkeys(wanted):
        try:
            method = named_method(name)
        except ValueError as error:
            raise ConfigError([f"--methods: {error}"]) from None
        reads = [sweep for sweep in sweeps if any(_with(name, {sweep.key: v}) != method for v in sweep.values)]
        read |= {sweep.text for sweep in reads}
        for values in itertools.product(*(sweep.values for sweep in reads)):
            varied = {sweep.key: value for sweep, value in zip(reads, values, strict=True)}
            label = " ".join([name, *(f"{key}={_shown(value)}" for key, value in varied.items())])
            candidate = _with(name, varied) if varied else method
            if reason := _refusal(candidate):
                if not names_several(names):
                    raise ConfigError([f"{label}: {reason}; or leave {name} out of --methods"])
                refused.append(Candidate(label, candidate, refused=reason))
                continue
            chosen.append((label, candidate))
    if unread := [sweep.text for sweep in sweeps if sweep.text not in read]:
        raise ConfigError([f"--set {unread[0]} changes none of the methods {', '.join(wanted)}: leave it out"])
    order = sorted(_each_formula_once(chosen), key=lambda candidate: JUDGED_BY.index(judged_by(candidate.method)))
    return [*order, *refused]


def names_several(names: str) -> bool:
    """Say whether `names` stands for methods that nobody has named one by one: `all`, or `usual`."""
    return names.strip() in (ALL, USUAL)


def _wanted(names: str) -> list[str]:
    several = {ALL: method_names, USUAL: usual_names}.get(names.strip())
    wanted = several() if several else [name.strip() for name in names.split(",") if name.strip()]
    if mixed := {ALL, USUAL}.intersection(wanted):
        raise ConfigError([f"--methods {names}: {mixed.pop()} stands alone: leave it out, or the other names"])
    if not wanted:
        raise ConfigError([f"--methods names none: give names with commas between them, {ALL} or {USUAL}"])
    return wanted


def usual_names() -> list[str]:
    """Return the names of the paper's methods, and of what else asynchronous training is done with today."""
    return [*(method.name for method in PAPER_METHODS), *ASYNCHRONOUS]


@dataclass(frozen=True)
class _Sweep:
    text: str
    key: str
    values: list[Any]


def _sweep(text: str) -> _Sweep:
    key, equals, value = text.partition("=")
    key = key.strip().removeprefix("method.")
    if not equals or not key:
        raise ConfigError([f"--set {text}: expected key=value, such as --set sat.alpha=0.95"])
    try:
        parsed = parse_value(value)
    except yaml.YAMLError:
        raise ConfigError([f"--set {text}: the value {value!r} is not valid YAML; quote it"]) from None
    return _Sweep(text, key, parsed if isinstance(parsed, list) else [parsed])


def _with(name: str, settings: dict[str, Any]) -> Method:
    """Return the named method with dotted keys of the method section set. Raises ConfigError."""
    section: dict[str, Any] = method_switches(name)
    for key, value in settings.items():
        *path, last = key.split(".")
        if path[:1] == ["settings"] and named_method(name).base_is_ours:
            continue  # those of a base that is not ours
        inner = section
        for part in path:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError([f"--set {key}: {part} is no section of method"])
        inner[last] = value
    config = read_section(MethodConfig, section, f"--set of {name}")
    try:
        return build_method(config)
    except ValueError as error:
        raise ConfigError([f"--set of {name}: {error}"]) from None


def _refusal(method: Method) -> str:
    """Say why a method means nothing; empty where it means something."""
    try:
        check_method(method)
    except ValueError as error:
        return str(error).removeprefix(f"{method.name}: ")
    return ""


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _each_formula_once(methods: Iterable[tuple[str, Method]]) -> list[Candidate]:
    candidates: dict[object, list[tuple[str, Method]]] = {}
    for label, method in methods:
        candidates.setdefault(method.formula, []).append((label, method))
    return [Candidate(same[0][0], same[0][1], tuple(label for label, _ in same[1:])) for same in candidates.values()]


def read_columns(method: Method) -> frozenset[Column]:
    """Return the columns that the method reads of those that only some dumps hold."""
    pi_l: set[Column] = {"checkpoint_log_probs"} if method.denominator == "checkpoint" else set()
    return frozenset(pi_l.union(need for need in method.needs if need != "entropies"))


def answerable(candidates: Sequence[Candidate], columns: frozenset[Column]) -> tuple[list[Candidate], list[LeftOut]]:
    """Return (the candidates that a dump with these columns has the data for, the others with the reason)."""
    kept: list[Candidate] = []
    by_reason: dict[str, list[str]] = {}
    for candidate in candidates:
        reason = candidate.refused or lacks(candidate.method, columns)
        if reason is None:
            kept.append(candidate)
        else:
            by_reason.setdefault(reason, []).extend([candidate.label, *candidate.same])
    return kept, [LeftOut(", ".join(labels), reason) for reason, labels in by_reason.items()]


def lacks(method: Method, columns: frozenset[Column]) -> str | None:
    """Say what the method reads and a dump with these columns does not hold; None where nothing is missing."""
    if method.step_constraint is not None:
        return "bounds the optimizer step over the whole vocabulary, and a dump holds only the sampled tokens"
    if method.top_p_replay:
        return (
            "takes the trainer's softmax over the tokens that the engine sampled from, and a dump has the log-probs of "
            "the forward pass that was made"
        )
    if "entropies" in method.needs:
        return "judges by the entropy where a token was sampled, which no dump holds"
    missing = sorted(read_columns(method) - columns)
    return "; ".join(ABSENT[column] for column in missing) if missing else None


ABSENT: dict[Column, str] = {
    "checkpoint_log_probs": (
        "divides by pi_l, the trainer's log-probs under the generating weights, which this dump does not hold; "
        "those of a lab run do at steps with a split (diagnose.split_every_n_steps)"
    ),
    "lags": (
        "reads the lag of each token, and this dump does not hold the versions of the generating weights; those of an "
        "lab run do"
    ),
    "rewards": (
        "reads each response's reward before any baseline, which this dump does not hold; those of a lab run and "
        "of later slime do, and TOPR reads none with --set topr.good_by=advantage"
    ),
}
"""Why a method cannot be replayed on a dump without the column, and what helps."""


# ------------------------------------------------------------------------------------------------------ dumps into sums

SPAN_TOKENS = 32_768
"""Tokens that are computed together: enough to outweigh the cost of calling torch, few enough for the processor's
cache."""


@dataclass(frozen=True)
class StepRow:
    """One optimizer step."""

    name: str
    responses: int
    tokens: int
    lag: float | None
    microbatches: int
    mismatch: dict[str, float]
    """Metrics of the mismatch, by the names of a run's metrics."""
    shares: np.ndarray
    """(M, 3) for each method: the clipped and the masked share of the tokens with an advantage; the effective share."""
    scopes: dict[tuple[int, str], dict[str, float]]
    """Metrics of each SAT method under each scope of its quantile, by the names of a run's metrics."""


@dataclass
class Replay:
    """The result of a replay, of which tables and figures are made."""

    candidates: list[Candidate]
    left_out: list[LeftOut]
    skipped: list[Skipped] = field(default_factory=list)
    rows: list[StepRow] = field(default_factory=list)
    total: Sums = field(default_factory=lambda: Sums.none(0))
    cosines: Cosines = field(default_factory=lambda: Cosines(0))
    sweeps: dict[int, Sweep] = field(default_factory=dict)
    seconds: float = 0.0
    passed_over: int = 0
    """Dumps that were left out, since a method reads what they do not hold."""

    @property
    def tokens(self) -> int:
        """Active tokens of all steps."""
        return self.total.tokens

    @property
    def responses(self) -> int:
        """Responses of all steps."""
        return sum(row.responses for row in self.rows)

    def sat_methods(self) -> list[int]:
        """Return the indices of the SAT methods."""
        return [i for i, candidate in enumerate(self.candidates) if candidate.method.sat]


def replay(
    paths: Sequence[str | Path],
    candidates: Sequence[Candidate],
    microbatch_tokens: int | None = None,
    on_step: Callable[[StepRow], None] = lambda row: None,
    every_dump: bool = False,
) -> Replay:
    """Replay the methods on every optimizer step in `paths`, one of which is in memory at a time.

    A method that reads what only some dumps hold confines all of them to those, so that they are compared on the same
    tokens; with `every_dump` such a method is left out instead, but for one that divides by pi_l.

    Args:
        microbatch_tokens: micro-batches of up to so many response tokens. Default: those of the dump.
        on_step: is called after each step.

    Raises:
        RunFolderError: nothing that was given can be replayed.
    """
    began = time.perf_counter()
    dumps, skipped = find_dumps(paths)
    usable, left_out = answerable(candidates, _columns(candidates, dumps, every_dump))
    if not usable:
        raise RunFolderError(f"none of the methods can be replayed: {left_out[0].label} {left_out[0].reason}")
    result = Replay(usable, left_out, skipped, total=Sums.none(len(usable)), cosines=Cosines(len(usable)))
    result.sweeps = {index: Sweep() for index in result.sat_methods()}
    needed = frozenset[Column]().union(*(read_columns(candidate.method) for candidate in usable))
    result.passed_over = sum(not needed <= dump.columns for dump in dumps)
    dumps = [dump for dump in dumps if needed <= dump.columns]
    threads_of_torch = torch.get_num_threads()
    torch.set_num_threads(1)  # spans are computed side by side instead
    try:
        with ThreadPoolExecutor(_cores()) as pool:
            for item in steps(dumps, microbatch_tokens, needed):
                if isinstance(item, Skipped):
                    result.skipped.append(item)
                    continue
                on_step(_add_step(result, item, pool))
                del item  # a large step must not be in memory together with the next one
    finally:
        torch.set_num_threads(threads_of_torch)
    if not result.rows:
        reasons = "; ".join(map(str, result.skipped[:3]))
        raise RunFolderError(f"nothing to replay: {reasons}")
    result.seconds = time.perf_counter() - began
    return result


def _columns(candidates: Sequence[Candidate], dumps: Sequence[Dump], every_dump: bool) -> frozenset[Column]:
    """Return, of what the methods read, the columns of the dump that holds most of it; with `every_dump` those of all
    dumps, but for that of pi_l, which few dumps hold."""
    read = frozenset[Column]().union(
        *(read_columns(candidate.method) for candidate in candidates if not candidate.refused)
    )
    most = max((dump.columns & read for dump in dumps), key=len, default=frozenset())
    if not every_dump or not dumps:
        return most
    few = frozenset[Column](["checkpoint_log_probs"])
    return frozenset.intersection(*(dump.columns for dump in dumps)) & read | (most & few)


def _add_step(result: Replay, batch: StepBatch, pool: ThreadPoolExecutor) -> StepRow:
    """Compute a step and add it to the result. Its spans are summed in their order, so that sums do not depend on which
    thread was first."""
    methods = [candidate.method for candidate in result.candidates]
    view = StepView(batch)
    view.prepare([*methods, UNCLIPPED])
    parts = [pool.submit(span_result, methods, view, span) for span in spans(batch, SPAN_TOKENS)]
    sweeps = pool.submit(sweep_step, methods, view, len(result.rows))
    score = partial(mismatch_metrics, checkpoint_log_probs=batch.checkpoint_log_probs)
    mismatch = pool.submit(score, batch.log_probs, batch.rollout_log_probs, batch.mask)
    sums = Sums.none(len(methods))
    scopes: dict[tuple[int, str], list[Metrics]] = {(i, scope): [] for i in result.sat_methods() for scope in SCOPES}
    for part in map(Future.result, parts):
        sums.add(part.sums)
        for key, more in part.scopes.items():
            scopes[key] += more
    for index, sweep in sweeps.result().items():
        result.sweeps[index].add(sweep)
    assert batch.microbatches is not None
    row = StepRow(
        name=batch.name,
        responses=len(batch.lengths),
        tokens=sums.tokens,
        lag=batch.lag,
        microbatches=len(batch.microbatches),
        mismatch=mismatch.result(),
        shares=np.array([[method.share(CLIPPED), method.share(MASKED), method.effective] for method in sums.methods]),
        scopes={key: reduced(rows) for key, rows in scopes.items()},
    )
    result.total.add(sums)
    result.cosines.add(sums.cosines())
    result.rows.append(row)
    return row


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ----------------------------------------------------------------------------------------------------------------- page


def write_page(result: Replay, folder: Path, command: Sequence[str]) -> Path:
    """Write report.html, figures/ and tables/ into a folder; returns the page. command: makes the page again. Raises
    RunFolderError where the folder holds something else or cannot be written."""
    check_out(folder)
    with writable(folder):
        page = Page(folder)
        sheets = {sheet.name: sheet for sheet in tables(result)}
        steps = sheets.pop("steps")
        for figure in figures(result):
            page.figure(figure)
            behind = sheets.pop(_AFTER.get(figure.name, ""), None)
            if behind is not None and len(behind.head) <= WIDEST:
                page.sheet(behind)
            elif behind is not None:
                behind.save(folder / "tables")
        page.sheet(steps)
        Sheet("scope_sweep", "", "", [], [], numbers=sweep_rows(result)).save(folder / "tables")
        if (left_out := _left_out(result)) is not None:
            page.sheet(left_out)
        page.again(shlex.join(command))
        return page.write(
            "report.html",
            title="Replay",
            subtitle=f"{count_of(len(result.rows), 'optimizer step')}, {result.tokens:,} tokens",
            summary=summary(result),
            warnings=_warnings(result),
        )


WIDEST = 16
"""Columns of a table beyond which the figure before it says more, so that it is a file alone."""

_AFTER = {"fates": "methods", "cosines": "cosine_numbers", "scope": "scopes"}
"""{figure: the table that stands behind it}."""


def summary(result: Replay) -> Iterator[str]:
    """Say what the methods do here and what was read, a sentence each."""
    yield verdict(result)
    d_pi = weighted(result, lambda row: row.mismatch["mismatch/d_pi"])
    lags = sorted({round(row.lag, 1) for row in result.rows if row.lag is not None})
    steps = count_of(len(result.rows), "optimizer step")
    text = f"{count_of(result.responses, 'response')} of {steps}; d_pi {d_pi:.4f} nats"
    if lags:
        text += f", lag {lags[0]:g}" + (f" to {lags[-1]:g}" if len(lags) > 1 else "")
    yield f"{text}. Each method is asked what it would do to the first optimizer step on these tokens."
    cosines = result.cosines.mean[:-1, -1]
    order = [i for i in sorted(range(len(cosines)), key=lambda i: -cosines[i]) if math.isfinite(cosines[i])]
    if len(order) > 1:
        near, far = result.candidates[order[0]], result.candidates[order[-1]]
        yield (
            f"Nearest to the unclipped gradient: {near.label} (cosine {cosines[order[0]]:.3f}); farthest: {far.label} "
            f"({cosines[order[-1]]:.3f})."
        )
    if result.passed_over:
        yield passed_over(result)


EQUAL = 0.999
"""Cosine from which on two methods make the same first step on these tokens."""


def verdict(result: Replay) -> str:
    """Say of each method of SAT whether it is its base here; without one, which methods make the same step."""
    cosines, labels = result.cosines.mean, [candidate.label for candidate in result.candidates]
    names = {name: i for i, one in enumerate(result.candidates) for name in (one.label, *one.same)}
    said = []
    for index in result.sat_methods():
        candidate = result.candidates[index]
        base = candidate.method.without("sat").label
        if (other := names.get(base)) is None or not math.isfinite(cosines[index, other]):
            continue
        cosine = cosines[index, other]
        if cosine >= EQUAL:
            said.append(f"here {candidate.label} is {base}: their gradients have cosine {cosine:.4f}")
        else:
            said.append(f"{candidate.label} differs from {base}: cosine {cosine:.3f}")
    if not said:
        pairs = [(i, j) for i in range(len(labels)) for j in range(i) if cosines[i, j] >= EQUAL]
        said = [f"here {labels[i]} makes the step of {labels[j]}" for i, j in pairs[:4]]
        said = said or ["no two of the methods make the same step here"]
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def passed_over(result: Replay) -> str:
    """Return a sentence on the dumps that were left out."""
    return (
        f"{result.passed_over} dumps were left out, since they do not hold what one of the methods reads; leave that "
        "method out of --methods to have them all."
    )


def _warnings(result: Replay) -> str:
    lines = list(map(str, result.skipped[:20]))
    if len(result.skipped) > 20:
        lines.append(f"and {len(result.skipped) - 20} more")
    return f"<p><strong>Files and tokens that were left out</strong></p>{warning_box(lines)}" if lines else ""


def _left_out(result: Replay) -> Sheet | None:
    if not result.left_out:
        return None
    return Sheet(
        "not_replayed",
        "Methods that this dump cannot answer",
        "What was asked for and needs what the dump does not hold.",
        ["methods", "reason"],
        [[methods.label, methods.reason] for methods in result.left_out],
    )


# --------------------------------------------------------------------------------------------------------------- tables

SHOWN_STEPS = 40
"""Rows that the table of steps shows; its CSV holds all."""
REFERENCE = "unclipped r A"


def tables(result: Replay) -> Iterator[Sheet]:
    """Make all tables, in the order of the page."""
    yield methods_table(result)
    if result.sat_methods():
        yield scope_table(result)
    yield cosine_table(result)
    yield steps_table(result)


def labels(result: Replay) -> list[str]:
    """Return the labels of the methods."""
    return [candidate.label for candidate in result.candidates]


def mean_effective(result: Replay) -> np.ndarray:
    """Return (M,) the effective share of the tokens, mean over the steps in which it is known."""
    values = np.stack([row.shares[:, 2] for row in result.rows])
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0).sum(axis=0) / known.sum(axis=0)


def methods_table(result: Replay) -> Sheet:
    """Tell what every method does to the tokens."""
    cosines, effective = result.cosines.mean[:, -1], mean_effective(result)
    rows: list[list[str]] = []
    numbers = [_METHOD_HEAD]
    group = ""
    for index, candidate in enumerate(result.candidates):
        if (judged := judged_by(candidate.method)) != group:
            group = judged
            rows.append([Heading(judged), *[""] * (len(_METHOD_COLUMNS) - 1)])
        sums = result.total.methods[index]
        share = sums.fates / max(sums.tokens, 1)
        cells = [share[:2, CLIPPED].sum(), share[2:, CLIPPED].sum(), *share[:, MASKED]]
        cells += [share[:, REWEIGHTED].sum(), share[:, KEPT].sum(), effective[index]]
        rows.append(
            [
                candidate.label,
                *(percent_number(value) for value in cells),
                _weight(sums.weight_max),
                _signed(cosines[index], 3),
                ", ".join(candidate.same) or DASH,
            ]
        )
        means = [float(effective[index]), sums.weight_max, float(cosines[index])]
        fates = sums.fates.ravel().tolist()
        numbers.append([candidate.label, judged, sums.tokens, *fates, *means, " ".join(candidate.same)])
    return Sheet(
        "methods",
        "What each method does to the tokens",
        "Percent of the tokens with an advantage. Methods are grouped by what they judge by: each token's ratio alone; "
        "its probabilities under both policies; the response as a whole; the distributions of the state; or a "
        "threshold over the whole batch. Clipped: the clip interval takes the token's gradient away. Masked: "
        "a gate drops it, and the interval would not have; above and below: on which side of 1 the ratio lies. "
        "Re-weighted: it keeps a gradient, but not r A. With v = g / A, g the gradient weight: effective = "
        "(Σ|v|)² / (n Σv²), mean over the steps. Cosine: of the whole gradient with that of the unclipped r A, mean "
        "over the steps.",
        _METHOD_COLUMNS,
        rows,
        [("clipped", 2), ("masked, A > 0", 2), ("masked, A < 0", 2), ("", 6)],
        numbers,
    )


_METHOD_COLUMNS = ["method", "A > 0", "A < 0", *("above", "below") * 2, "re-weighted", "kept", "effective", "largest v",
                   "cosine", "same formula"]  # fmt: skip
_METHOD_HEAD: list[Any] = [
    "method",
    "judges",
    "tokens",
    *(f"{fate}, {group}" for group in GROUPS for fate in FATES),
    *("effective share", "largest |v|", "cosine with unclipped", "same formula"),
]


def scope_table(result: Replay) -> Sheet:
    """Tell what SAT does with its quantile over a micro-batch and over the whole step."""
    rows, numbers = [], []
    head = ["method", *(f"{key}, {scope}" for key in ("gate", "newly", "q") for scope in SCOPES), "too small"]
    for index in result.sat_methods():
        values = [
            weighted(result, lambda row, s=scope, i=index, k=key: row.scopes[i, s].get(k, math.nan))
            for key in ("sat/gate_rate", "sat/newly_clipped", "sat/q")
            for scope in SCOPES
        ]
        small = weighted(result, lambda row, i=index: row.scopes[i, "microbatch"].get("sat/scope_too_small", math.nan))
        label = result.candidates[index].label
        rows.append(
            [label, *map(percent_number, values[:4]), *(_signed(v, 4) for v in values[4:]), percent_number(small)]
        )
        numbers.append([label, *values, small])
    return Sheet(
        "scopes",
        "The two scopes of SAT's quantile",
        "Gate open and newly clipped (gradient taken only by SAT), percent of the active tokens; q in nats, mean. Too "
        "small: micro-batches in which one response holds so many of the tokens that the gate cannot open for it. "
        f"{_microbatches(result)}",
        ["method", *(scope for _ in range(3) for scope in ("micro-batch", "step")), "micro-batches"],
        rows,
        [("gate open", 2), ("newly clipped", 2), ("q, nats", 2), ("too small", 1)],
        [head, *numbers],
    )


def _microbatches(result: Replay) -> str:
    per_step = [row.microbatches for row in result.rows]
    least, most = min(per_step), max(per_step)
    responses = result.responses / max(sum(per_step), 1)
    how_many = f"{least}" if least == most else f"{least} to {most}"
    return f"A step has {how_many} micro-batch{'es' if most > 1 else ''}, of {responses:.0f} responses on average."


def weighted(result: Replay, value: Any) -> float:
    """Return the mean over steps, weighted by their active tokens. value: of a StepRow; NaN does not count."""
    pairs = [(value(row), row.tokens) for row in result.rows]
    known = [(v, n) for v, n in pairs if math.isfinite(v)]
    total = sum(n for _, n in known)
    return math.fsum(v * n for v, n in known) / total if total else math.nan


def cosine_table(result: Replay) -> Sheet:
    """Tell the cosines between the gradients of the methods."""
    names = [*labels(result), REFERENCE]
    cosines, least = result.cosines.mean, result.cosines.least
    rows = [[name, *(_signed(value, 3) for value in line)] for name, line in zip(names, cosines, strict=True)]
    numbers: list[list[Any]] = [["method", "other", "mean", "min"]]
    for i, name in enumerate(names):
        numbers += [[name, other, float(cosines[i, j]), float(least[i, j])] for j, other in enumerate(names)]
    return Sheet(
        "cosine_numbers",
        "Cosines between the gradients, as numbers",
        "Of the vectors w g over a step's tokens, w = 1 / (active tokens of the response), so that responses weigh "
        "alike; mean over the steps. The minimum is in the CSV.",
        ["", *names],
        rows,
        [],
        numbers,
    )


def steps_table(result: Replay) -> Sheet:
    """List the optimizer steps that were read."""
    head = ["step", "responses", "tokens", "micro-batches", "lag", "d_pi", "|d| 99 %", "effective"]
    names = labels(result)
    numbers: list[list[Any]] = [
        [*head, *(f"{name}: {what}" for name in names for what in ("clipped", "masked", "effective"))]
    ]
    rows = []
    for row in result.rows:
        numbers.append([*_step_numbers(row), *row.shares.ravel().tolist()])
        rows.append(_step_text(row))
    if len(rows) > SHOWN_STEPS:
        left = len(rows) - SHOWN_STEPS
        half = SHOWN_STEPS // 2
        middle = Heading(f"{left} more in the CSV")
        rows = [*rows[:half], [middle, *[""] * (len(head) - 1)], *rows[-half:]]
    return Sheet(
        "steps",
        "Optimizer steps",
        "Lag: optimizer updates between the generating weights and the trained ones, where the dump has it. d_pi: mean "
        "of |log π − log μ|; effective: that of the importance weights π / μ. The CSV has every method's shares of "
        "each step.",
        head,
        rows,
        [],
        numbers,
    )


def _step_numbers(row: StepRow) -> list[Any]:
    mismatch = [row.mismatch[f"mismatch/{key}"] for key in ("d_pi", "q99", "ess")]
    return [row.name, row.responses, row.tokens, row.microbatches, "" if row.lag is None else row.lag, *mismatch]


def _step_text(row: StepRow) -> list[str]:
    d_pi, q99, ess = (row.mismatch[f"mismatch/{key}"] for key in ("d_pi", "q99", "ess"))
    lag = DASH if row.lag is None else f"{row.lag:.2f}".rstrip("0").rstrip(".")
    counts = [f"{row.responses:,}", f"{row.tokens:,}", f"{row.microbatches:,}", lag]
    return [row.name, *counts, f"{d_pi:.4f}", f"{q99:.3f}", percent_number(ess)]


def sweep_rows(result: Replay) -> list[list[Any]]:
    """Return the scope sweep as rows, its head first."""
    rows: list[list[Any]] = [["method", "order", "responses", "tokens", "gate rate", "newly clipped"]]
    for index, sweep in result.sweeps.items():
        gate, newly = sweep.rates(sweep.gated), sweep.rates(sweep.newly)
        label = result.candidates[index].label
        for (i, order), (j, size) in itertools.product(enumerate(ORDERS), enumerate(SIZES)):
            rows.append([label, order, size, int(sweep.tokens[i, j]), float(gate[i, j]), float(newly[i, j])])
    return rows


def _weight(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _signed(value: float, digits: int) -> str:
    return minus(decimals(value, digits))


# -------------------------------------------------------------------------------------------------------------- figures

MANY = 20
"""With more methods than this the numbers of a matrix are small."""


def figures(result: Replay) -> Iterator[Figure]:
    """List all figures, which are drawn when asked for."""
    yield Figure(
        "fates",
        "Whose gradient is taken",
        "Percent of the tokens with that sign of the advantage, by method. Clipped by the interval, or masked by a "
        "gate on the side where the ratio lies; what is left keeps a gradient. At the end of a bar, the sum.",
        partial(draw_fates, result),
    )
    yield Figure(
        "weights",
        "How much a token weighs",
        "v = g / A, mean over the tokens in a bin of d = log π − log μ: what the method puts in the place of 1 on the "
        "token's own A ∇log π. Dotted: the ratio itself, which importance sampling without a bound would put there. "
        "Axes are cut at 3 and at −1. A sequence ratio spreads its weight over a response, so its line is flat.",
        partial(draw_weights, result),
    )
    yield Figure(
        "cosines",
        "How alike the gradients are",
        "Cosine between the methods' gradients over the tokens, mean over the steps. 1: the same direction. What it "
        "weighs are tokens, not parameters: two tokens count as unrelated.",
        partial(draw_cosines, result),
    )
    yield Figure(
        "scope",
        "SAT against the scope of its quantile",
        "The gate opens on the tokens above the quantile of |d| over the scope, at most the grey line's share. With "
        "few responses in it the sequence ratio ties: all tokens of a response share one d, and the stalest one holds "
        "more of the tokens than the tail may. Grouped: responses to a prompt stand together, as they are sampled.",
        partial(draw_scope, result),
    )


FATE_LOOKS = (
    Look("clipped", VERMILION, "", "bar", filled=True),
    Look("masked, ratio above 1", ORANGE, "", "bar", filled=True),
    Look("masked, ratio below 1", SKY, "", "bar", filled=True),
)


def draw_fates(result: Replay) -> Drawing | None:
    """Draw the clipped and masked shares by method, for each sign of the advantage."""
    table: Table = {"method": np.arange(len(labels(result)), dtype=float)}
    return column_of([partial(_fates_panel, result, sign) for sign in (0, 1)], zoom=False, table=table)


def _fates_panel(result: Replay, sign: int, table: Table, shown: alt.Parameter) -> Plot:
    names = labels(result)
    counts = np.stack([sums.fates[2 * sign : 2 * sign + 2] for sums in result.total.methods]).astype(float)
    of = np.maximum(counts.sum(axis=(1, 2)), 1)
    shares = (counts[:, :, CLIPPED].sum(axis=1) / of, counts[:, 0, MASKED] / of, counts[:, 1, MASKED] / of)
    for look, share in zip(FATE_LOOKS, shares, strict=True):
        table[f"{'A > 0' if sign == 0 else 'A < 0'}: {look.name}"] = share
    named = enumerate(zip(FATE_LOOKS, shares, strict=True))
    data = joined([rows(x=100 * share, method=names, line=look.name, place=i) for i, (look, share) in named])
    y = alt.Y("method:N", title=None, sort=names, axis=alt.Axis(ticks=False))
    title = "% of the tokens with that sign"
    bars = alt.Chart(data).transform_filter(shown).mark_bar(height={"band": 0.75})
    bars = bars.encode(
        alt.X("x:Q", title=title, stack="zero"),
        y,
        in_colour(FATE_LOOKS),
        alt.Order("place:Q"),
        tooltip=[tip("method:N", "method"), tip("line:N", "fate"), tip("x:Q", title)],
    )
    total = np.sum(shares, axis=0)
    sums = alt.Chart(rows(x=100 * total, method=names, told=[percent_number(share) for share in total]))
    text = sums.mark_text(align="left", dx=4).encode(alt.X("x:Q", title=title), y, text="told:N")
    title = "advantage above 0" if sign == 0 else "advantage below 0"
    return Plot(layered(bars, text, title=title, height=alt.Step(18)), FATE_LOOKS)


WEIGHTS = (Look("ratio r", BLACK, ":"), Look("A > 0", BLUE), Look("A < 0", VERMILION, "--"))


def draw_weights(result: Replay) -> Drawing | None:
    """Draw the mean weight v by d, a panel for each method."""
    names = labels(result)
    tokens = result.total.curve_tokens
    seen = np.flatnonzero(tokens.sum(axis=0))
    if not len(seen):
        return None
    part = slice(seen[0], seen[-1] + 1)
    centres = bin_centres()[part]
    table: Table = {"d": centres, "A > 0: tokens": tokens[0, part], "A < 0: tokens": tokens[1, part]}
    parts = []
    for name, sums in zip(names, result.total.methods, strict=True):
        parts.append(rows(x=centres, y=np.exp(centres), line="ratio r", panel=name))
        for sign, look in enumerate(WEIGHTS[1:]):
            with np.errstate(invalid="ignore", divide="ignore"):
                mean = np.where(tokens[sign] > 0, sums.curve[sign] / tokens[sign], np.nan)[part]
            table[f"{name}: v, {look.name}"] = mean
            parts.append(rows(x=centres, y=mean, line=look.name, panel=name))
    axis = alt.Axis(values=[-10, -1, -0.1, -0.01, 0, 0.01, 0.1, 1, 10], format="~g")
    scale = alt.Scale(type="symlog", constant=1e-3, nice=False)
    base = (
        alt.Chart()
        .transform_filter(chosen())
        .encode(
            alt.X("x:Q", title="d = log π − log μ, nats", scale=scale, axis=axis),
            alt.Y("y:Q", title="v", scale=alt.Scale(domain=[-1.15, 3], nice=False), axis=alt.Axis(tickCount=4)),
        )
    )
    tips = [tip("panel:N", "method"), tip("line:N", "line"), tip("x:Q", "d, nats"), tip("y:Q", "v")]
    panel = layered(*lines(base, WEIGHTS, tips), height=90)
    return facets(panel, joined(parts), 2, table, WEIGHTS)


def bin_centres() -> np.ndarray:
    """Return (bins,) a d inside each bin: geometric means, 0 between the smallest edges, the edge itself outside
    all."""
    inner = np.sign(EDGES[1:]) * np.sqrt(np.abs(EDGES[:-1] * EDGES[1:]))
    inner[len(EDGES) // 2 - 1] = 0.0
    return np.concatenate([[EDGES[0]], inner, [EDGES[-1]]])


def draw_cosines(result: Replay) -> Drawing | None:
    """Draw the matrix of cosines, with its numbers in it where they have room."""
    names = [*labels(result), REFERENCE]
    values = result.cosines.mean
    if not np.isfinite(values).any():
        return None
    table: Table = {name: values[:, j] for j, name in enumerate(names)}
    many = len(names) > MANY
    i, j = np.nonzero(np.isfinite(values))
    data = rows(one=[names[a] for a in i], other=[names[b] for b in j], cosine=values[i, j])
    text: Any = {"title": None, "sort": names}
    axis: Any = {"ticks": False, "domain": False, "labelFontSize": 9 if many else 11, "labelOverlap": False}
    axis["labelLimit"] = 300
    base = alt.Chart(data).encode(
        alt.X("one:N", **text, axis=alt.Axis(labelAngle=-60, **axis)), alt.Y("other:N", **text, axis=alt.Axis(**axis))
    )
    tips = [tip("one:N", "method"), tip("other:N", "and"), tip("cosine:Q", "cosine", ".4f")]
    # never so dark that the numbers cannot be read
    scale = alt.Scale(range=[0.04, 0.45], zero=False)
    legend = alt.Legend(title="cosine", orient="top", direction="horizontal", symbolType="square", tickCount=5)
    shade = alt.Opacity("cosine:Q", scale=scale, legend=legend)
    cells = base.mark_rect(color=BLUE).encode(shade, tooltip=tips)
    numbers = base.transform_filter(f"width > {(18 if many else 30) * len(names)}").mark_text(
        fontSize=8 if many else 10
    )
    numbers = numbers.encode(text=alt.Text("cosine:Q", format=".2f"))
    return grid_of([[layered(cells, numbers, height=alt.Step(16 if many else 24))]], table)


def draw_scope(result: Replay) -> Drawing | None:
    """Draw the gate rate, and what SAT newly clips, by the number of responses in the scope."""
    drawn = {i: sweep for i, sweep in result.sweeps.items() if sweep.tokens.any()}
    colours = (BLUE, VERMILION, ORANGE, SKY, BLACK)
    styles = (("-", "o", True), ("--", "s", False))
    looks = apart(
        Look(f"{result.candidates[index].label}, {order}", colours[place % len(colours)], *style)
        for place, index in enumerate(drawn)
        for order, style in zip(ORDERS, styles, strict=True)
    )
    rates: dict[str, dict[Look, np.ndarray]] = {"gate": {}, "newly": {}}
    of_lines = iter(looks)
    table: Table = {"responses": np.array(SIZES, dtype=float)}
    for sweep in drawn.values():
        for row, _ in enumerate(ORDERS):
            look = next(of_lines)
            for what, counts in (("gate", sweep.gated), ("newly", sweep.newly)):
                rates[what][look] = table[f"{look.name}: {what}"] = sweep.rates(counts)[row]
    if not drawn:
        return None
    levels = sorted({candidate.method.sat.alpha for candidate in result.candidates if candidate.method.sat})
    panels = [
        partial(_scope_panel, "gate open", rates["gate"], [100 * (1 - alpha) for alpha in levels]),
        partial(_scope_panel, "newly clipped: gradient taken only by SAT", rates["newly"], []),
    ]
    return column_of(panels, zoom=False, table=table)


def _scope_panel(
    title: str, rates: dict[Look, np.ndarray], levels: list[float], table: Table, shown: alt.Parameter
) -> Plot:
    """levels: what the gate can open at most, for each level of the quantile."""
    axis = alt.Axis(values=list(SIZES), format="d")
    base = (
        alt.Chart()
        .transform_filter(shown)
        .encode(
            alt.X("x:Q", title="responses in the scope", scale=alt.Scale(type="log", base=2, nice=False), axis=axis),
            alt.Y("y:Q", title="% of the tokens"),
        )
    )
    data = joined([rows(x=list(SIZES), y=100 * values, line=look.name) for look, values in rates.items()])
    tips = [tip("line:N", "method, order"), tip("x:Q", "responses", "d"), tip("y:Q", "% of the tokens")]
    layers: list[Any] = [rule("y", level, color=GREY, strokeWidth=1.2) for level in levels]
    layers.append(layered(*lines(base, list(rates), tips), data=data))
    return Plot(layered(*layers, title=title), list(rates))
