"""Runs of the lab runtime: their plan, the checks of this machine, the driver in a process of its own."""
