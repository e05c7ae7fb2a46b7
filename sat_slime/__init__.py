"""Staleness-adaptive trust regions for asynchronous RL: the objective, a plugin for slime, and the loop on a laptop."""

__version__ = "0.1.0"
