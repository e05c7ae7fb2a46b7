"""A grid of runs: its plan, its folder and the order in which its cells run."""
