"""`sat-slime report`, `methods`, `replay` and `diagnose`: what a run, a method or dumped tokens tell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Argument, Option

from sat_slime.cli.terminal import FAILED, OK, Texts, bad_input, say, setting, show_page, show_table, warn


def report(
    paths: Annotated[
        list[Path],
        Argument(metavar="RUN_OR_GRID...", help="Run folders, grids, or files of slime's metrics; see docs/runs.md."),
    ],
    out: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Where the page goes; default: into the run or the grid, else [bold]report/[/]."),
    ] = None,
    paper: Annotated[
        bool, Option("--paper", help="Of a comparison, add the paper's numbers and what of its table has not run.")
    ] = False,
) -> None:
    """Write report.html and figures of a run, of several, or of a grid, whatever there is of them.

    One run: what happened in it. Several, or a grid: their curves over each
    other, what differs beyond noise, and what the figures do not show.

        sat-slime report runs/quickstart

        sat-slime report grids/lab

        sat-slime report runs/gspo-lag8-seed* runs/sat-gspo-lag8-seed* --out comparison
    """
    from sat_slime.report.run import write_report
    from sat_slime.runs.folder import RunFolder
    from sat_slime.runs.grid import GridFolder
    from sat_slime.runs.reading import row_faults
    from sat_slime.runs.trackers import is_tracker

    if len(paths) == 1 and RunFolder(paths[0]).is_readable():
        page = write_report(paths[0], out)
    elif len(paths) == 1 and not GridFolder(paths[0]).is_grid() and is_tracker(paths[0]):
        from sat_slime.report.checkup import write_checkup

        page = write_checkup(paths, out or Path("report")).path
    else:
        from sat_slime.report.comparison import write_comparison  # its statistics take long to import

        page = write_comparison(paths, out, paper)
    typer.echo(page)
    for path in paths:
        for sentence in row_faults(RunFolder(path)) if RunFolder(path).is_readable() else ():
            warn(f"{path}: {sentence}")


def methods(
    name: Annotated[
        str | None, Argument(help="A method, such as sat-gspo-r3, or what goes beside one: sat, tis, r3, topp.")
    ] = None,
) -> None:
    """List the stabilizers and the named methods; of one method, its formula, parameters and source.

    Use one with [bold]launch FILE --method NAME[/], or write
    [bold]method: NAME[/] in the file.

        sat-slime methods sat-gspo
    """
    from sat_slime.cli.method_lines import all_methods, one_method

    console = Console()
    for line in one_method(name) if name else all_methods():
        console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=not console.is_terminal)


def replay(
    paths: Annotated[list[Path], Argument(metavar="DUMP...", help="Dumps, folders of them, or run folders.")],
    methods: Annotated[
        str,
        Option(
            metavar="NAMES",
            help="Methods with commas between them, [bold]all[/], or [bold]usual[/]: the paper's, and what else "
            "asynchronous training is done with.",
        ),
    ] = "usual",
    overrides: Annotated[
        Texts,
        setting(
            help="A setting of the methods that read it, such as [bold]sat.alpha=0.95[/]; a list of values replays "
            "each. Repeatable."
        ),
    ] = None,
    out: Annotated[Path, Option(metavar="FOLDER", help="Where page, figures and tables go.")] = Path("replay"),
) -> None:
    """What would every method have done to these tokens? No GPU, no slime, no run.

    DUMP is a file of slime's [bold]--save-debug-train-data[/], a folder of them, the
    folder of [bold]--dump-details[/], or a run folder with dumps/. For each method: which
    tokens it clips, masks or re-weights, how many it leaves, and how its gradient
    points beside the others'. A file that cannot be read is skipped, a token that
    cannot be is left out; both are named, and the exit code is then 1.

    [bold]Examples[/]

        sat-slime replay runs/my-run

        sat-slime replay runs/my-run --methods all

        sat-slime replay dump/train_data --methods gspo,sat-gspo --out gspo-replay

        sat-slime replay runs/my-run --methods sat-gspo --set 'sat.alpha=[0.8,0.9,0.95]'
    """
    from sat_slime.report.page import check_out
    from sat_slime.report.replay import choose, names_several, write_replay
    from sat_slime.report.replay import replay as replay_dumps

    console = Console(soft_wrap=True)
    candidates = choose(methods, overrides or [])
    check_out(out)
    with console.status("reading dumps") as status:
        result = replay_dumps(
            paths, candidates, lambda row: status.update(f"{row.name}: {row.tokens:,} tokens"), names_several(methods)
        )
    page = write_replay(result, out, ["sat-slime", *sys.argv[1:]])
    show_table(page.tables[0], console)
    for line in (*page.answer, *page.sentences("not_replayed"), *page.warnings):
        say(console, line)
    say(console, f"report: {page.path}")
    raise typer.Exit(FAILED if result.skipped else OK)


def diagnose(
    paths: Annotated[
        list[Path],
        Argument(
            metavar="RUN_OR_FILE...",
            help="A run folder; or what there is of one run of slime: trackers, its log, dumps.",
        ),
    ],
    out: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Where the page goes, except of a run folder; default: [bold]diagnosis/[/]."),
    ] = None,
) -> None:
    """Say what the mismatch of a run is made of; or what makes a run of slime collapse.

    Of a run folder of ours, from the token dumps of diagnosed steps
    ([bold]--set diagnose.every_n_steps=5[/] at launch): policy lag, expert routing,
    precision and the rest, by lag. Page, figures and tables go to [bold]RUN/diagnosis/[/].

    Of a run of slime by a script of its own, from TensorBoard events, W&B's
    history, the log that the job printed, dumps, or the plugin's [bold]run_dir[/]: what
    looks unhealthy since which step, what to try, and which flag would tell more.

        sat-slime diagnose runs/my-run

        sat-slime diagnose tensorboard_log/my-project dump/

        sat-slime diagnose job.log
    """
    from sat_slime.runs.folder import RunFolder

    console = Console()
    if len(paths) == 1 and RunFolder(paths[0]).is_run():
        from sat_slime.report.diagnosis import write_diagnosis

        if out is not None:
            bad_input(f"--out is for trackers, logs and dumps; of a run folder the page is in {paths[0] / 'diagnosis'}")
        show_page(write_diagnosis(paths[0]), console)
    else:
        from sat_slime.report.checkup import write_checkup

        with console.status("reading") as status:
            page = write_checkup(paths, out or Path("diagnosis"), lambda name: status.update(f"reading {name}"))
        show_page(page, console)
