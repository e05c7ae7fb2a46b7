"""`sat-slime replay`: what every method would have done to dumped batches. Methods are chosen, each optimizer step is
read and summed up, and a page tells of it."""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from sat_slime.config import ConfigError
from sat_slime.config.loader import read_section
from sat_slime.config.method_section import SWITCHES, MethodConfig, build_method, laid_over, section_name
from sat_slime.config.source import parse_setting
from sat_slime.objective import PAPER_METHODS, Method, check_method, method_names, mismatch_metrics, named_method
from sat_slime.report.charts import DASHES, ORANGE, SKY, VERMILION, Chart, Look, bars
from sat_slime.report.dumps import Column, Skipped, StepBatch, find_dumps, steps
from sat_slime.report.gradient import COUNTS, FATES, GROUPS, added, cosines, effective, span_sums, step_thresholds
from sat_slime.report.page import DASH, Form, Page, Section, Table, as_text, count_of, minus, write_page
from sat_slime.runs.folder import RunFolderError

# -------------------------------------------------------------------------------------------------------------- methods

ALL, USUAL = "all", "usual"
ASYNCHRONOUS = ("decoupled", "mis-geo", "cispo", "m2po", "opsm", "seq-tis")
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


def choose(names: str = USUAL, settings: Sequence[str] = ()) -> list[Candidate]:
    """Choose the methods of a comma-separated list, all of them, or the usual ones; each formula once. Of all and of
    the usual ones those are kept, as refused, that mean nothing with the settings.

    settings: `sat.alpha=0.95` texts in the keys of a run's `method` section, for the methods that read that key; a
    list of values makes a candidate of each. Raises ConfigError for an unknown name, key or value, a combination
    without meaning, or a setting that no method reads.
    """
    wanted = _wanted(names)
    given = {text: _values(text) for text in settings}
    chosen: dict[object, Candidate] = {}
    refused: list[Candidate] = []
    read: set[str] = set()
    for name in dict.fromkeys(wanted):
        try:
            method = named_method(name)
        except ValueError as error:
            raise ConfigError(f"--methods: {error}") from None
        reads = {t: kv for t, kv in given.items() if any(_with(name, {kv[0]: v}) != method for v in kv[1])}
        read |= reads.keys()
        choices = [[(key, value) for value in values] for key, values in reads.values()]
        for varied in map(dict, itertools.product(*choices)):
            label = " ".join([name, *(f"{key}={_shown(value)}" for key, value in varied.items())])
            candidate = Candidate(label, _with(name, varied) if varied else method)
            try:
                check_method(candidate.method)
            except ValueError as error:
                reason = str(error).removeprefix(f"{candidate.method.name}: ")
                if not names_several(names):
                    raise ConfigError(f"{label}: {reason}; or leave {name} out of --methods") from None
                refused.append(replace(candidate, refused=reason))
                continue
            formula = candidate.method.formula
            if (first := chosen.setdefault(formula, candidate)) is not candidate:
                chosen[formula] = replace(first, same=(*first.same, label))
    if unread := [text for text in given if text not in read]:
        raise ConfigError(f"--set {unread[0]} changes none of the methods {', '.join(wanted)}: leave it out")
    return [*chosen.values(), *refused]


def names_several(names: str) -> bool:
    """Say whether `names` stands for methods that nobody has named one by one: `all`, or `usual`."""
    return names.strip() in (ALL, USUAL)


def _wanted(names: str) -> list[str]:
    if names_several(names):
        usual = [*(method.name for method in PAPER_METHODS), *ASYNCHRONOUS]
        return method_names() if names.strip() == ALL else usual
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if mixed := {ALL, USUAL}.intersection(wanted):
        raise ConfigError(f"--methods {names}: {mixed.pop()} stands alone: leave it out, or the other names")
    if not wanted:
        raise ConfigError(f"--methods names none: give names with commas between them, {ALL} or {USUAL}")
    return wanted


def _values(text: str) -> tuple[str, list[Any]]:
    """Return the key of a setting, and its values."""
    key, value = parse_setting(text)
    return key.removeprefix("method."), value if isinstance(value, list) else [value]


def _with(name: str, settings: dict[str, Any]) -> Method:
    """Return the named method with dotted keys of the method section set. Raises ConfigError."""
    method, section = named_method(name), laid_over({}, name)
    own = {section_name(method, part) for part in method.stabilizers}
    for key, value in settings.items():
        *path, last = key.split(".")
        if path[:1] == ["settings"] and (method.base_is_ours or not hasattr(method.base, last)):
            continue  # those of another base that is not ours
        own |= set() if path else {last}
        for part in (last, *reversed(path)):
            value = {part: value}
        section = laid_over(section, value)
    config = read_section(MethodConfig, section, f"--set of {name}")
    try:
        # settings of what a method has not are those of others
        return build_method(config.model_copy(update=dict.fromkeys(SWITCHES - own)))
    except ValueError as error:
        raise ConfigError(f"--set of {name}: {error}") from None


def read_columns(method: Method) -> frozenset[Column]:
    """Return the columns that the method reads of those that only some dumps hold."""
    pi_l: set[Column] = {"checkpoint_log_probs"} if method.denominator == "checkpoint" else set()
    return frozenset(pi_l.union(need for need in method.needs if need != "entropies"))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"')


def answerable(
    candidates: Sequence[Candidate], columns: frozenset[Column]
) -> tuple[list[Candidate], dict[str, list[str]]]:
    """Return (the candidates that a dump with these columns has the data for, the names of the others by reason)."""
    kept: list[Candidate] = []
    left_out: dict[str, list[str]] = {}
    for candidate in candidates:
        if reason := candidate.refused or lacks(candidate.method, columns):
            left_out.setdefault(reason, []).extend([candidate.label, *candidate.same])
        else:
            kept.append(candidate)
    return kept, left_out


def lacks(method: Method, columns: frozenset[Column]) -> str | None:
    """Say what the method reads and a dump with these columns does not hold; None where nothing is missing."""
    if method.has("topp"):
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
        "reads the lag of each token, and this dump does not hold the versions of the generating weights; those of a "
        "lab run do"
    ),
}
"""Why a method cannot be replayed on a dump without the column, and what helps."""


# ------------------------------------------------------------------------------------------------------ dumps into sums

SPAN_TOKENS = 32_768
"""Tokens computed together: enough to outweigh the cost of calling torch, few enough for the processor's cache."""


@dataclass(frozen=True)
class StepRow:
    """One optimizer step."""

    name: str
    responses: int
    tokens: int
    """Active ones."""
    lag: float | None
    """Mean of the active tokens; None where it is not known."""
    d_pi: float
    sums: pd.DataFrame
    products: np.ndarray
    """Both of `span_sums`."""


@dataclass
class Replay:
    """The result of a replay, of which tables and figures are made."""

    candidates: list[Candidate]
    left_out: dict[str, list[str]]
    """The names of methods that cannot be replayed on the dumps, by the reason."""
    passed_over: int
    """Dumps that were left out, since a method reads what they do not hold."""
    skipped: list[Skipped]
    rows: list[StepRow] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        """Labels of the methods."""
        return [candidate.label for candidate in self.candidates]

    @property
    def total(self) -> pd.DataFrame:
        """The sums over all steps."""
        return added(row.sums for row in self.rows)

    def cosines(self) -> np.ndarray:
        """Return (M + 1, M + 1) mean cosines over the steps; NaN where no step had both gradients."""
        return np.ma.masked_invalid([cosines(row.products) for row in self.rows]).mean(axis=0).filled(np.nan)


def replay(
    paths: Sequence[str | Path],
    candidates: Sequence[Candidate],
    on_step: Callable[[StepRow], None] = lambda row: None,
    every_dump: bool = False,
) -> Replay:
    """Replay the methods on every optimizer step in `paths`, one of which is in memory at a time.

    A method that reads what only some dumps hold confines all of them to those, so that they are compared on the same
    tokens; with `every_dump` such a method is left out instead, if others are left. on_step: is called after each step.
    Raises RunFolderError where nothing that was given can be replayed.
    """
    dumps, skipped = find_dumps(paths)
    held = [dump.columns for dump in dumps]
    read = [read_columns(candidate.method) for candidate in candidates if not candidate.refused]
    most = max((columns & frozenset().union(*read) for columns in held), key=len, default=frozenset())
    usable, left_out = answerable(candidates, frozenset.intersection(*held) if every_dump and held else most)
    if not usable:
        usable, left_out = answerable(candidates, most)
    if dumps and not usable:
        reason, (first, *_) = next(iter(left_out.items()))
        raise RunFolderError(f"none of the methods can be replayed: {first} {reason}")
    needed = frozenset[Column]().union(*(read_columns(candidate.method) for candidate in usable))
    result = Replay(usable, left_out, sum(not needed <= columns for columns in held), skipped)
    threads_of_torch = torch.get_num_threads()
    torch.set_num_threads(1)  # spans are computed side by side instead
    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for batch in steps([dump for dump in dumps if needed <= dump.columns], result.skipped, needed):
                result.rows.append(_replayed([candidate.method for candidate in usable], batch, pool))
                on_step(result.rows[-1])
                del batch  # a large step must not be in memory together with the next one
    finally:
        torch.set_num_threads(threads_of_torch)
    if not result.rows:
        reasons = "; ".join(map(str, result.skipped[:3]))
        raise RunFolderError(f"nothing to replay: {reasons}")
    return result


def _replayed(methods: Sequence[Method], batch: StepBatch, pool: ThreadPoolExecutor) -> StepRow:
    """Sum up a step. Its spans are added in their order, so that sums do not depend on which thread was first."""
    thresholds = step_thresholds(methods, batch)
    spans = pool.map(lambda span: span_sums(methods, thresholds, span), batch.spans(SPAN_TOKENS))
    sums, products = zip(*spans, strict=True)
    d_pi = mismatch_metrics(batch.log_probs, batch.rollout_log_probs, batch.mask)["mismatch/d_pi"]
    tokens = int(batch.mask.sum())
    lag = float(batch.more["lags"][batch.mask].mean()) if "lags" in batch.more else None
    return StepRow(batch.name, len(batch.lengths), tokens, lag, d_pi, added(sums), np.sum(products, axis=0))


# ------------------------------------------------------------------------------------------------------------- the page


def write_replay(result: Replay, folder: Path, command: Sequence[str]) -> Page:
    """Write report.html, figures/ and tables/ into a folder that `check_out` accepts. command: makes the page again."""
    tokens = sum(row.tokens for row in result.rows)
    return write_page(
        folder / "report.html",
        sections(result),
        title="Replay",
        subtitle=f"{count_of(len(result.rows), 'optimizer step')}, {tokens:,} tokens",
        answer=summary(result),
        warnings=[f"{'skipped' if one.whole else 'left out'}: {one}" for one in result.skipped],
        command=shlex.join(command),
    )


def sections(result: Replay) -> Iterator[Section]:
    """Yield the parts of the page."""
    yield Section(
        "fates",
        "Whose gradient is taken",
        "Percent of the tokens with that sign of the advantage, by method. Clipped by the interval, or masked by a "
        "gate on the side where the ratio lies; what is left keeps a gradient. At the end of a bar, the sum.",
        [fate_chart(result, sign) for sign in (0, 1)],
    )
    yield methods_table(result)
    left_out = [f"Not replayed: {', '.join(names)}: {reason}" for reason, names in result.left_out.items()]
    yield Section("not_replayed", "Methods that this dump cannot answer", sentences=left_out)


def summary(result: Replay) -> Iterator[str]:
    """Say what the methods do here and what was read, a sentence each."""
    yield verdict(result)
    d_pi = np.average([row.d_pi for row in result.rows], weights=[row.tokens for row in result.rows])
    lags = sorted({round(row.lag, 1) for row in result.rows if row.lag is not None})
    responses = sum(row.responses for row in result.rows)
    text = f"{count_of(len(result.rows), 'optimizer step')}, {count_of(responses, 'response')}; d_pi {d_pi:.4f} nats"
    if lags:
        text += f", lag {lags[0]:g}" + (f" to {lags[-1]:g}" if len(lags) > 1 else "")
    yield f"{text}. Each method is asked what it would do to the first optimizer step on these tokens."
    cosines = pd.Series(result.cosines()[:-1, -1], index=result.labels).dropna().sort_values(kind="stable")
    if cosines.round(3).nunique() > 1:
        yield (
            f"Nearest to the unclipped gradient: {cosines.index[-1]} (cosine {cosines.iloc[-1]:.3f}); farthest: "
            f"{cosines.index[0]} ({minus(f'{cosines.iloc[0]:.3f}')})."
        )
    if result.passed_over:
        yield (
            f"{result.passed_over} dumps were left out, since they do not hold what one of the methods reads; leave "
            "that method out of --methods to have them all."
        )


EQUAL = 0.999
"""Cosine from which on two methods make the same first step on these tokens."""


def verdict(result: Replay) -> str:
    """Say of each method of SAT whether it is its base here; without one, which methods make the same step."""
    if not result.total["tokens"].any():
        return "No token has an advantage here."
    cosines, names = result.cosines(), result.labels
    places = {name: i for i, one in enumerate(result.candidates) for name in (one.label, *one.same)}
    said = []
    for index, candidate in enumerate(result.candidates):
        base = candidate.method.without("sat").name
        cosine = cosines[index, places[base]] if candidate.method.sat and base in places else math.nan
        if cosine >= EQUAL:
            said.append(f"here {candidate.label} is {base}: their gradients have cosine {cosine:.4f}")
        elif math.isfinite(cosine):
            said.append(f"{candidate.label} differs from {base}: cosine {cosine:.4f}")
    if not said:
        pairs = [(i, j) for i in range(len(names)) for j in range(i) if cosines[i, j] >= EQUAL]
        said = [f"here {names[i]} makes the step of {names[j]}" for i, j in pairs[:4]]
        said = said or ["no two of the methods make the same step here"]
    text = f"{'; '.join(said)}."
    return f"{text[0].upper()}{text[1:]}" if text.startswith(("here", "no")) else text


def percent_number(share: float) -> str:
    """Return a share in percent as `12.3`, below 1 with two digits, where the column says the unit; a dash for none."""
    if not math.isfinite(share):
        return DASH
    value = 100 * share
    return "0" if value == 0 else f"{value:.1f}" if value >= 1 else f"{value:.2f}" if value >= 0.005 else "< 0.01"


def of_fate(fate: str, groups: Sequence[str] = GROUPS) -> Form:
    """Return the form of the percentage of the tokens that have this fate."""
    return lambda row: percent_number(sum(row[f"{fate}, {group}"] for group in groups) / max(row["tokens"], 1))


def methods_table(result: Replay) -> Table:
    """Tell what every method does to the tokens."""
    frame = result.total[["tokens", *COUNTS, "largest |v|"]].assign(
        **{
            "effective share": pd.DataFrame([effective(row.sums) for row in result.rows]).mean(),
            "cosine with unclipped": result.cosines()[:-1, -1],
            "same formula": [" ".join(candidate.same) for candidate in result.candidates],
        }
    )
    frame.insert(0, "method", result.labels)
    same = "; ".join(f"{one.label}: {', '.join(one.same)}" for one in result.candidates if one.same)
    return Table(
        "methods",
        "What each method does to the tokens",
        "Percent of the tokens with an advantage. Clipped: the clip interval takes the token's gradient away. Masked: "
        "a gate drops it, and the interval would not have. Re-weighted: it keeps a gradient, but not r A. With v = g "
        "/ A, g the gradient weight: effective = (Σ|v|)² / (n Σv²), mean over the steps. Cosine: of the whole gradient "
        "with that of the unclipped r A, mean over the steps, tokens as directions of their own, responses weighing "
        "alike." + f" The same formula: {same}." * bool(same),
        frame=frame,
        forms={
            "method": "",
            "clipped A > 0": of_fate("clipped", GROUPS[:2]),
            "clipped A < 0": of_fate("clipped", GROUPS[2:]),
            "masked": of_fate("masked"),
            "re-weighted": of_fate("re-weighted"),
            "effective": lambda row: percent_number(row["effective share"]),
            "largest v": lambda row: format(row["largest |v|"], ".2f" if row["largest |v|"] < 100 else ",.0f"),
            "cosine": lambda row: as_text(row, "cosine with unclipped", ".3f"),
        },
    )


FATE_LOOKS: dict[str, Look] = {
    "clipped": (VERMILION, DASHES[0]),
    "masked, ratio above 1": (ORANGE, DASHES[0]),
    "masked, ratio below 1": (SKY, DASHES[0]),
}


def fate_chart(result: Replay, sign: int) -> Chart:
    """Draw the clipped and masked shares by method, for one sign of the advantage."""
    rows = []
    above, below = GROUPS[2 * sign : 2 * sign + 2]
    for name, row in zip(result.labels, result.total.to_dict("records"), strict=True):
        of_sign = max(sum(row[f"{fate}, {group}"] for fate in FATES for group in (above, below)), 1)
        clipped = row[f"clipped, {above}"] + row[f"clipped, {below}"]
        shares = [n / of_sign for n in (clipped, row[f"masked, {above}"], row[f"masked, {below}"])]
        own = [{"group": name, "line": fate, "y": 100 * s} for fate, s in zip(FATE_LOOKS, shares, strict=True)]
        own[-1] |= {"end": 100 * sum(shares), "told": percent_number(sum(shares))}
        rows += own
    side, y = ("above", "below")[sign], "% of the tokens with that sign"
    return bars(f"fates_{side}", pd.DataFrame(rows), f"advantage {side} 0", y, of=FATE_LOOKS, text="told")
