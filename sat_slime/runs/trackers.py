"""One run out of whatever slime's trackers left: TensorBoard events, slime's log, JSON lines.

Each form is read as rows by slime's names, each with its step, as slime hands them to its trackers: `train/*` with
`train/step`, `rollout/*` with `rollout/step`, `eval/DATASET` with `eval/step`. slime counts all three from 0.

- Scalars of `--use-tensorboard`. slime's processes write files of their own, without `--tb-experiment-name` into
  folders of their own too, so that a folder is read with all below it. The step key is the step of the event.
- JSON lines of what slime gave its trackers, such as the history of a run that W&B's API returns.
- What the job printed. slime logs each dictionary of metrics before its step is put in, with the number of the rollout
  in front of it: `rollout 3: {...}`. With `--wandb-always-use-train-step` trackers get another number than that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sat_slime.config.jsonl import number, read_rows
from sat_slime.objective.metrics import slime_names
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.reading import RunData, read_settings, run_data

Row = dict[str, Any]

READABLE = (
    "a folder or file of TensorBoard events, slime's own log (what the job printed), or JSON lines of what slime gives "
    "its trackers, such as W&B's history of a run"
)
WANDB_SAYS = (
    "it is a run folder of W&B, whose files no public Python package reads any more. The log that the job printed has "
    "the same numbers: give that. Or get the history from the server, as JSON lines"
)
NAMES = {own: ours for own, ours in slime_names().items() if not own.startswith("perf/")}
"""slime's own metrics, and ours. What the plugin adds has our names after `train/`."""
STEPS_OF_LINES = {"step": "train/step", "rollout": "rollout/step", "eval": "eval/step"}
STEPS_OF_LINES |= dict.fromkeys(("perf", "multi_turn", "passrate"), "rollout/step")
"""The kinds of lines of metrics in slime's log, which but for `step` are prefixes of metrics too, and what their number
is a step of."""
STEP_KEYS = {*STEPS_OF_LINES.values()}


def read_tracked(paths: Sequence[Path]) -> RunData:
    """Return one run by our names, from files and folders of its trackers, whose rows are put together by their steps.
    A metrics.jsonl of ours, or its folder, is taken as it is, with eval.jsonl and config.yaml beside it. Raises
    RunFolderError where a path is not there or of another kind, or nothing in it is a metric of slime, and where one of
    ours is not given alone."""
    files: list[list[Row]] = []
    for path in paths:
        file = RunFolder(path).metrics if RunFolder(path).is_readable() else path
        kind = _kind(file)
        if kind is None:
            raise RunFolderError(f"{file}: {what_it_is(file)}. What can be read is {READABLE}")
        rows = [*kind(file)]
        if any("step" in row for row in rows) and not any(key in row for row in rows for key in STEP_KEYS):
            if len(paths) > 1:
                raise RunFolderError(f"{path} holds a run's rows by our names: give it alone, or with dumps")
            beside = RunFolder(file.parent)
            return run_data(rows, read_rows(beside.eval), read_settings(beside))
        files.append(rows)
    metrics, evals = split_log(*files)
    if not metrics and not evals:
        raise RunFolderError(
            f"{paths[0]} holds no metric of slime: none starts with train/, rollout/ or eval/ and has a step"
        )
    return run_data(metrics, evals)


def is_tracker(path: Path) -> bool:
    """Return whether a path holds a run's rows, or what a tracker or the job's log left, for `read_tracked`."""
    return RunFolder(path).is_readable() or _kind(path) is not None


def what_it_is(path: Path) -> str:
    """Return what an unreadable path seems to be, in words."""
    if not path.exists():
        return "it is not there"
    if path.suffix == ".wandb" or any(path.rglob("*.wandb")):
        return WANDB_SAYS
    if path.is_dir():
        names = sorted({file.suffix or file.name for file in path.iterdir()})[:5]
        return f"it is a folder without metrics; it holds {', '.join(names) or 'nothing'}"
    head = _first_bytes(path, 60)
    if not head:
        return "it is an empty file"
    return f"it is a file of an unknown kind, which starts with {head.decode('utf-8', 'replace')[:40]!r}"


def _kind(path: Path) -> Callable[[Path], Iterable[Row]] | None:
    """Return the function that reads the rows of `path`; None where nothing here does."""
    if "tfevents" in path.name if path.is_file() else any(path.rglob("*tfevents*")):
        return event_rows
    if not path.is_file():
        return None
    if _first_bytes(path, 1) == b"{":
        return read_rows
    return log_rows if next(log_rows(path), None) else None


def _first_bytes(path: Path, count: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(count)


def event_rows(path: Path) -> Iterator[Row]:
    """Yield the scalars of a file, or of all files of a folder, in the order of their times. Raises RunFolderError
    where the package tensorboard is missing."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise RunFolderError(
            f"{path} holds TensorBoard events, and the package tensorboard that reads them is not installed: "
            "pip install tensorboard"
        ) from error
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*tfevents*") if file.is_file())
    events = [event for file in files for event in LegacyEventFileLoader(str(file)).Load()]
    for event in sorted(events, key=lambda event: float(event.wall_time)):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                part = value.tag.partition("/")[0]
                yield {value.tag: value.simple_value, STEPS_OF_LINES.get(part, f"{part}/step"): event.step}


# slime logs Python dictionaries: `[2026-08-21 12:00:00] model.py:918 - step 3: {'train/loss': 0.1, 'train/x': nan}`.
# Numbers are picked out one by one, since nan, inf and NumPy's own notation are no Python literals.
_METRICS = re.compile(rf"(?:^|\s)(?P<kind>{'|'.join(STEPS_OF_LINES)}) (?P<number>\d+): \{{(?P<values>.*)\}}")
_VALUE = re.compile(
    r"'(?P<key>[^']+)': (?:np\.\w+\()?(?P<value>[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))(?=[,)}\s]|$)", re.IGNORECASE
)
_PHASE = re.compile(r"\bTimer (?P<name>\w+) start\b")
_TROUBLE = re.compile(r"\b(?:\w*Error|\w*Exception|Traceback|out of memory|SIGKILL|SIGSEGV)\b")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def phase_and_trouble(line: str) -> tuple[str, str]:
    """Return the phase that a line of slime's log names, and the line itself where it tells of trouble; else empty."""
    line = _ESCAPES.sub("", line).strip()
    phase = _PHASE.search(line)
    trouble = not phase and _TROUBLE.search(line) and not _METRICS.search(line)
    return phase["name"].replace("_", " ") if phase else "", line if trouble else ""


def log_rows(path: Path) -> Iterator[Row]:
    """Yield the metrics that slime's job printed, in the order of the lines; nothing in them is evaluated."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if ": {" in line and (match := _METRICS.search(_ESCAPES.sub("", line).strip())):
                metrics = {value["key"]: float(value["value"]) for value in _VALUE.finditer(match["values"])}
                if metrics:
                    yield {**metrics, STEPS_OF_LINES[match["kind"]]: int(match["number"])}


def split_log(*files: Iterable[Mapping[str, Any]]) -> tuple[list[Row], list[Row]]:
    """Return (rows of metrics.jsonl, rows of eval.jsonl) from files of one run of slime. Of several data sets only the
    first one that was evaluated is kept, of a step that a resumed job tells again what it told last."""
    parts = [*map(list, files)]
    rows = [row for part in parts for row in part]
    n_train = 1 + max((int(row["train/step"]) for row in rows if _is_step(row, "train/step")), default=-1)
    n_rollouts = 1 + max((int(row["rollout/step"]) for row in rows if _is_step(row, "rollout/step")), default=-1)
    ratio = n_train / n_rollouts if n_train and n_rollouts else 1
    # of few rollouts the newest is not all trained; of many either may be told one further than the other
    per_rollout = max(1, round(ratio) if n_rollouts > 2 * math.ceil(ratio) else math.ceil(ratio))
    steps, evals = dict[int, Row](), dict[int, Row]()
    names = (key for row in rows if _is_step(row, "eval/step") for key in row if key.startswith("eval/"))
    dataset = next((key for key in names if key != "eval/step" and _is_dataset(key)), None)
    evaluated = [row["eval/step"] for row in rows if _is_step(row, "eval/step") and row.get(str(dataset)) is not None]
    each_rollout, twice = {1, 2} <= {*evaluated}, evaluated.count(0) > 1
    for part in parts:
        trained = False  # what was evaluated before training is seen by the order within a file
        for row in part:
            if _is_step(row, "train/step"):
                trained = True
                step = int(row["train/step"]) + 1
                steps.setdefault(step, {"step": step}).update(_ours(row, "train/"))
            elif _is_step(row, "rollout/step"):
                last = (int(row["rollout/step"]) + 1) * per_rollout
                for step in range(last - per_rollout + 1, last + 1):
                    steps.setdefault(step, {"step": step}).update(_ours(row, "rollout/"))
            elif _is_step(row, "eval/step"):
                own = {"accuracy": row.get(str(dataset)), "weights_step": row.get(f"{dataset}-weights_step")}
                if measured := {name: value for name, value in own.items() if value is not None}:  # an event tells one
                    before = not trained and row["eval/step"] == 0  # exports by file tell the evaluations first
                    if each_rollout:  # that after the first one has the number 0 too
                        before = before and twice and not measured.keys() & evals.get(0, {}).keys()
                    step = 0 if before else (int(row["eval/step"]) + 1) * per_rollout
                    told = evals.setdefault(step, {"step": step, "dataset": str(dataset).removeprefix("eval/")})
                    told.update(measured)
    return [steps[step] for step in sorted(steps)], [evals[step] for step in sorted(evals) if "accuracy" in evals[step]]


def _is_step(row: Mapping[str, Any], key: str) -> bool:
    return math.isfinite(number(row, key))


def _is_dataset(key: str) -> bool:
    """`eval/aime24` is a score; `eval/aime24/response_len/mean`, `eval/aime24-truncated_ratio` tell more of it."""
    name = key.removeprefix("eval/")
    return "/" not in name and not name.endswith(("-truncated_ratio", "-weights_step")) and "-pass@" not in name


def _ours(row: Mapping[str, Any], prefix: str) -> Row:
    """Return the metrics with a prefix, by our names: of two of one name the plugin's exact one, whatever their order.
    Exports have nulls, and W&B's NaN and infinities as text."""
    return {
        NAMES.get(key, key.removeprefix(prefix)): float(value) if value in ("NaN", "Infinity", "-Infinity") else value
        for key, value in sorted(row.items(), key=lambda item: item[0] not in NAMES)
        if key.startswith(prefix) and key not in STEP_KEYS and value is not None
    }
