"""The samples of an evaluation are asked for and kept one by one, and what came of them is shown as a table."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sat_slime.cli.evaluation_run.evaluation_plan import EvaluationPlan
from sat_slime.cli.terminal import say, sigterm_as_ctrl_c
from sat_slime.config import ConfigError
from sat_slime.config.disk import disk_is_full
from sat_slime.config.jsonl import append_row, read_rows, write_atomically
from sat_slime.evaluation.questions import Question, Sampled, ask, by_problem
from sat_slime.evaluation.scores import Graded, measured_weights, problem_table, summary
from sat_slime.reward import KILLED
from sat_slime.rollout.client import ServerLost, ServerRefused
from sat_slime.runs.folder import writable

SHOWN_PROBLEMS = 64
"""Rows of the printed table; eval.json has all."""
SHOWN_CHARACTERS = 24
"""Characters of an answer that the table shows."""
_NOT_COMPARED = ("data", "engine", "samples_per_problem", "repeats", "k")
"""Settings that may differ from those of the samples that are there: none of them changes a sample."""


class EvaluationFailed(RuntimeError):
    """The evaluation began and could not go on. The answers that are there are kept."""


def run_evaluation(plan: EvaluationPlan, overwrite: bool, console: Console) -> dict[str, Any]:
    """Ask for the samples that are missing, and return what eval.json holds. Raises EvaluationFailed or ConfigError."""
    with writable(plan.out):
        plan.out.mkdir(parents=True, exist_ok=True)
    if overwrite:
        for name in ("samples.jsonl", "settings.json", "eval.json"):
            (plan.out / name).unlink(missing_ok=True)
    try:
        with sigterm_as_ctrl_c():
            asyncio.run(_collect(plan, console))
            result = _result(plan)
            write_atomically(plan.out / "eval.json", json.dumps(result, indent=1) + "\n")
    except OSError as error:
        if not disk_is_full(error):
            raise
        raise EvaluationFailed(f"{error}; free space and give the command again: finished samples are kept") from error
    return result


async def _collect(plan: EvaluationPlan, console: Console) -> None:
    async with AsyncExitStack() as stack:
        wanted = by_problem(plan.questions, plan.samples * plan.scores.repeats)
        kept = {(row["problem"], row["sample"]) for row in read_rows(plan.out / "samples.jsonl")}
        missing = [(question, sample) for question, sample in wanted if (question.id, sample) not in kept]
        if kept:
            _check_settings(plan)
        if not missing:
            console.print(
                f"all {len(wanted)} samples are there already: nothing is asked", highlight=False, soft_wrap=True
            )
            plan.settings.update(_saved_settings(plan))
            return
        try:
            engine = await plan.open_engine(stack, plan)
            if kept:
                _check_settings(plan)
            write_atomically(plan.out / "settings.json", json.dumps(plan.settings, indent=1) + "\n")
            grade = plan.open_grade(stack)
            with _progress(console, len(wanted), len(wanted) - len(missing)) as advance:
                async for sampled in ask(engine, missing, grade):
                    append_row(plan.out / "samples.jsonl", _row(sampled))
                    advance(sampled)
        except (ServerLost, ServerRefused) as error:
            raise EvaluationFailed(
                f"{error}; finished samples are kept in {plan.out}: give the command again"
            ) from error
        except RuntimeError as error:
            raise EvaluationFailed(str(error)) from error


def _saved_settings(plan: EvaluationPlan) -> dict[str, Any]:
    path = plan.out / "settings.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def _check_settings(plan: EvaluationPlan) -> None:
    """Raise ConfigError unless the samples that are missing are drawn as those in the folder are, from one model."""
    saved = _saved_settings(plan)
    compared = {key: value for key, value in plan.settings.items() if key not in _NOT_COMPARED}
    changed = [f"{key} ({saved.get(key)!r} -> {value!r})" for key, value in compared.items() if saved.get(key) != value]
    if changed:
        difference = f"{plan.out} holds samples of another evaluation: {', '.join(changed)}"
        raise ConfigError([f"{difference}; choose another --out, or delete them with --overwrite"])


def _row(sampled: Sampled) -> dict[str, Any]:
    answer, verdict = sampled.answer, sampled.verdict
    return {
        "problem": sampled.question.id,
        "sample": sampled.sample,
        "label": sampled.question.label,
        "reward": verdict.reward,
        "reason": verdict.reason,
        "extracted": verdict.extracted,
        "tokens": answer.tokens,
        "truncated": answer.truncated,
        "weights": answer.weights,
        "response": answer.text,
    }


@contextlib.contextmanager
def _progress(console: Console, total: int, done: int) -> Iterator[Callable[[Sampled], None]]:
    """Yields what is called with each sample: it moves a bar on a terminal, and prints every tenth elsewhere."""
    right = answered = 0

    def share_right(sampled: Sampled) -> str:
        nonlocal right, answered
        right, answered = right + int(sampled.verdict.reward > 0), answered + 1
        return f"{right / answered:.1%} right"

    if done:
        console.print(f"{done} of {total} samples are there already", highlight=False, soft_wrap=True)
    if console.is_terminal:
        columns = (TextColumn("samples"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[right]}"), console=console) as bar:
            line = bar.add_task("", total=total, completed=done, right="")
            yield lambda sampled: bar.update(line, advance=1, right=share_right(sampled))
        return
    step = max(1, total // 10)

    def tell(sampled: Sampled) -> None:
        share, there = share_right(sampled), done + answered
        if there % step == 0 or there == total:
            console.print(f"{there} of {total} samples, {share}", highlight=False, soft_wrap=True)

    yield tell


# ---------------------------------------------------------------------------------------------------- the result


def _result(plan: EvaluationPlan) -> dict[str, Any]:
    count = plan.samples * plan.scores.repeats
    rows = {(row["problem"], row["sample"]): row for row in read_rows(plan.out / "samples.jsonl")}
    chosen = [rows[question.id, sample] for question in plan.questions for sample in range(count)]

    def column(key: str) -> np.ndarray:
        return np.array([row[key] for row in chosen]).reshape(len(plan.questions), count)

    graded = Graded(
        column("reward").astype(float), column("tokens"), column("truncated"), [r["reason"] for r in chosen]
    )
    versions = {row["weights"] for row in chosen}
    numbers = [int(row["weights"]) if str(row["weights"]).isdigit() else None for row in chosen]
    table = [
        {"problem": question.id, "label": question.label, **row, "wrong": _commonest_wrong(question, rows, count)}
        for question, row in zip(plan.questions, problem_table(graded), strict=True)
    ]
    return {
        "settings": plan.settings,
        "step": plan.step,
        "weights_step": measured_weights(numbers),
        "weight_versions": sorted(str(version) for version in versions if version is not None),
        **summary(graded, plan.scores.sizes(plan.samples), plan.scores.repeats),
        "problems": table,
    }


def _commonest_wrong(question: Question, rows: dict[tuple[str, int], Any], count: int) -> str | None:
    """Return the wrong answer that was given most often; None where no answer is wrong."""
    wrong = [row["extracted"] for row in (rows[question.id, i] for i in range(count)) if not row["reward"]]
    given = [answer for answer in wrong if answer]
    return max(given, key=given.count) if given else None


def show_result(result: dict[str, Any], console: Console) -> None:
    """Print the table of problems, and the numbers."""
    table = Table(box=None, pad_edge=False)
    for name, justify in (("problem", "left"), ("label", "left"), ("right", "right"), ("accuracy", "right")):
        table.add_column(name, justify=justify, overflow="ellipsis", no_wrap=True)  # type: ignore[arg-type]
    for name in ("cut", "tokens", "silent", "killed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("commonest wrong answer", overflow="ellipsis", no_wrap=True)
    for row in result["problems"][:SHOWN_PROBLEMS]:
        reasons = row["reasons"]
        killed = sum(reasons.get(reason, 0) for reason in KILLED)
        table.add_row(
            _shown(row["problem"]),
            _shown(row["label"]),
            f"{row['correct']}/{row['samples']}",
            f"{row['accuracy']:.3f}",
            str(row["truncated"]),
            f"{row['length_mean']:.0f}",
            str(reasons.get("no_answer", 0)),
            str(killed),
            _shown(row["wrong"] or ""),
        )
    console.print(table)
    if (more := len(result["problems"]) - SHOWN_PROBLEMS) > 0:
        console.print(f"and {more} more, in eval.json")
    for line in lines(result):
        say(console, line)


def _shown(text: str) -> str:
    """Return a text of others without what a terminal or the table would take for commands, cut to its column."""
    cut = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
    return escape("".join(character if character.isprintable() else "·" for character in cut))


def lines(result: dict[str, Any]) -> list[str]:
    """Return the numbers in words, a line each."""
    words = [
        f"accuracy {result['accuracy']:.4f}: {result['n_problems']} problems, {result['n_samples']} samples",
        f"  95 % for these problems       {_interval(result, 'accuracy', '_samples')}",
        f"  95 % for all of their kind    {_interval(result, 'accuracy')}",
    ]
    if runs := result.get("accuracy_by_run"):
        words.append("  each repeat                   " + ", ".join(f"{value:.4f}" for value in runs))
    sizes = sorted({int(key[5:]) for key in result if key.startswith("pass@") and key[5:].isdigit()})
    for k in sizes:
        spread = f" ± {result[f'avg@{k}/se']:.4f} (one evaluation of {k})" if f"avg@{k}/se" in result else ""
        words.append(f"avg@{k} {result[f'avg@{k}']:.4f}{spread}, pass@{k} {result[f'pass@{k}']:.4f}")
    words.append(f"{result['length_mean']:.0f} tokens a response, {result['truncated']:.1%} cut at the longest")
    weights = result["weights_step"]
    versions = ", ".join(result["weight_versions"]) or "unknown"
    words.append(f"weights: version {versions}" if weights is None else f"weights of optimizer step {weights}")
    if len(result["weight_versions"]) > 1:
        words.append("warning: the weights changed while they were evaluated, so these numbers are of no one model")
    return words


def _interval(result: dict[str, Any], name: str, suffix: str = "") -> str:
    low, high = result.get(f"{name}/low{suffix}"), result.get(f"{name}/high{suffix}")
    return "unknown of one problem" if low is None else f"{low:.4f} to {high:.4f}"
