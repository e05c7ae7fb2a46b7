"""Commands tell these things in the same way: exit codes, errors without a traceback, how a run ended. It imports
nothing of ours before a command runs, so that --help answers at once."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Option

if TYPE_CHECKING:
    from sat_slime.config.finding import Finding
    from sat_slime.report.page import Page
    from sat_slime.report.page import Table as Numbers

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""
COLOURS = {"OK": "green", "NOTE": "cyan", "WARN": "yellow", "FAIL": "bold red"}
"""Of the marks of findings and checks."""
LONG = 30
"""Characters beyond which a table may break a cell."""

Texts = list[str] | None
setting = partial(Option, "--set", metavar="KEY=VALUE")
OverridesAsInLaunch = Annotated[Texts, setting(help="As in launch. Repeatable.")]


@dataclass(frozen=True)
class Ending:
    """The end of a run, a grid or a rehearsal."""

    status: str
    """finished, interrupted or failed; of a run that goes on as a job, detached."""
    error: str | None
    """The failure: a line that speaks for itself, and what more there is, such as the end of a log."""
    text: str
    """Lines that say where the report is and how to go on."""
    ended: bool = False
    """Of a job: True where it is over, as far as is known."""
    exit_code: int | None = None
    """Of a job's process; None where it was not told, as by a Ray that died."""


def write_utf8() -> None:
    """Have this process write UTF-8 to its standard streams whatever the locale, and to nothing where they are closed:
    the next file that is opened would take their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        if number and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


@contextlib.contextmanager
def without_traceback() -> Iterator[None]:
    """Faults of the input end the command with a line each, Ctrl-C with one."""
    try:
        yield
    except typer.Exit:
        raise
    except (ValueError, RuntimeError) as error:
        from sat_slime.config import ConfigError
        from sat_slime.launch.ray_jobs import JobError
        from sat_slime.runs.folder import RunFolderError

        if not isinstance(error, (ConfigError, JobError, RunFolderError)):
            raise
        bad_input(*(error.errors if isinstance(error, ConfigError) else str(error).splitlines()))
    except OSError as error:
        if error.errno == errno.EPIPE:  # of `| head`
            raise
        reason = str(error.strerror or error)
        bad_input(f"{error.filename}: {reason}" if error.filename else reason)
    except KeyboardInterrupt:
        complain("interrupted")
        raise typer.Exit(INTERRUPTED) from None


class LastingConsole(Console):
    """The console of what outlives its reader: where the pipe behind it is closed, as Ctrl-C closes that to `tee`, the
    rest is written to nothing, and the run goes on to its checkpoint."""

    def on_broken_pipe(self) -> None:
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


def say(console: Console, text: Any, style: str | None = None) -> None:
    """Print text as it is: no markup, no :100: as an emoji, no colors of rich's own, no line broken."""
    console.print(text, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def complain(*lines: str) -> None:
    """Print each line as an error."""
    console = Console(stderr=True)
    for line in lines:
        console.print("[bold red]error:[/] ", end="")
        say(console, line)


def bad_input(*lines: str) -> NoReturn:
    """End the command with a line for each fault of the input."""
    complain(*lines)
    raise typer.Exit(BAD_INPUT) from None


def warn(*lines: str) -> None:
    """Print warnings, on stderr."""
    for line in lines:
        say(Console(stderr=True), f"warning: {line}", "yellow")


def refuse_failures(findings: Iterable[Finding]) -> None:
    """Tell what was found with a warning; raise ConfigError with what failed."""
    from sat_slime.config import ConfigError

    failed = []
    for finding in findings:
        if finding.mark == "FAIL":
            failed.append(f"{finding.what}: {finding.detail}")
        elif finding.mark == "WARN":
            warn(f"{finding.what}: {finding.detail}")
    if failed:
        raise ConfigError(*failed)


def finish(ending: Ending, console: Console) -> NoReturn:
    """Tell how a run or a grid ended, and end the command with its exit code."""
    if ending.error:
        complain(ending.error)
    if ending.text:
        say(console, ending.text)
    codes = {"finished": OK, "detached": OK, "interrupted": INTERRUPTED}
    raise typer.Exit(codes.get(ending.status, FAILED))


def sigterm_as_ctrl_c() -> contextlib.AbstractContextManager[None]:
    """SIGTERM and a hangup raise KeyboardInterrupt, also while the runtime, which handles them, does not run."""
    from sat_slime.config.exits import signals_handled

    return signals_handled(signal.default_int_handler, [signal.SIGTERM, signal.SIGHUP])


def undisturbed() -> contextlib.AbstractContextManager[None]:
    """Inside, Ctrl-C, SIGTERM and a hangup do nothing: what ends processes is not to be interrupted by a second one."""
    from sat_slime.config.exits import signals_handled

    return signals_handled(signal.SIG_IGN)


def short(folder: Path) -> str:
    """Return a folder as a shell takes it, relative to where the command was given if it is below."""
    return shlex.quote(str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder))


def show_page(page: Page, console: Console) -> None:
    """Print what a page says: its warnings, its answer, and its sections but for the charts."""
    from sat_slime.report.page import Table as Numbers

    for line in page.warnings:
        say(console, f"warning: {line}", "yellow")
    for sentence in page.answer:
        say(console, sentence)
    for part in page.sections:
        if isinstance(part, Numbers):
            console.print()
            show_table(part, console)
        elif part.sentences or part.text:
            console.print()
            say(console, part.heading, "bold")
            for sentence in part.sentences:
                say(console, f"- {sentence}")
            say(console, part.text)
    console.print()
    say(console, f"page: {page.path}")


def show_table(numbers: Numbers, console: Console) -> None:
    """Print a table of a page. Headers and long texts are broken where the console is narrow, and no number ever is: a
    table that stays too wide goes over the edge."""
    from sat_slime.report.page import Strong

    rows = [*numbers.rows()]
    columns = zip(numbers.forms, *(cells for _, cells in rows), strict=True)
    least = [
        max((len(text) for text in (*head.split(), *(cell[:LONG] for cell in cells))), default=0)
        for head, *cells in columns
    ]
    table = Table(title=numbers.heading, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, name in enumerate(numbers.forms):
        table.add_column(name, justify="right" if index else "left", min_width=least[index])
    for heading, cells in rows:
        if heading:
            table.add_row(Text(heading, style="dim italic"))
        table.add_row(*map(Text, cells), style="bold" if isinstance(cells[0], Strong) else None)
    console.print(table, width=max(console.width, sum(least) + 2 * len(least) - 2), crop=False)
