"""`sat-slime stop`: the end of the job of a run of slime."""

from __future__ import annotations

from rich.console import Console

from sat_slime.cli.terminal import RunArgument, finish, without_traceback


def stop(run: RunArgument) -> None:
    """End the job of a run of slime, and the Ray that was started for it. Nothing else is touched.

    What came after the newest checkpoint is lost; [bold]launch RUN --resume[/] goes on from there.
    """
    console = Console()
    with without_traceback():
        from sat_slime.cli.slime_run.sent_run import stop_job

        ending = stop_job(run, console)
    finish(ending, console)
