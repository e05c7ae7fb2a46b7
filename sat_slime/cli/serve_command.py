"""`sat-slime serve`: a local page of all runs and grids."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sat_slime.cli.terminal import bad_input

PORT = 8800


def serve(
    folder: Annotated[Path, typer.Argument(help="Where runs and grids are looked for, four folders deep.")] = Path("."),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any that is free.")] = PORT,
) -> None:
    """Show all runs and grids below a folder on a page of this machine, live while they train.

    The page is for a browser on this machine (127.0.0.1) and only reads. From
    elsewhere: ssh -L 8800:localhost:8800 THIS_MACHINE
    """
    from sat_slime.report.serve.page_server import Server

    if not folder.is_dir():
        bad_input([f"{folder} is not a folder"])
    try:
        server = Server(folder, port)
    except OSError as error:
        bad_input([f"port {port}: {error.strerror}; choose another one with --port, 0 for any"])
    typer.echo(f"{server.address}  (Ctrl-C stops it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
