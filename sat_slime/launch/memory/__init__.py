"""Counts what a run of slime needs of GPUs and hosts, and holds it against what they have."""
