"""Finds the dumps in what the command was given, and reads their optimizer steps one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from sat_slime.report.dumps import train_dump
from sat_slime.report.dumps.step_batch import TOKENS_PER_MICROBATCH, Column, DumpFault, StepBatch
from sat_slime.rollout.token_dump import FOLDER, DumpError, TokenDump, dump_paths, read_dump
from sat_slime.rollout.types import TOOL
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.reading import read_yaml, section

SUFFIXES = (".pt", ".safetensors")


@dataclass(frozen=True)
class Skipped:
    """A file that was left out, or tokens of it, and why."""

    path: Path
    reason: str
    whole: bool = True
    """The whole file, or one step of it; else it was read but for what the reason names."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Dump:
    """Files that are read together: one file, or those that the ranks of slime 0.3.1 wrote of one rollout."""

    paths: tuple[Path, ...]
    tokens_per_microbatch: int = TOKENS_PER_MICROBATCH
    """Bound on the tokens of a micro-batch where neither the user nor the dump says more."""
    columns: frozenset[Column] = frozenset()
    """What its head promises of that which only some dumps hold; reading it says what is true."""


def find_dumps(given: Sequence[str | Path]) -> tuple[list[Dump], list[Skipped]]:
    """Return the dumps in files, folders of them and run folders, in the order given, within a folder by number, and
    the files that were skipped.

    Raises:
        RunFolderError: a path is not there, or a folder without a dump.
    """
    skipped: list[Skipped] = []
    dumps: dict[tuple[Path, ...] | tuple[Path, int], list[tuple[int, Dump]]] = {}
    """By file, or by folder and rollout where the ranks of slime 0.3.1 wrote a file each: (rank, what it holds)."""
    for path in map(Path, given):
        files, tokens = _files(path)
        for file in files:
            if file.suffix == ".safetensors":
                dumps[(file,)] = [(0, Dump((file,), tokens, _columns_of_run(file)))]
                continue
            try:
                header = train_dump.read_header(file)
            except DumpFault as fault:
                skipped.append(Skipped(file, str(fault)))
                continue
            key = (file.parent, header.rollout_id) if header.per_rank else (file,)
            columns: frozenset[Column] = frozenset({"rewards"} if header.rewards else ())
            dumps.setdefault(key, []).append((header.rank, Dump((file,), columns=columns)))
    return [_together(parts) for parts in dumps.values()], skipped


def _together(parts: list[tuple[int, Dump]]) -> Dump:
    """Join the files of one rollout, by their ranks."""
    parts.sort(key=lambda part: (part[0], part[1].paths))
    return replace(parts[0][1], paths=tuple(path for _, dump in parts for path in dump.paths))


def _files(path: Path) -> tuple[list[Path], int]:
    """Return (files of one argument, the bound on a micro-batch's tokens in its run)."""
    if not path.exists():
        raise RunFolderError(f"{path} is not there: give dumps, folders of them, or run folders")
    if path.is_file() and path.suffix in (".jsonl", ".csv", ".log", ".txt"):
        raise RunFolderError(f"{path} holds no tokens. If it has a run's metrics: sat-slime report {path}")
    if path.is_file():
        return [path], TOKENS_PER_MICROBATCH
    if RunFolder(path).is_run() or (path / FOLDER).is_dir():
        files = dump_paths(path)
        if not files:
            raise RunFolderError(f"{path} holds no dumps: run it with --set dump.every_n_iterations=N")
        return files, _tokens_per_microbatch(path)
    folder = path / "train_data" if (path / "train_data").is_dir() else path  # of slime's --dump-details
    files = sorted((file for file in folder.iterdir() if file.suffix in SUFFIXES), key=by_number)
    if not files:
        raise RunFolderError(f"{folder} holds no dump: no file there ends in {' or '.join(SUFFIXES)}")
    return files, TOKENS_PER_MICROBATCH


def _columns_of_run(path: Path) -> frozenset[Column]:
    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
    except (SafetensorError, OSError):  # it is damaged: reading it says so
        names = set()
    columns: set[Column] = {"lags", "rewards"}
    if "checkpoint_log_probs" in names:
        columns.add("checkpoint_log_probs")
    return frozenset(columns)


def by_number(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts 9.pt before 10.pt."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _tokens_per_microbatch(run: Path) -> int:
    tokens = section(read_yaml(RunFolder(run).config), "train").get("tokens_per_microbatch")
    return tokens if isinstance(tokens, int) and tokens > 0 else TOKENS_PER_MICROBATCH


def steps(
    dumps: Sequence[Dump],
    microbatch_tokens: int | None = None,
    needed: frozenset[Column] = frozenset(),
    token_ids: bool = False,
) -> Iterator[StepBatch | Skipped]:
    """Read the optimizer steps of the dumps with their micro-batches, each when asked for. A dump that cannot be read,
    lacks a column that is needed, holds a step again or no active token, is a Skipped, which tells why; so are tokens
    that were left out. microbatch_tokens: the most of a micro-batch; default: the dump's own micro-batches. token_ids:
    read these too."""
    first: dict[tuple[Path, str], Path] = {}
    for dump in dumps:
        path = dump.paths[0]
        try:
            batches = _read(dump, microbatch_tokens is None, token_ids)
        except (DumpFault, DumpError) as fault:
            # a DumpError begins with the file's name
            yield Skipped(path, str(fault).removeprefix(f"{path}").lstrip(": "))
            continue
        missing = sorted(needed - batches[0].columns) if batches else []
        if missing:
            yield Skipped(
                path,
                f"it does not hold {' and '.join(missing)}, which one of the methods reads: leave that out",
            )
            continue
        while batches:  # each step is freed once it was used
            batch = batches.pop(0)
            if (same := first.setdefault((path.parent, batch.name), path)) != path:
                yield Skipped(path, f"it is {batch.name} again, which {same.name} holds")
                continue
            yield from (Skipped(path, f"{batch.name}: {text}", whole=False) for text in batch.left_out)
            if not batch.mask.any():
                yield Skipped(path, f"{batch.name} has no active token")
                continue
            yield batch.arranged(microbatch_tokens, dump.tokens_per_microbatch)


def _read(dump: Dump, own_layout: bool, token_ids: bool) -> list[StepBatch]:
    if dump.paths[0].suffix == ".safetensors":
        return [_of_run(read_dump(dump.paths[0]))]
    return train_dump.read_rollout(dump.paths, own_layout=own_layout, token_ids=token_ids)


def _of_run(dump: TokenDump) -> StepBatch:
    checkpoint, proximal = _more(dump, "checkpoint_log_probs"), _more(dump, "proximal_log_probs")
    if checkpoint is not None and proximal is not None and torch.allclose(checkpoint, proximal, atol=1e-6):
        proximal = None  # a run with the denominator pi_l dumps it in both columns; it is not the trainer's own
    return StepBatch(
        name=f"iteration {dump.iteration}, update {dump.step}",
        log_probs=torch.from_numpy(dump.log_probs),
        rollout_log_probs=torch.from_numpy(dump.rollout_log_probs),
        advantages=torch.from_numpy(dump.advantages),
        mask=torch.from_numpy(dump.mask),
        lengths=torch.from_numpy(dump.lengths),
        lags=torch.from_numpy(np.where(dump.versions == TOOL, 0, dump.updates - dump.versions)).float(),
        rewards=torch.from_numpy(np.repeat(dump.rewards, dump.lengths)),
        checkpoint_log_probs=checkpoint,
        proximal_log_probs=proximal,
        token_ids=torch.from_numpy(dump.tokens),
        left_out=dump.left_out,
    )


def _more(dump: TokenDump, name: str) -> torch.Tensor | None:
    return torch.from_numpy(dump.more[name]).float() if name in dump.more else None
