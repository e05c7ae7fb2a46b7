"""The command `sat-slime`."""

from sat_slime.cli.app import app, main

__all__ = ["app", "main"]
