"""What a run of slime needs of GPUs and hosts, and whether they have it."""
