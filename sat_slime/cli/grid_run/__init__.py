"""Grids: their plan, and the cells that run one after another or side by side."""
